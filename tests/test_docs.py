"""What the README and the docs say is true today."""

import re
import shlex
from pathlib import Path

import pytest
from benchmarks.readme import PAGES, TABLES, filled
from PIL import Image
from transformers import ViTConfig, ViTImageProcessorPil, ViTModel

from odevit.bundled import bundled_models
from odevit.cli import main, verb_of
from odevit.cli.recipes import RecipeVerb
from odevit.core.solver import SOLVERS
from odevit.distill.distillation import DistillRecipe, compose_distillation
from odevit.report import convergence as coming_to_rest
from odevit.report import smoothness
from odevit.report import solver_sensitivity as dependence
from odevit.report import teacher_match as teaching
from odevit.train.compose import compose_as
from tests.pictures import SHAPES, folder_of_shapes

ROOT = Path(__file__).parents[1]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKING = [
    *DOCS,
    *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "records/README.md", "benchmarks/README.md")),
    *sorted(ROOT.glob("checkpoints/*/README.md")),
]
USE = ROOT / "docs/use.md"
SNIPPETS = [
    pytest.param(code, id=f"{path.name}-{number}")
    for path in DOCS
    if path != USE
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), flags=re.S))
]

COMMANDS = sorted(
    {
        line.partition("#")[0].strip()
        for path in DOCS
        for block in re.findall(r"```sh\n(.*?)```", path.read_text(), flags=re.S)
        for line in block.splitlines()
        if line.startswith("odevit ")
    }
)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command):
    """Every verb and every key exists, and recipes compose; nothing is run."""
    _, name, *words = shlex.split(command)
    verb = verb_of(name)
    if isinstance(verb, RecipeVerb):
        words = [word for word in words if not word.startswith(("--", "hydra/")) and not word.endswith("=?")]
        single = [word for word in words if "," not in word]
        if name == "distill":
            compose_distillation(single)
        else:
            compose_as(verb.recipe, {"train": "recipe"}.get(name, name), single)
    else:
        verb.parse(words)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_keys_of_recipes_exist(path):
    recipe, text = DistillRecipe(), path.read_text()
    groups = "train|data|student|objective|alignment|stopping"
    keys = {*re.findall(rf"`({groups})\.(\w+)[`=]", text), *re.findall(rf"\b({groups}|model)\.(\w+)=", text)}
    unknown = [f"{group}.{key}" for group, key in sorted(keys) if not hasattr(getattr(recipe, group), key)]
    assert unknown == []


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippets_run(code):
    if "export_onnx" in code:
        pytest.importorskip("onnxscript")
    with SOLVERS.restored():
        exec(compile(code, "snippet", "exec"), {})


def test_the_page_for_the_first_hour_runs_from_top_to_bottom(tmp_path, monkeypatch):
    """As printed, but for how long is trained, in a folder with the pictures and the ViT that the page speaks of."""
    monkeypatch.chdir(tmp_path)
    folder_of_shapes(Path("pictures"), 8, SHAPES[:3])
    shape = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
    ViTModel(ViTConfig(**shape, image_size=32, patch_size=8)).save_pretrained("vit")
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained("vit")
    for language, code in re.findall(r"```(sh|python)\n(.*?)```", USE.read_text(), flags=re.S):
        if language == "python":
            exec(compile(code, "use.md", "exec"), {})
        for line in code.splitlines() if language == "sh" else ():
            _, verb, *words = (word for word in shlex.split(line) if not word.startswith("train.seconds="))
            quick = ["train.epochs=1"] if verb in ("train", "distill") else []
            assert main([verb, *words, *quick]) == 0, line


def test_the_card_of_the_bundled_model_works_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (40, 60)).save("image.png")
    (code,) = re.findall(r"```python\n(.*?)```", (bundled_models()["cifar10"] / "README.md").read_text(), flags=re.S)
    names = {}
    exec(compile(code, "card", "exec"), names)
    assert len(names["classify"]("image.png")) == 5


def test_the_manual_states_the_rules_of_the_verdicts():
    text = " ".join((ROOT / "docs/stability.md").read_text().split())
    questions = dict(re.findall(r"\*\*([^*]+\?)\*\* (.*?)(?=\*\*[^*]+\?\*\*|## )", text))
    rules = {
        "Does it settle?": (
            f"at least {coming_to_rest.SETTLED_SHARE:.0%}",
            f"less than {coming_to_rest.SETTLED_CHANGE:.0%}",
            f"at most {coming_to_rest.RESTLESS_SHARE:.0%}",
            f"more than {coming_to_rest.RESTLESS_CHANGE:.0%}",
        ),
        "Does the answer depend on how it was integrated?": (
            f"at most {100 * dependence.SAME_ACCURACY:g} point",
            f"at least {dependence.SAME_ANSWERS:.0%}",
            f"more than {100 * dependence.OTHER_ACCURACY:g} points",
            f"fewer than {dependence.OTHER_ANSWERS:.0%}",
        ),
        "How many evaluations are enough?": (f"at most {100 * dependence.ENOUGH:g} points",),
        "How far may a state be moved before the answer changes?": (f"at least {smoothness.TOLERANT:.0%}",),
        "Does it follow its teacher?": (f"from {teaching.FOLLOWS:.0%}", f"below {teaching.PARTS:.0%}"),
    }
    assert list(questions) == list(rules)
    for question, phrases in rules.items():
        assert [phrase for phrase in phrases if phrase not in questions[question]] == [], question


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_are_what_the_records_say(page):
    text = (ROOT / page).read_text()
    assert "<!--" in text
    assert filled(text) == text


def test_every_table_is_on_a_page():
    shown = [name for page in PAGES for name in re.findall(r"<!-- (\w+) -->", (ROOT / page).read_text())]
    assert sorted(shown) == sorted(TABLES)


@pytest.mark.parametrize("path", LINKING, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", path.read_text()):
        page = path.parent / target if target else path
        assert page.exists(), f"{path.name} links to {target}"
        headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.M) if anchor else []
        anchors = [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]
        assert not anchor or anchor in anchors, f"{path.name} links to {target}#{anchor}"
