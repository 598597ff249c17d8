"""odevit serve: the explorer in the browser."""

from __future__ import annotations

from odevit.cli.parser import Command
from odevit.explorer.server import serve as serve

SERVE = Command("serve", serve, lambda _: None, ("odevit serve", "odevit serve model=RUN port=8000"))
