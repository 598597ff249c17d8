"""Further kinds of attention, by name: cosine, l2, hopfield."""

from odevit.attention.hopfield import HopfieldAttention as HopfieldAttention
from odevit.attention.rotary import Rotary as Rotary
from odevit.attention.variants import CosineAttention as CosineAttention
from odevit.attention.variants import L2Attention as L2Attention
