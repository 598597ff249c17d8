"""Attention by name: dot, l2, cosine, hopfield."""

from odevit.field.attention.dot import CosineAttention as CosineAttention
from odevit.field.attention.dot import DotProductAttention as DotProductAttention
from odevit.field.attention.hopfield import HopfieldAttention as HopfieldAttention
from odevit.field.attention.l2 import L2Attention as L2Attention
from odevit.field.attention.multi_head import ATTENTIONS as ATTENTIONS
from odevit.field.attention.multi_head import Attention as Attention
from odevit.field.attention.multi_head import attend as attend
