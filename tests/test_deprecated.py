"""Old public names work for one release, each with a warning that gives the new name."""

from importlib import import_module

import pytest
import torch

import odevit
from odevit import SolverConfig
from odevit.deprecated import ARGUMENTS, CLASSES, METHODS, MODULES, RENAMED
from tests.tiny import tiny_images, tiny_model

OLD_PLACES = {
    "Way": "odevit.solver",
    "Save": "odevit.solver",
    "Askable": "odevit.model",
    "Departures": "odevit.solver",
    "Moment": "odevit.solver",
    "Walk": "odevit.depth",
    "Change": "odevit.field",
    "Shelf": "odevit.app",
}


@pytest.mark.parametrize("old", MODULES)
def test_an_old_module_is_imported_with_a_warning_and_its_new_modules_exist(old):
    for home in MODULES[old].split():
        import_module(f"odevit.{home}")
    with pytest.raises(AttributeError, match="no_such_name"):
        import_module(f"odevit.{old}").no_such_name  # noqa: B018


@pytest.mark.parametrize("old", CLASSES)
def test_an_old_class_is_found_in_its_old_module_under_both_names(old):
    module = import_module(OLD_PLACES[old])
    assert getattr(module, old).__name__ == CLASSES[old]
    assert getattr(module, CLASSES[old]) is getattr(module, old)


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_of_a_package_warns_and_is_the_new_one(old):
    package, _, name = old.rpartition(".")
    home, _, new = RENAMED[old].rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"{old} is now {RENAMED[old]}"):
        found = getattr(import_module(package), name)
    assert found is getattr(import_module(home), new)


@pytest.mark.parametrize(("owner", "old"), METHODS, ids=lambda part: getattr(part, "__name__", part))
def test_an_old_attribute_warns_and_is_the_new_one(owner, old):
    model = tiny_model()
    config = SolverConfig("euler", 4, 2.0)
    solution = model(tiny_images(), solver_config=config).trajectory
    instance = next(value for value in (config, solution, model, model.depth) if isinstance(value, owner))
    with pytest.warns(DeprecationWarning, match=f"{old} is now"):
        found = getattr(instance, old)
    assert found == getattr(instance, METHODS[owner, old])


def test_an_old_argument_of_a_call_warns_and_gives_the_same_answer():
    model, images, config = tiny_model(), tiny_images(), odevit.SolverConfig("heun", 3, 2.0)
    with pytest.warns(DeprecationWarning, match=f"way is now {ARGUMENTS['way']}"):
        old = model(images, way=config).logits
    assert torch.equal(old, model(images, solver_config=config).logits)
    with pytest.raises(TypeError, match="unexpected keyword argument 'wey'"):
        model(images, wey=config)
