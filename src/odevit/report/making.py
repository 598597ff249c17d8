"""command, device, versions, seed: everything needed to make the page again."""

from __future__ import annotations

from typing import Any

from odevit.report.section import SECTIONS, Section
from odevit.report.study import Study


@SECTIONS.register("making")
class Making(Section):
    """The last words of a page."""

    title = "How this was made"
    place = 100
    text = """
{% call small() %}
<code>{{ command }}</code><br>{{ device }}, {{ seconds.total | number(".0f") }} s
({{ seconds.processor | number(".0f") }} s of processor time), seed {{ seed }}<br>
{% for name, version in versions.items() %}{{ name }} {{ version }}{{ "" if loop.last else ", " }}{% endfor %}
{% if sizes is defined %}<br>Every number on this page is in analysis.json beside it.{% endif %}
{% endcall %}
"""

    def measure(self, study: Study) -> dict[str, Any]:
        return {"seed": study.seed}
