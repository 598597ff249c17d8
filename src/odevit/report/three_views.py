"""x(T), x_n for n -> oo, x*: what one field says as an equation, as a recurrent network, and as an equilibrium."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from odevit.analysis.comparison import FAR, View, three_depths
from odevit.analysis.sweep import ACCURATE
from odevit.report.section import SECTIONS, Section
from odevit.report.study import Study

NAMES = {
    "ode": f"equation up to its horizon ({ACCURATE})",
    "recurrent": f"recurrent network, {FAR} horizons",
    "equilibrium": "equilibrium",
}


@SECTIONS.register("three_views")
class ThreeViews(Section):
    """Evaluations, accuracy, and agreement with the model's own way, for each meaning of depth."""

    title = "One model, three depths"
    place = 50
    text = """
<p>The same weights as an equation solved to a tolerance, as a recurrent network that carries on its own coarse steps,
and as the equilibrium in which they end.</p>
{% call table("depth", "evaluations", "accuracy", "same answer", "|Δ logits|") %}
{% for view in depths.rows %}
{{ row(view.name ~ ("" if view.settled else " (did not arrive for all)"), view.nfe | number, view.top1 | percent,
       view.agreement | percent, view.difference | number) }}
{% endfor %}
{% endcall %}
{% call small() %}{{ depths.images | count }} images, compared with the model's own way. |Δ logits|: the largest over
classes, in the median.{% endcall %}
"""

    def measure(self, study: Study) -> dict[str, Any]:
        views: dict[str, list[View]] = {name: [] for name in NAMES}
        for chunk in study.sample.first(study.sizes.depths):
            for name, view in three_depths(study.model, chunk["x0"]).items():
                views[name].append(view)
        rows = [_row(NAMES[name], parts, study.passage.logits, study.sample.labels) for name, parts in views.items()]
        return {"depths": {"images": min(study.sizes.depths, len(study.sample)), "rows": rows}}


def _row(name: str, views: list[View], own: Tensor, labels: Tensor) -> dict[str, Any]:
    logits = torch.cat([view.logits.float().cpu() for view in views])
    own, answers = own[: len(logits)], logits.argmax(dim=-1)
    return {
        "name": name,
        "nfe": torch.cat([view.evaluations.double().cpu() for view in views]).mean().item(),
        "top1": (answers == labels[: len(answers)]).double().mean().item(),
        "agreement": (answers == own.argmax(dim=-1)).double().mean().item(),
        "difference": (logits - own).abs().amax(dim=-1).median().item(),
        "settled": all(view.settled for view in views),
    }
