"""`odevit train` without the command line around it, for tests that need a process of their own."""

import sys

from odevit.train import train_recipe
from odevit.train.compose import compose_recipe


def word(key, value):
    text = str(value).replace("'", "") if isinstance(value, list) else str(value)
    return f"{key}={text.lower() if isinstance(value, bool) else text}"


def words(settings):
    """{"train.epochs": 1} -> ["train.epochs=1"]."""
    return [word(key, value) for key, value in settings.items()]


if __name__ == "__main__":
    train_recipe(compose_recipe(sys.argv[1:]), command="odevit train " + " ".join(sys.argv[1:]))
