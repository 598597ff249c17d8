"""Early exit: each sample stops on its own, and stopped samples are not computed."""

import pytest
import torch

from odevit.core.base import Dynamics, Field
from odevit.core.solve import solve
from odevit.solvers.early_exit import BoundStop, CosineStop, EntropyStop, KlStop, StopState, VelocityStop, make_stop


class Decay(Field):
    """x' = -rate x: rates differ from sample to sample, so that samples come to rest at different times."""

    def __init__(self, rates):
        super().__init__()
        self.rates = rates
        self.seen = []

    def dynamics(self, x0):
        # The rate travels in the last component of the state, so that it stays with its sample when others leave.
        def velocity(x, t, _):
            self.seen.append(len(x))
            rate = x[..., -1:]
            return torch.cat([-rate * x[..., :-1], torch.zeros_like(rate)], dim=-1)

        return Dynamics({"decay": velocity}, anchor=x0)


def start(rates):
    x0 = torch.ones(len(rates), 3, 4, dtype=torch.float64)
    x0[..., -1] = torch.tensor(rates, dtype=torch.float64)[:, None]
    return x0


RATES = [5.0, 0.1, 2.0, 0.5]


def run(stop, steps=40, readout=None, rates=RATES):
    field = Decay(rates).eval()
    solution = solve(field, start(rates), solver="heun", steps=steps, t1=20.0, stop=stop, readout=readout)
    return field, solution


def test_velocity_stop_ends_at_the_first_slow_step():
    field, solution = run("velocity:0.01", steps=200)
    states = solve(field, start(RATES), solver="heun", steps=200, t1=20.0, save="all").states
    for sample in range(len(RATES)):
        path = torch.stack([state[sample] for state in states]).flatten(1)
        speed = path.diff(dim=0).norm(dim=1) / 0.1 / path[1:].norm(dim=1)
        slow = (speed[1:] < 0.01).nonzero()  # one step says nothing yet
        expected = int(slow[0]) + 2 if len(slow) else 200
        assert int(solution.stop_times[sample] / 0.1 + 0.5) == expected
        torch.testing.assert_close(solution.state[sample].flatten(), path[expected], rtol=1e-12, atol=0)
    assert solution.evaluations.tolist() == [int(t / 0.1 + 0.5) * 2 for t in solution.stop_times]
    assert solution.stats.nfe == int(solution.evaluations.max())


def test_stopped_samples_are_not_computed():
    field, solution = run("velocity:0.01", steps=200)
    assert sum(field.seen) == int(solution.evaluations.sum())
    assert field.seen == sorted(field.seen, reverse=True)
    assert len(set(field.seen)) > 2


def test_stop_that_never_holds_gives_the_plain_solution():
    field, solution = run("velocity:1e-12")
    expected = solve(field, start(RATES), solver="heun", steps=40, t1=20.0).state
    torch.testing.assert_close(solution.state, expected, rtol=1e-12, atol=0)
    assert (solution.evaluations == 80).all()


def test_early_exit_does_not_depend_on_other_samples():
    together = run("velocity:0.02")[1]
    for i, rate in enumerate(RATES):
        alone = run("velocity:0.02", rates=[rate])[1]
        torch.testing.assert_close(alone.state[0], together.state[i], rtol=1e-12, atol=0)
        assert alone.evaluations[0] == together.evaluations[i]


def test_kl_stop_compares_the_last_two_predictions():
    old, new = torch.randn(2, 64, 5, dtype=torch.float64)
    x = torch.zeros(64, 1)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=new), torch.distributions.Categorical(logits=old)
    )
    tolerance = float(expected.median())
    done = KlStop(tolerance)(StopState(1.0, x, x, [torch.randn(64, 5), old, new]))
    assert torch.equal(done, expected < tolerance)


def test_cosine_and_entropy_stops_compare_the_last_two_states():
    old, new = torch.randn(2, 64, 5, dtype=torch.float64)
    turned = 1 - torch.nn.functional.cosine_similarity(old, new)
    moment = StopState(1.0, old, new, [torch.randn(64, 5), old, new])
    assert torch.equal(CosineStop(float(turned.median()) * 1.001)(moment), turned < float(turned.median()) * 1.001)
    entropies = [torch.distributions.Categorical(logits=logits).entropy() for logits in (old, new)]
    changed = (entropies[1] - entropies[0]).abs()
    assert torch.equal(EntropyStop(float(changed.median()) * 1.001)(moment), changed < float(changed.median()) * 1.001)


def test_argmax_stop_waits_for_its_number_of_steps():
    answers = [2, 0, 1, 1, 1, 1]
    readout = iter(torch.eye(3)[answers].unsqueeze(1))
    solution = run("argmax:3", readout=lambda _: next(readout), rates=[1.0])[1]
    assert solution.evaluations.tolist() == [2 * 5], "1, 1, 1, 1: three steps without a change"


def test_bound_stop_is_right_for_geometric_steps():
    """z_n = z* + c q^n: the sum of all later steps is exactly q / (1 - q) times the last one."""
    generator = torch.Generator().manual_seed(0)
    rest = torch.randn(500, 4, generator=generator, dtype=torch.float64)
    offset = 3 * torch.randn(500, 4, generator=generator, dtype=torch.float64)
    q = torch.rand(500, 1, generator=generator, dtype=torch.float64) * 0.95
    x = torch.zeros(500, 1)
    stopped = torch.zeros(500, dtype=torch.bool)
    for n in range(2, 60):
        logits = [rest + offset * q**k for k in (n - 2, n - 1, n)]
        done = BoundStop()(StopState(1.0, x, x, logits))
        assert torch.equal(logits[-1][done].argmax(-1), rest[done].argmax(-1))
        stopped |= done
    assert stopped.float().mean() > 0.9


def test_bound_stop_does_not_stop_growing_steps():
    x = torch.zeros(1, 1)
    growing = [torch.tensor([[value, 0.0]]) for value in (0.0, 1.0, 3.0)]
    assert not BoundStop()(StopState(1.0, x, x, growing)).any()
    assert not BoundStop()(StopState(1.0, x, x, growing[:2])).any()


def test_make_stop_parses_names_and_tolerances():
    assert make_stop("kl") == KlStop()
    assert make_stop("kl:0.02") == KlStop(0.02)
    stop = VelocityStop(0.3)
    assert make_stop(stop) is stop
    with pytest.raises(ValueError, match=r"tolerance > 0 after the colon, such as kl:0\.01"):
        make_stop("kl:soon")
    with pytest.raises(ValueError, match="velocity"):
        make_stop("speed")


def test_stop_needs_a_head_and_evaluation_mode():
    with pytest.raises(ValueError, match="no head"):
        run("kl")
    field = Decay(RATES).train()
    with pytest.raises(ValueError, match=r"model\.eval\(\)"):
        solve(field, start(RATES), solver="euler", steps=4, t1=1.0, stop="velocity")
