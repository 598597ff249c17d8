"""odevit analyze, odevit explore: a model -> pages and films to look at."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from odevit import report
from odevit.cli.parser import Command
from odevit.explorer.film import explore as explore


def analyze(run: str | os.PathLike[str], **settings: Any) -> Path:
    """Measure how stable a model is and give back the report's page; settings are those of `odevit.report.analysis`."""
    return report.analyze(run, **settings).page


ANALYZE = Command(
    "analyze",
    report.analyze,
    lambda analysis: print(analysis.page),
    ("odevit analyze RUN", "odevit analyze RUN limit=200"),
)
EXPLORE = Command(
    "explore",
    explore,
    lambda paths: print(*paths, sep="\n"),
    ("odevit explore cat.png", "odevit explore cat.png model=RUN seconds=4"),
)
