"""The parts of the page after the verdict: pictures, tables, and how many images stand behind each."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from odevit.page.picture import picture
from odevit.page.shell import heading, paragraph
from odevit.page.table import number, percent, table, with_error, words
from odevit.report.verdict import side_of_chance

Numbers = Mapping[str, Any]
Figures = Mapping[str, bytes]


def settling(numbers: Numbers, figures: Figures) -> list[str]:
    """Speed, exponents, and what the exceptions do."""
    path, rest = numbers["exponents"]["path"], numbers["exponents"]["rest"]
    spectrum = numbers["exponents"]["spectrum"]
    longer = f" {rest['prolonged']} with a doubtful sign were followed for longer." if rest["prolonged"] else ""
    return [
        heading("Does it settle?"),
        picture(
            figures,
            "speed",
            "Relative speed of the steps the model makes, carried on to eight horizons; "
            f"{numbers['speed']['images']:,} images.",
        ),
        picture(
            figures,
            "exponents",
            f"Largest exponent of {path['images']:,} images, of the steps that the model makes. Along the path it is "
            "the mean growth over a short way on which growth changes: "
            f"{percent(path['not_converged']['value'])} of those values have not converged to a limit and say no more "
            f"than that. At rest, after eight horizons, {percent(rest['not_converged']['value'])} have not.{longer}",
        ),
        _growth(path, rest),
        picture(
            figures,
            "plane",
            "A few images, up to two of a class, from the embedded image to rest. Distances in the plane are smaller "
            "than they are in truth.",
            _left_out(numbers["paths"]),
        ),
        picture(
            figures,
            "spectrum",
            f"Directions in which disturbances die out slowest, {spectrum['images']} images; in the order in which the "
            "method finds them, which is not yet that of their size where they have not converged.",
        ),
        _by_token(numbers["exponents"]["by_token"]),
        picture(figures, "classes", _classes(numbers)),
        *_exceptions(numbers["exceptions"]),
    ]


def _growth(path: Numbers, rest: Numbers) -> str:
    rows = [
        (
            name,
            with_error(each["negative"]),
            f"{number(each['mean'])} ± {number(each['mean_error'])}",
            number(each["largest"]),
            percent(each["not_converged"]["value"]),
            str(each["positive"]["count"]),
            number(each["positive"]["lyapunov_time"]["median"]),
            number(each["positive"]["divergence_step"]["median"]),
        )
        for name, each in (("along the path", path), ("at rest", rest))
    ]
    head = ("", "negative", "mean λ", "largest λ", "not converged", "positive", "Lyapunov time", "diverges at step")
    return table(head, rows) + paragraph(
        "Lyapunov time and step: medians over the images with a positive exponent, a dash where there are none. The "
        "step is the first at which a disturbance has grown by e, if that is within the horizon.",
        small=True,
    )


def _by_token(groups: Numbers) -> str:
    rows = [
        (
            name,
            str(each["images"]),
            f"{number(each['mean'])} ± {number(each['error'])}",
            percent(each["negative"]["value"]),
            percent(1 - each["converged"]["value"]),
        )
        for name, each in groups.items()
    ]
    return table(("disturbance begins in", "images", "mean λ along the path", "negative", "not converged"), rows)


def _classes(numbers: Numbers) -> str:
    found = numbers["exponents"]["by_class"]["correlation"]
    size = f"{numbers['data']['images']:,} images, bubbles sized by their number"
    if found is None:
        return (
            f"Mean exponent along the path and accuracy of each class; {size}. No correlation is given: it takes three "
            "classes or more that differ."
        )
    rest = numbers["exponents"]["by_class_at_rest"]["correlation"]
    also = "" if rest is None else f" With the exponent at rest r = {rest['r']:.2f}, p = {rest['p']:.2g}."
    return (
        f"Mean exponent along the path against accuracy (the paper's Fig. 5); {size}. p is the share of random "
        f"shufflings of the {found['count']} classes with a correlation at least as strong.{also}"
    )


def _exceptions(exceptions: Numbers) -> list[str]:
    if not exceptions["count"]:
        return ["<h3>Exceptions</h3>", paragraph("There are none: every exponent at rest is negative.")]
    rows = [
        (
            str(row["image"]),
            row["label"],
            row["answer"],
            number(row["exponent"]) + ("" if row["converged"] else " (not converged)"),
            row["kind"],
            number(row["moved"]),
            number(row["straight"]),
            number(row["turn"]),
            number(row["margin"]),
            " / ".join(row["answers"]) if row["between"] else "",
        )
        for row in exceptions["rows"]
    ]
    head = ("image", "label", "answer", "λ at rest", "it", "moves", "straight", "turn", "margin", "between")
    return [
        "<h3>Exceptions</h3>",
        paragraph(
            f"{exceptions['count']} images whose exponent at rest is not negative; {exceptions['looked_at']} of them "
            f"were watched for a further time of {exceptions['window']:g}."
        ),
        table(head, rows),
        paragraph(
            "Moves: length of its way in units of its norm; below 0.001 it rests. Turn: lowest autocorrelation of its "
            "displacements; below −0.5 it oscillates. Straight: net way by length; above 0.5 it drifts, otherwise it "
            "wanders. Between: median margin p₁ − p₂ below 0.1, or more than one answer on the way.",
            small=True,
        ),
    ]


def integration(numbers: Numbers, figures: Figures) -> list[str]:
    """Steps, solvers and horizons."""
    sweep = numbers["sweep"]
    few = sweep["solvers"][0]["images"]
    return [
        heading("Does the answer depend on how it was integrated?"),
        picture(
            figures,
            "steps",
            "Accuracy against cost (the paper's Fig. 8), as the difference from the model's own way on the same "
            f"images: {sweep['own']['images']:,} for its own solver, {sweep['accurate']['images']:,} for "
            f"{words(sweep['accurate']['solver'])} (with the standard error), {few:,} for the others. "
            "Hollow: the step is beyond the solver's stability limit, where the error is the solver's and not the "
            "model's; such ways are shown but not counted.",
        ),
        _limits(numbers),
        picture(
            figures,
            "horizons",
            f"The model's own steps, stopped early or carried on; {sweep['own']['images']:,} images.",
        ),
        picture(
            figures,
            "grid",
            f"Every horizon with every number of steps of its own solver (the paper's Fig. 7); {few:,} images. Framed: "
            "as the model integrates by itself.",
        ),
    ]


def _limits(numbers: Numbers) -> str:
    limits, model = numbers["limits"], numbers["model"]
    if limits["radius"] is None:
        return paragraph("No stability limits: the states at rest are not finite numbers.", small=True)
    longest = ", ".join(
        f"{words(name)} {length:.2f}" for name, length in limits["longest"].items() if length is not None
    )
    return paragraph(
        f"Stability limits. Where {limits['images']} images have come to rest, the largest eigenvalue of df/dx has the "
        f"size {limits['radius']:.2f}, and {limits['forcing']:.2f} without the leak. An explicit Runge-Kutta step h is "
        "stable while h times the first is below 2 (Euler, midpoint, Heun) or 2.79 (RK4). Splittings and exponential "
        "methods solve the leak exactly and are held to h times the second below 2. That is exact for real eigenvalues "
        f"and a rule of thumb otherwise. Longest stable steps: {longest}. The model's own step is "
        f"{model['horizon'] / model['steps']:.2f}.",
        small=True,
    )


def depths(found: Numbers | None) -> list[str]:
    """One model, three depths."""
    if not found:
        return []
    rows = [
        (
            each["name"] + ("" if each["settled"] else " (did not arrive for all)"),
            number(each["nfe"]),
            percent(each["top1"]),
            percent(each["agreement"]),
            number(each["difference"]),
        )
        for each in found["rows"]
    ]
    return [
        heading("One model, three depths"),
        paragraph(
            "The same weights as an equation solved to a tolerance, as a recurrent network that carries its own coarse "
            "steps on, and as the equilibrium in which they end."
        ),
        table(("depth", "evaluations", "accuracy", "same answer", "|Δ logits|"), rows),
        paragraph(
            f"{found['images']:,} images; compared with the model as it integrates by itself. |Δ logits|: the largest "
            "over classes, in the median.",
            small=True,
        ),
    ]


def smoothness(numbers: Numbers, figures: Figures) -> list[str]:
    """Lipschitz constants, the error of the steps, the contraction radius."""
    return [
        heading("How steep, how exact, how tolerant?"),
        picture(
            figures,
            "lipschitz",
            f"Median and range of {numbers['lipschitz']['images']} images, by power iteration. The bound needs the "
            "attention map only; it is about attention without the norm before it.",
        ),
        _approximation(numbers["approximation"]),
        picture(
            figures,
            "radius",
            f"{numbers['radius']['images']} states at the horizon. The way shown was seen to change the answer; a "
            "shorter one may exist.",
        ),
    ]


def _approximation(found: Numbers) -> str:
    rows = [
        (
            f"{words(solver)}, measured",
            number(each["final"]["median"]),
            number(each["final"]["largest"]),
            "–" if each["relative"]["median"] is None else percent(each["relative"]["median"]),
        )
        for solver, each in found["solvers"].items()
    ]
    for key, name in (("bound_8", "L and C as measured"), ("bound_8_assumed", "L = 0.5 as the paper assumes")):
        rows.append((f"eq. (8), {name}", number(found[key]["median"]), number(found[key]["largest"]), ""))
    if found["bound_11"] is not None:
        rows.append(("eq. (11), from the weights", number(found["bound_11"]), "", ""))
    return table(("distance from the exact solution at the horizon", "median", "largest", "of the norm"), rows) + (
        paragraph(
            f"{found['images']} images, against RK4 with eight steps in place of each one. Equation (8) with measured "
            "constants is about Euler's method; it grows like e to the power LT, knows nothing of contraction, and is "
            "rarely of use. With an assumed L, and for eq. (11), the numbers are yardsticks and no bounds.",
            small=True,
        )
    )


def attention(numbers: Numbers, figures: Figures) -> list[str]:
    """What is looked at."""
    found = numbers["attention"]
    caption = (
        f"{found['images']} images (the paper's Fig. 6). Bright: looked at most. Outlined: the patches that hold 60% "
        "of the attention together."
    )
    if "why_no_teacher" in found:
        caption += f" The teacher's maps are left out: {found['why_no_teacher']}"
    return [heading("What does it look at?"), picture(figures, "attention", caption, _left_out(found))]


def teaching(numbers: Numbers, figures: Figures) -> list[str]:
    """Student and teacher, or a line that there is none."""
    teacher = numbers["teacher"]
    title = heading("Does it follow its teacher?")
    if teacher is None:
        line = "The run has no teacher at hand: the comparison of their paths and distances is left out."
        return [title, paragraph(line)]
    how, images = teacher["alignment"], f"{teacher['images']:,} images"
    meeting = f"as in training ({how['kind']})" if how["measured"] else "evenly spaced, for the run kept no alignment"
    return [
        title,
        picture(
            figures, "both", "Both paths of a few images in the plane in which they vary most (the paper's Fig. 1)."
        ),
        picture(figures, "layers", f"{images}. Which step meets which layer: {meeting}."),
        picture(figures, "correctness", f"{images}, a dot each (the paper's Fig. 4). {_nearness(teacher)}"),
        picture(figures, "bins", f"{images}, equally many in each bar but for ties (the paper's Fig. 10)."),
    ]


def _nearness(teacher: Numbers) -> str:
    """At how many layers the paper's claim holds, by either distance, and how the norm alone would decide."""
    norm = teacher["right_has_larger_norm"]
    if norm is None:
        return ""
    sides = [
        [side_of_chance(each) for each in found["by_layer"]["right_is_nearer"]]
        for found in (teacher, teacher["relative"])
    ]
    absolute, relative = (f"nearer at {side.count(1)} and farther at {side.count(-1)}" for side in sides)
    return (
        f"Where both are right, the student is {absolute} of {teacher['layers']} layers by |x − h|, and {relative} by "
        "|x − h| / |h|; at the others there is no difference beyond chance. The teacher's own norm |h| at the last "
        f"layer is larger where both are right in {percent(norm['value'])} of all pairs of such an image with another."
    )


def stopping(numbers: Numbers, figures: Figures) -> list[str]:
    """Early stopping, for runs that tracked a bound."""
    found = numbers["stopping"]
    if found is None:
        return []
    never = (
        f"No: not every layer was below the bound for {found['patience']} evaluations in a row before training ended."
        if found["stop"] is None
        else ""
    )
    return [
        heading("Could training have stopped earlier?"),
        picture(figures, "stop", "Held-out agreement at two moments of this one run (the paper's Fig. 9).", never),
        picture(figures, "tracking", "Distance to every layer while learning, and the bound (the paper's Fig. 11)."),
    ]


def making(numbers: Numbers) -> list[str]:
    """Everything needed to make it again."""
    versions = ", ".join(f"{name} {version}" for name, version in numbers["versions"].items())
    seconds = numbers["seconds"]
    return [
        heading("How this was made"),
        f'<p class="small"><code>{escape(numbers["command"])}</code><br>{escape(numbers["device"])}, '
        f"{seconds['total']:.0f} s ({seconds['processor']:.0f} s of processor time), seed {numbers['seed']}<br>"
        f"{escape(versions)}<br>Every number on this page is in analysis.json beside it.</p>",
    ]


def _left_out(part: Numbers) -> str:
    return f"Left out: {part['why']}" if "why" in part else ""
