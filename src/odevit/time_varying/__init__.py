"""Fields whose weights change with time: knots, low-rank changes, and weights from a network of the time."""

from odevit.time_varying.builder import KnotsBuilder as KnotsBuilder
from odevit.time_varying.conditioning import TimeModulation as TimeModulation
from odevit.time_varying.fade import Fade as Fade
from odevit.time_varying.hyper import HyperField as HyperField
from odevit.time_varying.knots import KnottedField as KnottedField
