"""Ctrl-C: how often it ended a wait for a device, or may have.

Work goes on when the wait for it is interrupted, because its results may still be wanted. Where nobody holds them any
more either, a device's function that asks is told (``pjrt.host``).
"""

from __future__ import annotations

_count = 0


def count() -> int:
    """Return how often Ctrl-C was noted in this process."""
    return _count


def note() -> None:
    """Note that Ctrl-C was pressed while somebody waited for a device, or may have waited."""
    global _count
    _count += 1
