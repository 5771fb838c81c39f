"""The ``cpu`` device: XLA's CPU compiler and asynchronous runtime, through ``jaxlib`` alone (no ``jax``).

Importing the room does not import jaxlib; making a client does. What of jaxlib is private is touched in ``_raw`` only;
everything else in this room speaks to what ``_raw`` hands out.
"""

from __future__ import annotations

from pjrt.devices.xla.plugin import XlaPlugin

__all__ = ["XlaPlugin"]
