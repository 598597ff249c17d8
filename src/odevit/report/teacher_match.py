"""|x(tau_l T) - h_l|, absolute and relative to |h_l|: does a student follow its teacher?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from odevit.analysis.base import predicted_classes
from odevit.analysis.significance import Proportion, mann_whitney, median, paired_error, quantiles, significant_side
from odevit.core.image_model import ImageModel
from odevit.core.solver_config import SolverConfig
from odevit.distill.teacher import Teacher
from odevit.plotting import BLUE, COLOURS, GREEN, GREY, ORANGE, YELLOW, finish_figure, format_signed, make_figure
from odevit.report.page import band, percent, share_of, small_share
from odevit.report.section import SECTIONS, Figures, Numbers, Section, Verdict
from odevit.report.study import Study
from odevit.report.trajectories import STUDENT, Paths, draw_paths, pca_paths, pooled

FOLLOWS, PARTS = 0.9, 0.7
"""A student follows its teacher if it gives the same answer this often, and does not below the second."""
GROUPS = {"both right": GREEN, "only teacher": YELLOW, "only student": BLUE, "both wrong": ORANGE}
TOKENS = {"cls": "CLS", "patches": "patches"}
BINS = 8
SHOWN = 4
"""Images whose two paths are drawn."""


@SECTIONS.register("teacher_match")
class TeacherMatch(Section):
    """Student and teacher, if a teacher is available."""

    title = "Does it follow its teacher?"
    order = 80
    thresholds = (
        f"A student follows its teacher when it gives the same answer on at least {FOLLOWS:.0%} of the images, and "
        f"does not on less than {PARTS:.0%}.",
    )

    text = """
{% if teacher is none %}
<p>The run has no teacher at hand: this comparison is left out.</p>
{% else %}
{% set kept = teacher.finite.hits if teacher.finite is defined else teacher.images %}
{% set images = (kept | count) ~ " images" %}
{% if kept < teacher.images %}
<p>On {{ (teacher.images - kept) | count }} of {{ teacher.images | count }} images the student diverges. Its answers
there count as wrong, and it has no distance: {{ "the others are shown." if kept else "nothing is shown." }}</p>
{% endif %}
{% call picture("both") %}Both paths of a few images in the plane of largest variance (the paper's Fig. 1).{% endcall %}
{% call picture("layers") %}
Distance between each layer of the teacher and the student's step for that layer; {{ images }}. Dashed: a student that
stays at the embedded image. The step for each layer is
{{ "as in training (" ~ teacher.alignment.kind ~ ")." if teacher.alignment.measured else
   "evenly spaced, since the run has no alignment." }} The last phase of a distillation trains the end of the path only,
so a student need not pass through the teacher's layers.
{% endcall %}
{% call picture("correctness") %}
{{ images }}, a dot each (the paper's Fig. 4).
{% if teacher.right_has_larger_norm %}
{% set by_distance, by_share = teacher.layers_nearer, teacher.relative.layers_nearer %}
Where both are right, the student is nearer at {{ by_distance.nearer }} and farther at {{ by_distance.farther }} of
{{ teacher.layers }} layers by |x − h|, and nearer at {{ by_share.nearer }} and farther at {{ by_share.farther }} by |x
− h| / |h|; at the others the difference is not significant. The teacher's norm |h| at the last layer is larger where
both are right in {{ teacher.right_has_larger_norm.value | percent }} of all pairs of such an image with another.
{% endif %}
{% endcall %}
{% call picture("bins") %}{{ images }}, the same number in each bar except for ties (the paper's Fig. 10).{% endcall %}
{% endif %}
"""

    @torch.no_grad()
    def measure(self, study: Study) -> dict[str, Any]:
        return {"teacher": None if study.teacher is None else teacher_numbers(study, study.teacher)}

    def draw(self, numbers: Numbers, pictures: Tensor) -> Figures:
        teacher = numbers["teacher"]
        if teacher is None:
            return {}
        figures, paths = {}, teacher["paths"]
        if paths is not None:
            student, theirs = (torch.tensor(paths[key]) for key in ("student", "teacher"))
            plane = Paths(student, theirs, paths["explained"])
            figures["both"] = draw_paths(plane, paths["meetings"], pictures, paths["names"])
        if teacher["distances"]:
            figures["layers"] = draw_layers(teacher["by_token"])
            figures["correctness"] = draw_correctness(teacher)
            figures["bins"] = draw_bins(teacher)
        return figures

    def judge(self, numbers: Numbers) -> list[Verdict]:
        teacher = numbers.get("teacher")
        if teacher is None:
            absent = "The run has no teacher at hand; that part is left out."
            return [Verdict(self.title, "it has none here", None, (absent,))]
        agreement, layers = teacher["agreement"], teacher["by_layer"]
        answer = "yes" if agreement["value"] >= FOLLOWS else "no" if agreement["value"] < PARTS else "partly"
        sentences = [
            f"It gives its teacher's answer on {share_of(agreement)} of {agreement['count']:,} images, and is right on "
            f"{percent(teacher['student_top1']['value'])} where the teacher is on {percent(teacher['top1']['value'])}.",
        ]
        finite = teacher.get("finite")  # missing in numbers of earlier versions
        if finite and finite["hits"] < finite["count"]:
            lost = finite["count"] - finite["hits"]
            sentences.append(f"On {lost:,} of these images it diverges: it has no finite state and no answer there.")
        if layers["median"][-1] is None:
            return [Verdict(self.title, "no", False, tuple(sentences))]
        sentences.append(
            f"At the last layer its distance ({teacher['token']}) is {layers['median'][-1]:.3g} in the median, "
            f"{small_share(teacher['relative']['by_layer']['median'][-1])} of the teacher's norm; a student that never "
            f"moved would be at {layers['standstill'][-1]:.3g}."
        )
        if teacher["tells_disagreement"] is not None:
            sentences.append(
                "An image on which they disagree is further away than one on which they agree in "
                f"{teacher['tells_disagreement']:.0%} of all pairs (50% is chance)."
            )
        if teacher["right_is_nearer"] is not None:
            sentences.append(_nearer(teacher))
        return [Verdict(self.title, answer, answer == "yes", tuple(sentences))]


@dataclass(frozen=True)
class PairedRun:
    """Student and teacher on the same images: answers [image], and lengths [layer, image], means over tokens, by group.

    `distances` are |x(tau_l T) - h_l|, `norms` |h_l|, and `still` |h_0 - h_l|, the distances of a student that never
    moves.
    A student whose logits are not finite has the answer -1.
    """

    answers: Tensor
    teacher_answers: Tensor
    distances: dict[str, Tensor]
    still: dict[str, Tensor]
    norms: dict[str, Tensor]


@torch.no_grad()
def run_both(
    model: ImageModel,
    teacher: Teacher,
    layer_steps: Sequence[int],
    solver_config: SolverConfig,
    batches: Iterable[Mapping[str, Tensor]],
) -> PairedRun:
    """One pass of student and teacher over images, with CLS (where there is one) and patches apart.

    The student's states are those at the steps `meetings` of the given config, in the teacher's width; its answers are
    those with its own config. Batches have `pixel_values`, and `x0` where they are embedded already.
    """
    lengths: dict[str, list[Tensor]] = {}  # [kind of vector, layer, image]
    answers: list[Tensor] = []
    for batch in batches:
        pixels = batch["pixel_values"]
        x0, output, layout = batch.get("x0"), teacher(pixels), teacher.layout(pixels)
        x0 = model.embed(pixels) if x0 is None else x0
        states = model.follow(x0, solver_config, save=layer_steps).states
        logits = model.readout(states[-1] if solver_config == model.solver_config else model.follow(x0).state)
        assert output.logits is not None  # the teacher has the head of the student
        answers.append(torch.stack([predicted_classes(logits), output.logits.argmax(dim=-1)]).cpu())
        start, *layers = (state.float() for state in output.states)
        gaps = [model.to_teacher_space(x).float() - h for x, h in zip(states, layers, strict=True)]
        for name in ("cls", "patches") if layout.has_cls else ("patches",):
            group = getattr(layout, name)
            parts = [
                torch.stack([vector[:, group].norm(dim=-1).mean(dim=1) for vector in vectors])
                for vectors in (gaps, [h - start for h in layers], layers)
            ]
            lengths.setdefault(name, []).append(torch.stack(parts).cpu())
    if not answers:
        raise ValueError("there are no images to measure distances on; expected at least one batch")
    joined = {name: torch.cat(parts, dim=-1) for name, parts in lengths.items()}
    kinds = ({name: parts[i] for name, parts in joined.items()} for i in range(3))
    return PairedRun(*torch.cat(answers, dim=-1), *kinds)


def teacher_numbers(study: Study, teacher: Teacher) -> dict[str, Any]:
    """Distances at every layer, answers of both, and the paths of a few images (the paper's Fig. 1, 4 and 10)."""
    sample, (alignment, measured) = study.sample, study.alignment
    batches = ({**batch, "x0": chunk["x0"]} for batch, chunk in zip(sample.batches, sample.chunks, strict=True))
    layer_steps = alignment.indices(study.aligned_config.steps)
    runs = run_both(study.model, teacher, layer_steps, study.aligned_config, batches)
    group = "cls" if "cls" in runs.distances else "patches"
    right, teacher_right = runs.answers == sample.labels, runs.teacher_answers == sample.labels
    agreed = runs.answers == runs.teacher_answers
    finite = (runs.answers >= 0) & torch.stack([*runs.distances.values()]).isfinite().all(dim=0).all(dim=0)
    distances, still, norms = (part[group][:, finite] for part in (runs.distances, runs.still, runs.norms))
    groups = (torch.where(teacher_right, 0, 2) + torch.where(right, 0, 1))[finite]  # in the order of GROUPS
    return {
        "images": len(sample),
        "layers": teacher.num_layers,
        "token": "CLS" if group == "cls" else "patches, in the mean",
        "alignment": {"kind": alignment.kind, "measured": measured},
        "finite": Proportion.of(finite),
        "agreement": Proportion.of(agreed),
        "top1": Proportion.of(teacher_right),
        "student_top1": Proportion.of(right),
        "difference": right.double().mean() - teacher_right.double().mean(),
        "difference_error": paired_error(right, teacher_right),
        "groups": groups,
        "group_names": list(GROUPS),
        **nearness(distances, still, groups, agreed[finite]),
        # The teacher's norm may depend on who is right; then so does a distance that is not divided by it.
        "relative": nearness(distances / norms, still / norms, groups, agreed[finite]),
        "by_token": {
            name: layer_bands(gaps[:, finite], runs.still[name][:, finite]) for name, gaps in runs.distances.items()
        },
        "norms": norms[-1],
        "right_has_larger_norm": mann_whitney(norms[-1][groups == 0], norms[-1][groups != 0]),
        "paths": path_numbers(study, teacher),
    }


def path_numbers(study: Study, teacher: Teacher) -> dict[str, Any] | None:
    """Both paths of a few images in one plane; None where one of them is not finite."""
    pixels = study.sample.pixels(SHOWN)
    count, layout = len(pixels), teacher.layout(pixels)
    states = study.model.follow(study.sample.start(count), study.aligned_config, save="all").states
    ours = torch.stack([pooled(study.model.to_teacher_space(state), layout) for state in states]).cpu()
    if not ours.isfinite().all():
        return None
    paths = pca_paths(ours, torch.stack([pooled(state, layout) for state in teacher.states(pixels)]).cpu())
    return {
        **vars(paths),
        "meetings": list(study.alignment[0].indices(study.aligned_config.steps)),
        "names": study.sample.names(count),
        "numbers": study.sample.indices[:count],
    }


def layer_bands(distances: Tensor, still: Tensor) -> dict[str, Tensor]:
    """The middle 80% of the images at every layer, and the median distance of a student that never moves."""
    return {**quantiles(distances, {"low": 0.1, "median": 0.5, "high": 0.9}), "standstill": median(still)}


def nearness(distances: Tensor, still: Tensor, groups: Tensor, agreed: Tensor) -> dict[str, Any]:
    """Statistics of distances [layer, image]: are they smaller where both are right, as the paper claims?

    `right_is_nearer`: P(d > e) for the distance d of an image on which not both are right and e of one on which both
    are, at the last layer, and under `by_layer` at every one.
    """
    last, right = distances[-1], groups == 0
    nearer = [mann_whitney(layer[~right], layer[right]) for layer in distances]
    sides = [significant_side(layer) for layer in nearer if layer is not None]
    disagreement = mann_whitney(last[~agreed], last[agreed])
    return {
        "distances": last,
        "by_layer": {**layer_bands(distances, still), "right_is_nearer": nearer},
        "tells_disagreement": disagreement and disagreement["value"],
        "right_is_nearer": nearer[-1],
        "layers_nearer": {"nearer": sides.count(1), "farther": sides.count(-1)},
        "bins": distance_bins(last, groups),
    }


def distance_bins(distances: Tensor, groups: Tensor) -> list[dict[str, Any]]:
    """The number of images of each group in each of `BINS` bins with equally many images."""
    shares = {f"{i}/{BINS}": i / BINS for i in range(BINS + 1)}
    edges = torch.stack([*quantiles(distances, shares).values()]).to(distances).tolist()
    rows = []
    for low, high in pairwise(edges):
        inside = (distances >= low) & ((distances <= high) if high == edges[-1] else (distances < high))
        counts = {name: int((groups[inside] == i).sum()) for i, name in enumerate(GROUPS)}
        if inside.any():
            rows.append({"low": low, "high": high, "images": int(inside.sum()), **counts})
    return rows


def draw_layers(by_token: Numbers) -> Figure:
    """The distance at every layer: the median image and the middle 80%, for each group of tokens."""
    figure, columns = make_figure(3.4, len(by_token), sharey=True)
    for axes, (name, bands), colour in zip(columns, by_token.items(), COLOURS, strict=False):
        layers = range(1, len(bands["median"]) + 1)
        every = 1 if len(layers) <= 12 else 2 if len(layers) <= 24 else 4
        axes.plot(layers, bands["standstill"], color=GREY, linestyle="--", label="if it never moved")
        style = {**STUDENT, "color": colour, "label": "student, median image"}
        band(axes, layers, bands, "low", "median", "high", around="middle 80%", **style)
        axes.set(title=TOKENS[name], xlabel="layer of the teacher", xticks=layers[every - 1 :: every])
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=9)
    columns[0].set(ylim=(0, None), ylabel="distance of a token, |x − h|")
    last, still = (next(iter(by_token.values()))[key][-1] for key in ("median", "standstill"))
    return finish_figure(
        figure, f"Distance at the last layer: {format_signed(last)}, against {format_signed(still)} without moving"
    )


def draw_correctness(teacher: Numbers) -> Figure:
    """Both distances of every image at the last layer, in strips by who is right (the paper's Fig. 4)."""
    figure, panels = make_figure(3.8, 2, sharey=True)
    groups = np.array(teacher["groups"])
    for axes, (kind, measure) in zip(panels, _kinds(teacher), strict=True):
        distances, scatter = np.array(measure["distances"], float), np.random.default_rng(0)
        for i, colour in enumerate(GROUPS.values()):
            here = distances[groups == i]
            axes.scatter(here, i + scatter.uniform(-0.3, 0.3, len(here)), s=9, color=colour, alpha=0.6, linewidth=0)
            if len(here):
                axes.plot([np.median(here)] * 2, [i - 0.4, i + 0.4], color="black", linewidth=2)
        axes.set(xlabel=kind)
        axes.grid(alpha=0.3, axis="x")
    labels = [f"{name}\n{int((groups == i).sum()):,}" for i, name in enumerate(GROUPS)]
    panels[0].set_yticks(range(len(GROUPS)), labels=labels)
    panels[0].invert_yaxis()
    title = f"Distance to the teacher at the last layer ({teacher['token']}) by who is right; black: medians"
    return finish_figure(figure, title)


def draw_bins(teacher: Numbers) -> Figure:
    """Shares of who is right by either distance, equally many images in each bar (the paper's Fig. 10)."""
    figure, panels = make_figure(3.9, 2, sharey=True)
    for axes, (kind, measure) in zip(panels, _kinds(teacher), strict=True):
        bins = measure["bins"]
        base = np.zeros(len(bins))
        for name, colour in GROUPS.items():
            shares = np.array([100 * row[name] / row["images"] for row in bins])
            axes.bar(range(len(bins)), shares, bottom=base, color=colour, label=name, width=0.85)
            base += shares
        edges = [bins[0]["low"], *(row["high"] for row in bins)]
        axes.set_xticks(np.arange(len(edges)) - 0.5, [f"{edge:.3g}" for edge in edges], fontsize=9, rotation=45)
        axes.set(xlabel=kind, ylim=(0, 100))
        first, last = (100 * bins[i]["both right"] / bins[i]["images"] for i in (0, -1))
        axes.set_title(f"both right: {first:.0f}% of the nearest, {last:.0f}% of the farthest", fontsize=10)
    panels[0].set(ylabel="images (%)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return finish_figure(figure, f"Who is right, by distance to the teacher at the last layer ({teacher['token']})")


def _kinds(teacher: Numbers) -> tuple[tuple[str, Numbers], ...]:
    """The distance, absolute and as a share of the teacher's norm."""
    return ("|x(T) − h|", teacher), ("|x(T) − h| / |h|", teacher["relative"])


def _nearer(teacher: Numbers) -> str:
    answers = {1: "yes", 0: "no significant difference", -1: "no, farther"}
    absolute, relative = teacher["right_is_nearer"], teacher["relative"]["right_is_nearer"]
    return (
        "Is it nearer at the last layer where both are right, as the paper claims? "
        f"By |x − h|: {answers[significant_side(absolute)]} (nearer in {absolute['value']:.0%} of all pairs of such an "
        f"image with another). By |x − h| / |h|: {answers[significant_side(relative)]} ({relative['value']:.0%}). "
        f"Chance gives 50% ± {100 * absolute['error']:.1f}."
    )
