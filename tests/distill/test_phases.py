"""forced -> walk -> any way: what each phase asks of a step, and when; a run goes on across their borders."""

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
from odevit.surgery.surgery import get_ode_model
from odevit.train.callbacks import read_metrics
from odevit.train.folder import RunFolder
from odevit.train.recipe import TrainRecipe
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


def test_a_forced_step_is_one_lie_trotter_step_from_each_of_the_teachers_states():
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


def test_a_forced_step_goes_no_further_than_a_layer(monkeypatch):
    network, images = made(scale="increment", logits=0.0), tiny_images()
    network.teacher_forcing = True
    monkeypatch.setattr(type(network.student), "follow", None)
    network(images).loss.backward()


def test_a_walk_is_measured_by_the_variance_of_the_teachers_states():
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
def test_a_way_meets_a_layer_only_where_a_step_ends_at_its_time(solver_config, met):
    network = made(steps=12, layers=12)
    assert network.matched_layers(solver_config) == met
    assert list(network.matched_layers(solver_config)) == sorted(met)


def test_beyond_the_horizon_the_target_stays_the_last_state():
    network, images = made(scale="state", logits=0.0), tiny_images()
    layers = network.teacher.states(images)
    path = network.student.states(images, steps=6, horizon=6.0, save=[1, 2, 3, 6]).states
    pairs = zip(path, [*layers[1:], layers[-1]], strict=True)
    expected = torch.stack([half_and_half(x, y) / variance(y) for x, y in pairs]).mean()
    torch.testing.assert_close(network(images, solver_config=SolverConfig("lie_trotter", 6, 6.0)).loss, expected)


def test_without_a_cls_the_others_have_its_weight():
    teacher = Teacher(tiny_model(depth="stacked", steps=2, use_cls_token=False, pooling="mean"))
    student = get_ode_model(teacher.model, steps=2, horizon=2.0)
    goal = DistillObjective(**HALVES, path="last", logits=0.0)
    network = LayerDistillation(student, teacher, Alignment("uniform", (1.0, 1.0)), goal)
    images = tiny_images()
    expected = (student.states(images, save=[2]).states[0] - teacher.states(images)[-1]).square().mean()
    torch.testing.assert_close(network(images).loss, expected)


def test_a_phase_changes_what_it_names_and_nothing_else():
    common = DistillObjective(cls=0.3, logits=2.0, temperature=3.0)
    phase = Phase(share=1.0, objective=PhaseObjective(logits=0.0, scale="increment"))
    assert phase.full_objective(common) == replace(common, logits=0.0, scale="increment")


def test_parts_take_what_a_phase_does_not_say_from_the_training():
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


def test_the_best_weights_are_judged_by_their_own_way_the_coarsest_and_one_that_does_not_split():
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


def test_every_phase_has_its_time_its_ways_its_loss_and_its_rates(vit, tmp_path, monkeypatch):
    seen, ordinary = [], OdeViTTrainer.compute_loss

    def watched(self, model, inputs, *args, **kwargs):
        rates = [group["lr"] for group in self.optimizer.param_groups]
        goal = model.objective
        weights = goal.cls, goal.others, goal.pooled, goal.logits
        seen.append((self.part.name, model.teacher_forcing, goal.scale, weights, self._way(), max(rates)))
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
def test_a_run_that_was_killed_in_any_phase_ends_as_if_it_had_not_been(vit, whole, tmp_path, monkeypatch, killed):
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


def test_a_run_that_counts_seconds_goes_through_all_phases_and_ends(vit, tmp_path, monkeypatch):
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


def test_a_student_agrees_more_with_its_teacher_after_its_phases_than_before(vit, tmp_path):
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


def test_a_batch_is_not_larger_than_the_data(vit, tmp_path, capsys):
    task = DistillTask(recipe(vit, out=tmp_path / "run", **{"train.batch_size": 4096}))
    task.folder.acquire(task.recipe)
    task.build()
    assert task.batches.batch_size == len(task.data.train) == task.recipe.train.batch_size
    assert "train.batch_size=1295 instead of 4096" in capsys.readouterr().out


def test_auto_is_decided_by_the_device():
    given = TrainRecipe(precision="auto", compile="auto", capture="auto")
    cpu, cuda = given.on("cpu"), given.on("cuda")
    assert (cpu.precision, cpu.compile, cpu.capture) == ("fp32", False, False)
    assert (cuda.precision, cuda.compile, cuda.capture) == ("bf16", True, True)
    assert replace(given, accumulate=2).on("cuda").capture is False
    fixed = TrainRecipe(precision="fp32", compile=True, capture=False)
    assert fixed.on("cuda") == fixed.on("cpu") == fixed


def test_states_that_are_no_numbers_are_found_before_training(vit, tmp_path):
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
            "phases.rollout.solver_configs: 'rk4:0x' goes nowhere; expected at least one step",
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
        ({"train.steps": [3]}, "train.steps has no meaning with phases: each phase lists the ways"),
        ({"objective.teacher_forcing": 0.5}, "objective.teacher_forcing has no meaning with phases"),
        ({"train.seconds": -1}, "train.seconds=-1.0; expected 0, or a time in seconds"),
        ({"train.seconds": 9, "train.updates": 3}, "leave out train.updates=3"),
        ({"train.capture": "maybe"}, "train.capture='maybe'; expected true, false or auto"),
    ],
)
def test_what_is_wrong_with_phases_is_said_in_a_sentence(vit, settings, sentence):
    problems = recipe(vit, **settings).problems()
    assert any(problem.startswith(sentence) or problem.endswith(sentence) for problem in problems), problems


def test_an_unknown_phase_or_key_is_named():
    given = ["teacher=FOLDER", "phases.wolk.share=0.5", "phases.rollout.objective.scael=state"]
    with pytest.raises(ValueError, match=r"(?s)'phases.wolk.share'.*'phases.rollout.objective.scael'.*Did you mean"):
        compose_distillation(given)


def test_a_given_teacher_has_phases_its_own_shapes_and_knots(vit, tmp_path):
    task = DistillTask(recipe(vit, out=tmp_path / "run", knots=2))
    task.folder.acquire(task.recipe)
    task.build()
    config = task.student.config
    assert (config.knots, config.steps, config.horizon, config.mlp_ratio, config.bias) == (2, 3, 3.0, 2.0, True)
    assert (config.fade, config.leak, config.num_attention_heads) == (0.1, 0.0, 2)
    assert [part.name for part in task.parts] == ["layerwise", "rollout", "random_solver"]
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


def test_ways_that_would_skip_pieces_of_weights_are_refused_before_training(vit, tmp_path):
    settings = {"student.knots": 3, "student.blend": "constant"}
    with pytest.raises(
        ValueError, match=r"phases.random_solver.solver_configs, lie_trotter, 2 steps, T = 3: steps=2 .* would skip 1"
    ):
        distill_recipe(recipe(vit, out=tmp_path / "run", **settings))


def test_what_the_last_phase_cannot_ask_for_is_said_before_the_first(vit, tmp_path):
    with pytest.raises(
        ValueError, match=r"phases.random_solver.objective.registers=1, but the layout has no such tokens"
    ):
        distill_recipe(recipe(vit, out=tmp_path / "run", **{"phases.random_solver.objective.registers": 1}))
    assert not (tmp_path / "run").exists()


def test_steps_that_end_at_no_layer_are_mentioned(vit, tmp_path, capsys):
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


def test_the_own_way_may_have_fewer_steps_than_the_teacher_layers(vit, tmp_path):
    """Where only others are drawn, in which every layer is met."""
    few = ["student.steps=2", "student.vector_knots=null", "student.init=spectral", "train.steps=[3]"]
    words = [f"teacher={vit}", "data=digits", "phases=none", "train.optimizer=adamw", "objective.match=nearest", *few]
    task = DistillTask(compose_distillation([*words, f"out={tmp_path / 'run'}", "device=cpu"]))
    task.folder.acquire(task.recipe)
    task.recipe = task.recipe.on("cpu")
    task.build()
    task.dry_run()


def test_a_recipe_may_be_typed_again_from_elsewhere(vit, tmp_path, monkeypatch):
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
def test_what_is_captured_is_what_is_computed(vit, tmp_path):
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
    for part in task.parts:
        task.before_step(0.0, part)
        for solver_config in part.sampler.configs:
            replayed = trainer.captured(batch, solver_config, part.kind).item()
            assert replayed == pytest.approx(task.network(**batch, solver_config=solver_config).loss.item(), rel=1e-4)


@pytest.mark.parametrize("knots", [1, 4])
def test_stacked_blocks_run_once_each(knots):
    recipe = compose_distillation(["experiment=distill/stacked-blocks", f"knots={knots}", "teacher=x", "data=digits"])
    assert (recipe.student.steps, recipe.student.blend) == (knots, "constant")
