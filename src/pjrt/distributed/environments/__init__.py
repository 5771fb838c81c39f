"""Where a process learns its job from: the environments that launchers make."""

from __future__ import annotations

from pjrt.distributed.environments.detection import detect
from pjrt.distributed.environments.environment import Environment, Place

__all__ = ["Environment", "Place", "detect"]
