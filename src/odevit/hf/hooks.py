"""What the core calls by name: image processors, loading, remote code, presets."""

from odevit.core.base import HOOKS
from odevit.hf.checks import checked_from_pretrained
from odevit.hf.presets import PRESETS
from odevit.hf.processor import make_image_processor, pixel_values, save_processor
from odevit.hf.remote_code import write_code

HOOKS.register("image_processor")(make_image_processor)
HOOKS.register("pixel_values")(pixel_values)
HOOKS.register("save_processor")(save_processor)
HOOKS.register("from_pretrained")(checked_from_pretrained)
HOOKS.register("write_remote_code")(write_code)
HOOKS.register("preset")(PRESETS.__getitem__)
