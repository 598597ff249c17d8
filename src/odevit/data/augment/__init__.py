"""Pure functions on whole batches: float images [B, C, H, W] in 0..1 and the random numbers to use.

Nothing here draws a number, waits for the device or branches on a value, so all of it compiles and can be
captured in a CUDA graph.
"""

from odevit.data.augment.affine import affine_matrix as affine_matrix
from odevit.data.augment.affine import random_affine as random_affine
from odevit.data.augment.affine import warp as warp
from odevit.data.augment.colour import colour_jitter as colour_jitter
from odevit.data.augment.crop import random_crop as random_crop
from odevit.data.augment.erasing import random_erasing as random_erasing
from odevit.data.augment.flip import random_flip as random_flip
from odevit.data.augment.mix import cutmix as cutmix
from odevit.data.augment.mix import mixup as mixup
from odevit.data.augment.policy import Augmentation as Augmentation
from odevit.data.augment.randaugment import rand_augment as rand_augment
from odevit.data.augment.targets import soft_targets as soft_targets
