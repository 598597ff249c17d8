"""The parts that a run is put together from."""

import pytest
import torch
from torch._dynamo.utils import counters

from odevit.core.field import VectorField
from odevit.core.solve import solve
from odevit.train.recipe import TrainRecipe
from odevit.train.runner import compile_field
from odevit.train.task import Process


@pytest.mark.parametrize("few_shapes", [False, True])
@pytest.mark.parametrize("time_conditioned", [False, True])
def test_a_compiled_field_is_compiled_once_and_not_at_every_step(time_conditioned, few_shapes):
    torch._dynamo.reset()
    counters.clear()
    field = VectorField(16, 2, time_conditioned=time_conditioned, leak=1.0)
    x0 = torch.randn(2, 5, 16)
    plain = solve(field, x0, solver="lie_trotter", steps=12, t1=6.0).state
    compile_field(field, backend="eager", few_shapes=few_shapes)
    torch.testing.assert_close(solve(field, x0, solver="lie_trotter", steps=12, t1=6.0).state, plain)
    solve(field, x0, solver="lie_trotter", steps=16, t1=6.0)  # only a second first time shows that the time varies
    graphs = counters["stats"]["unique_graphs"]
    assert graphs <= 5, "attention and MLP, with and without gradient to the state, and once for a time that varies"
    solve(field, x0, solver="lie_trotter", steps=20, t1=9.0)
    assert counters["stats"]["unique_graphs"] == graphs


def test_of_few_shapes_each_is_compiled_by_itself():
    torch._dynamo.reset()
    sizes = []

    def backend(graph, inputs):
        sizes.append({size for x in inputs if isinstance(x, torch.Tensor) for size in x.shape})
        return graph

    field = VectorField(16, 2)
    compile_field(field, backend=backend, few_shapes=True)
    for tokens in (5, 9, 5, 9):
        x = torch.randn(2, tokens, 16)
        solve(field, x, solver="lie_trotter", steps=3, t1=3.0)
    assert all(isinstance(size, int) for seen in sizes for size in seen), "no number stands for any number of tokens"
    assert sum(5 in seen for seen in sizes) == sum(9 in seen for seen in sizes) > 0


def test_the_batch_is_shared_by_processes_and_accumulation():
    recipe = TrainRecipe(batch_size=96, accumulate=2)
    assert Process(torch.device("cpu"), rank=0, world=3).share(recipe) == 16
    with pytest.raises(
        ValueError, match=r"batch_size=96 cannot be cut into 10 equal parts \(2 accumulated x 5 processes"
    ):
        Process(torch.device("cpu"), rank=0, world=5).share(recipe)
