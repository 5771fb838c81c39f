"""The environments that launchers make, from which a process learns its job."""

from __future__ import annotations

from pjrt.distributed.environments.detection import detect
from pjrt.distributed.environments.environment import Environment, Place

__all__ = ["Environment", "Place", "detect"]
