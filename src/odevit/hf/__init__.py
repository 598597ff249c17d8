"""Hugging Face: image processors, export, presets, checks of what is loaded."""

from odevit.hf import hooks as hooks
