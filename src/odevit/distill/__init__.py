"""A pretrained ViT as a teacher, and as the body of a student whose depth is an equation."""

from odevit.distill.cache import TeacherCache as TeacherCache
from odevit.distill.cache import cache_features as cache_features
from odevit.distill.configuration import OdeEncoderConfig as OdeEncoderConfig
from odevit.distill.encoder import OdeEncoder as OdeEncoder
from odevit.distill.layout import PrefixLayout as PrefixLayout
from odevit.distill.pixels import PixelStatistics as PixelStatistics
from odevit.distill.student import OdeStudent as OdeStudent
from odevit.distill.surgery import get_ode_model as get_ode_model
from odevit.distill.teacher import Teacher as Teacher
from odevit.distill.teacher import TeacherOutput as TeacherOutput
