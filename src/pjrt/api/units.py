"""Units: numbers of bytes as people read them."""

from __future__ import annotations


def readable_bytes(count: float) -> str:
    """Return a number of bytes with a suitable unit."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
