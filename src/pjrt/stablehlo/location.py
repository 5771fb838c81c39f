"""Source locations: where in its author's files an operation comes from."""

from __future__ import annotations

import re

from pjrt.api.compatibility import SourceLocation

PROGRAM_TEXT = "-"
"""The file of a place in the program's own text: where an operation is from if the text says nothing else."""


Place = SourceLocation
"""One place in a location."""


class Location:
    """Where an operation comes from: a place, and where a call stack is known the places that called it.

    The text is kept as MLIR spells it and is only taken apart when asked.
    """

    __slots__ = ("_places", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._places: tuple[Place, ...] | None = None

    @property
    def places(self) -> tuple[Place, ...]:
        """The places: the innermost first, then its callers; empty if nothing is known."""
        if self._places is None:
            self._places = tuple(_places(_Reader(self.text)))
        return self._places

    @property
    def name(self) -> str:
        """The first name in it; empty if there is none."""
        return next((place.name for place in self.places if place.name), "")

    @property
    def file(self) -> str:
        """The first file in it; empty if there is none."""
        return next((place.file for place in self.places if place.file), "")

    @property
    def line(self) -> int:
        """The line in that file; 0 if there is none."""
        return next((place.line for place in self.places if place.file), 0)

    @property
    def is_known(self) -> bool:
        """Whether it says anything."""
        return bool(self.places)

    def __str__(self) -> str:
        """``name at file:line:column``, as far as it is known; callers are left out."""
        if not self.places:
            return "unknown location"
        return str(Place(self.name, *self._first_file()))

    def __repr__(self) -> str:
        return f"Location({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Location) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def _first_file(self) -> tuple[str, int, int]:
        found = next((place for place in self.places if place.file), None)
        return ("", 0, 0) if found is None else (found.file, found.line, found.column)


_TOKEN = re.compile(r'\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<word>[a-z]+)|(?P<number>\d+)|(?P<sign>.))', re.DOTALL)
_ESCAPE = re.compile(r"\\([0-9A-Fa-f]{2}|.)")
_DEEPEST = 200


class _Reader:
    """The words of a location's text, one after the other."""

    def __init__(self, text: str) -> None:
        inside = text.strip()
        if inside.startswith("loc(") and inside.endswith(")"):
            inside = inside[4:-1]
        self._tokens = [(found.lastgroup or "", found[found.lastgroup or 0]) for found in _TOKEN.finditer(inside)]
        self._next = 0
        self.depth = 0

    def peek(self) -> tuple[str, str]:
        return self._tokens[self._next] if self._next < len(self._tokens) else ("", "")

    def take(self) -> tuple[str, str]:
        token = self.peek()
        self._next += 1
        return token

    def skip(self, sign: str) -> bool:
        """Moves past a sign or a word, if it is the next."""
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


def _places(reader: _Reader) -> list[Place]:
    """The places of the location that begins here; what is not understood ends it."""
    reader.depth += 1
    if reader.depth > _DEEPEST:
        return []
    kind, text = reader.take()
    found: list[Place] = []
    if kind == "quoted":
        found = _named_or_file(reader, _ESCAPE.sub(_unescaped, text))
    elif text == "callsite":
        reader.skip("(")
        found = _places(reader)
        reader.skip("at")
        found += _places(reader)
        reader.skip(")")
    elif text == "fused":
        found = _fused(reader)
    reader.depth -= 1
    return found


def _named_or_file(reader: _Reader, text: str) -> list[Place]:
    if reader.skip(":"):
        line = reader.number()
        column = reader.number() if reader.skip(":") else 0
        if reader.skip("to"):  # a range: its end is left out
            reader.number()
            if reader.skip(":"):
                reader.number()
        return [] if (text, line) == (PROGRAM_TEXT, 0) or not text else [Place("", text, line, column)]
    if not reader.skip("("):
        return [Place(text, "", 0, 0)] if text else []
    inner = _places(reader)
    reader.skip(")")
    if inner and not inner[0].name:
        return [Place(text, *inner[0][1:]), *inner[1:]]
    return [Place(text, "", 0, 0), *inner] if text else inner


def _fused(reader: _Reader) -> list[Place]:
    if reader.skip("<"):
        depth = 1
        while depth and reader.peek()[0]:
            sign = reader.take()[1]
            depth += {"<": 1, ">": -1}.get(sign, 0)
    reader.skip("[")
    found = _places(reader)
    while reader.skip(","):
        found += _places(reader)
    reader.skip("]")
    return found


def _unescaped(match: re.Match[str]) -> str:
    inside = match[1]
    return chr(int(inside, 16)) if len(inside) == 2 else {"n": "\n", "t": "\t"}.get(inside, inside)
