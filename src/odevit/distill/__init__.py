"""A pretrained ViT as a teacher, and the distillation of a student that follows it."""

from odevit.distill.teacher import Teacher as Teacher
from odevit.distill.teacher import TeacherOutput as TeacherOutput
