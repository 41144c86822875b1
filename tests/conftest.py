"""Test-wide settings: hypothesis profiles without a deadline, since the first call of a kernel compiles it."""

import os

from hypothesis import settings

settings.register_profile("default", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("long", deadline=None, max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
