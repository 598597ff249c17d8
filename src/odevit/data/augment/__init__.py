"""Pure functions on whole batches: float images [B, C, H, W] in 0..1 and the random numbers to use.

Written here, not taken from a library: nothing draws a number, waits for the device or branches on a value. All of it
compiles, can be captured in a CUDA graph, and treats a sample alike in every batch.
"""

from odevit.data.augment.geometry import affine_matrix as affine_matrix
from odevit.data.augment.geometry import random_affine as random_affine
from odevit.data.augment.geometry import random_crop as random_crop
from odevit.data.augment.geometry import random_erasing as random_erasing
from odevit.data.augment.geometry import random_flip as random_flip
from odevit.data.augment.geometry import random_zoom as random_zoom
from odevit.data.augment.geometry import warp as warp
from odevit.data.augment.mix import cutmix as cutmix
from odevit.data.augment.mix import mixup as mixup
from odevit.data.augment.mix import soft_targets as soft_targets
from odevit.data.augment.policy import Augmentation as Augmentation
