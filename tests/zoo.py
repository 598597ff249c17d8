"""The smallest model of every architecture that surgery knows, with random weights."""

import torch
import transformers as hf
from torch import nn

from tests.tiny import tiny_model

SIZE = 16
TINY = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": SIZE, "patch_size": 4}
WIDE = {**TINY, "intermediate_size": 128}
LABELS = {"num_labels": 5}

ZOO = {
    "vit": lambda: hf.ViTModel(hf.ViTConfig(**WIDE)),
    "dino": lambda: hf.ViTModel(hf.ViTConfig(**WIDE), add_pooling_layer=False),
    "vit-classifier": lambda: hf.ViTForImageClassification(hf.ViTConfig(**WIDE, **LABELS)),
    "deit": lambda: hf.DeiTModel(hf.DeiTConfig(**WIDE)),
    "deit-classifier": lambda: hf.DeiTForImageClassification(hf.DeiTConfig(**WIDE, **LABELS)),
    "dinov2": lambda: hf.Dinov2Model(hf.Dinov2Config(**TINY)),
    "dinov2-classifier": lambda: hf.Dinov2ForImageClassification(hf.Dinov2Config(**TINY, **LABELS)),
    "dinov2-registers": lambda: hf.Dinov2WithRegistersModel(
        hf.Dinov2WithRegistersConfig(**TINY, num_register_tokens=2)
    ),
    "dinov2-registers-classifier": lambda: hf.Dinov2WithRegistersForImageClassification(
        hf.Dinov2WithRegistersConfig(**TINY, num_register_tokens=2, **LABELS)
    ),
    "dinov2-gated": lambda: hf.Dinov2Model(hf.Dinov2Config(**TINY, use_swiglu_ffn=True)),
    "dinov3": lambda: hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**WIDE, num_register_tokens=2)),
    "dinov3-gated": lambda: hf.DINOv3ViTModel(
        hf.DINOv3ViTConfig(
            **WIDE, num_register_tokens=2, use_gated_mlp=True, hidden_act="silu", query_bias=False, mlp_bias=False
        )
    ),
    "aimv2": lambda: hf.Aimv2VisionModel(hf.Aimv2VisionConfig(**WIDE)),
    "clip": lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**WIDE)),
    "clip-projection": lambda: hf.CLIPVisionModelWithProjection(hf.CLIPVisionConfig(**WIDE, projection_dim=24)),
    "siglip": lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**WIDE)),
    "odevit": lambda: tiny_model(depth="stacked", steps=3, mlp_ratio=4.0, num_attention_heads=4, bias=True),
    "odevit-options": lambda: tiny_model(
        depth="stacked", steps=3, activation="silu", gated=True, qk_norm=True, rope_theta=100.0, norm="rms"
    ),
    "odevit-encoder": lambda: tiny_model(depth="stacked", steps=3, mlp_ratio=4.0, pooling="mean").odevit,
}
# How many tokens stand before the patches: CLS, distillation token, registers.
PREFIX = {"deit": 2, "dinov2-registers": 3, "dinov3": 3, "dinov3-gated": 3, "siglip": 0, "aimv2": 0}


def make(name):
    """A model in evaluation mode whose tokens are of order 1, as those of trained models and of ours are."""
    torch.manual_seed(0)
    model = ZOO[name]().eval()
    if name.startswith("odevit"):
        return model
    with torch.no_grad():
        for key, value in model.named_parameters():
            if value.ndim > 1:
                value.mul_(4.0)
            elif "norm" not in key and "scale" not in key:
                value.normal_(std=0.1)
    return model


def through_a_folder(model, folder):
    """The model as it comes back from a folder in the hub's format."""
    model.save_pretrained(folder)
    arguments = {"add_pooling_layer": False} if getattr(model, "pooler", 0) is None else {}
    return type(model).from_pretrained(folder, **arguments).eval()


def images(batch=2, size=SIZE):
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def teacher_path(student, pixels, *, save="all", solver=None, steps=None, horizon=None):
    """The trajectory of images in the teacher's tokens."""
    solver_config = student.depth.resolve(solver, steps, horizon)
    x0 = student.embed(pixels)
    return student.encoder.decode_solution(student.follow(x0, solver_config, save=save), student.dtype)


def answers(output):
    """The tensors of an output, by name."""
    if isinstance(output, torch.Tensor):
        return {"output": output}
    return {key: value for key, value in output.items() if isinstance(value, torch.Tensor)}


class FusedAttention(nn.Module):
    """timm's attention: one matrix for q, k and v."""

    def __init__(self, dim, heads, qk_norm):
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.q_norm, self.k_norm = (nn.LayerNorm(dim // heads) if qk_norm else nn.Identity() for _ in range(2))
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.proj(mixed.transpose(1, 2).reshape(batch, tokens, dim))


class FusedMlp(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class FusedBlock(nn.Module):
    def __init__(self, dim, heads, answer_in_a_tuple, qk_norm):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim), FusedAttention(dim, heads, qk_norm)
        self.norm2, self.mlp = nn.LayerNorm(dim), FusedMlp(dim)
        self.answer_in_a_tuple = answer_in_a_tuple

    def forward(self, x, extra=None):
        x = x + self.attn(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return (x, extra) if self.answer_in_a_tuple else x


class LikeTimm(nn.Module):
    """A ViT with timm's names and calls, for machines without timm. It also plays blocks that answer in tuples."""

    def __init__(self, dim=32, heads=4, depth=3, tuples=False, qk_norm=False):
        super().__init__()
        self.img_size, self.num_classes, self.tuples = SIZE, 5, tuples
        self.patch_embed = nn.Conv2d(3, dim, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, 17, dim))
        self.blocks = nn.Sequential(*[FusedBlock(dim, heads, tuples, qk_norm) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 5)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        if self.tuples:
            for block in self.blocks:
                x = block(x, extra=None)[0]
        else:
            x = self.blocks(x)
        return self.head(self.norm(x)[:, 0])
