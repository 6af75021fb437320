"""Hypothesis profiles: `quick` by default, `thorough` by HYPOTHESIS_PROFILE. Both replay exactly."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "quick",
    max_examples=50,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
