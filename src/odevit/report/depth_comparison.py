"""x(T), x_n for n -> oo, x*: the answers of one field as an ODE, as a recurrent network and as an equilibrium."""

from __future__ import annotations

from typing import Any

import torch

from odevit.analysis.settling import FAR
from odevit.analysis.significance import Proportion
from odevit.analysis.sweep import ACCURATE, three_depths
from odevit.report.section import SECTIONS, Section
from odevit.report.study import Study

NAMES = {
    "ode": f"equation up to its horizon ({ACCURATE})",
    "recurrent": f"recurrent network, {FAR} horizons",
    "equilibrium": "equilibrium",
}


@SECTIONS.register("depth_comparison")
class DepthComparison(Section):
    """Evaluations, accuracy, and agreement with the model as configured, for each meaning of depth."""

    title = "One model, three depths"
    order = 50
    text = """
<p>The same weights as an ODE solved to a tolerance, as a recurrent network that repeats the model's own step, and as
the equilibrium of that step.</p>
{% call table("depth", "evaluations", "accuracy", "same answer", "|Δ logits|") %}
{% for view in depths.rows %}
{{ row(view.name ~ ("" if view.settled else " (not reached for all)"), view.nfe | number, view.top1 | percent,
       view.agreement | percent, view.difference | number) }}
{% endfor %}
{% endcall %}
{% call small() %}{{ depths.images | count }} images, compared with the model as configured. |Δ logits|: the largest
over classes, median over images.{% endcall %}
"""

    def measure(self, study: Study) -> dict[str, Any]:
        portions = [three_depths(study.model, chunk["x0"]) for chunk in study.sample.first(study.sizes.depths)]
        rows = []
        for name, title in NAMES.items():
            parts = [portion[name] for portion in portions]
            logits = torch.cat([part.logits.float().cpu() for part in parts])
            answers, own = logits.argmax(dim=-1), study.forward_cache.logits[: len(logits)]
            row = {
                "name": title,
                "nfe": torch.cat([part.evaluations.double() for part in parts]).mean(),
                "top1": Proportion.of(answers == study.sample.labels[: len(answers)]).value,
                "agreement": Proportion.of(answers == own.argmax(dim=-1)).value,
                "difference": (logits - own).abs().amax(dim=-1).median(),
                "settled": all(part.settled for part in parts),
            }
            rows.append(row)
        return {"depths": {"images": len(logits), "rows": rows}}
