"""Films of a model at work: what it looks at, what it believes, and whether it comes to rest."""

from odevit.film.film import explore as explore
