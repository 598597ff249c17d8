"""The same budget and the same batches for all; interrupted, failing and finished comparisons."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from odevit.cli import main
from odevit.cli.commands import COMMANDS
from odevit.compare import executor as running
from odevit.compare.metrics import SOLVERS_TRIED, hash_batches
from odevit.compare.plan import TOLERANCE, Plan, PlannedRun, Settings, count_parameters, fit_to_budget, nearest
from odevit.compare.report import HEAD, cells, draw_cost, write_numbers, write_pictures
from odevit.compare.runner import Scoreboard, compare, differences, read_comparison, read_results
from odevit.core.configuration_odevit import OdeViTConfig
from odevit.core.modeling_odevit import OdeViTForImageClassification
from odevit.errors import ConfigError
from odevit.systems.stacked import StackedDepth
from odevit.train.compose import compose_recipe, options

SMALL = (
    "model.hidden_size=16",
    "model.num_attention_heads=2",
    "model.steps=2",
    "model.horizon=1",
    "train.batch_size=32",
)
SYSTEMS = [name for name in options("system") if name != "none"]
ASKED = {"updates": 2, "device": "cpu", "images": 24, "overrides": SMALL}
OTHERS = "vit/seed-0-old/measures.json"
RECORDED = Path(__file__).parents[2] / "records/compare-cifar10"


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A comparison of three systems: one fails, one is trained, one is interrupted; then it is typed again.

    Gives the folder, what the first call left of it, and which runs were begun, gone on with or not.
    """
    out, begun, original = tmp_path_factory.mktemp("compared"), [], running.run
    asked = {"systems": ["vit", "attractor", "ode-vit"], "seeds": 0, "out": out, **ASKED}
    (out / OTHERS).parent.mkdir(parents=True)
    (out / OTHERS).write_text("put aside by its owner")

    def strike(*_, **__):
        raise RuntimeError("the layers are on strike")

    def watched(task, command):
        begun.append((task.recipe.name, task.recipe.resume))
        if len(begun) == 3:
            task.folder.acquire(task.recipe)
            raise KeyboardInterrupt
        return original(task, command)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "run", watched)
        with patch.context() as striking:
            striking.setattr(StackedDepth, "forward", strike)
            with pytest.raises(KeyboardInterrupt):
                compare(**asked)
        left = {path.name: path.read_text() for path in out.iterdir() if path.suffix in (".json", ".md", ".html")}
        left["log"] = (out / "vit/seed-0/log.txt").read_text()
        compare(**asked)
    return out, left, begun


@pytest.fixture
def compared(story):
    return story[0]


@pytest.fixture
def copied(compared, tmp_path):
    """The folder of a comparison, to be changed."""
    return shutil.copytree(compared, tmp_path / "copied")


@pytest.fixture
def trained(monkeypatch):
    """The names of the runs that are trained from now on."""
    names, original = [], running.run

    def watched(task, command):
        names.append(task.recipe.name)
        return original(task, command)

    monkeypatch.setattr(running, "run", watched)
    return names


def read(out):
    return json.loads((out / "comparison.json").read_text())


def rows_of(out):
    return {row["system"]: row for row in read(out)["rows"]}


@pytest.mark.parametrize("system", SYSTEMS)
def test_parameters_of_every_system_share_no_storage(system):
    """The checkpoints of a training are refused by safetensors where one is a part of something larger."""
    with torch.device("meta"):
        model = OdeViTForImageClassification(OdeViTConfig(**compose_recipe([f"system={system}"]).model_settings()))
    parts = {name: p for name, p in model.named_parameters() if p.untyped_storage().nbytes() != p.nbytes}
    assert not parts


@pytest.mark.parametrize("system", SYSTEMS)
def test_fit_to_budget_meets_the_budget_for_every_system(system):
    budget = 100_000
    settings = compose_recipe([f"system={system}"]).model_settings()
    changes = fit_to_budget(settings, budget)
    assert abs(count_parameters({**settings, **changes}) - budget) <= TOLERANCE * budget
    assert {*changes} <= {"hidden_size", "mlp_ratio"}


def test_fit_to_budget_changes_nothing_at_the_right_size():
    settings = compose_recipe([]).model_settings()
    assert fit_to_budget(settings, count_parameters(settings)) == {}


@pytest.mark.parametrize("system", ["vit", "attractor", "relaxed", "recursions-token"])
def test_fit_to_budget_gives_wide_models_multiples_of_eight(system):
    recipe = compose_recipe(["data=cifar10", "experiment=fast/cifar10", f"system={system}"])
    settings = {**recipe.model_settings(), "num_labels": 10}
    changes = fit_to_budget(settings, 500_000)
    hidden = changes["hidden_size"] * changes["mlp_ratio"]
    assert changes["hidden_size"] % 8 == 0
    assert round(hidden) % 8 == 0
    assert hidden == pytest.approx(round(hidden), abs=1e-3)
    assert count_parameters({**settings, **changes}) == pytest.approx(500_000, rel=TOLERANCE)


def test_nearest_finds_the_closest_value_of_an_increasing_function():
    squares = [nearest(lambda n: n * n, goal, 1, 1000) for goal in (1, 6, 7, 100, 10**9)]
    assert squares == [1, 2, 3, 10, 1000]


def test_compare_gives_all_systems_the_same_first_batches(compared):
    hashes = [seed["batches"] for row in read(compared)["rows"] for seed in row["seeds"]]
    assert len(hashes) == 3
    assert len(set(hashes)) == 1
    assert read(compared)["same_batches"]


def test_hash_batches_differs_for_other_labels():
    batch = {"pixel_values": torch.zeros(2, 1, 2, 2), "labels": torch.tensor([0, 1])}
    other = {**batch, "labels": torch.tensor([1, 0])}
    assert hash_batches([batch]) == hash_batches([batch])
    assert hash_batches([batch]) != hash_batches([other])


def test_compare_gives_all_systems_the_same_budget_and_reports_changes(compared):
    rows, budget = rows_of(compared), read(compared)["parameters"]
    assert all(abs(row["params"] - budget) <= TOLERANCE * budget for row in rows.values())
    assert rows["attractor"]["changed"] == {}
    assert rows["vit"]["changed"]["hidden_size"] < 16
    recipe = (compared / "vit/seed-0/recipe.yaml").read_text()
    assert f"hidden_size: {rows['vit']['changed']['hidden_size']}\n" in recipe


def test_compare_measures_only_what_a_system_supports(compared):
    rows = rows_of(compared)
    assert rows["vit"]["ways"] == []
    assert rows["vit"]["exponent"] is None
    assert {solver_config["solver"] for solver_config in rows["ode-vit"]["ways"]} == {*SOLVERS_TRIED}
    assert rows["attractor"]["exponent"]["images"] == 16
    assert all(row["nfe"]["max"] == 2 and row["memory"]["bytes"] is None for row in rows.values())
    assert rows["vit"]["relative"] == 1.0


def test_compare_times_only_systems_whose_weights_are_there(copied):
    for system in ("vit", "ode-vit"):
        (copied / system / "seed-0/model.safetensors").unlink()
    compare(systems=["vit", "attractor", "ode-vit"], seeds=0, out=copied, **ASKED)
    assert {name for name, row in rows_of(copied).items() if "milliseconds" in row} == {"attractor"}


def test_compare_writes_all_files_with_the_same_rows(compared):
    assert (compared / "comparison.png").read_bytes().startswith(b"\x89PNG")
    table = (compared / "comparison.md").read_text()
    for row in read(compared)["rows"]:
        assert "| " + " | ".join(cells(row)) + " |" in table
        assert row["system"] in (compared / "comparison.html").read_text()
    assert "- vit: hidden_size=" in table
    best, images = max(row["top1"] for row in read(compared)["rows"]), read(compared)["test_images"]
    error = 100 * (best * (1 - best) / images) ** 0.5
    assert f"{best:.1%} has a standard error of {error:.1f} points" in table


def test_compare_resumes_after_an_interruption(story):
    """Nothing that was finished is done again, what was begun is gone on with, and what failed is tried again."""
    out, left, begun = story
    first = {row["system"]: row for row in json.loads(left["comparison.json"])["rows"]}
    assert begun == [("vit", False), ("attractor", False), ("ode-vit", False), ("vit", False), ("ode-vit", True)]
    assert "top1" not in first["ode-vit"]
    assert "top1" in first["attractor"]
    assert first["attractor"]["seeds"] == rows_of(out)["attractor"]["seeds"]
    assert all("top1" in row for row in rows_of(out).values())


def test_compare_shows_a_failure_in_its_row_and_trains_the_others(story):
    out, left, _ = story
    row = json.loads(left["comparison.json"])["rows"][0]
    assert row["failure"] == "the layers are on strike"
    assert len(cells(row)) == len(HEAD)
    assert all("the layers are on strike" in left[name] for name in ("comparison.md", "comparison.html"))
    assert "Traceback" in left["log"]
    assert rows_of(out)["vit"]["failure"] is None


def test_compare_with_more_systems_keeps_the_rows_of_earlier_ones(copied, trained):
    """What was changed, times, failures, and a place in the command; what is not asked for is not trained."""
    before, old = rows_of(copied), read(copied)
    lost = {**before["vit"], "system": "tied", "failure": "no memory", "seeds": [{"seed": 0, "failure": "no memory"}]}
    (copied / "comparison.json").write_text(json.dumps({**old, "rows": [*old["rows"], lost]}))
    compare(systems=["strang", "attractor"], seeds=0, out=copied, **ASKED)
    after = rows_of(copied)
    assert trained == ["strang"]
    assert [*after] == [*before, "tied", "strang"]
    assert "systems=vit,attractor,ode-vit,tied,strang seeds=0 " in read(copied)["command"]
    assert {name for name, row in after.items() if "milliseconds" in row} == {*before, "strang"}
    assert read(copied)["reference"] == "vit"
    assert [after[name]["changed"] for name in before] == [row["changed"] for row in before.values()]
    assert after["tied"]["failure"] == "no memory"


def test_compare_with_overwrite_removes_only_its_own_files(copied):
    """A folder without a manifest, such as a copied record, loses only its recipe and its measurements."""
    (copied / "attractor/seed-0/notes.txt").write_text("mine")
    shutil.copytree(RECORDED / "tied/seed-0", copied / "tied/seed-0")
    compare(systems="vit", seeds=0, out=copied, parameters=4000, overwrite=True, **ASKED)
    assert [*rows_of(copied)] == ["vit"]
    assert rows_of(copied)["vit"]["params"] == pytest.approx(4000, rel=TOLERANCE)
    assert [path.name for path in (copied / "attractor/seed-0").iterdir()] == ["notes.txt"]
    assert not any((copied / "ode-vit/seed-0").iterdir())
    assert {path.name for path in (copied / "tied/seed-0").iterdir()} == {"metrics.jsonl", "record.json"}
    assert (copied / OTHERS).exists()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"parameters": 4000}, "model.hidden_size: "),
        ({"updates": 3}, "train.updates: 2, now 3"),
        ({"images": 20}, "images: 24, now 20"),
        ({"overrides": (*SMALL, "data.augmentation.flip=true")}, "data.augmentation.flip: False, now True"),
        ({"overrides": (*SMALL, "model.leak=0.5")}, "model.leak: "),
    ],
)
def test_compare_refuses_runs_with_other_settings(copied, other, said):
    """The terms are in the recipes, too: without comparison.json, nothing else tells."""
    (copied / "comparison.json").unlink()
    with pytest.raises(ConfigError) as caught:
        compare(systems="attractor", seeds=0, out=copied, **{**ASKED, **other})
    told = dict(problem.split(" holds a run with other settings ") for problem in caught.value.problems)
    assert told.keys() == {str(copied / name / "seed-0") for name in ("vit", "attractor", "ode-vit")}
    assert said in told[str(copied / "vit/seed-0")]


def test_compare_reuses_runs_without_comparison_json(copied, trained):
    (copied / "comparison.json").unlink()
    compare(systems="attractor", seeds=0, out=copied, **ASKED)
    assert [*rows_of(copied)] == ["attractor", "ode-vit", "vit"]
    assert trained == []


def test_recorded_comparisons_can_be_resumed():
    """Recipes of an earlier version tell less, and lie elsewhere than where they were made."""
    run = RECORDED / "vit/seed-0"
    words = json.loads((run / "record.json").read_text())["command"].split()[2:]
    assert differences(run, PlannedRun("vit", 0, (*words, "data.source=moved/to/cifar10"), 1000)) == []
    assert differences(run, PlannedRun("vit", 0, (*words, "train.epochs=31"), 1000)) == ["train.epochs: 30, now 31"]
    assert read_results(RECORDED, read_comparison(RECORDED))["vit"][0]["params"] == 499_363


@pytest.mark.parametrize("key", ["model.depth_options.iterations", "depth.iterations"])
def test_plan_passes_depth_options_only_to_systems_that_have_them(tmp_path, key):
    terms = Settings("digits", (*SMALL, f"{key}=7"), device="cpu")
    plan = Plan(terms, ["deq", "vit"], [0], tmp_path)
    (entry,) = plan.runs()
    assert entry.recipe().model_settings()["depth_options"]["iterations"] == 7
    assert list(plan.failures) == ["vit"]
    assert "unknown option 'iterations'" in plan.failures["vit"]


def test_plan_refuses_a_budget_that_cannot_be_met_and_names_the_nearest(tmp_path):
    refused = Plan(Settings("digits", SMALL, 10, device="cpu"), ["vit"], [0], tmp_path).failures["vit"]
    assert refused.startswith("10 parameters cannot be met: the nearest vit has ")
    nearest = int(re.search(r"parameters=(\d+)", refused)[1])
    assert not Plan(Settings("digits", SMALL, nearest, device="cpu"), ["vit"], [0], tmp_path).failures


def test_plan_removes_duplicate_systems_and_seeds(tmp_path):
    plan = Plan(Settings("digits", SMALL, device="cpu"), ["vit", "vit"], [0, 0], tmp_path)
    assert [(entry.system, entry.seed) for entry in plan.runs()] == [("vit", 0)]


def test_scoreboard_adds_seconds_of_earlier_calls_only_if_their_runs_exist(compared, tmp_path):
    old = read_comparison(compared)
    plan = Plan(Settings("digits", SMALL, device="cpu"), ["vit"], [0], tmp_path)
    boards = [Scoreboard(plan, 1, read_results(out, old), old) for out in (compared, tmp_path)]
    assert [board.before for board in boards] == [old["seconds"]["total"], 0.0]


def test_draw_cost_hides_names_that_would_overlap():
    spots = {"best": (1.0, 0.9), "covered": (1.0, 0.8999), "apart": (8.0, 0.5)}
    rows = [
        {"system": name, "relative": cost, "nfe": {"mean": 6.0}, "top1": top1, "top1_spread": None}
        for name, (cost, top1) in spots.items()
    ]
    timed, *_ = draw_cost(rows).axes
    assert [text.get_text() for text in timed.texts if text.get_visible()] == ["best", "apart"]
    assert timed.get_xlabel() == "time, relative"
    untimed, *_ = draw_cost([*rows, {**rows[0], "relative": None}]).axes
    assert untimed.get_xlabel() == "evaluations of the field for an image", "one without a time would have no place"


def test_write_pictures_without_results_says_not_trained_yet(compared, tmp_path):
    row = {"system": "vit", "about": "", "changed": None, "failure": None, "seeds": [], "asked": 1}
    write_numbers(tmp_path, {**read(compared), "rows": [row]})
    assert "not trained yet" in write_pictures(tmp_path).read_text()


def test_compare_reports_all_invalid_arguments_at_once(compared):
    with pytest.raises(ConfigError) as caught:
        compare(systems=["vti"], seeds=[-1], updates=0, epochs=3, parameters=0, out=compared, device="cpu")
    said = str(caught.value)
    for part in ("Did you mean 'vit'?", "seeds=-1", "updates=0", "parameters=0", "one of updates="):
        assert part in said


def test_compare_command_accepts_keys_of_a_recipe(capsys):
    _, asked = COMMANDS["compare"].parse(
        ["systems=[vit,strang]", "seeds=0,1", "train.batch_size=32", "experiment=digits"]
    )
    assert asked == {
        "systems": ["vit", "strang"],
        "seeds": [0, 1],
        "overrides": ("train.batch_size=32", "experiment=digits"),
    }
    assert main(["compare", "system=vit"]) == 2
    assert "Did you mean 'systems'" in capsys.readouterr().err


def test_recorded_train_command_has_the_same_folder(compared):
    words = json.loads((compared / "vit/seed-0/record.json").read_text())["command"].split()[2:]
    assert compose_recipe(words).folder == Path(compared) / "vit/seed-0"
