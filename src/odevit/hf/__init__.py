"""Hugging Face: image processors, export, presets, checks of what is loaded."""
