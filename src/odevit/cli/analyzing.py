"""odevit analyze: a model -> how stable it is, on one page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from odevit.cli.words import Verb
from odevit.report import analyse


def analyze(run: str | os.PathLike[str], **settings: Any) -> Path:
    """Measure how stable a model is and give back the report's page; settings are those of `odevit.report.analyse`."""
    return analyse(run, **settings).page


VERB = Verb("analyze", analyse, lambda analysis: print(analysis.page), "odevit analyze RUN limit=200")
