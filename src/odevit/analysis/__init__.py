"""Measurements of a field and a state, or of a model and images: values with their errors; nothing is changed."""

from odevit.analysis.approximation import ApproximationError as ApproximationError
from odevit.analysis.approximation import approximation_error as approximation_error
from odevit.analysis.attention import AttentionPath as AttentionPath
from odevit.analysis.attention import attention_over_time as attention_over_time
from odevit.analysis.attention import rollout as rollout
from odevit.analysis.base import frozen as frozen
from odevit.analysis.contraction import Radius as Radius
from odevit.analysis.contraction import contraction_radius as contraction_radius
from odevit.analysis.fitted_grid import FittedGrid as FittedGrid
from odevit.analysis.fitted_grid import fit_grid as fit_grid
from odevit.analysis.guidance import Guided as Guided
from odevit.analysis.guidance import guided as guided
from odevit.analysis.lipschitz import Estimate as Estimate
from odevit.analysis.lipschitz import attention_bound as attention_bound
from odevit.analysis.lipschitz import local_lipschitz as local_lipschitz
from odevit.analysis.lyapunov import ClassMean as ClassMean
from odevit.analysis.lyapunov import Exponents as Exponents
from odevit.analysis.lyapunov import Growth as Growth
from odevit.analysis.lyapunov import by_class as by_class
from odevit.analysis.lyapunov import divergence_step as divergence_step
from odevit.analysis.lyapunov import local_growth as local_growth
from odevit.analysis.lyapunov import lyapunov_spectrum as lyapunov_spectrum
from odevit.analysis.lyapunov import lyapunov_time as lyapunov_time
from odevit.analysis.lyapunov import maximal_exponent as maximal_exponent
from odevit.analysis.perturbation import Divergence as Divergence
from odevit.analysis.perturbation import perturb_patch as perturb_patch
from odevit.analysis.plane import Plane as Plane
from odevit.analysis.sweep import three_depths as three_depths
from odevit.deprecated import keep_old_names
from odevit.objectives.attention_matching import mass_threshold as mass_threshold

keep_old_names(__name__)
