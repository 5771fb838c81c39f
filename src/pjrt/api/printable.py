"""Text that people read: files, programs and peers as a terminal may get them, and numbers of bytes.

A terminal obeys some characters: they clear the screen, set its title, turn the direction of the text around, or let it
answer as if the user had typed. So they are shown as Python would write them, such as ``\\x1b``.
"""

from __future__ import annotations

import re

_PERHAPS = re.compile(r"[^\t\n -~]")
_PERHAPS_BUT_COLORS = re.compile(r"\x1b\[[0-9;]{0,16}m|[^\t\n -~]")


def printable(text: str, *, colors: bool = False) -> str:
    """Return a text in which a terminal finds nothing to obey but tabs and ends of lines.

    Args:
        text: the text.
        colors: whether colors are left in it.
    """
    return (_PERHAPS_BUT_COLORS if colors else _PERHAPS).sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    found = match[0]
    return found if found.isprintable() or len(found) > 1 else repr(found)[1:-1]


def readable_bytes(count: float) -> str:
    """Return a number of bytes with a suitable unit."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
