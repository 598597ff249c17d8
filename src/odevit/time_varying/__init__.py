"""Fields whose weights change with time: knots, low-rank changes, a network of the time."""

from odevit.time_varying.hyper import HyperField as HyperField
from odevit.time_varying.knots import KnottedField as KnottedField
