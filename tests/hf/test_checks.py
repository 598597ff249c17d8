"""checked_from_pretrained refuses what transformers loads with a warning."""

import logging

import pytest
import torch

from odevit.hf.checks import checked_from_pretrained
from tests.tiny import tiny_model

KEY = "odevit.depth.field.components.attention.norm.weight"


def loader(model, missing=(), unexpected=()):
    """A from_pretrained that has loaded `model`, logs transformers' report and remembers its arguments."""

    def load(source, **kwargs):
        load.source, load.kwargs = source, kwargs
        logging.getLogger("transformers.modeling_utils").warning("LOAD REPORT")
        return model, {"missing_keys": {*missing}, "unexpected_keys": {*unexpected}}

    return load


def test_a_checkpoint_that_fits_is_loaded_with_its_info_if_asked():
    model = tiny_model()
    load = loader(model, missing=["classifier.weight"])
    assert checked_from_pretrained(load, "cifar10", dtype=torch.float32) is model
    assert load.source.name == "cifar10", "the folder of the bundled model"
    assert load.source.is_dir()
    assert load.kwargs == {"dtype": torch.float32, "output_loading_info": True}
    loaded, info = checked_from_pretrained(loader(model, unexpected=[KEY]), "folder", output_loading_info=True)
    assert loaded is model
    assert info["unexpected_keys"] == {KEY}


@pytest.mark.parametrize(
    ("missing", "unexpected", "options", "error"),
    [
        ([KEY], [], {}, rf"folder does not fit .*1 weights are missing \({KEY}\) and 0 .* Load it with the class"),
        (
            [KEY],
            ["a", "b"],
            {"remedy": "Try another"},
            r"1 weights .* 2 are of no use \(a, b\)\. Try another",
        ),
        ([], ["a"], {"strict": True}, r"0 weights are missing .* 1 are of no use \(a\)"),
        (["odevit.depth.field.knots.1.leak"], [], {}, r"another number of knots .*knots=1"),
    ],
)
def test_weights_that_do_not_fit_are_refused_without_the_report_of_transformers(
    missing, unexpected, options, error, caplog
):
    with pytest.raises(ValueError, match=error):
        checked_from_pretrained(loader(tiny_model(), missing, unexpected), "folder", **options)
    assert "LOAD REPORT" not in caplog.text


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused(value):
    model = tiny_model()
    with torch.no_grad():
        model.odevit.embedding.cls_token[0, 0, 0] = value
    with pytest.raises(ValueError, match=r"1 of the \d+ weights of folder hold NaN or infinity \(.*cls_token\)"):
        checked_from_pretrained(loader(model), "folder")
