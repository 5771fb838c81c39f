"""Source locations as text, read once at compile time."""

from __future__ import annotations

from typing import Any

UNKNOWN = "unknown location"


def describe(location: Any) -> str:
    """A location as ``name at file:line:column``, innermost frame first, as far as the program says it."""
    kind = type(location).__name__
    if kind == "FileLineColLoc":
        return f"{location.filename}:{location.start_line}:{location.start_col}"
    if kind == "NameLoc":
        inner = describe(location.child_loc)
        return str(location.name_str) if inner == UNKNOWN else f"{location.name_str} at {inner}"
    if kind == "CallSiteLoc":
        callee, caller = describe(location.callee), describe(location.caller)
        return callee if caller == UNKNOWN else f"{callee}, called from {caller}"
    if kind == "FusedLoc":
        parts = [part for part in map(describe, location.locations) if part != UNKNOWN]
        return ", ".join(dict.fromkeys(parts)) or UNKNOWN
    return UNKNOWN
