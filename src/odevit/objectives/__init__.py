"""Losses and penalties besides cross-entropy: functions of tensors, and penalties accumulated along a trajectory."""

from odevit.deprecated import keep_old_names
from odevit.objectives.attention_matching import attention_kl as attention_kl
from odevit.objectives.attention_matching import attention_l1 as attention_l1
from odevit.objectives.attention_matching import mass_threshold as mass_threshold
from odevit.objectives.bounds import approximation_bound as approximation_bound
from odevit.objectives.bounds import curvature as curvature
from odevit.objectives.bounds import weight_bound as weight_bound
from odevit.objectives.jasmin import JaSMin as JaSMin
from odevit.objectives.jasmin import g as g
from odevit.objectives.jasmin import jasmin as jasmin
from odevit.objectives.matching import channel_variance as channel_variance
from odevit.objectives.matching import logit_kl as logit_kl
from odevit.objectives.matching import path_matching as path_matching
from odevit.objectives.matching import pooled_matching as pooled_matching
from odevit.objectives.penalties import JacobianNorm as JacobianNorm
from odevit.objectives.penalties import Transport as Transport
from odevit.objectives.settling import Settling as Settling

keep_old_names(__name__)
