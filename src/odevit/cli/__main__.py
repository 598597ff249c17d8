"""`python -m odevit.cli VERB ...`, for torchrun and for environments without the script."""

import sys

from odevit.cli import main

sys.exit(main())
