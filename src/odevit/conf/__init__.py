"""Hydra groups named like the folders; `experiment=` is a recipe."""
