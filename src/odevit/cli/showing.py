"""odevit serve: the explorer in the browser."""

from __future__ import annotations

from odevit.app import serve as serve
from odevit.cli.words import Verb

SERVE = Verb("serve", serve, lambda _: None, ("odevit serve", "odevit serve model=RUN port=8000"))
