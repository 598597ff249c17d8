"""A pretrained ViT as a teacher, and the distillation of a student that follows it."""

from odevit.distill.features import TeacherCache as TeacherCache
from odevit.distill.features import cache_features as cache_features
from odevit.distill.teacher import Teacher as Teacher
from odevit.distill.teacher import TeacherOutput as TeacherOutput
