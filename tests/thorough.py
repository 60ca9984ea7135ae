"""Whether rigs search for long: ``HYPOTHESIS_PROFILE=thorough``."""

from __future__ import annotations

import os

IS_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
