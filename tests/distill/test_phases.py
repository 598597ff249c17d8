"""layerwise -> rollout -> random_solver: loss, solver settings and rates of each phase, and resuming between them."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import ViTConfig, ViTForImageClassification

from odevit.core.solver_config import SolverConfig
from odevit.distill.alignment import Alignment
from odevit.distill.distill_task import DistillTask, distill_recipe
from odevit.distill.distillation import compose_distillation
from odevit.distill.loss import LayerDistillation
from odevit.distill.objective import DistillObjective
from odevit.distill.phase import Phase, PhaseObjective, evaluation_configs, make_schedule
from odevit.distill.teacher import Teacher
from odevit.surgery.modeling_student import OdeStudent
from odevit.surgery.surgery import get_ode_model
from odevit.train.folder import RunFolder
from odevit.train.recipe import TrainRecipe
from odevit.train.record import read_metrics
from odevit.train.runner import make_trainer, run
from odevit.train.trainer import OdeViTTrainer
from tests.tiny import tiny_images, tiny_model
from tests.train.start import words

LAYERS = 3
HALVES = {"cls": 0.5, "patches": 0.0, "others": 0.5, "match": "exact"}


def made(steps=LAYERS, layers=LAYERS, **objective):
    teacher = Teacher(tiny_model(depth="stacked", steps=layers, bias=True))
    student = get_ode_model(teacher.model, steps=steps, horizon=float(layers), mlp_ratio=2.0)
    alignment = Alignment("uniform", (1.0,) * layers)
    return LayerDistillation(student, teacher, alignment, DistillObjective(**{**HALVES, **objective})).train()


def half_and_half(x, y):
    """The squared error of CLS, and that of all other tokens, one half each."""
    error = (x - y).square()
    return (error[:, 0].mean() + error[:, 1:].mean()) / 2


def variance(y):
    return y.var((0, 1)).mean() + 1e-6


def test_teacher_forcing_loss_is_one_lie_trotter_step_from_each_teacher_state():
    network, images = made(scale="increment", logits=0.0), tiny_images()
    network.teacher_forcing = True
    states, field, errors = network.teacher.states(images), network.student.field, []
    for before, after in pairwise(states):
        x = before
        for branch in field.components.values():
            x = x + branch(x, 0.0)
        errors.append(half_and_half(x, after) / variance(after - before))
    output = network(images)
    assert list(output.parts) == ["path"]
    torch.testing.assert_close(output.loss, torch.stack(errors).mean())


@pytest.mark.parametrize(("logits", "rollouts"), [(0.0, 0), (1.0, 1)])
def test_teacher_forcing_integrates_from_the_image_only_when_logits_count(logits, rollouts, monkeypatch):
    network, calls, follow = made(scale="increment", logits=logits), [], OdeStudent.follow
    network.teacher_forcing = True
    monkeypatch.setattr(OdeStudent, "follow", lambda *args, **options: calls.append(args) or follow(*args, **options))
    network(tiny_images()).loss.backward()
    assert len(calls) == rollouts
    assert network.student.field.attention.q_proj.weight.grad.abs().sum() > 0


def test_rollout_loss_is_divided_by_the_variance_of_the_teachers_states():
    network, images = made(scale="state", logits=0.0), tiny_images()
    states = network.teacher.states(images)[1:]
    path = network.student.states(images, save=[1, 2, 3]).states
    expected = [half_and_half(x, y) / variance(y) for x, y in zip(path, states, strict=True)]
    torch.testing.assert_close(network(images).loss, torch.stack(expected).mean())


@pytest.mark.parametrize(
    ("solver_config", "met"),
    [
        (SolverConfig("lie_trotter", 12, 12.0), {n: n for n in range(1, 13)}),
        (SolverConfig("lie_trotter", 8, 12.0), {2: 3, 4: 6, 6: 9, 8: 12}),
        (SolverConfig("rk4", 5, 12.0), {5: 12}),
        (SolverConfig("heun", 18, 12.0), {3: 2, 6: 4, 9: 6, 12: 8, 15: 10, 18: 12}),
        (SolverConfig("euler", 36, 12.0), {3 * n: n for n in range(1, 13)}),
        (SolverConfig("lie_trotter", 18, 18.0), {n: n for n in range(1, 13)}),
    ],
)
def test_exact_match_takes_layers_whose_time_is_the_end_of_a_step(solver_config, met):
    network = made(steps=12, layers=12)
    assert network.matched_layers(solver_config) == met
    assert list(network.matched_layers(solver_config)) == sorted(met)


def test_target_beyond_the_horizon_is_the_last_layer():
    network, images = made(scale="state", logits=0.0), tiny_images()
    layers = network.teacher.states(images)
    path = network.student.states(images, steps=6, horizon=6.0, save=[1, 2, 3, 6]).states
    pairs = zip(path, [*layers[1:], layers[-1]], strict=True)
    expected = torch.stack([half_and_half(x, y) / variance(y) for x, y in pairs]).mean()
    torch.testing.assert_close(network(images, solver_config=SolverConfig("lie_trotter", 6, 6.0)).loss, expected)


def test_loss_without_cls_token_adds_its_weight_to_the_others():
    teacher = Teacher(tiny_model(depth="stacked", steps=2, use_cls_token=False, pooling="mean"))
    student = get_ode_model(teacher.model, steps=2, horizon=2.0)
    goal = DistillObjective(**HALVES, path="last", logits=0.0)
    network = LayerDistillation(student, teacher, Alignment("uniform", (1.0, 1.0)), goal)
    images = tiny_images()
    expected = (student.states(images, save=[2]).states[0] - teacher.states(images)[-1]).square().mean()
    torch.testing.assert_close(network(images).loss, expected)


def test_full_objective_changes_only_the_keys_of_the_phase():
    common = DistillObjective(cls=0.3, logits=2.0, temperature=3.0)
    phase = Phase(share=1.0, objective=PhaseObjective(logits=0.0, scale="increment"))
    assert phase.full_objective(common) == replace(common, logits=0.0, scale="increment")


def test_make_schedule_takes_missing_rates_from_train():
    own, train = (
        SolverConfig("lie_trotter", 12, 12.0),
        TrainRecipe(learning_rate=0.1, muon_learning_rate=0.2, warmup=0.3),
    )
    phases = {
        "a": Phase(share=0.25, teacher_forcing=True),
        "b": Phase(share=0.25, learning_rate=0.5, solver_configs=["own:2x"]),
        "c": Phase(share=0.5, warmup=0.0, solver_configs=["own", "rk4:6", "own:8", "own:1x:1.5"]),
    }
    a, b, c = make_schedule(phases, DistillObjective(), train, own, seed=1)
    assert (a.learning_rate, a.muon_learning_rate, a.warmup, a.end) == (0.1, 0.2, 0.3, 0.25)
    assert (b.learning_rate, b.muon_learning_rate, c.warmup, c.end) == (0.5, 0.2, 0.0, 1.0)
    assert (a.kind, b.kind, c.kind) == (0, 1, 1), "walks that ask for the same share a captured step"
    assert b.sampler.configs == [SolverConfig("lie_trotter", 24, 12.0)]
    assert c.eval_configs == (own, SolverConfig("rk4", 6, 12.0))


def test_evaluation_configs_are_own_coarsest_and_cheapest_without_splitting():
    own = SolverConfig("lie_trotter", 12, 12.0)
    ways = [own, own.replace(steps=8), own.stretched(1.5), own.replace("rk4"), own.replace("euler", 36)]
    assert evaluation_configs(ways, own) == (own, own.replace(steps=8), own.replace("rk4"))
    assert evaluation_configs([own], own) == (own,)


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        num_labels=10, initializer_range=0.2, image_mean=[0.4] * 3,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(folder)
    return folder


def recipe(vit, **settings):
    small = {"device": "cpu", "train.epochs": 5, "train.batch_size": 128, "train.evaluate_every": 1, "train.ema": 0.9}
    shares = {"phases.layerwise.share": 0.4, "phases.rollout.share": 0.2, "phases.random_solver.share": 0.4}
    return compose_distillation(words({"teacher": vit, **small, **shares, **settings}))


def test_each_phase_has_its_share_solvers_loss_and_rates(vit, tmp_path, monkeypatch):
    seen, ordinary = [], OdeViTTrainer.compute_loss

    def watched(self, model, inputs, *args, **kwargs):
        rates = [group["lr"] for group in self.optimizer.param_groups]
        goal = model.objective
        weights = goal.cls, goal.others, goal.pooled, goal.logits
        seen.append((self.phase.name, model.teacher_forcing, goal.scale, weights, self._solver_config(), max(rates)))
        return ordinary(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(OdeViTTrainer, "compute_loss", watched)
    folder = distill_recipe(recipe(vit, out=tmp_path / "run"))
    phases, own = json.loads((folder / "record.json").read_text())["phases"], SolverConfig("lie_trotter", 3, 3.0)
    assert [name for name, *_ in seen] == ["layerwise"] * 20 + ["rollout"] * 10 + ["random_solver"] * 20
    assert {tuple(step[1:5]) for step in seen[:20]} == {(True, "increment", (0.5, 0.5, 0.0, 0.0), own)}
    assert {tuple(step[1:5]) for step in seen[20:30]} == {(False, "state", (0.5, 0.5, 0.0, 1.0), own)}
    assert {tuple(step[1:4]) for step in seen[30:]} == {(False, "state", (0.1, 0.1, 1.0, 1.0))}
    assert {step[4] for step in seen[30:]} > {own, SolverConfig("rk4", 3, 3.0)}
    for name, highest, final_rate in (
        ("layerwise", 2e-3, 0.0),
        ("rollout", 2e-3, 1.5e-3),
        ("random_solver", 1.5e-3, 0.0),
    ):
        rates = [step[5] for step in seen if step[0] == name]
        assert max(rates) == pytest.approx(highest, rel=0.1)
        assert final_rate <= rates[-1] < final_rate + 0.2 * highest
    # The last phase goes on at the rates that the walk leaves.
    assert seen[30][5] == pytest.approx(1.5e-3)
    assert {name: phase["share"] for name, phase in phases.items()} == {
        "layerwise": 0.4,
        "rollout": 0.2,
        "random_solver": 0.4,
    }
    # Only the last phase selects, and says by which ways.
    lines = [line for line in read_metrics(folder / "metrics.jsonl") if "eval_accuracy" in line]
    record = json.loads((folder / "record.json").read_text())
    last = [line for line in lines if line["phase"] == "random_solver"]
    assert record["seeds"][0]["validation"] == max(line["eval_accuracy"] for line in last)
    ways = [
        f"eval_accuracy_{solver_config['solver']}_{solver_config['steps']}"
        for solver_config in phases["random_solver"]["eval_configs"]
    ]
    assert ways == ["eval_accuracy_lie_trotter_3", "eval_accuracy_lie_trotter_2", "eval_accuracy_rk4_3"]
    assert all(
        sum(line[solver_config] for solver_config in ways) / 3 == pytest.approx(line["eval_accuracy"]) for line in last
    )


@pytest.fixture(scope="module")
def whole(vit, tmp_path_factory):
    return distill_recipe(recipe(vit, out=tmp_path_factory.mktemp("whole") / "run"))


@pytest.mark.parametrize("killed", [15, 33])
def test_resume_of_a_run_killed_in_any_phase_gives_the_same_weights(vit, whole, tmp_path, monkeypatch, killed):
    ordinary = OdeViTTrainer.training_step

    def interrupted(self, model, inputs, num_items_in_batch=None):
        if self.state.global_step == killed:
            raise KeyboardInterrupt
        return ordinary(self, model, inputs, num_items_in_batch)

    with monkeypatch.context() as patch:
        patch.setattr(OdeViTTrainer, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            distill_recipe(recipe(vit, out=tmp_path / "cut"))
    cut = distill_recipe(recipe(vit, out=tmp_path / "cut", resume=True))
    a, b = load_file(whole / "model.safetensors"), load_file(cut / "model.safetensors")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_run_limited_by_seconds_goes_through_all_phases(vit, tmp_path, monkeypatch):
    """A clock that goes on by a second an update: nothing here depends on the machine."""
    from odevit.train import trainer

    class Ticking(trainer.Schedule):
        def __init__(self, *args):
            super().__init__(*args, clock=lambda: float(max(0, getattr(self, "last_epoch", -1) + 1)))

    monkeypatch.setattr(trainer, "Schedule", Ticking)
    folder = distill_recipe(
        recipe(vit, out=tmp_path / "run", **{"train.seconds": 24, "train.evaluate_every": 100, "train.log_every": 1})
    )
    lines = read_metrics(folder / "metrics.jsonl")
    assert lines[-1]["step"] == 24
    assert lines[-1]["phase"] == "random_solver"
    looked = [line["step"] for line in lines if "eval_accuracy" in line]
    assert looked == [5, 10, 15, 20, 24], "at every fifth of it, whatever the epochs, and at its end"
    walked = [line for line in lines if line["phase"] == "rollout" and "loss_logits" in line]
    assert walked
    for line in walked:
        assert line["loss"] == pytest.approx(line["loss_path"] + line["loss_logits"], rel=1e-3)
    assert json.loads((folder / "record.json").read_text())["epochs"] == 2.4


def test_training_in_phases_raises_agreement(vit, tmp_path):
    settings = {
        "train.epochs": 10,
        "train.evaluate_every": 10,
        "phases.layerwise.share": 0.5,
        "phases.rollout.share": 0.3,
    }
    rates = {f"phases.{name}.muon_learning_rate": 0.02 for name in ("layerwise", "rollout", "random_solver")}
    given = recipe(vit, out=tmp_path / "run", **settings, **rates, **{"phases.random_solver.share": 0.2})
    scores = []

    class Watched(DistillTask):
        def build(self):
            super().build()
            scores.append(agreement(self))

    def agreement(task):
        batch = next(iter(task.validation))
        answers = task.student(batch["pixel_values"]).logits.argmax(-1)
        return (answers == batch["labels"]).float().mean().item()

    task = Watched(given)
    run(task)
    assert agreement(task) > scores[0] + 0.2, f"{agreement(task):.2f} after, {scores[0]:.2f} before"


def test_build_limits_the_batch_size_to_the_data(vit, tmp_path, capsys):
    task = DistillTask(recipe(vit, out=tmp_path / "run", **{"train.batch_size": 4096}))
    task.folder.acquire(task.recipe)
    task.build()
    assert task.batches.batch_size == len(task.data.train) == task.recipe.train.batch_size
    assert "train.batch_size=1295 instead of 4096" in capsys.readouterr().out


def test_auto_options_depend_on_the_device():
    given = TrainRecipe(precision="auto", compile="auto", capture="auto")
    cpu, cuda = given.on("cpu"), given.on("cuda")
    assert (cpu.precision, cpu.compile, cpu.capture) == ("fp32", False, False)
    assert (cuda.precision, cuda.compile, cuda.capture) == ("bf16", True, True)
    assert replace(given, accumulate=2).on("cuda").capture is False
    fixed = TrainRecipe(precision="fp32", compile=True, capture=False)
    assert fixed.on("cuda") == fixed.on("cpu") == fixed


def test_build_refuses_teachers_with_nan_weights_or_states(vit, tmp_path):
    model = ViTForImageClassification.from_pretrained(vit)
    *_, (name, last) = ((n, p) for n, p in model.named_parameters() if "layers.1." in n)
    for value, message in (
        (1e38, r"NaN or infinity comes out of its block 3 .*; check the pixel statistics"),
        (torch.nan, rf"1 of the \d+ weights of .* hold NaN or infinity \({name}\)"),
    ):
        with torch.no_grad():
            last.fill_(value)
        model.save_pretrained(tmp_path / "broken")
        with pytest.raises(ValueError, match=message):
            distill_recipe(recipe(tmp_path / "broken", out=tmp_path / "run", overwrite=True))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"phases.rollout.share": 0.5},
            "the shares of the phases sum to 1.3 (layerwise 0.4, rollout 0.5, random_solver 0.4)",
        ),
        ({"phases.rollout.share": 0}, "phases.rollout.share=0.0; expected a share in (0, 1]"),
        ({"phases.rollout.solver_configs": "[rk5:3]"}, "phases.rollout.solver_configs: 'rk5:3': unknown solver 'rk5'"),
        (
            {"phases.rollout.solver_configs": "[]"},
            "phases.rollout.solver_configs=[]; expected at least one, such as own",
        ),
        (
            {"phases.rollout.solver_configs": "[rk4:0x]"},
            "phases.rollout.solver_configs: 'rk4:0x' has no steps; expected at least one step",
        ),
        (
            {"phases.rollout.objective.scale": "size"},
            "phases.rollout.objective.scale='size'; expected none or state or",
        ),
        (
            {"phases.layerwise.objective.path": "last"},
            "phases.layerwise.teacher_forcing=true starts at every layer's state",
        ),
        ({"phases.rollout.learning_rate": -1}, "phases.rollout.learning_rate=-1.0; expected None or a number > 0"),
        ({"train.steps": [3]}, "train.steps has no meaning with phases: each phase lists its solver"),
        ({"objective.teacher_forcing": 0.5}, "objective.teacher_forcing has no meaning with phases"),
        ({"train.seconds": -1}, "train.seconds=-1.0; expected 0, or a time in seconds"),
        ({"train.seconds": 9, "train.updates": 3}, "leave out train.updates=3"),
        ({"train.capture": "maybe"}, "train.capture='maybe'; expected true, false or auto"),
    ],
)
def test_problems_of_phases_name_key_and_expectation(vit, settings, sentence):
    problems = recipe(vit, **settings).problems()
    assert any(problem.startswith(sentence) or problem.endswith(sentence) for problem in problems), problems


def test_compose_refuses_unknown_phases_and_keys():
    given = ["teacher=FOLDER", "phases.wolk.share=0.5", "phases.rollout.objective.scael=state"]
    with pytest.raises(ValueError, match=r"(?s)'phases.wolk.share'.*'phases.rollout.objective.scael'.*Did you mean"):
        compose_distillation(given)


def test_build_with_a_given_teacher_has_phases_its_shapes_and_knots(vit, tmp_path):
    task = DistillTask(recipe(vit, out=tmp_path / "run", knots=2))
    task.folder.acquire(task.recipe)
    task.build()
    config = task.student.config
    assert (config.knots, config.steps, config.horizon, config.mlp_ratio, config.bias) == (2, 3, 3.0, 2.0, True)
    assert (config.fade, config.leak, config.num_attention_heads) == (0.1, 0.0, 2)
    assert [part.name for part in task.schedule] == ["layerwise", "rollout", "random_solver"]
    assert task.alignment.shares == pytest.approx((1 / 3,) * 3)
    # The last knot is a mean of the teacher's last blocks, and not a random start.
    theirs = task.teacher.vit_spec.locator.blocks(task.teacher.model)[2].state_dict()
    ours = task.student.field.knots[1].state_dict()
    near = [
        torch.nn.functional.cosine_similarity(ours[name].flatten(), theirs[other].flatten(), dim=0)
        for name, other in (
            ("components.mlp.body.up_proj.weight", next(n for n in theirs if n.endswith("fc1.weight"))),
        )
    ]
    assert near[0] > 0.5


def test_distill_refuses_solver_settings_that_skip_pieces(vit, tmp_path):
    settings = {"student.knots": 3, "student.blend": "constant"}
    with pytest.raises(
        ValueError, match=r"phases.random_solver.solver_configs, lie_trotter, 2 steps, T = 3: steps=2 .* would skip 1"
    ):
        distill_recipe(recipe(vit, out=tmp_path / "run", **settings))


def test_dry_run_finds_problems_of_the_last_phase(vit, tmp_path):
    with pytest.raises(
        ValueError, match=r"phases.random_solver.objective.registers=1, but the layout has no such tokens"
    ):
        distill_recipe(recipe(vit, out=tmp_path / "run", **{"phases.random_solver.objective.registers": 1}))
    assert not (tmp_path / "run").exists()


def test_dry_run_prints_steps_that_match_no_layer(vit, tmp_path, capsys):
    remedies = {"uniform": "student.steps=3 meets them all", "arc": "pass objective.match=nearest"}
    for kind, steps, said in (
        ("uniform", 5, ["layerwise", "rollout"]),
        ("uniform", 3, []),
        ("uniform", 6, []),
        ("arc", 3, ["layerwise", "rollout"]),
    ):
        settings = {"student.steps": steps, "alignment.kind": kind}
        task = DistillTask(recipe(vit, out=tmp_path / f"{kind}-{steps}", **settings))
        task.folder.acquire(task.recipe)
        task.build()
        task.dry_run()
        lines = [line for line in capsys.readouterr().out.splitlines() if "but the last" in line]
        assert [line.split(":")[0] for line in lines] == [f"phases.{name}.objective.match=exact" for name in said]
        assert all(line.endswith(f"; {remedies[kind]}") for line in lines)


def test_dry_run_checks_only_the_sampled_steps_against_the_layers(vit, tmp_path):
    """The student has 2 steps for 3 layers: fine where every batch has 3 steps, an error where one may have 2."""
    few = ["student.steps=2", "student.vector_knots=null", "student.init=spectral", "train.steps=[3]"]
    given = [f"teacher={vit}", "data=digits", "phases=none", "train.optimizer=adamw", "objective.match=nearest", *few]
    task = DistillTask(compose_distillation([*given, f"out={tmp_path / 'run'}", "device=cpu"]))
    task.folder.acquire(task.recipe)
    task.recipe = task.recipe.on("cpu")
    task.build()
    task.dry_run()
    assert task.network.matched_layers(task.sampler.configs[0]) == {1: 1, 2: 2, 3: 3}
    task.sampler = None  # every batch in the student's own steps
    with pytest.raises(ValueError, match=r"3 checkpoints .* do not fit into 2 steps"):
        task.dry_run()


def test_acquire_compares_folders_of_recipes_by_absolute_path(vit, tmp_path, monkeypatch):
    """The folders that it names are the same ones, and a name that means another folder there is another recipe."""
    (tmp_path / "a" / "more").mkdir(parents=True)
    (tmp_path / "b" / "more").mkdir(parents=True)
    settings = {"out": tmp_path / "run"}
    monkeypatch.chdir(tmp_path / "a")
    RunFolder(tmp_path / "run").acquire(recipe(vit, unlabelled="more", **settings))
    monkeypatch.chdir(tmp_path / "b")
    settings |= {"resume": True}
    RunFolder(tmp_path / "run").acquire(recipe(vit, unlabelled=str(tmp_path / "a" / "more"), **settings))
    with pytest.raises(ValueError, match=r"unlabelled changed; give the same settings as before, or start .* out="):
        RunFolder(tmp_path / "run").acquire(recipe(vit, unlabelled="more", **settings))


def test_resume_ignores_removed_keys_at_their_defaults_and_refuses_other_values(vit, tmp_path):
    folder = tmp_path / "run"
    RunFolder(folder).acquire(recipe(vit, out=folder))
    written = yaml.safe_load((folder / "recipe.yaml").read_text())
    written |= {"features": "", "objective": {**written["objective"], "seen": 1.0}}
    written["phases"]["rollout"]["objective"]["seen"] = None
    (folder / "recipe.yaml").write_text(yaml.safe_dump(written))
    RunFolder(folder).acquire(recipe(vit, out=folder, resume=True))
    written["objective"]["seen"] = 0.5
    (folder / "recipe.yaml").write_text(yaml.safe_dump(written))
    with pytest.raises(ValueError, match=r"objective\.seen: this option was removed"):
        RunFolder(folder).acquire(recipe(vit, out=folder, resume=True))


@pytest.mark.gpu
def test_captured_graphs_replay_the_computed_losses(vit, tmp_path):
    """One graph for every kind of step and way, the teacher inside: each replays to the loss of an ordinary pass."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    given = recipe(vit, out=tmp_path / "run", **{"device": "cuda", "train.precision": "fp32", "train.compile": False})
    task = DistillTask(given.on("cuda"))
    task.folder.acquire(task.recipe)
    task.build()
    trainer = make_trainer(task)
    trainer.capture_all()
    assert len(trainer.captured.graphs) == 1 + 1 + 7, "forced, the walk, and every way of any_way"
    batch = next(iter(task.batches))
    for part in task.schedule:
        task.before_step(0.0, part)
        for solver_config in part.sampler.configs:
            replayed = trainer.captured(batch, solver_config, part.kind).item()
            assert replayed == pytest.approx(task.network(**batch, solver_config=solver_config).loss.item(), rel=1e-4)


@pytest.mark.parametrize("knots", [1, 4])
def test_stacked_blocks_recipe_has_one_step_per_knot(knots):
    recipe = compose_distillation(["experiment=distill/stacked-blocks", f"knots={knots}", "teacher=x", "data=digits"])
    assert (recipe.student.steps, recipe.student.blend) == (knots, "constant")
