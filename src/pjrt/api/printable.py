"""Text that people read: files, programs and peers as a terminal may get them, and numbers of bytes.

A terminal obeys some characters: they clear the screen, set its title, turn the direction of the text around, or let it
answer as if the user had typed. So they are shown as Python would write them, such as ``\\x1b``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

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


_CELL = "text-align: left; padding: 0.1em 1em 0.1em 0; border-bottom: 1px solid rgba(128, 128, 128, 0.4)"


def html_table(title: object, rows: Iterable[Sequence[object]], columns: Sequence[str] = ()) -> str:
    """Return a table for a notebook, whose colors it takes: it is readable on light and on dark pages.

    Args:
        title: what stands above it.
        rows: the cells. Without columns a row is a name and a value, and one without a value is left out.
        columns: the titles of the columns.
    """
    from html import escape  # only for notebooks

    def line(cells: Sequence[object], tag: str) -> str:
        begin, end = f'<{tag} style="{_CELL}">', f"</{tag}>"
        return f"<tr>{''.join(begin + escape(printable(str(cell))) + end for cell in cells)}</tr>"

    kept = [row for row in rows if columns or row[-1] not in (None, "")]
    lines = [*([line(columns, "th")] if columns else []), *(line(row, "td") for row in kept)]
    return f"<div><b>{escape(printable(str(title)))}</b><table>{''.join(lines)}</table></div>"


def perhaps(wrong: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return which known names an unknown one may stand for, as the end of a message; empty if none is like it."""
    import difflib  # only for messages

    similar = difflib.get_close_matches(wrong, {*known}, n=5, cutoff=cutoff)
    likeness = [difflib.SequenceMatcher(None, each, wrong).ratio() for each in similar]
    nearest = sorted(each for each, ratio in zip(similar, likeness, strict=True) if ratio == likeness[0])
    return f"; perhaps {' or '.join(map(repr, nearest))} is meant" if nearest else ""


def readable_bytes(count: float) -> str:
    """Return a number of bytes with a suitable unit."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
