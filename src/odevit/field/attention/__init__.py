"""Attention by name: dot, l2, cosine, hopfield."""

from odevit.field.attention.hopfield import HopfieldAttention as HopfieldAttention
from odevit.field.attention.kinds import CosineAttention as CosineAttention
from odevit.field.attention.kinds import DotProductAttention as DotProductAttention
from odevit.field.attention.kinds import L2Attention as L2Attention
from odevit.field.attention.multi_head import ATTENTIONS as ATTENTIONS
from odevit.field.attention.multi_head import Attention as Attention
from odevit.field.attention.multi_head import attend as attend
from odevit.field.attention.rotary import Rotary as Rotary
