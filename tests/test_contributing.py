"""The examples of CONTRIBUTING.md work as printed: a new file each, and the line that imports it."""

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
from odevit.core.base import DEPTHS, SOLVERS, Dynamics
from odevit.core.solution import SaveAt
from odevit.core.solve import solve
from odevit.errors import ConfigError
from odevit.report.section import SECTIONS, all_sections, draw_all, to_builtins, write_page
from odevit.solvers.penalties import PENALTIES
from tests.core import test_registry
from tests.problems import PROBLEMS
from tests.solvers import test_order
from tests.test_imports import ORDER
from tests.tiny import tiny_images, tiny_model

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = dict(re.findall(r"^`src/odevit/([\w/]+\.py)`:\n\n```python\n(.*?)```$", TEXT, flags=re.S | re.M))
LINES = {path: code for path, code in BLOCKS.items() if path.endswith("__init__.py")}
CONFIDENCE = {"images": 4, "mean": 0.75, "top1": 0.75, "right": [0.9, 0.7, 0.8], "wrong": [0.6]}
FILES = {path: code for path, code in BLOCKS.items() if path not in LINES}


@pytest.fixture
def example(monkeypatch):
    """Import a file of CONTRIBUTING.md as a module of the package, and restore the registries afterwards.

    It replaces a class of that name, so that these tests also pass once an example has been added to the package.
    """
    all_sections()  # imports them; inside the block below they would be forgotten
    with ExitStack() as stack:
        for registry in (SOLVERS, DEPTHS, PENALTIES, SECTIONS):
            stack.enter_context(registry.restored())

        def run(path):
            (name,) = re.findall(r'\.register\("(\w+)"\)', FILES[path])
            for registry in (SOLVERS, DEPTHS, PENALTIES, SECTIONS):
                registry._entries.pop(name, None)
            module = ModuleType("odevit." + path.removesuffix(".py").replace("/", "."))
            monkeypatch.setitem(sys.modules, module.__name__, module)
            exec(compile(FILES[path], path, "exec"), vars(module))
            return module

        yield run


def test_every_example_is_one_file_and_one_import():
    assert sorted(FILES) == [
        "objectives/excursion.py",
        "report/confidence.py",
        "solvers/kutta3.py",
        "systems/momentum.py",
    ]
    for path, code in FILES.items():
        folder, name = Path(path).parent, Path(path).stem
        assert code.count(".register(") == 1
        for line in LINES.get(f"{folder}/__init__.py", "").splitlines():
            assert re.fullmatch(rf"from odevit\.{folder}\.{name} import (\w+) as \1", line)
    assert [len(lines.splitlines()) for lines in LINES.values()] == [1, 1, 1]


def test_package_with_the_examples_added_imports_and_passes_ruff(tmp_path):
    """In a copy of the package with nothing else changed."""
    shutil.copytree(ROOT / "src/odevit", tmp_path / "odevit", ignore=shutil.ignore_patterns("__pycache__"))
    for path, code in FILES.items():
        (tmp_path / "odevit" / path).write_text(code)
    ruff, config = Path(sys.executable).with_name("ruff"), ["--config", ROOT / "pyproject.toml"]
    for path, line in LINES.items():
        # Among the imports of the folder, where ruff sorts it: the order of imports must not matter.
        file, first = tmp_path / "odevit" / path, f"from odevit.{Path(path).parent}."
        text = file.read_text()
        file.write_text(text if line in text else text.replace(first, line + first, 1))
        subprocess.run([ruff, "check", "--fix", "--quiet", *config, file], check=True)
    code = f"""
import odevit
from odevit.core.base import DEPTHS
from odevit.report.section import SECTIONS, all_sections
from odevit.core.base import SOLVERS
from odevit.solvers import PENALTIES
from odevit.train import Recipe
all_sections()
assert odevit.__file__.startswith({str(tmp_path)!r})
recipe = Recipe()
print("kutta3" in SOLVERS, "momentum" in DEPTHS, "excursion" in PENALTIES, "confidence" in SECTIONS)
print(recipe.train.excursion)
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["True"] * 4 + ["0.0"]

    for verb in (["check"], ["format", "--check"]):
        command = [ruff, *verb, *config, *(tmp_path / "odevit" / path for path in BLOCKS)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("leak", [0.0, 1.5])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_kutta3_converges_with_order_3(example, problem, leak):
    example("solvers/kutta3.py")
    test_order.test_solver_error_falls_with_its_order("kutta3", problem, leak)
    case = PROBLEMS[problem](leak)
    assert solve(case.dynamics, case.x0, solver="kutta3", steps=5).stats.nfe == 15


def test_kutta3_and_momentum_pass_the_tests_of_the_registries(example, tmp_path):
    example("solvers/kutta3.py")
    example("systems/momentum.py")
    test_registry.test_every_solver_attention_and_norm_trains_and_exports("kutta3", "dot", "layer", tmp_path / "solver")
    test_registry.test_every_depth_has_the_properties_that_it_declares("momentum", tmp_path / "depth")


def test_model_runs_with_kutta3(example):
    example("solvers/kutta3.py")
    output = tiny_model()(tiny_images(), solver="kutta3", steps=4)
    assert output.trajectory.ok
    assert output.stats.nfe == 12


def test_momentum_depth_equals_the_formula_written_out(example):
    example("systems/momentum.py")
    model = tiny_model(depth="momentum", depth_options={"momentum": 0.75}, steps=3, horizon=1.5, leak=1.0)
    x = x0 = model.embed(tiny_images())
    velocity, f = torch.zeros_like(x), model.depth.field.dynamics(x0)
    for n in range(3):
        velocity = 0.75 * velocity + 0.25 * f(x, 0.5 * n)
        x = x + 0.5 * velocity
    solution = model.follow(x0, save=SaveAt("all", attentions=True))
    torch.testing.assert_close(solution.state, x)
    assert (len(solution.states), len(solution.attentions)) == (4, 3)


def test_momentum_depth_saves_its_option_and_refuses_solvers(example, tmp_path):
    example("systems/momentum.py")
    pixels, still = tiny_images(), tiny_model(depth="momentum", depth_options={"momentum": 0.0}, steps=3)
    torch.testing.assert_close(still(pixels).logits, tiny_like(still, solver="euler")(pixels).logits)
    # Another depth that stands in has its defaults, here an inertia of one half.
    assert not torch.allclose(tiny_like(still, solver="euler")(pixels, depth="momentum").logits, still(pixels).logits)
    still.save_pretrained(tmp_path)
    assert OdeViTForImageClassification.from_pretrained(tmp_path).depth.momentum == 0.0
    with pytest.raises(ConfigError, match=r"momentum=1; expected a number >= 0 and < 1"):
        tiny_model(depth="momentum", depth_options={"momentum": 1})
    with pytest.raises(ConfigError, match="3 steps with a momentum of 0 have no ODE solver"):
        still(pixels, solver="rk4")


def tiny_like(model, **settings):
    """An ODE with the weights of a model."""
    other = tiny_model(depth="ode", steps=model.config.steps, **settings)
    other.load_state_dict(model.state_dict())
    return other


def test_excursion_equals_the_closed_form_at_constant_velocity(example):
    """|x - x0|^2 = (v t)^2 at the end of each step."""
    penalty = example("objectives/excursion.py").Excursion
    x0 = torch.zeros(2, 3, dtype=torch.float64)
    dynamics = Dynamics({"push": lambda x, t, _: torch.full_like(x, 0.5)}, anchor=x0)
    for free in (0.0, 0.2):
        costs = {"excursion": penalty(free)}
        cost = solve(dynamics, x0, solver="euler", steps=4, t1=2.0, penalties=costs).penalties["excursion"]
        expected = sum(max(0.0, (0.5 * t) ** 2 - free) for t in (0.5, 1.0, 1.5, 2.0)) / 4
        assert cost.item() == pytest.approx(expected, rel=8 * torch.finfo(x0.dtype).eps)


def test_recipe_reads_weight_and_option_of_excursion(example):
    example("objectives/excursion.py")
    from odevit.train.compose import compose_recipe

    recipe = compose_recipe(["experiment=digits", "train.excursion=0.1", "train.excursion_free=0.5"])
    assert recipe.train.weights == {"excursion": 0.1}
    assert recipe.train.penalties["excursion"].free == 0.5
    with pytest.raises(ConfigError, match=r"train\.excursion=-1"):
        compose_recipe(["experiment=digits", "train.excursion=-1"]).check()


def test_confidence_section_measures_and_draws(example):
    section = example("report/confidence.py").Confidence()
    probabilities = torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.4, 0.6], [0.2, 0.8]], dtype=torch.float64)
    study = SimpleNamespace(
        forward_cache=SimpleNamespace(logits=probabilities.log()),
        sample=SimpleNamespace(labels=torch.tensor([0, 1, 0, 1])),
    )
    numbers = to_builtins(section.measure(study))
    assert numbers == {"confidence": CONFIDENCE}

    (axes,) = section.draw(numbers, torch.empty(0))["confidence"].axes
    assert axes.get_legend_handles_labels()[1] == ["right", "wrong"]
    assert [sum(bar.get_height() for bar in bars) for bars in axes.containers] == [3, 1]


def test_confidence_section_stands_at_its_place_on_the_page(example, tmp_path):
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


def test_map_lists_every_folder():
    drawn = set(re.findall(r"^\| `(\w+)/` \|", TEXT, flags=re.M))
    package = ROOT / "src/odevit"
    assert drawn == {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}


def test_order_of_imports_is_the_one_that_is_checked():
    (block,) = re.findall(r"^    (errors, registry.*?)\n\n", TEXT, flags=re.S | re.M)
    assert [{*re.split(r",\s*", part.strip())} for part in block.split("->")] == ORDER[:-1]
