"""One thread and a fixed seed for every test: two OpenMP pools that spin against each other are far slower than one."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)
