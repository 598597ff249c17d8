"""command, device, versions, seed: everything needed to make the page again."""

from __future__ import annotations

from typing import Any

from odevit.report.page import Block, Lines
from odevit.report.section import SECTIONS, Numbers, Section
from odevit.report.study import Study


@SECTIONS.register("making")
class Making(Section):
    """The last words of a page."""

    title = "How this was made"
    place = 100

    def __init__(self, closing: str = "Every number on this page is in analysis.json beside it.") -> None:
        self.closing = closing

    def measure(self, study: Study) -> dict[str, Any]:
        return {"seed": study.seed}

    def tell(self, numbers: Numbers) -> list[Block]:
        versions = ", ".join(f"{name} {version}" for name, version in numbers["versions"].items())
        seconds = numbers["seconds"]
        machine = (
            f"{numbers['device']}, {seconds['total']:.0f} s ({seconds['processor']:.0f} s of processor time), "
            f"seed {numbers['seed']}"
        )
        return [Lines(numbers["command"], (machine, versions, self.closing))]
