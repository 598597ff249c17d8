"""P(x(T)) on the image: attention at the final state (the paper's Fig. 6)."""

from __future__ import annotations

from typing import Any

from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from torch import Tensor

from odevit.analysis.attention import attention_over_time
from odevit.distill.teacher import attention_over_layers
from odevit.objectives.attention_matching import mass_threshold
from odevit.plotting import ORANGE, mask_outline
from odevit.report.section import SECTIONS, Figures, Numbers, Section
from odevit.report.study import Study

SHOWN = 6
"""Images whose attention is shown."""
MASS = 0.6
"""Share of the attention within the outline."""


@SECTIONS.register("attention")
class AttentionMaps(Section):
    """Attention at the final state, beside that of a teacher's last layer."""

    title = "What does it look at?"
    order = 70
    text = """
{% call picture("attention", missing="Left out: " ~ attention.why | default("")) %}
{{ attention.images }} images (the paper's Fig. 6). Bright: most attention. Outlined: the patches that together have 60%
of the attention.
{% if attention.why_no_teacher is defined %}The teacher's maps are left out: {{ attention.why_no_teacher }}{% endif %}
{% endcall %}
"""

    def measure(self, study: Study) -> dict[str, Any]:
        pixels = study.sample.pixels(SHOWN)
        count = len(pixels)
        try:
            path = attention_over_time(study.model, pixels)
        except ValueError as error:
            return {"attention": {"images": 0, "why": str(error)}}
        attention: dict[str, Any] = {
            "images": count,
            "numbers": study.sample.indices[:count],
            "names": study.sample.names(count),
            "query": path.query,
            "maps": path.mean[-1],
            "outlined": _outlined(path.mean[-1]),
        }
        if study.teacher is not None:
            try:
                maps = attention_over_layers(study.teacher, pixels).mean[-1]
                attention |= {"teacher": maps, "teacher_outlined": _outlined(maps)}
            except ValueError as error:
                attention |= {"teacher": None, "why_no_teacher": str(error)}
        return {"attention": attention}

    def draw(self, numbers: Numbers, pictures: Tensor) -> Figures:
        attention = numbers["attention"]
        return {"attention": draw_attention(attention, pictures)} if attention["images"] else {}


def draw_attention(attention: Numbers, pictures: Tensor) -> Figure:
    """Images, the model's attention at its final state, and the attention of a teacher's last layer."""
    rows = [("image", None, None), ("model", attention["maps"], attention["outlined"])]
    if attention.get("teacher"):
        rows.append(("teacher", attention["teacher"], attention["teacher_outlined"]))
    figure = Figure(figsize=(8, 1.45 * len(rows) + 0.5), layout="constrained", dpi=130)
    grid = figure.subplots(len(rows), attention["images"], squeeze=False)
    for line, (name, maps, outlined) in zip(grid, rows, strict=True):
        line[0].set_ylabel(name, fontsize=11)
        for i, axes in enumerate(line):
            picture = pictures[i].permute(1, 2, 0).numpy()
            height, width = picture.shape[:2]
            axes.set(xticks=[], yticks=[])
            if maps is None:
                axes.imshow(picture, extent=(0, width, height, 0))
                axes.set_title(attention["names"][i], fontsize=10)
            else:
                axes.imshow(picture.mean(axis=2), extent=(0, width, height, 0), cmap="gray")
                axes.imshow(maps[i], extent=(0, width, height, 0), cmap="inferno", alpha=0.65)
                border = mask_outline(outlined[i], width, height)
                axes.add_collection(LineCollection(border, colors=ORANGE, linewidths=1.4), autolim=False)
    figure.suptitle(f"Attention at the final state, as seen from: {attention['query']}", fontsize=12)
    return figure


def _outlined(maps: Tensor) -> Tensor:
    return mass_threshold(maps.flatten(1), MASS).unflatten(1, maps.shape[1:])
