"""One thread and a fixed seed for every test: two OpenMP pools that spin against each other are far slower than one."""

import gc
import sys

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_finish():
    """What was imported stays: a collector that looks through all of it, after every training, takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


def pytest_fixture_setup(fixturedef):
    """What a whole module shares is made before any test has set the seed: the same whichever tests ran before."""
    if fixturedef.scope != "function":
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def gradients_stay_on():
    """What leaves gradients off fails here, and not in whatever test comes next."""
    yield
    stayed = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert stayed


@pytest.fixture(autouse=True)
def nothing_stays_compiled():
    """torch.compile remembers by line of code what varied before: a test must not depend on what others compiled."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
