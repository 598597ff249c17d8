"""A pretrained ViT as a teacher of a student whose depth is an equation."""

from odevit.distill.teacher import Teacher as Teacher
from odevit.distill.teacher import TeacherOutput as TeacherOutput
