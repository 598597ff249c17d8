"""What has moved is still found where it was, with a warning that names the new place."""

import importlib
import sys
import warnings

import pytest

import odevit
from odevit.aliases import MODULES, NAMES


@pytest.mark.parametrize(("old", "new"), MODULES.items())
def test_a_module_that_moved_is_found_and_warns(old, new):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} has moved; use {new}$") as caught:
        module = importlib.import_module(old)
    assert caught[0].filename != odevit.aliases.__file__, "the warning points to whoever imports"
    home = importlib.import_module(new)
    public = next(name for name, value in vars(home).items() if callable(value) and not name.startswith("_"))
    assert getattr(module, public) is getattr(home, public)
    with pytest.raises((AttributeError, ImportError)):
        module.no_such_name  # noqa: B018


@pytest.mark.parametrize(("old", "new"), NAMES.items())
def test_a_name_that_moved_is_found_and_warns(old, new):
    (module, name), (home, present) = old.rsplit(".", 1), new.rsplit(".", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        holder = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=f"{old} has moved; use {new}$"):
        value = getattr(holder, name)
    assert value is getattr(importlib.import_module(home), present)


def test_no_alias_hides_a_module_that_exists():
    assert sum(type(finder).__name__ == "Finder" for finder in sys.meta_path) == 1
    for old in MODULES:
        finders = [finder for finder in sys.meta_path if type(finder).__name__ != "Finder"]
        parent = sys.modules.get(old.rpartition(".")[0])
        path = getattr(parent, "__path__", None)
        assert not any(finder.find_spec(old, path) for finder in finders), f"{old} is a module and an alias"


def test_an_error_of_the_new_place_is_not_hidden(monkeypatch):
    monkeypatch.setitem(MODULES, "odevit.gone", "odevit.nowhere")
    with pytest.warns(DeprecationWarning, match="gone has moved"), pytest.raises(ModuleNotFoundError, match="nowhere"):
        importlib.import_module("odevit.gone")
    with pytest.raises(ModuleNotFoundError, match="never_was"):
        importlib.import_module("odevit.never_was")


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("odevit", "OdeStudent Teacher get_ode_model OdeViTConfig OdeViTForImageClassification Save Solution solve"),
        ("odevit.verbs", "train distill evaluate Evaluation analyze explore predict Prediction info load_model"),
        ("odevit.explore", "explore"),
        ("odevit.solver.anytime", "solve_until"),
        ("odevit.solver.base", "SOLVERS FixedStepSolver Solver make_solver"),
        ("odevit.solver.save", "Save"),
        ("odevit.depth.base", "DEPTHS Depth"),
        ("odevit.model", "register_auto_classes make_image_processor TokenLayout make_field PRESETS"),
        ("odevit.model.auto", "register_auto_classes"),
        ("odevit.distill", "TeacherCache cache_features OdeEncoderConfig OdeEncoder PrefixLayout PixelStatistics"),
        ("odevit.distill.student", "OdeStudent"),
        ("odevit.distill.configuration", "OdeEncoderConfig"),
        ("odevit.train.integration", "IntegrationSampler"),
        ("odevit.data.stream_batches", "StreamBatches make_batches"),
        ("odevit.report.collect", "Analysis Sizes analyse"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_public_names_of_version_0_1_are_still_there(module, names):
    holder = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(holder, name)] == []
