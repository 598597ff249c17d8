"""The verdicts of every section: each answer, and its sentences."""

import copy
import json
from pathlib import Path

import pytest

from odevit.analysis.significance import Proportion
from odevit.report.convergence import Convergence, exception_numbers
from odevit.report.section import TOO_FEW, all_sections
from odevit.report.smoothness import Smoothness
from odevit.report.solver_sensitivity import cost_verdict, fewest, sensitivity_verdict
from odevit.report.study import Study
from odevit.report.teacher_match import TeacherMatch
from tests.report.small import FEW, images, sample_of
from tests.tiny import tiny_model

RECORDS = sorted((Path(__file__).parents[2] / "records").glob("*/analysis.json"))


def settles(numbers):
    (verdict,) = Convergence().judge(numbers)
    return verdict


def tolerates(radius):
    (verdict,) = Smoothness().judge({"radius": radius})
    return verdict


def follows(teacher):
    (verdict,) = TeacherMatch().judge({"teacher": teacher})
    return verdict


def verdicts(numbers):
    return [verdict for section in all_sections() for verdict in section.judge(numbers)]


def outcome(steps, top1, solver="lie_trotter", horizon=6.0, agreement=1.0):
    return {
        "solver": solver, "steps": steps, "horizon": horizon, "images": 1000, "top1": top1, "agreement": agreement,
        "nfe": float(steps), "finite": 1.0, "stable": True,
    }  # fmt: skip


def spread(difference, error=0.002, agreement=0.99):
    return {
        "ways": 5, "images": 1000, "steps": [6, 64], "difference": difference, "error": error, "agreement": agreement,
        "lowest": outcome(6, 0.91), "highest": outcome(24, 0.91 + difference, "rk4"),
    }  # fmt: skip


def share(hits, count=1000):
    return Proportion(hits, count).to_dict()


GOOD = {
    "data": {"classes": 10},
    "exponents": {"rest": {"negative": share(1000), "not_converged": share(0), "mean": -0.2}},
    "speed": {"change_per_horizon": 1e-4},
    "exceptions": {"count": 0, "looked_at": 0, "kinds": {}, "between": 0, "wrong": 0},
    "sweep": {
        "own": outcome(12, 0.92),
        "top1": share(920),
        "steps": [outcome(4, 0.87), outcome(6, 0.917), outcome(12, 0.92), outcome(24, 0.92)],
        "stops": [outcome(1, 0.5), outcome(8, 0.918), outcome(10, 0.91), outcome(12, 0.92)],
        "accurate": {**outcome(80, 0.919, "dopri5"), "images": 400, "difference": -0.001, "error": 0.002},
        "spreads": {"steps": spread(0.005), "solvers": spread(0.004), "horizons": spread(0.006)},
    },
    "radius": {
        "images": 64,
        "quantiles": {"5%": 0.01, "50%": 0.03, "95%": 0.05},
        "random_median": 4.0,
        "move_median": 0.001,
        "inside": share(64, 64),
    },
    "teacher": None,
}


def changed(path, value):
    """GOOD with one number changed."""
    numbers = copy.deepcopy(GOOD)
    place = numbers
    *solver_config, last = path.split("/")
    for key in solver_config:
        place = place[key]
    place[last] = value
    return numbers


def test_verdicts_of_a_good_model_are_good():
    found = verdicts(GOOD)
    assert [each.answer for each in found] == ["yes", "no", "6 of 12", "3% of its norm", "it has none here"]
    assert [each.good for each in found] == [True, True, True, True, None]
    assert sum(len(section.thresholds) for section in all_sections()) == len(found), "a rule for every verdict"
    for number in ("100.0%", "99.6%"):
        assert number in found[0].sentences[0]


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.parent.name)
def test_verdicts_of_recorded_numbers_are_unchanged(record):
    numbers = json.loads(record.read_text())
    now = [(verdict.question, verdict.answer, verdict.good) for verdict in verdicts(numbers)]
    assert now == [(verdict["question"], verdict["answer"], verdict["good"]) for verdict in numbers["verdicts"]]


@pytest.mark.parametrize(
    ("path", "value", "answer"),
    [
        ("exponents/rest/negative", share(940), "partly"),
        ("exponents/rest/negative", share(300), "no"),
        ("speed/change_per_horizon", 0.05, "partly"),
        ("speed/change_per_horizon", 0.5, "no"),
        ("speed/change_per_horizon", None, "no"),
    ],
)
def test_convergence_verdict_is_no_for_growing_exponents(path, value, answer):
    found = settles(changed(path, value))
    assert found.answer == answer
    assert found.good is False


@pytest.mark.parametrize(("hits", "count", "enough"), [(72, 72, 73), (96, 100, 1825), (4, 10, 97)])
def test_convergence_verdict_asks_for_more_images_where_only_the_interval_fails(hits, count, enough):
    found = settles(changed("exponents/rest/negative", share(hits, count)))
    assert (found.answer, found.good) == (TOO_FEW, None)
    assert f"With the same share, {enough:,} images would decide." in found.sentences[0]
    assert settles(changed("exponents/rest/negative", share(73, 73))).answer == "yes"


def test_verdicts_show_intervals_where_all_images_agree():
    numbers = changed("exponents/rest/negative", share(72, 72))
    numbers["sweep"]["spreads"] = {"steps": spread(0.0, error=0.0), "solvers": None, "horizons": None}
    numbers["sweep"]["accurate"] |= {"difference": 0.0, "error": 0.0}
    numbers["radius"]["inside"] = share(64, 64)
    said = " ".join(sentence for verdict in verdicts(numbers) for sentence in verdict.sentences)
    assert "± 0" not in said
    assert "100.0% of 72 images (largest Lyapunov exponent below zero; 95% interval 94.9% to 100.0%)" in said
    assert "for 100.0% (95% interval 94.3% to 100.0%) of them" in said
    assert "accuracy is 91.0% with all of 5 settings: no difference on any of 1,000 images" in said


def test_verdicts_show_one_number_for_a_range_of_equal_ends():
    numbers = changed("exponents/rest/negative", share(10**6, 10**6))
    numbers["radius"]["quantiles"] = {"5%": 0.0301, "50%": 0.0302, "95%": 0.0303}
    said = " ".join(sentence for verdict in verdicts(numbers) for sentence in verdict.sentences)
    assert "95% interval 100.0%)" in said
    assert "the middle 90%: 3%)" in said


def test_convergence_verdict_says_how_many_exponents_did_not_converge():
    numbers = changed("exponents/rest/not_converged", share(600))
    said = " ".join(settles(numbers).sentences)
    assert "60.0%" in said
    assert "not converged" in said
    assert "−0.200" in said


def test_convergence_verdict_counts_kinds_of_exceptions():
    exceptions = {"count": 70, "looked_at": 64, "kinds": {"drifts": 40, "oscillates": 24}, "between": 1, "wrong": 2}
    said = " ".join(settles(changed("exceptions", exceptions)).sentences)
    assert "70 exceptions" in said
    assert "first 64" in said
    assert "24 oscillate" in said
    assert "1 is between" in said


@pytest.mark.parametrize(
    ("which", "found", "answer"),
    [
        ("steps", spread(0.02), "slightly"),
        ("solvers", spread(0.2), "yes"),
        ("solvers", spread(0.2, error=0.1), TOO_FEW),
        ("solvers", spread(0.02, error=0.01), "no"),
        ("horizons", spread(0.0, agreement=0.9), "slightly"),
        ("horizons", spread(0.0, agreement=0.5), "yes"),
        ("steps", None, "no"),
    ],
)
def test_sensitivity_verdict_follows_spread_and_agreement(which, found, answer):
    assert sensitivity_verdict(changed(f"sweep/spreads/{which}", found)["sweep"]).answer == answer


def test_sensitivity_verdict_without_spreads_is_unknown():
    none = {"steps": None, "solvers": None, "horizons": None}
    assert sensitivity_verdict(changed("sweep/spreads", none)["sweep"]).answer == "unknown"


@pytest.mark.parametrize(("difference", "word"), [(-0.05, "loses"), (0.01, "keeps"), (-0.005, "keeps")])
def test_sensitivity_verdict_says_whether_dopri5_keeps_the_accuracy(difference, word):
    accurate = {**GOOD["sweep"]["accurate"], "difference": difference}
    said = sensitivity_verdict(changed("sweep/accurate", accurate)["sweep"]).sentences[-1]
    assert f" {word} its accuracy" in said


def test_fewest_requires_that_all_more_expensive_outcomes_agree():
    steps = GOOD["sweep"]["steps"]
    assert fewest(steps, 0.92)["steps"] == 6
    # Eight would do on their own, but ten do not: it was luck.
    assert fewest(GOOD["sweep"]["stops"], 0.92)["steps"] == 12
    assert fewest([outcome(4, 0.1)], 0.92) is None


def test_cost_verdict_is_all_of_them_where_fewer_lose_accuracy():
    numbers = changed("sweep/steps", [outcome(6, 0.8), outcome(12, 0.92)])
    found = cost_verdict(numbers["sweep"], 10)
    assert found.answer == "all 12 of them"
    assert "nothing can be saved" in found.sentences[1]


def test_cost_verdict_of_a_guessing_model_is_unknown():
    found = cost_verdict(changed("sweep/top1", share(105))["sweep"], 10)
    assert found.answer == "unknown"
    assert "guessing" in found.sentences[0]


def test_radius_verdict_gives_no_guarantee_for_a_short_radius():
    found = tolerates(changed("radius/inside", share(1, 64))["radius"])
    assert found.good is None
    assert "some answers may change" in found.sentences[1]
    none = {"5%": None, "50%": None, "95%": None}
    assert tolerates(changed("radius/quantiles", none)["radius"]).answer == "unknown"


def taught(hits=950, absolute=0.7, relative=0.7):
    """What is known of a teacher: how often it is agreed with, and how often both right is nearer."""

    def nearer(value):
        return None if value is None else {"value": value, "error": 0.02}

    return {
        "agreement": share(hits),
        "top1": share(900),
        "student_top1": share(880),
        "token": "CLS",
        "by_layer": {"median": [1.0, 2.0], "standstill": [3.0, 9.0]},
        "tells_disagreement": 0.8,
        "right_is_nearer": nearer(absolute),
        "relative": {"by_layer": {"median": [0.1, 0.25]}, "right_is_nearer": nearer(relative)},
    }


@pytest.mark.parametrize(("hits", "answer"), [(950, "yes"), (800, "partly"), (300, "no")])
def test_teacher_verdict_follows_agreement(hits, answer):
    found = follows(taught(hits))
    assert found.answer == answer
    assert "25% of the teacher's norm" in found.sentences[1]
    assert "80% of all pairs" in found.sentences[2]


@pytest.mark.parametrize(
    ("absolute", "relative", "first", "second"),
    [
        (0.15, 0.65, "no, farther (nearer in 15%", "yes (65%)"),
        (0.57, 0.43, "yes (nearer in 57%", "no, farther (43%)"),
        (0.55, 0.45, "no significant difference (nearer in 55%", "no significant difference (45%)"),
    ],
)
def test_teacher_verdict_states_both_distances(absolute, relative, first, second):
    said = follows(taught(absolute=absolute, relative=relative)).sentences[-1]
    assert f"By |x − h|: {first}" in said
    assert f"By |x − h| / |h|: {second}" in said
    assert "50% ± 2.0" in said


def test_teacher_verdict_of_a_diverging_student_is_no():
    some = follows({**taught(800), "finite": share(900)}).sentences
    assert "On 100 of these images it diverges" in some[1]
    assert "25% of the teacher's norm" in some[2]
    nothing = {"by_layer": {"median": [None], "standstill": [None]}, "tells_disagreement": None}
    found = follows({**taught(0), "finite": share(0), **nothing})
    assert (found.answer, found.good) == ("no", False)
    assert "On 1,000 of these images it diverges" in found.sentences[-1]


def test_teacher_verdict_leaves_out_empty_groups():
    assert "80% of all pairs" in follows(taught(absolute=None, relative=None)).sentences[-1]


def test_convergence_verdict_of_a_faded_field_is_stopped():
    rest = {"negative": {"interval": [0.0, 0.1]}}
    numbers = {"model": {"stopped_at": 13.2}, "exponents": {"rest": rest}, "exceptions": {"count": 3}}
    verdict = settles(numbers | {"speed": {"change_per_horizon": 0.0}})
    assert (verdict.answer, verdict.good) == ("it is stopped", None)
    assert "is 0 from t = 13.2 on" in verdict.sentences[0]


def test_exception_numbers_of_a_faded_field_are_empty():
    model = tiny_model(leak=0.0, fade=0.1).eval()
    study = Study("a run", model, sample_of(model, images()), None, FEW, 0)
    found = exception_numbers(study, study.exponents[1])
    assert not (study.exponents[1].values < 0).any(), "the exponent of a state that stands still is 0"
    assert (found["stopped"], found["rows"]) == (True, [])
