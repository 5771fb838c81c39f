"""The ``cpu`` device: XLA's CPU compiler and asynchronous runtime, through ``jaxlib`` alone (no ``jax``).

Importing this package does not import jaxlib; making a client does. jaxlib is mostly private: only ``_jaxlib`` touches
its private modules, all other modules here use what ``_jaxlib`` offers.
"""

from __future__ import annotations

from pjrt.devices.xla.plugin import XlaPlugin

__all__ = ["XlaPlugin"]
