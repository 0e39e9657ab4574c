"""Chameleon: a visuomotor policy that remembers, with the benchmark, baselines and tools around it."""

from chameleon_policy.policy import *  # noqa: F403
from chameleon_policy.policy import __all__ as __all__

__version__ = "0.1.0"
