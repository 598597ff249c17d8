"""Hugging Face: image processors, export, presets, checks of what is loaded. Registers what the core calls by name."""

from odevit.hf import checks as checks
from odevit.hf import config_rules as config_rules
from odevit.hf import presets as presets
from odevit.hf import processor as processor
from odevit.hf import remote_code as remote_code
