"""jaxlib for the rooms above: which versions work, and the one way to import a module of it."""

from __future__ import annotations

from pjrt.stablehlo._jaxlib import EXTRA, SUPPORTED, is_installed, load, version

__all__ = ["EXTRA", "SUPPORTED", "is_installed", "load", "version"]
