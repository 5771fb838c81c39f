"""Source locations as text, read when a program is compiled."""

from __future__ import annotations

from typing import Any

from pjrt.api.program import SourceLocation
from pjrt.stablehlo.location import Location

UNKNOWN = "unknown location"


def describe(location: Any) -> str:
    """Return a location as ``name at file:line:column``, innermost frame first, as far as the program states it."""
    text = str(location)
    if "\\" in text:  # a name in it may not be UTF-8: the bindings end the process when that is read
        return _spelled(text)
    return _described(location)


def _described(location: Any) -> str:
    kind = type(location).__name__
    if kind == "FileLineColLoc":
        return f"{location.filename}:{location.start_line}:{location.start_col}"
    if kind == "NameLoc":
        inner = _described(location.child_loc)
        return str(location.name_str) if inner == UNKNOWN else f"{location.name_str} at {inner}"
    if kind == "CallSiteLoc":
        callee, caller = _described(location.callee), _described(location.caller)
        return callee if caller == UNKNOWN else f"{callee}, called from {caller}"
    if kind == "FusedLoc":
        parts = [part for part in map(_described, location.locations) if part != UNKNOWN]
        return ", ".join(dict.fromkeys(parts)) or UNKNOWN
    if kind == "Location":  # before jaxlib 0.10.2 the bindings have only its text
        return _spelled(str(location))
    return UNKNOWN


def _spelled(text: str) -> str:
    return ", called from ".join(map(_spell, Location(text).places)) or UNKNOWN


def _spell(place: SourceLocation) -> str:
    at = f"{place.file}:{place.line}:{place.column}" if place.file else ""
    return f"{place.name} at {at}" if place.name and at else place.name or at
