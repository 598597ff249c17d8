"""What lies here is read here; the hub is asked for what can only be there."""

import pytest

import odevit.hub
from odevit import OdeViTForImageClassification, get_ode_model, load
from odevit.surgery.plain_vit import load_vit
from tests.tiny import tiny_model
from tests.zoo import make


@pytest.fixture
def asked(monkeypatch):
    """How often the hub was asked whether it answers; it does not."""
    times = []
    monkeypatch.setattr(odevit.hub, "_is_reachable", lambda: bool(times.append(1)))
    return times


def test_load_does_not_contact_the_hub_for_folders_and_bundled_models(asked, tmp_path):
    tiny_model().save_pretrained(tmp_path / "run")
    get_ode_model(make("vit-classifier"), steps=2).save_pretrained(tmp_path / "student")
    make("vit-classifier").save_pretrained(tmp_path / "vit")
    for name in ("run", "student", "vit"):
        load(tmp_path / name)
    load_vit(tmp_path / "vit")
    load("cifar10")
    OdeViTForImageClassification.from_pretrained("cifar10")
    assert not asked


def test_from_pretrained_contacts_an_unreachable_hub_once(asked):
    with pytest.raises(ValueError, match=r"someone/something.* was not found"):
        OdeViTForImageClassification.from_pretrained("someone/something")
    assert len(asked) == 1
