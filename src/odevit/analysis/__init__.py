"""Read-only: takes a field and a state, changes nothing, gives a value and its error."""

from odevit.analysis.lipschitz import Estimate as Estimate
from odevit.analysis.lipschitz import local_lipschitz as local_lipschitz
