"""The explorer page and films: attention, class probabilities and states of an image over integration time."""
