"""odevit explore: images -> films of what a model looks at."""

from __future__ import annotations

from odevit.cli.words import Verb
from odevit.film import explore as explore

VERB = Verb("explore", explore, lambda paths: print(*paths, sep="\n"), "odevit explore cat.png seconds=4")
