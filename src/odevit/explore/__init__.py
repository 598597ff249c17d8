"""Films of a model at work: what it looks at, what it believes, and that it comes to rest."""

from odevit.explore.run import explore as explore
