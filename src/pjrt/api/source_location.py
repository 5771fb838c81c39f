"""Source locations: where in its author's files a part of a program comes from."""

from __future__ import annotations

from typing import NamedTuple


class SourceLocation(NamedTuple):
    """A place in the program's source.

    Attributes:
        name: the author's name of the place, such as ``jit(f)/dot_general``; empty if it has none.
        file: the file, ``-`` for the program's own text; empty if unknown.
        line: the line, from 1; 0 if unknown.
        column: the column, from 1; 0 if unknown.
    """

    name: str
    file: str
    line: int
    column: int

    def __str__(self) -> str:
        file = "<program>" if self.file == "-" else self.file
        at = (f"{file}:{self.line}:{self.column}" if self.column else f"{file}:{self.line}") if file else ""
        return f"{self.name} at {at}" if self.name and at else self.name or at
