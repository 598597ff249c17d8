"""The examples of CONTRIBUTING.md work as printed: a new file each, and the one line that imports it."""

import json
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from odevit import OdeViTForImageClassification
from odevit.depth import DEPTHS
from odevit.errors import ConfigError
from odevit.field import Dynamics
from odevit.report.section import SECTIONS, all_sections, draw_all, plain, write_page
from odevit.solver import PENALTIES, SOLVERS, Way, solve
from tests.model.tiny import tiny_images, tiny_model
from tests.problems import PROBLEMS, slope

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = dict(re.findall(r"^`src/odevit/([\w/]+\.py)`:\n\n```python\n(.*?)```$", TEXT, flags=re.S | re.M))
LINES = {path: code for path, code in BLOCKS.items() if path.endswith("__init__.py")}
CONFIDENCE = {"images": 4, "mean": 0.75, "top1": 0.75, "right": [0.9, 0.7, 0.8], "wrong": [0.6]}
FILES = {path: code for path, code in BLOCKS.items() if path not in LINES}


@pytest.fixture
def example(monkeypatch):
    """Import a file of CONTRIBUTING.md as if it stood in its place; afterwards the registries are as they were."""
    all_sections()  # imports them; inside the block below they would be forgotten
    with ExitStack() as stack:
        for registry in (SOLVERS, DEPTHS, PENALTIES, SECTIONS):
            stack.enter_context(registry.restored())

        def run(path):
            module = ModuleType("odevit." + path.removesuffix(".py").replace("/", "."))
            monkeypatch.setitem(sys.modules, module.__name__, module)
            exec(compile(FILES[path], path, "exec"), vars(module))
            return module

        yield run


def test_every_example_is_one_new_file_and_one_line():
    assert sorted(FILES) == [
        "depth/tied.py",
        "objectives/excursion.py",
        "report/confidence.py",
        "solver/kutta3.py",
    ]
    for path, code in FILES.items():
        folder, name = Path(path).parent, Path(path).stem
        assert not (ROOT / "src/odevit" / path).exists()
        assert code.count(".register(") == 1
        for line in LINES.get(f"{folder}/__init__.py", "").splitlines():
            assert re.fullmatch(rf"from odevit\.{folder}\.{name} import (\w+) as \1", line)
    assert [len(lines.splitlines()) for lines in LINES.values()] == [1, 1, 1]


def test_the_files_and_lines_are_enough(tmp_path):
    """In a copy of the package with nothing else changed, importing it knows the new names, and ruff is content."""
    shutil.copytree(ROOT / "src/odevit", tmp_path / "odevit", ignore=shutil.ignore_patterns("__pycache__"))
    for path, code in FILES.items():
        (tmp_path / "odevit" / path).write_text(code)
    for path, line in LINES.items():
        with (tmp_path / "odevit" / path).open("a") as file:
            file.write(line)
    code = f"""
import odevit
from odevit.depth import DEPTHS
from odevit.report.section import SECTIONS, all_sections
from odevit.solver import PENALTIES, SOLVERS
from odevit.train import Recipe
all_sections()
assert odevit.__file__.startswith({str(tmp_path)!r})
recipe = Recipe()
print("kutta3" in SOLVERS, "tied" in DEPTHS, "excursion" in PENALTIES, "confidence" in SECTIONS)
print(recipe.train.excursion)
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["True"] * 4 + ["0.0"]

    ruff = Path(sys.executable).with_name("ruff")
    for verb in (["check"], ["format", "--check"]):
        command = [ruff, *verb, "--config", ROOT / "pyproject.toml", *(tmp_path / "odevit" / path for path in FILES)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("leak", [0.0, 1.5])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_solver_converges_with_its_order(example, problem, leak):
    example("solver/kutta3.py")
    case = PROBLEMS[problem](leak)
    errors = [
        (solve(case.dynamics, case.x0, solver="kutta3", steps=steps).state - case.exact(1.0)).abs().max().item()
        for steps in (64, 128, 256)
    ]
    assert slope(errors) == pytest.approx(SOLVERS["kutta3"].order, abs=0.1)
    assert solve(case.dynamics, case.x0, solver="kutta3", steps=5).stats.nfe == 15


def test_a_model_takes_the_solver(example):
    example("solver/kutta3.py")
    output = tiny_model()(tiny_images(), solver="kutta3", steps=4)
    assert output.trajectory.ok
    assert output.stats.nfe == 12


def test_the_depth_trains_saves_and_loads(example, tmp_path):
    example("depth/tied.py")
    model, images = tiny_model(depth="tied", steps=3), tiny_images()
    output = model(images, torch.tensor([0, 1, 2]))
    assert output.stats.steps == 3
    output.loss.backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == [], "every parameter takes part"

    model.save_pretrained(tmp_path)
    again = OdeViTForImageClassification.from_pretrained(tmp_path).eval()
    assert again.config.depth == "tied"
    torch.testing.assert_close(again(images).logits, output.logits, rtol=1e-6, atol=1e-6)


def test_the_depth_repeats_one_block(example):
    example("depth/tied.py")
    model = tiny_model(depth="tied", steps=3, leak=0.0)
    x = x0 = model.embed(tiny_images())
    attention, mlp = model.depth.field.dynamics(x0).components.values()
    for n in range(3):
        y = x + attention(x, float(n), None)
        x = y + mlp(y, float(n), None)
    torch.testing.assert_close(model.depth(x0).state, x)


def test_the_depth_says_what_it_can_do(example):
    example("depth/tied.py")
    ode, images = tiny_model(steps=2), tiny_images()
    assert ode(images, depth="tied", steps=5).stats.steps == 5
    tied = tiny_model(depth="tied", steps=3)
    assert tied(images).trajectory.way == tied.way == Way("lie_trotter", 3, 3.0)
    with pytest.raises(ConfigError, match=r"it was given rk4, 3 steps, T = 3"):
        tied(images, solver="rk4")


def test_the_penalty_is_accumulated(example):
    """At constant velocity v, |x - x0|^2 = (v t)^2 at the end of each step."""
    penalty = example("objectives/excursion.py").Excursion
    x0 = torch.zeros(2, 3, dtype=torch.float64)
    dynamics = Dynamics({"push": lambda x, t, _: torch.full_like(x, 0.5)}, anchor=x0)
    for free in (0.0, 0.2):
        costs = {"excursion": penalty(free)}
        cost = solve(dynamics, x0, solver="euler", steps=4, t1=2.0, penalties=costs).penalties["excursion"]
        expected = sum(max(0.0, (0.5 * t) ** 2 - free) for t in (0.5, 1.0, 1.5, 2.0)) / 4
        assert cost.item() == pytest.approx(expected, rel=8 * torch.finfo(x0.dtype).eps)


def test_a_recipe_weighs_the_penalty(example):
    example("objectives/excursion.py")
    from odevit.train.compose import compose_recipe

    recipe = compose_recipe(["experiment=digits", "train.excursion=0.1", "train.excursion_free=0.5"])
    assert recipe.train.weights == {"excursion": 0.1}
    assert recipe.train.penalties["excursion"].free == 0.5
    with pytest.raises(ConfigError, match=r"train\.excursion=-1"):
        compose_recipe(["experiment=digits", "train.excursion=-1"]).check()


def test_the_section_measures_and_draws(example):
    section = example("report/confidence.py").Confidence()
    probabilities = torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.4, 0.6], [0.2, 0.8]], dtype=torch.float64)
    study = SimpleNamespace(
        passage=SimpleNamespace(logits=probabilities.log()), sample=SimpleNamespace(labels=torch.tensor([0, 1, 0, 1]))
    )
    numbers = plain(section.measure(study))
    assert numbers == {"confidence": CONFIDENCE}

    (axes,) = section.draw(numbers, torch.empty(0))["confidence"].axes
    assert axes.get_legend_handles_labels()[1] == ["right", "wrong"]
    assert [sum(bar.get_height() for bar in bars) for bars in axes.containers] == [3, 1]


def test_the_section_is_on_the_page(example, tmp_path):
    """Numbers of a recorded analysis with those of the new section, written again as a page."""
    section = example("report/confidence.py").Confidence
    record = json.loads((ROOT / "records/settled-cifar10/analysis.json").read_text())
    numbers = {**record, "confidence": CONFIDENCE}
    sections = all_sections()
    figures = draw_all([section()], numbers, torch.empty(0))
    page = write_page(tmp_path / "report.html", "A page", "analysis.html.j2", sections, numbers, figures).read_text()

    headings = re.findall(r"<h2>(.*?)</h2>", page)
    before, after = "Does the answer depend on how it was integrated?", "One model, three depths"
    assert headings.index(section.title) == headings.index(before) + 1 == headings.index(after) - 1
    assert "a probability of 75.0%, and it is right on\n75.0% of 4 images" in page
    assert '<figure id="confidence">' in page


def test_the_map_shows_every_folder():
    drawn = set(re.findall(r"^\| `(\w+)/` \|", TEXT, flags=re.M))
    package = ROOT / "src/odevit"
    assert drawn == {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
