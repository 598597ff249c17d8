"""The family, compared: the same data, budget, updates, batches and seeds for every system."""

from odevit.contest.comparing import compare as compare
