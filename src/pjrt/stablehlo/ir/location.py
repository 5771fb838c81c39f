"""Source locations: where in its author's files an operation comes from."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from pjrt.api.program import SourceLocation

PROGRAM_TEXT = "-"
"""The file of a place in the program's own text: the location of an operation whose text states no other."""


@dataclass(frozen=True, repr=False)
class Location:
    """The origin of an operation: a place, and the places that called it if a call stack is known.

    The text is kept as MLIR spells it, and taken apart only when a part is asked for.
    """

    text: str

    @functools.cached_property
    def places(self) -> tuple[SourceLocation, ...]:
        """The places: the innermost first, then its callers; empty if the location is unknown."""
        return tuple(_places(_Reader(self.text)))

    @property
    def name(self) -> str:
        """The first name in the location; empty if it has none."""
        return next((place.name for place in self.places if place.name), "")

    @property
    def file(self) -> str:
        """The first file in the location; empty if it has none."""
        return next((place.file for place in self.places if place.file), "")

    @property
    def line(self) -> int:
        """The line in that file; 0 without a file."""
        return next((place.line for place in self.places if place.file), 0)

    @property
    def is_known(self) -> bool:
        """Whether the location has any place."""
        return bool(self.places)

    def __str__(self) -> str:
        """Return ``name at file:line:column``, as far as they are known; callers are left out."""
        if not self.places:
            return "unknown location"
        return str(SourceLocation(self.name, *self._first_file()))

    def __repr__(self) -> str:
        return f"Location({str(self)!r})"

    def _first_file(self) -> tuple[str, int, int]:
        return next((place[1:] for place in self.places if place.file), ("", 0, 0))


_TOKEN = re.compile(r'\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<word>[a-z]+)|(?P<number>\d+)|(?P<sign>.))', re.DOTALL)
_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2}|.)")
_DEEPEST = 200


class _Reader:
    """The tokens of a location's text, one after the other."""

    def __init__(self, text: str) -> None:
        inside = text.strip()
        if inside.startswith("loc(") and inside.endswith(")"):
            inside = inside[4:-1]
        self._tokens = [(match.lastgroup or "", match[match.lastgroup or 0]) for match in _TOKEN.finditer(inside)]
        self._next = 0
        self.depth = 0

    def peek(self) -> tuple[str, str]:
        return self._tokens[self._next] if self._next < len(self._tokens) else ("", "")

    def take(self) -> tuple[str, str]:
        token = self.peek()
        self._next += 1
        return token

    def skip(self, sign: str) -> bool:
        """Move past a sign or a word if it is the next; return whether it was."""
        if self.peek()[1] == sign and self.peek()[0] != "quoted":
            self._next += 1
            return True
        return False

    def number(self) -> int:
        kind, text = self.peek()
        if kind != "number":
            return 0
        self._next += 1
        return int(text)


def _places(reader: _Reader) -> list[SourceLocation]:
    """Return the places of the location that begins here; an unknown token ends it."""
    reader.depth += 1
    if reader.depth > _DEEPEST:
        return []
    kind, text = reader.take()
    places: list[SourceLocation] = []
    if kind == "quoted":
        places = _named_or_file(reader, _ESCAPE.sub(_unescaped, text))
    elif text == "callsite":
        reader.skip("(")
        places = _places(reader)
        reader.skip("at")
        places += _places(reader)
        reader.skip(")")
    elif text == "fused":
        places = _fused(reader)
    reader.depth -= 1
    return places


def _named_or_file(reader: _Reader, text: str) -> list[SourceLocation]:
    if reader.skip(":"):
        line = reader.number()
        column = reader.number() if reader.skip(":") else 0
        if reader.skip("to"):  # a range: its end is left out
            reader.number()
            if reader.skip(":"):
                reader.number()
        return [] if (text, line) == (PROGRAM_TEXT, 0) or not text else [SourceLocation("", text, line, column)]
    if not reader.skip("("):
        return [SourceLocation(text, "", 0, 0)] if text else []
    inner = _places(reader)
    reader.skip(")")
    if inner and not inner[0].name:
        return [SourceLocation(text, *inner[0][1:]), *inner[1:]]
    return [SourceLocation(text, "", 0, 0), *inner] if text else inner


def _fused(reader: _Reader) -> list[SourceLocation]:
    if reader.skip("<"):
        depth = 1
        while depth and reader.peek()[0]:
            sign = reader.take()[1]
            depth += {"<": 1, ">": -1}.get(sign, 0)
    reader.skip("[")
    places = _places(reader)
    while reader.skip(","):
        places += _places(reader)
    reader.skip("]")
    return places


def _unescaped(match: re.Match[str]) -> str:
    inside = match[1]
    return chr(int(inside, 16)) if len(inside) == 2 else {"n": "\n", "t": "\t"}.get(inside, inside)
