"""numbers -> report.html: one page that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor

from odevit.page.shell import folded, paragraph, whole_page
from odevit.page.table import words
from odevit.report import sections
from odevit.report.gallery import draw_all
from odevit.report.verdict import THRESHOLDS, Verdict

Numbers = Mapping[str, Any]

GLOSSARY = {
    "State, field, horizon": "The image is cut into tokens, and together they are the state x. A field f says how the "
    "state moves, dx/dt = f(x); after a time T, the horizon, a head reads the answer off it.",
    "Evaluation, step, solver": "A solver follows the field in steps, and each costs one or more evaluations of it "
    "(NFE). Another solver, or more steps, follow the same field more or less exactly.",
    "Leak": "A pull back towards the embedded image, as strong as the state is far from it.",
    "Lyapunov exponent λ": "How fast a tiny disturbance of the state grows (λ > 0) or dies out (λ < 0): after a time t "
    "it has changed by the factor e to the power λt. The largest of them decides. Lyapunov time is 1/λ.",
    "Lipschitz constant": "The most by which the field can pull two neighbouring states apart, per unit of time, at "
    "once; λ is what comes of it over a longer time.",
    "Contraction radius": "How far the final state may be moved, in the worst direction, before the head changes its "
    "answer.",
    "± and 95% interval": "How much a number would differ on other images: one standard error, or the range in which "
    "it would lie for 95 of 100 such samples.",
}


def write_page(folder: Path, numbers: Numbers, said: Sequence[Verdict], pictures: Tensor) -> Path:
    """Draw every picture that the numbers allow, save them in `folder`/figures, and write `folder`/report.html.

    Args:
        folder: is there already.
        numbers: as they are in analysis.json.
        said: the verdicts.
        pictures: the first images of the sample [image, channel, height, width] in 0..1.
    """
    figures = draw_all(folder / "figures", numbers, pictures)
    page = folder / "report.html"
    page.write_text(render(numbers, said, figures), encoding="utf-8")
    return page


def render(numbers: Numbers, said: Sequence[Verdict], figures: Mapping[str, bytes]) -> str:
    """The page, with pictures by name as PNG."""
    meanings = "".join(f"<dt>{escape(name)}</dt><dd>{escape(each)}</dd>" for name, each in GLOSSARY.items())
    parts = [
        paragraph(introduction(numbers)),
        *[_verdict(each) for each in said],
        folded("How these answers were reached", [paragraph(each) for each in THRESHOLDS]),
        folded("What the words mean", [f"<dl>{meanings}</dl>"]),
        *sections.settling(numbers, figures),
        *sections.integration(numbers, figures),
        *sections.depths(numbers.get("depths")),
        *sections.smoothness(numbers, figures),
        *sections.attention(numbers, figures),
        *sections.teaching(numbers, figures),
        *sections.stopping(numbers, figures),
        *sections.making(numbers),
    ]
    return whole_page(f"How stable is {Path(numbers['model']['run']).name}?", parts)


def introduction(numbers: Numbers) -> str:
    """What was looked at, and on what."""
    model, data, top1 = numbers["model"], numbers["data"], numbers["sweep"]["top1"]
    asked = data["asked"]
    fewer = f" ({asked:,} were asked for)" if asked is not None and asked > data["images"] else ""
    return (
        f"A {model['kind']} of {model['parameters']:,} parameters that turns depth into time: it follows dx/dt = f(x) "
        f"up to T = {model['horizon']:g} in {model['steps']} steps of {words(model['solver'])}, with a leak of "
        f"{model['leak']:g}. It was looked at on {data['images']:,} of the {data['available']:,} {data['split']} "
        f"images of {Path(data['source']).name}{fewer} and is right on {100 * top1['value']:.1f}% of them "
        f"(± {100 * top1['error']:.1f})."
    )


def _verdict(verdict: Verdict) -> str:
    kind = {True: "good", False: "bad", None: "open"}[verdict.good]
    title = f"{verdict.question} {verdict.answer[:1].upper()}{verdict.answer[1:]}."
    sentences = "".join(paragraph(sentence) for sentence in verdict.sentences)
    return f'<section class="verdict {kind}"><h3>{escape(title)}</h3>{sentences}</section>'
