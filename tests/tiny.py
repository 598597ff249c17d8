"""The smallest model that has everything."""

import torch

from odevit import OdeViTConfig, OdeViTForImageClassification

TINY = {
    "hidden_size": 32,
    "num_attention_heads": 2,
    "mlp_ratio": 2.0,
    "image_size": 16,
    "patch_size": 4,
    "num_register_tokens": 2,
    "steps": 2,
    "horizon": 1.0,
    "num_labels": 5,
}


def tiny_config(**overrides):
    return OdeViTConfig(**{**TINY, **overrides})


def tiny_model(**overrides):
    return OdeViTForImageClassification(tiny_config(**overrides)).eval()


def tiny_images(batch=3, size=16):
    return torch.randn(batch, 3, size, size)
