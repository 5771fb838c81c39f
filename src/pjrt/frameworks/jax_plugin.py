"""What JAX finds through the ``jax_plugins`` entry point: devices of ours, where the environment asks for them.

``PJRT_JAX_DEVICES`` names them, separated by commas: names that ``pjrt.client`` knows, or paths of plugins' libraries.
Without it nothing is registered; and what is registered never becomes JAX's default.
"""

from __future__ import annotations

import os

VARIABLE = "PJRT_JAX_DEVICES"


def initialize() -> None:
    """Registers the devices that the environment names; JAX calls it when it looks for plugins."""
    names = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    if not names:
        return
    from pjrt.frameworks import jax

    for name in names:
        jax.register(name)
