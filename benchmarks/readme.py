"""Fill the tables of the README, the docs and the notes from records/: python -m benchmarks.readme [--check]."""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from odevit.compare.report import HEAD, cells, ranked
from odevit.compare.report import markdown as table

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/vit.md",
    "docs/family.md",
    "docs/results.md",
    "docs/limits.md",
    "docs/explorer.md",
    "records/notes-distillation.md",
    "records/notes-stability.md",
    "records/notes-family.md",
    "records/notes-training.md",
)
FAMILY = {
    "digits": ROOT / "benchmarks/compare-digits/comparison.json",
    "CIFAR-10": ROOT / "records/compare-cifar10/comparison.json",
}
BUILT, MEASURED = "what we built", "what we measured"
COMPARED = ("fast-cifar10", "without-attractor-cifar10", "fast-cifar100", "without-attractor-cifar100")
PUBLISHED = (
    "distill-dinov2s-cifar100-knots1-pooled",
    "distill-dinov2s-cifar100-knots2-pooled",
    "distill-dinov2s-cifar100-knots4-pooled",
    "distill-dinov2s-cifar10-knots2",
)
STUDENTS = (
    *reversed(PUBLISHED[:3]),
    PUBLISHED[3],
    "distill-dinov2s-cifar100-knots4",
    "distill-dinov2s-cifar100-knots4-mixed",
    "distill-dinov2s-cifar100-knots4-tiny-imagenet",
    "distill-dinov2s-cifar100-knots2",
    "distill-dinov2s-cifar100-knots1",
    "distill-dinov2s-cifar100",
)
BREAKING = {
    "four knots": "records/distill-dinov2s-cifar100-knots4-pooled/",
    "one knot": "records/distill-dinov2s-cifar100-knots1-pooled/seed1-",
}
"""Students in checkpoints/, and the prefix of their files of `benchmarks.solver_settings`."""
TRAINED = {
    "knots4-pooled": "1,111 s of half an H200",
    "knots2-pooled": "1,111 s of half an H200",
    "knots1-pooled": "421 s of an H200",
    "cifar10-knots2": "1,196 s of a quarter of an H200",
}
"""How long students were trained, by the end of their name, and on how much of a GPU: records/README.md."""
SHOWN = ("digits", "distill-digits", *COMPARED, "settled-cifar10", "distill-cifar100", *PUBLISHED)
MODELS = ("fast-cifar10", "fast-cifar100", "settled-cifar10")
RECIPES = {
    "plain": "Lie-Trotter, no leak, always 12 steps",
    "ee-plain": "exponential Euler, no leak, always 12 steps",
    "leak": "Lie-Trotter, leak, always 12 steps",
    "drawn": "Lie-Trotter, no leak, drawn steps and horizons",
    "both": "Lie-Trotter, leak, drawn",
    "rms": "the same with RMSNorm",
    "jasmin": "the same with JaSMin, weight 0.02",
    "solver": "Lie-Trotter or exponential Euler, leak, drawn",
    "own-solver": "the same, 40% of the batches with the model's own settings",
    "coarse": "the same, first 40% of 20 epochs with 6 steps",
    "ee": "exponential Euler, leak, drawn",
}
ABLATED = ("drawn-steps-without-leak", "leak-without-drawn-steps")


def read(record: str, file: str) -> dict[str, Any]:
    return json.loads((ROOT / "records" / record / file).read_text())


def device(report: dict[str, Any]) -> str:
    return str(report["device"]).replace("(1 threads)", "(1 thread)")


def records_table() -> str:
    head = ["model", "data", "params", "NFE", "test top-1", "seeds", "epochs", "training time", "device"]
    rows = []
    for name in SHOWN:
        record = read(name, "record.json")
        spread = f" ± {100 * record['top1_spread']:.2f}" if record["top1_spread"] is not None else ""
        seconds = [seed["seconds"] for seed in record["seeds"]]
        # A mean says nothing where the load of the machine was another one for each seed.
        times = seconds if max(seconds) > 1.5 * min(seconds) else [record["seconds"]]
        rows.append(
            [
                f"[{name}](../records/{name}/record.json)",
                Path(record["data"]).name,
                f"{record['params'] / 1e6:.2f}M",
                str(record["nfe"]),
                f"{100 * record['top1']:.2f}%{spread}",
                str(len(record["seeds"])),
                str(record["epochs"]),
                " / ".join(f"{time:.0f}" for time in times) + " s",
                device(record),
            ]
        )
    return table(head, rows)


def way_name(solver_config: dict[str, Any], own: dict[str, Any]) -> str:
    if solver_config["horizon"] > own["horizon"]:
        return f"own step length, {solver_config['horizon'] / own['horizon']:g} x the horizon"
    return f"{solver_config['solver'].replace('_', '-')}, {solver_config['steps']} steps"


def cell(solver_config: dict[str, Any], own: dict[str, Any]) -> str:
    if solver_config["finite"] < 1:
        return "not finite"
    same = all(solver_config[key] == own[key] for key in ("solver", "steps", "horizon"))
    star = "*" if solver_config.get("stable") is False else ""
    return (
        f"**{100 * solver_config['top1']:.2f}**"
        if same
        else f"{100 * solver_config['top1']:.2f} ({0.0 - solver_config['lost']:+.2f}){star}"
    )


def ways_table(records: tuple[str, ...]) -> str:
    """Accuracy of every way, and how it compares with the model's own."""
    reports = [read(record, "attractor.json") for record in records]
    images = [f"{record}, {report['images']:,} images" for record, report in zip(records, reports, strict=True)]
    rows = []
    for part in ("steps", "horizons", "solvers"):
        for ways in zip(*(report[part] for report in reports), strict=True):
            own = [report["own"] for report in reports]
            if part == "horizons" and ways[0]["horizon"] == own[0]["horizon"]:
                continue
            name = way_name(ways[0], own[0])
            rows.append([name, *(cell(solver_config, one) for solver_config, one in zip(ways, own, strict=True))])
    return table(["integration", *images], rows)


def losses_table() -> str:
    """The largest loss of each group of ways."""
    groups: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
        "6 to 64 steps of its own solver": ("steps", lambda solver_config: solver_config["steps"] >= 6),
        "one to eight horizons": ("horizons", lambda solver_config: True),
        "Euler, Heun and RK4, 12 steps or more": (
            "solvers",
            lambda solver_config: solver_config["solver"] in ("euler", "heun", "rk4") and solver_config["steps"] >= 12,
        ),
    }
    reports = [read(record, "attractor.json") for record in COMPARED]
    rows = [
        [
            name,
            *(
                f"{max(solver_config['lost'] for solver_config in report[part] if counts(solver_config)):.2f}"
                for report in reports
            ),
        ]
        for name, (part, counts) in groups.items()
    ]
    return table(["largest loss in points", *COMPARED], rows)


def recipes_table() -> str:
    """16 epochs each: the accuracy on held-out images, and the largest losses against it."""
    folder = ROOT / "records/ablations-cifar100"
    head = ["trained with", "held-out top-1", "loss", "6 to 64 steps", "to 8 x horizon", "other solvers", "at rest"]
    rows = []
    for name, title in RECIPES.items():
        metrics = [json.loads(line) for line in (folder / f"{name}-metrics.jsonl").read_text().splitlines()]
        last = [line for line in metrics if "eval_accuracy" in line][-1]
        row = [title, f"{100 * last['eval_accuracy']:.2f}%", f"{last['eval_loss']:.3f}"]
        file = folder / f"{name}-attractor.json"
        if not file.exists():
            rows.append([*row, "", "", "", ""])
            continue
        report = json.loads(file.read_text())
        steps = max(solver_config["lost"] for solver_config in report["steps"] if solver_config["steps"] >= 6)
        horizons = max(solver_config["lost"] for solver_config in report["horizons"])
        resting = report["exponents"]["own"]["negative"]
        others = [solver_config["lost"] for solver_config in report["solvers"] if inside(solver_config)]
        losses = [f"{max(0.0, lost):.1f}" for lost in (steps, horizons, max(others))]
        rows.append([*row, *losses, f"{100 * resting:.1f}%"])
    return table(head, rows)


def inside(solver_config: dict[str, Any]) -> bool:
    """Whether a loss is the model's and not the solver's: a stable step, and no splitting, which rests elsewhere."""
    return (
        bool(solver_config["stable"])
        and solver_config["solver"] in ("euler", "heun", "rk4", "exponential_euler")
        and solver_config["steps"] >= 6
    )


def sizes_table() -> str:
    """A teacher and its students: megabytes of weights in float32, top-1, evaluations. For the README."""
    names = PUBLISHED[2::-1]
    teacher = read(names[0], "record.json")["teacher"]
    rows = [["teacher: 12 blocks", megabytes(teacher), f"{teacher['top1']:.1%}", str(teacher["nfe"])]]
    for name in names:
        record, knots = read(name, "record.json"), name.removesuffix("-pooled").rpartition("knots")[2]
        title = f"student: {knots} knot{'s' if knots != '1' else ''}"
        rows.append([title, megabytes(record), f"{record['top1']:.1%}", str(record["nfe"])])
        if knots == "4":
            few = next(way for way in read(name, "any_way-gpu.json")["ways"] if way["steps"] == 8)
            rows.append([f"{title}, 8 steps", megabytes(record), f"{few['top1']:.1%}", f"{few['nfe']:g}"])
    return table(["DINOv2-S on CIFAR-100", "MB (fp32)", "top-1", "evaluations"], rows)


def photographs_table() -> str:
    """Students at 224 px on CUB-200: what share of their teacher's accuracy they keep. For docs/results.md."""
    rows = []
    for knots in (4, 2, 1):
        name = f"distill-dinov2s-cub-knots{knots}"
        record, kept = read(name, "record.json"), read(name, "kept.json")
        share = f"{kept['kept']:.1%} ± {100 * kept['kept_error']:.1f}"
        cells = [f"{kept['top1']:.2%}", share, f"{kept['agreement']:.1%}", f"{record['seconds']:.0f} s"]
        rows.append([f"[{knots}](../records/{name}/record.json)", f"{record['params'] / 1e6:.2f}M", *cells])
    return table(["knots", "parameters", "top-1", "of the teacher's", "agreement", "training"], rows)


def megabytes(model: dict[str, Any]) -> str:
    return f"{4 * model['params'] / 1e6:.1f}"


def first_table() -> str:
    """The two models trained from scratch, for the README."""
    rows = []
    for title, name in (("CIFAR-10", "fast-cifar10"), ("CIFAR-100", "fast-cifar100")):
        record, report = read(name, "record.json"), read(name, "attractor.json")
        six = next(solver_config for solver_config in report["steps"] if solver_config["steps"] == 6)
        far = next(
            solver_config
            for solver_config in report["horizons"]
            if solver_config["horizon"] == 8 * report["own"]["horizon"]
        )
        shares = [f"{100 * number:.2f}%" for number in (record["top1"], six["top1"], far["top1"])]
        time = f"{record['seconds']:.0f} s on one {device(record)}"
        rows.append([title, f"{record['params'] / 1e6:.2f}M", time, *shares])
    head = ["data", "parameters", "training", f"test top-1, {record['nfe']} steps", "6 steps", "8 x the horizon"]
    return table(head, rows)


def replaced_table() -> str:
    """Top-1 of students with several solver settings, and of their teacher."""
    rows = []
    for name in (*reversed(PUBLISHED[:3]), PUBLISHED[3]):
        record, ways = read(name, "record.json"), read(name, "any_way-gpu.json")["ways"]
        top1 = {
            (solver_config["solver"], solver_config["steps"]): f"{solver_config['top1']:.1%}" for solver_config in ways
        }
        data, knots = name.removeprefix("distill-dinov2s-").removesuffix("-pooled").split("-knots")
        size, own = f"{record['params'] / 1e6:.1f}M", [top1["lie_trotter", n] for n in (12, 8, 64)]
        rows.append(
            [data.replace("cifar", "CIFAR-"), knots, size, f"{record['teacher_top1']:.1%}", *own, top1["rk4", 12]]
        )
    settings = ["student, 12 steps", "8 steps", "64 steps", "12 steps of RK4"]
    return table(["data", "knots", "parameters", "teacher", *settings], rows)


def short_table() -> str:
    """The extremes, for the README."""
    reports = [read(record, "attractor.json") for record in COMPARED]
    rows = []
    for title, part, chosen in (
        ("as trained: 12 steps of exponential Euler", "steps", lambda solver_config: solver_config["steps"] == 12),
        ("6 steps", "steps", lambda solver_config: solver_config["steps"] == 6),
        ("64 steps", "steps", lambda solver_config: solver_config["steps"] == 64),
        ("8 x the horizon", "horizons", lambda solver_config: solver_config["steps"] == 96),
        (
            "Euler, 12 steps",
            "solvers",
            lambda solver_config: solver_config["solver"] == "euler" and solver_config["steps"] == 12,
        ),
        (
            "Heun, 12 steps",
            "solvers",
            lambda solver_config: solver_config["solver"] == "heun" and solver_config["steps"] == 12,
        ),
        (
            "RK4, 12 steps",
            "solvers",
            lambda solver_config: solver_config["solver"] == "rk4" and solver_config["steps"] == 12,
        ),
    ):
        ways = [next(solver_config for solver_config in report[part] if chosen(solver_config)) for report in reports]
        rows.append([title, *(f"{100 * solver_config['top1']:.2f}" for solver_config in ways)])
    head = ["top-1 (%)", "CIFAR-10", "without leak and drawing", "CIFAR-100", "without leak and drawing"]
    return table(head, rows)


def anytime_table() -> str:
    head = ["model", "device", "steps, horizon, stop", "top-1", "against 12 steps", "NFE saved", "time saved"]
    rows = []
    for record, file in (
        ("settled-cifar10", "anytime.json"),
        ("fast-cifar100", "anytime.json"),
        ("fast-cifar10", "anytime-gpu.json"),
        ("fast-cifar100", "anytime-gpu.json"),
    ):
        report = read(record, file)
        best, test = report["chosen"], report["test"]
        rows.append(
            [
                f"{record}, {report['test_images']:,} test images",
                device(report),
                f"{best['steps']}, {best['horizon']:g}, {best['stop']}",
                f"{100 * test['stopped_top1']:.2f}%",
                f"{0.0 - test['lost']:+.2f} points",
                f"{100 * test['nfe_saved']:.0f}% ({test['nfe']:g} to {test['stopped_nfe']:.2f})",
                f"{100 * test['time_saved']:.0f}%",
            ]
        )
    return table(head, rows)


def rest_table() -> str:
    """Where the largest exponent is negative: of the model's own steps, and of the equation."""
    head = ["model", "split", "images", "own steps", "mean", "the equation", "mean"]
    rows = []
    for record in MODELS:
        report = read(record, "attractor.json")
        exponents = report["exponents"]
        row = [record, report["split"], f"{exponents['images']:,}"]
        for name in ("own", "rk4"):
            row += [f"{100 * exponents[name]['negative']:.1f}%", f"{exponents[name]['mean']:.3f}"]
        rows.append(row)
    return table(head, rows)


def equilibrium_table() -> str:
    head = ["model", "agrees with 8 x the horizon", "top-1", "mean NFE"]
    rows = []
    for record in MODELS:
        report = read(record, "attractor.json")["equilibrium"]
        own = report["own"]
        rows.append(
            [
                f"{record}, {report['images']:,} images",
                f"{100 * own['agreement_with_long_horizon']:.1f}%",
                f"{100 * own['top1']:.1f}%",
                f"{own['nfe']:.1f}",
            ]
        )
    return table(head, rows)


def objectives_table() -> str:
    report = json.loads((ROOT / "benchmarks/objectives.json").read_text())
    head = ["the student matches", "agreement with the teacher", "top-1", "seeds"]
    rows = [
        [
            row["objective"],
            " / ".join(f"{100 * seed['agreement']:.2f}%" for seed in row["seeds"]),
            " / ".join(f"{100 * seed['top1']:.2f}%" for seed in row["seeds"]),
            str(len(row["seeds"])),
        ]
        for row in report["rows"]
    ]
    return table(head, rows)


def students_table() -> str:
    """What students of one real teacher keep of it."""
    head = ["record", "parameters", "seeds", "seconds", "epochs", "top-1", "teacher's", "kept", "agreement"]

    def figure(record: dict[str, Any], key: str) -> str:
        spread = record[f"{key}_spread"]
        return f"{record[key]:.2%}" + ("" if spread is None else f" ± {100 * spread:.2f}")

    rows = []
    for name in STUDENTS:
        record = read(name, "record.json")
        rows.append(
            [
                f"[{name}]({name}/record.json)",
                f"{record['params'] / 1e6:.2f}M",
                str(len(record["seeds"])),
                " / ".join(f"{seed['seconds']:.0f}" for seed in record["seeds"]),
                f"{record['epochs']:.0f}",
                figure(record, "top1"),
                f"{record['teacher_top1']:.2%}",
                f"{record['top1'] / record['teacher_top1']:.1%}",
                figure(record, "agreement"),
            ]
        )
    return table(head, rows)


def same_time_table(file: str, removed: str = "") -> str:
    """Students of one teacher that had the same images and time: equations, stacked blocks, pieces, the paper's.

    And the teacher itself with blocks removed, where a record of that is named.
    """
    report = json.loads((ROOT / file).read_text())
    teacher, *students = report["rows"]
    ways = list(students[0]["seeds"][0]["ways"])

    def speed(row: dict[str, Any]) -> str:
        return f"{row['milliseconds']:.3f} ({row['milliseconds'] / teacher['milliseconds']:.2f} x)"

    def spread(values: Sequence[float]) -> str:
        more = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
        return f"{100 * statistics.mean(values):.1f}%{more}"

    def otherwise(seeds: Sequence[dict[str, Any]], solver_config: str) -> str:
        found = [seed["ways"][solver_config] for seed in seeds]
        if None in found:
            return "refused"
        top1, changed = (statistics.mean(one[key] for one in found) for key in ("top1", "changed"))
        return f"{100 * top1:.1f}%, {100 * changed:.1f}%"

    rows = [["the teacher", f"{teacher['params'] / 1e6:.3g}M", str(teacher["nfe"]), speed(teacher), "-"]]
    rows[0] += [f"{100 * teacher['top1']:.1f}%", "-", *("-" for _ in ways)]
    for row in sorted(students, key=lambda row: -row["top1"]):
        seeds = row["seeds"]
        updates = f"{statistics.mean(seed['updates'] for seed in seeds):,.0f}"
        accuracy = (spread([seed[key] for seed in seeds]) for key in ("top1", "agreement"))
        size = f"{row['params'] / 1e6:.3g}M"
        otherwise_asked = (otherwise(seeds, solver_config) for solver_config in ways)
        rows.append([row["name"], size, str(row["nfe"]), speed(row), updates, *accuracy, *otherwise_asked])
    left = read(removed, "fewer_layers-cpu.json") if removed else {"rows": []}
    for row in left["rows"]:
        size, accuracy = f"{row['params'] / 1e6:.3g}M", [f"{row['top1']:.1%}", f"{row['agreement']:.1%}"]
        name, blocks = f"{row['blocks']} of the teacher's blocks, untrained", str(row["blocks"])
        rows.append([name, size, blocks, "-", "0", *accuracy, *("-" for _ in ways)])
    head = ["student", "parameters", "evaluations", "ms / image", "updates", "top-1", "agreement", *ways]
    count = len(students[0]["seeds"])
    note = (
        f"{report['seconds']:g} s each, {count} seed{'s' if count > 1 else ''}; the first {report['images']:,} test "
        f"images with other solver settings; {device(report)}."
    )
    note += f" Untrained ones: the first {left['images']:,}, {device(left)}." if removed else ""
    return table(head, rows) + "\n\n" + note


def student_speed_table() -> str:
    """Milliseconds per image of a real teacher and of every kind of student."""
    report = json.loads((ROOT / "benchmarks/student_speed.json").read_text())
    rows = [
        [
            "the teacher" if row["name"] == "teacher" else row["name"],
            f"{row['params'] / 1e6:.2f}M",
            str(row["nfe"]),
            f"{row['milliseconds']:.1f} ({row['relative']:.2f} x)",
        ]
        for row in report["rows"]
    ]
    note = f"Batches of {report['images']}, least of five measurements, {device(report)}."
    return table(["student", "parameters", "evaluations", "ms / image"], rows) + "\n\n" + note


def any_way_table() -> str:
    """Students with other solver settings: points lost, and the share of predictions that change."""
    by_name = {name: read(name, "any_way-gpu.json") for name in (*reversed(PUBLISHED[:3]), PUBLISHED[3])}
    reports = list(by_name.values())
    own = reports[0]["ways"][0]
    rows = []
    for numbers in zip(*(report["ways"] for report in reports), strict=True):
        solver_config = numbers[0]
        if solver_config == own:
            name = f"{solver_config['solver']}, {solver_config['steps']} steps, own settings"
            rows.append([name, f"{solver_config['nfe']:g}", *(f"{w['top1']:.1%}" for w in numbers)])
            continue
        cells = [f"{w['top1']:.1%}, {-w['lost']:+.1f} ± {w['lost_error']:.1f}, {w['changed']:.1f}%" for w in numbers]
        stretch = solver_config["horizon"] / own["horizon"]
        far = "" if stretch == 1 else f", {stretch:g} x the horizon"
        rows.append(
            [f"{solver_config['solver']}, {solver_config['steps']} steps{far}", f"{solver_config['nfe']:g}", *cells]
        )
    head = ["solver settings", "NFE", *(f"`{name.removeprefix('distill-dinov2s-')}`" for name in by_name)]
    return table(head, rows) + f"\n\nThe first {own['images']:,} test images, {device(reports[0])}."


def knots_table() -> str:
    """What a number of knots costs, and what it keeps of a teacher."""
    rows = []
    for name in (*reversed(PUBLISHED[:3]), PUBLISHED[3]):
        record = read(name, "record.json")
        data, knots = name.removeprefix("distill-dinov2s-").removesuffix("-pooled").split("-knots")
        top1, spread = f"{record['top1']:.2%}", record["top1_spread"]
        kept = f"{record['top1'] / record['teacher_top1']:.1%}"
        row = [
            knots,
            data.replace("cifar", "CIFAR-"),
            f"{record['params'] / 1e6:.2f}M",
            top1 + (f" ± {100 * spread:.2f}" if spread else ""),
        ]
        row += [f"{record['teacher_top1']:.2%}", kept, f"{record['agreement']:.2%}"]
        trained = next(text for end, text in TRAINED.items() if name.endswith(end))
        rows.append([*row, f"{updates_of(name):,} updates, {trained}"])
    head = ["knots", "data", "parameters", "top-1", "teacher's", "kept", "agreement", "training, a run"]
    return table(head, rows)


def updates_of(name: str) -> int:
    """How many updates the first seed of a record had."""
    lines = (ROOT / f"records/{name}/seed0-metrics.jsonl").read_text().splitlines()
    return int(json.loads(lines[-1])["step"])


def pooled_table() -> str:
    """Students of the earlier phases and of the present ones, with their numbers of updates."""

    def cell(name: str) -> str:
        first = read(f"distill-dinov2s-cifar100-{name}", "record.json")["seeds"][0]
        updates = updates_of(f"distill-dinov2s-cifar100-{name}")
        return f"{first['top1']:.2%}, {first['agreement']:.2%}, {updates:,}"

    rows = [[str(k), cell(f"knots{k}"), cell(f"knots{k}-pooled")] for k in (4, 2, 1)]
    what = "top-1, agreement, updates"
    return table(["knots", f"earlier phases: {what}", f"present ones: {what}"], rows) + "\n\nSeed 0 of each."


def breaking_table() -> str:
    """Top-1 with few steps, solver by solver, and the stability limit from the largest eigenvalue."""
    reports = {name: json.loads((ROOT / f"{run}coarse-cpu.json").read_text()) for name, run in BREAKING.items()}
    rows = []
    for name, report in reports.items():
        own, *others = report["ways"]
        cells: dict[str, list[str]] = {}
        for solver_config in others:
            cells.setdefault(solver_config["solver"], []).append(
                f"{solver_config['steps']}: {solver_config['top1']:.1%}"
            )
        rows.append([f"{name}, {own['top1']:.1%}", *(", ".join(found) for found in cells.values())])
        limits = json.loads((ROOT / f"{BREAKING[name]}limits-cpu.json").read_text())
        fewest = [limits["fewest_steps"].get(solver, "-") for solver in cells]
        rows.append(
            [f"stable by \\|λ\\| = {limits['radius']:.1f}", *(f"{n} or more" if n != "-" else n for n in fewest)]
        )
    first = next(iter(reports.values()))
    head = ["steps: top-1", *dict.fromkeys(solver_config["solver"] for solver_config in first["ways"][1:])]
    note = f"The first {first['ways'][0]['images']:,} test images, {limits['images']} for λ, {device(first)}."
    return table(head, rows) + "\n\n" + note


def knot_places_table() -> str:
    """Students before and after a few updates of the first phase."""
    report = json.loads((ROOT / "benchmarks/knot_places.json").read_text())
    rows = [[name, f"{row['before']:.2f}", f"{row['after']:.2f}"] for name, row in report["students"].items()]
    note = f"{report['updates']} updates of {report['images']} images, one seed, {device(report)}."
    return table(["four knots", "before", "after"], rows) + "\n\n" + note


def blends_table() -> str:
    """Interpolation of weights between knots in a short training: linear or piecewise constant."""
    folder, rows = ROOT / "records/blends-dinov2s-cifar100", []
    kinds = {
        "linear": "linear, the default",
        "constant": "`student.blend=constant student.vector_knots=null`",
        "eight": "`student.blend=constant student.vector_knots=8 student.vector_blend=constant`",
    }
    for name, what in kinds.items():
        last = json.loads((folder / f"{name}-metrics.jsonl").read_text().splitlines()[-1])
        ways = ("", "_lie_trotter_12", "_lie_trotter_8", "_rk4_12")
        rows.append(
            [what, f"{last['step']:,}", *(f"{last[f'eval_accuracy{solver_config}']:.1%}" for solver_config in ways)]
        )
    return table(["weights", "updates", "agreement", "12 steps", "8 steps", "12 of RK4"], rows)


def unseen_table() -> str:
    """Agreement on training, held-out and test images."""
    by_name = {n: read(n, "unseen-cpu.json") for n in STUDENTS if (ROOT / "records" / n / "unseen-cpu.json").exists()}
    rows = []
    for name, report in by_name.items():
        splits = [report["splits"][split] for split in ("train", "validation", "test")]
        agreed = [f"{part['agreement']:.1%} ± {100 * part['error']:.1f}" for part in splits]
        errors = [f"{splits[-1][part]:.2f}" if part in splits[-1] else "-" for part in ("path", "pooled")]
        rows.append([f"`{name.removeprefix('distill-dinov2s-')}`", *agreed, *errors])
    first = next(iter(by_name.values()))
    note = f"The first {first['splits']['test']['images']:,} images of each split, {device(first)}. -: not measured."
    errors_of = ["error of the states", "of the input of the head"]
    head = [
        "agreement on",
        "training images",
        "held-out images",
        "test images",
        *(f"{part}, test" for part in errors_of),
    ]
    return table(head, rows) + "\n\n" + note


def prices_table() -> str:
    """Loss of accuracy: of a student, or of a model that is trained for stability."""
    dino, vit, free, attractor, settled = (
        "distill-dinov2s-cifar100-knots4-pooled",
        "distill-cifar100",
        "without-attractor-cifar10",
        "fast-cifar10",
        "settled-cifar10",
    )

    def number(record: str, key: str = "top1") -> float:
        return read(record, "record.json")[key]

    seconds = f"{number(dino, 'seconds'):.0f} s of half a GPU"
    prices = [
        (f"DINOv2-S backbone on CIFAR-100, distilled without labels in {seconds}", number(dino, "teacher_top1"), dino),
        ("12-layer ViT on CIFAR-100, distilled without labels", number(vit, "teacher_top1"), vit),
        ("predictions that are stable across solvers and steps, CIFAR-10", number(free), attractor),
        ("fine-tuning with settling, CIFAR-10", number(attractor), settled),
    ]
    rows = [
        [what, f"{100 * before:.2f}%", f"{100 * number(record):.2f}%", f"[{record}](../records/{record}/record.json)"]
        for what, before, record in prices
    ]
    return table(["", "without", "with", "record"], rows)


def tried(data: str) -> list[dict[str, Any]]:
    """The systems of the family that were trained on these data, or failed, the most accurate first."""
    comparison = json.loads(FAMILY[data].read_text())
    rows = [row for row in ranked(comparison["rows"]) if "top1" in row or row["failure"]]
    return [{**row, "reference": comparison["reference"]} for row in rows]


def compared_table(data: str) -> str:
    """The comparison of the family on these data."""
    return table(HEAD, [cells(row) for row in tried(data)])


def measured(text: str) -> str:
    """The tables of systems with a column of what was measured of each, after what was built."""
    found = {data: {row["system"]: row for row in tried(data)} for data in FAMILY}
    lines, place, there = [], 0, False
    for line in text.splitlines():
        parts = [part.strip() for part in re.split(r"(?<!\\)\|", line[1:-1])] if line.startswith("|") else []
        if BUILT in parts:
            place, there = parts.index(BUILT) + 1, MEASURED in parts
            new = MEASURED
        elif place and parts:
            names = re.findall(r"`([\w-]+)`", parts[0])
            short = [f"{data} {in_short(rows[name])}" for name in names for data, rows in found.items() if name in rows]
            new = ("; ".join(short) or "not measured") if names else "---"
        else:
            place = 0
        if place:
            parts[place : place + there] = [new]
            line = f"| {' | '.join(parts)} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def in_short(row: dict[str, Any]) -> str:
    """What was measured of a system, for a cell."""
    if "top1" not in row:
        return "failed"
    spread = f" ± {100 * row['top1_spread']:.1f}" if row["top1_spread"] is not None else ""
    time = f", {row['relative']:.1f} x the time of `{row['reference']}`" if "relative" in row else ""
    return f"{100 * row['top1']:.1f}{spread}%, NFE {row['nfe']['mean']:.3g}{time}"


def adjoint_table() -> str:
    """Errors of gradients to a tolerance, through the steps of a solver and by the adjoint, with and without a leak."""
    files = (ROOT / f"benchmarks/adjoint_error{kind}.json" for kind in ("", "_without_leak"))
    both = zip(*(json.loads(file.read_text())["rows"] for file in files), strict=True)
    names = ("through the steps", "adjoint")
    head = ["tolerance", *(f"{name}, {kind}" for kind in ("with a leak", "without one") for name in names)]

    def error(found: dict[str, Any]) -> str:
        return f"{100 * found['error']:.2g}%" if found["error"] < 1 else f"{100 * found['error']:.0f}%"

    return table(
        head,
        [
            [f"{rows[0]['tolerance']:g}", *(error(row[kind]) for row in rows for kind in ("steps", "adjoint"))]
            for rows in both
        ],
    )


def explorer_table() -> str:
    """Speed of the explorer, from benchmarks/explorer.json."""
    record = json.loads((ROOT / "benchmarks/explorer.json").read_text())
    alone = record["without_a_page"]
    times = {
        "first paint of the page": record["first_paint_ms"],
        "first answer in the page": record["first_answer_ms"],
        "a new integration, until it is displayed": record["new_integration_in_the_page_ms"],
        "the same without the page": alone["look_ms"],
    }
    rows = [[name, *(f"{time[part]:.0f}" for part in ("median", "least", "most"))] for name, time in times.items()]
    device, load = record["device"], record["load_average"]
    note = (
        f"Bundled model, {device}, load average {load}, by `{record['command']}`. "
        f"{alone['integrations']} integrations left {alone['memory_growth_mib']:g} MiB in memory."
    )
    return table(("milliseconds", "median", "least", "most"), rows) + "\n\n" + note


def family_table() -> str:
    """Every system with its description from conf/system, and its scores on CIFAR-10."""
    rows = []
    for row in tried("CIFAR-10"):
        nfe, time = f"{row['nfe']['mean']:.3g}", f"{row['relative']:.1f} x"
        rows.append([f"`{row['system']}`", described(row["system"]), nfe, time, f"{row['top1']:.1%}"])
    return table(["system", "what it is", "evaluations", "time", "top-1"], rows)


def described(system: str) -> str:
    """The sentence with which the file of a system begins."""
    _, sentence, *_ = (ROOT / f"src/odevit/conf/system/{system}.yaml").read_text().splitlines()
    return sentence.removeprefix("# ").rstrip(".").replace("|", "\\|")


TABLES: dict[str, Callable[[], str]] = {
    "photographs": photographs_table,
    "sizes": sizes_table,
    "family": family_table,
    "student_speed": student_speed_table,
    "same_time": lambda: same_time_table("benchmarks/same_time.json"),
    "same_time_longer": lambda: same_time_table("benchmarks/same_time_longer.json"),
    "same_time_real": lambda: same_time_table(
        "records/same-time-dinov2s-cifar100/same_time.json", "dinov2s-cifar100-fewer-layers"
    ),
    "adjoint_error": adjoint_table,
    "first": first_table,
    "replaced": replaced_table,
    "records": records_table,
    "integration": short_table,
    "ways": lambda: ways_table(COMPARED),
    "losses": losses_table,
    "settled": lambda: ways_table(("settled-cifar10",)),
    "rest": rest_table,
    "recipes": recipes_table,
    "ablations": lambda: ways_table(ABLATED),
    "anytime": anytime_table,
    "equilibrium": equilibrium_table,
    "objectives": objectives_table,
    "students": students_table,
    "any_way": any_way_table,
    "breaking": breaking_table,
    "blends": blends_table,
    "knots": knots_table,
    "pooled": pooled_table,
    "knot_places": knot_places_table,
    "unseen": unseen_table,
    "compared": lambda: compared_table("digits"),
    "compared_cifar10": lambda: compared_table("CIFAR-10"),
    "prices": prices_table,
    "explorer": explorer_table,
}


def filled(text: str) -> str:
    for name, make in TABLES.items():
        if f"<!-- {name} -->" in text:
            pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
            text = re.sub(pattern, lambda match, make=make: match[1] + make() + "\n" + match[2], text, flags=re.S)
    return measured(text) if BUILT in text else text


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        new = filled(path.read_text())
        if "--check" in sys.argv:
            if new != path.read_text():
                sys.exit(f"{page} does not match the records; run python -m benchmarks.readme")
        else:
            path.write_text(new)
