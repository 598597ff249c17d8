"""analyze on a tiny model: its files, page, verdicts and side effects."""

import importlib
import importlib.util
import json
import re
import shutil
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import torch

import odevit.report
from odevit.core.modeling_odevit import OdeViTForImageClassification
from odevit.core.solver_config import make_solver
from odevit.loading import load
from odevit.report.analysis import analyze
from odevit.report.section import SECTIONS, all_sections, write_page
from tests.report.alone import pictures, what_it_fetches, without_pictures
from tests.report.small import FEW, model_folder, picture_folder

WITHOUT_TEACHER = {
    *("speed", "exponents", "plane", "spectrum", "classes", "steps", "horizons", "grid"),
    *("lipschitz", "radius", "attention"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return picture_folder(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def calm(tmp_path_factory, data):
    """An untrained model with a leak, and its report."""
    run = model_folder(tmp_path_factory.mktemp("calm"), leak=8.0, steps=6)
    return analyze(run, data=str(data), limit=100, sizes=FEW, seed=3)


@pytest.fixture(scope="module")
def restless(tmp_path_factory):
    """The same without a leak: it drifts away for ever. And only one class to look at."""
    data = picture_folder(tmp_path_factory.mktemp("alike"), of_each=8)
    for name in ("b", "c"):
        shutil.rmtree(data / "test" / name)
    run = model_folder(tmp_path_factory.mktemp("restless"), leak=0.0, horizon=6.0)
    return analyze(run, data=str(data), limit=7, sizes=FEW)


@pytest.fixture(scope="module")
def moving(tmp_path_factory, data):
    """Weights that move, and a velocity that fades: nothing is left of them at rest."""
    options = {"knots": 2, "fade": 0.1, "leak": 0.0, "steps": 6}
    return analyze(model_folder(tmp_path_factory.mktemp("moving"), **options), data=str(data), limit=6, sizes=FEW)


NEW_SECTION = """
from odevit.report import SECTIONS, Section

@SECTIONS.register("norms")
class Norms(Section):
    title = "How large is <x>?"
    order = 15
    thresholds = ("A state is large beyond ten.",)
    text = "<p>The largest norm of {{ norms.images | count }} embedded images is {{ norms.largest | number }}.</p>"

    def measure(self, study):
        x0 = study.sample.start(4)
        return {"norms": {"images": len(x0), "largest": x0.flatten(1).norm(dim=1).max()}}
"""


@pytest.fixture(scope="module")
def bundled(tmp_path_factory, data):
    """Steps that are short, a model that is bundled, and a section that somebody wrote: one report for all three."""
    folder = tmp_path_factory.mktemp("bundled")
    run = model_folder(folder / "bundle", leak=1.0, horizon=0.3)
    (folder / "norms.py").write_text(NEW_SECTION)
    spec = importlib.util.spec_from_file_location("norms", folder / "norms.py")
    all_sections()  # imports them; inside the block below they would be forgotten
    with pytest.MonkeyPatch.context() as patch, SECTIONS.restored():
        patch.setattr(importlib.import_module("odevit.loading"), "bundled_models", lambda: {"tiny": run})
        patch.chdir(folder)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
        found = analyze("tiny", data=str(data), limit=6, sizes=FEW)
        return replace(found, folder=found.folder.resolve())


def test_analyze_writes_json_page_and_figures(calm):
    assert {path.name for path in calm.folder.iterdir()} == {"analysis.json", "report.html", "figures"}
    assert calm.folder.name == "analysis"
    assert {path.stem for path in (calm.folder / "figures").iterdir()} == WITHOUT_TEACHER


def test_analysis_json_is_valid_and_has_its_command_and_versions(calm):
    text = (calm.folder / "analysis.json").read_text()
    numbers = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert numbers == json.loads(json.dumps(calm.numbers))
    assert numbers["data"]["images"] == 12
    assert numbers["data"]["asked"] == 100
    assert sorted(numbers["answers"]["images"]) == list(range(12))
    assert numbers["command"].startswith("odevit analyze ")
    assert "seed=3" in numbers["command"]
    for key in ("device", "versions", "seed", "sizes", "seconds", "thresholds"):
        assert key in numbers
    for part in ("path", "rest"):
        assert len(numbers["exponents"][part]["values"]) == 12
        assert len(numbers["exponents"][part]["converged"]) == 12
    assert set(numbers["exponents"]["by_token"]) == {"CLS", "patches", "registers"}


def test_write_page_from_analysis_json_gives_the_same_page(calm, tmp_path):
    numbers = json.loads((calm.folder / "analysis.json").read_text())
    figures = {path.stem: path.read_bytes() for path in (calm.folder / "figures").iterdir()}
    title = f"How stable is {Path(numbers['model']['run']).name}?"
    again = write_page(tmp_path / "again.html", title, "analysis.html.j2", all_sections(), numbers, figures)
    first, again = (page.read_text().split("How this was made")[0] for page in (calm.page, again))
    assert first == again


def test_registered_section_is_measured_and_stands_in_its_order(bundled):
    """It is measured, told, and in its place on the page, without anything else being touched."""
    assert bundled.numbers["norms"]["images"] == 4
    page = bundled.page.read_text()
    places = [
        page.index(f"<h2>{title}") for title in ("Does it settle?", "How large is &lt;x&gt;?", "Where do they go?")
    ]
    assert places == sorted(places)
    assert f"of 4 embedded images is {bundled.numbers['norms']['largest']:.3g}." in page
    assert "A state is large beyond ten." in page
    assert "norms" not in SECTIONS


def test_all_sections_are_sorted_by_distinct_orders():
    titles = [section.title for section in all_sections()]
    assert titles[0] == "Does it settle?"
    assert titles[-1] == "How this was made"
    places = [section.order for section in all_sections()]
    assert places == sorted(set(places))


def test_report_page_embeds_all_figures(calm):
    page = calm.page.read_text()
    assert set(pictures(page)) == WITHOUT_TEACHER
    assert not what_it_fetches(page)
    assert "no teacher at hand" in page
    assert "100 were asked for" in page


def test_depth_comparison_agrees_at_a_rest_point(calm):
    equation, recurrent, equilibrium = calm.numbers["depths"]["rows"]
    assert equation["name"].startswith("equation")
    assert equilibrium["settled"]
    assert recurrent["difference"] == pytest.approx(equilibrium["difference"], abs=1e-3)
    assert recurrent["agreement"] == equilibrium["agreement"]
    assert "One model, three depths" in calm.page.read_text()


def test_page_opens_with_the_answer_and_sentences_of_every_verdict(calm):
    sections = re.findall(
        r'<section class="verdict (\w+)"><h3>(.*?)</h3>(.*?)</section>', calm.page.read_text(), flags=re.S
    )
    assert [verdict.question for verdict in calm.verdicts] == [
        "Does it settle?",
        "Does the answer depend on how it was integrated?",
        "How many evaluations are enough?",
        "How far may a state be moved before the answer changes?",
        "Does it follow its teacher?",
    ]
    for verdict, (kind, heading, body) in zip(calm.verdicts, sections, strict=True):
        assert kind == {True: "good", False: "bad", None: "open"}[verdict.good]
        assert unescape(heading) == f"{verdict.question} {verdict.answer[0].upper()}{verdict.answer[1:]}."
        assert re.findall(r"<p>(.*?)</p>", unescape(body)) == list(verdict.sentences)


def test_analyze_says_that_a_leak_settles_and_its_absence_does_not(calm, restless):
    assert calm.numbers["exponents"]["rest"]["negative"]["value"] == 1.0
    assert calm.numbers["speed"]["change_per_horizon"] < 0.01
    assert calm.numbers["exceptions"]["count"] == 0
    settles = restless.verdicts[0]
    assert settles.answer == "no"
    assert restless.numbers["exceptions"]["count"] > 0
    assert "Exceptions" in restless.page.read_text()
    for row in restless.numbers["exceptions"]["rows"]:
        assert row["kind"] in ("drifts", "wanders", "oscillates", "rests", "diverges")
        assert row["label"] == "a"


def test_limit_draws_a_random_sample_of_the_split(restless):
    numbers = restless.numbers["answers"]["images"]
    assert len(set(numbers)) == 7
    assert restless.numbers["data"]["available"] == 8
    assert numbers != sorted(numbers), "drawn, not the first ones: folders are sorted by class"


def test_analyze_restores_model_run_folder_and_random_state(data, tmp_path, monkeypatch):
    run = model_folder(tmp_path / "run", leak=1.0, hidden_dropout=0.1, solver="dopri5")
    model = load(run)
    model.train()
    model.odevit.norm.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    monkeypatch.setattr(importlib.import_module("odevit.report.analysis"), "load", lambda *_: model)
    files = {path: path.read_bytes() for path in run.iterdir()}
    random = torch.get_rng_state()
    found = analyze(run, data=str(data), limit=3, out=tmp_path / "out", sizes=FEW)
    assert found.folder == tmp_path / "out"
    assert found.page.exists()
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert {path: path.read_bytes() for path in run.iterdir()} == files


def test_analyze_reports_a_model_that_diverges(data, tmp_path):
    run = model_folder(tmp_path / "run", leak=0.0, norm="center", horizon=40.0)
    model = OdeViTForImageClassification.from_pretrained(run)
    with torch.no_grad():
        for parameter in model.odevit.depth.parameters():
            parameter.mul_(20)
    model.save_pretrained(run)
    found = analyze(run, data=str(data), limit=3, sizes=FEW)
    assert found.verdicts[0].answer == "no"
    assert found.numbers["speed"]["median"][-1] is None
    assert found.numbers["exponents"]["rest"]["not_converged"]["value"] == 1.0
    assert "nan" not in without_pictures(found.page.read_text()).lower()


def test_analyze_gives_no_correlation_for_one_class(restless):
    assert restless.numbers["exponents"]["by_class"]["correlation"] is None
    assert "No correlation is given" in restless.page.read_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": None}, "pass data=FOLDER"),
        ({"split": "tset"}, "expected train or validation or test"),
        ({"limit": 0}, "at least 1"),
        ({"sizes": 3}, "expected odevit.report.Sizes"),
    ],
)
def test_analyze_refuses_bad_arguments_and_writes_nothing(data, tmp_path, settings, message):
    run = model_folder(tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        analyze(run, **{"data": str(data), **settings})
    assert not (run / "analysis").exists(), "nothing is written for a request that cannot be met"


def test_analyze_refuses_a_stacked_model_and_a_head_for_other_classes(data, tmp_path):
    with pytest.raises(ValueError, match="no trajectory"):
        analyze(model_folder(tmp_path / "stacked", depth="stacked"), data=str(data))
    with pytest.raises(ValueError, match=r"the data has 3 classes \(.*\), the head of .* has 4 \(LABEL_0, "):
        analyze(model_folder(tmp_path / "four", num_labels=4), data=str(data))


def test_analyze_of_a_bundled_model_writes_to_analysis_name(bundled):
    """analysis-NAME, for a folder NAME would be taken for the model the next time."""
    assert bundled.page.parent.name == "analysis-tiny"
    assert bundled.page.exists()
    assert not (bundled.folder.parent / "tiny").exists()


def test_solver_sensitivity_does_not_count_splittings(bundled):
    """Strang's short steps are stable, but rest beside the equation: that is the solver's doing."""
    numbers = bundled.numbers
    stable = [solver_config["solver"] for solver_config in numbers["sweep"]["solvers"] if solver_config["stable"]]
    assert "strang" in stable
    own = numbers["model"]["solver"]
    counted = [name for name in stable if name == own or make_solver(name).rests_with_equation]
    assert numbers["sweep"]["spreads"]["solvers"]["ways"] == len(counted) < len(stable)


def test_analyze_measures_limits_of_moving_weights_along_the_path(moving, calm):
    numbers, page = moving.numbers, (moving.folder / "report.html").read_text()
    assert numbers["limits"]["on_the_way"]
    assert "images, since the equation changes with time, the largest eigenvalue" in " ".join(page.split())
    assert "At rest, after eight horizons" not in page
    assert ">at rest<" not in page
    still, there = calm.numbers, (calm.folder / "report.html").read_text()
    assert not still["limits"]["on_the_way"]
    assert "At rest, after eight horizons" in there
    assert ">at rest<" in there


def test_old_name_analyse_returns_analyze_with_a_warning():
    with pytest.warns(DeprecationWarning, match="odevit.report.analyze"):
        assert odevit.report.analyse is analyze
