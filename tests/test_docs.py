"""Commands, code, tables and links of the README and the docs work."""

import re
import shlex
from pathlib import Path

import pytest
from benchmarks.readme import PAGES, TABLES, filled
from PIL import Image
from transformers import ViTConfig, ViTImageProcessorPil, ViTModel

from odevit.bundled import bundled_models
from odevit.cli import find_command, main
from odevit.cli.recipes import RecipeCommand
from odevit.core.base import SOLVERS
from odevit.deprecated import ARGUMENTS, CLASSES, RENAMED, STUDENT
from odevit.distill.distillation import DistillRecipe, compose_distillation
from odevit.report import convergence as coming_to_rest
from odevit.report import smoothness
from odevit.report import solver_sensitivity as dependence
from odevit.report import teacher_match as teaching
from odevit.train.compose import compose_as
from tests.pictures import SHAPES, folder_of_shapes

ROOT = Path(__file__).parents[1]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "records").glob("notes-*.md"))]
LINKING = [
    *DOCS,
    *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "records/README.md", "benchmarks/README.md")),
    *sorted(ROOT.glob("checkpoints/*/README.md")),
]
TUTORIALS = [ROOT / "docs/images.md", ROOT / "docs/vit.md"]
"""Run as a whole, one after the other, in a folder with the files they mention."""
SNIPPETS = [
    pytest.param(code, id=f"{path.name}-{number}")
    for path in DOCS
    if path not in TUTORIALS
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
def test_commands_parse_and_their_recipes_compose(command):
    """Nothing is run."""
    _, name, *words = shlex.split(command)
    verb = find_command(name)
    if isinstance(verb, RecipeCommand):
        words = [word for word in words if not word.startswith(("--", "hydra/")) and not word.endswith("=?")]
        single = [word for word in words if "," not in word]
        if name == "distill":
            compose_distillation(single)
        else:
            compose_as(verb.recipe, single)
    else:
        verb.parse(words)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_recipe_keys_in_the_text_exist(path):
    recipe, text = DistillRecipe(), path.read_text()
    groups = "train|data|student|objective|alignment|stopping"
    keys = {*re.findall(rf"`({groups})\.(\w+)[`=]", text), *re.findall(rf"\b({groups}|model)\.(\w+)=", text)}
    unknown = [f"{group}.{key}" for group, key in sorted(keys) if not hasattr(getattr(recipe, group), key)]
    assert unknown == []


@pytest.mark.parametrize("code", SNIPPETS)
def test_python_blocks_run(code):
    if "export_onnx" in code:
        pytest.importorskip("onnxscript")
    with SOLVERS.restored():
        exec(compile(code, "snippet", "exec"), {})


def test_tutorials_run_from_top_to_bottom(tmp_path, monkeypatch):
    """As printed, but with one epoch, in a folder with the images and the ViT that the pages mention."""
    monkeypatch.chdir(tmp_path)
    folder_of_shapes(Path("pictures"), 8, SHAPES[:3])
    shape = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64}
    ViTModel(ViTConfig(**shape, image_size=32, patch_size=8)).save_pretrained("vit")
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained("vit")
    text = "".join(path.read_text() for path in TUTORIALS)
    for language, code in re.findall(r"```(sh|python)\n(.*?)```", text, flags=re.S):
        if language == "python":
            exec(compile(code, "tutorial", "exec"), {})
        for line in code.splitlines() if language == "sh" else ():
            _, verb, *words = (word for word in shlex.split(line) if not word.startswith("train.seconds="))
            quick = ["train.epochs=1"] if verb in ("train", "distill") else []
            assert main([verb, *words, *quick]) == 0, line


def test_code_on_the_card_of_the_bundled_model_runs_in_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (40, 60)).save("image.png")
    (code,) = re.findall(r"```python\n(.*?)```", (bundled_models()["cifar10"] / "README.md").read_text(), flags=re.S)
    names = {}
    exec(compile(code, "card", "exec"), names)
    assert len(names["classify"]("image.png")) == 5


def test_stability_page_states_the_thresholds_of_each_verdict():
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
def test_tables_equal_what_the_records_give(page):
    text = (ROOT / page).read_text()
    assert "<!--" in text
    assert filled(text) == text


def test_every_table_is_on_exactly_one_page():
    shown = [name for page in PAGES for name in re.findall(r"<!-- (\w+) -->", (ROOT / page).read_text())]
    assert sorted(shown) == sorted(TABLES)


def broken_links(path):
    """Links of a page to files or headings that do not exist."""
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", path.read_text()):
        page = path.parent / target if target else path
        if not page.exists():
            yield target
        elif anchor:
            headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.M)
            if anchor not in [re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings]:
                yield f"{target}#{anchor}"


def test_changelog_lists_every_name_that_changed():
    text = (ROOT / "CHANGELOG.md").read_text()
    renamed = [(old, new) for names in (CLASSES, ARGUMENTS, STUDENT, RENAMED) for old, new in names.items()]
    names = {name.removeprefix("odevit.") if name.count(".") == 1 else name for pair in renamed for name in pair}
    assert sorted(name for name in names if f"`{name}`" not in text) == []


@pytest.mark.parametrize("path", LINKING, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(path):
    assert list(broken_links(path)) == []


def test_broken_links_finds_missing_files_and_headings(tmp_path):
    (tmp_path / "other.md").write_text("# Size, steps and solver\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](other.md#size-steps-and-solver) [b](#here) [c](https://example.org/x)\n"
        "[d](gone.md) [e](other.md#size) [f](#there) ![g](gone.png)\n"
    )
    assert list(broken_links(page)) == ["gone.md", "other.md#size", "#there", "gone.png"]
