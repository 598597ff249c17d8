"""The explorer and its films: what an image does on its way through continuous depth."""
