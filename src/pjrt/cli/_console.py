"""The terminal: texts and tables on the output, progress on the error stream if that is a terminal.

Nothing in the texts of files, programs and peers reaches it that it would obey.

Rich is imported for tables and progress alone: it takes as long to import as numpy's Python half.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from pjrt.api.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text, on the output or the error stream, with the end of a line or without."""
    click.echo(printable(text), err=err, nl=nl)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    import json

    echo(json.dumps(value, indent=2, default=str))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "", right: Sequence[str] = ()
) -> None:
    """Print a table; the columns named in ``right`` are aligned to the right."""
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=printable(title) or None, title_justify="left", pad_edge=False)
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    for number, column in enumerate(columns):
        words = [column, *(word for row in cells for word in row[number].split())]
        least = max(map(cell_len, words))
        table.add_column(column, justify="right" if column in right else "left", min_width=least)
    for row in cells:
        table.add_row(*map(escape, row))
    output = console()
    # Words are not broken: the terminal wraps a table whose words are too wide for it.
    output.print(table, crop=False, width=max(output.width, sum(_least_widths(table)) + _RULES * len(columns)))


_RULES = 3
"""The number of characters that the lines of a table add to the width of each column."""


def _least_widths(table: Table) -> list[int]:
    return [column.min_width or 0 for column in table.columns]


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one on each line."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        echo(f"{name:<{width}}  {value}")


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Show what takes time while the block runs; nothing if the error stream is no terminal."""
    if not (sys.stderr and sys.stderr.isatty()) and _FORCING.isdisjoint(os.environ):
        yield
        return
    from rich.console import Console

    errors = Console(stderr=True, emoji=False)
    if not errors.is_terminal:
        yield
        return
    with errors.status(escape(printable(what))):
        yield


_FORCING = frozenset(("FORCE_COLOR", "TTY_COMPATIBLE"))
"""The variables with which Rich takes any stream for a terminal."""


def console() -> Console:
    """Return the output; if it is no terminal it is wide, so that the next program gets the whole text."""
    from rich.console import Console

    output = Console(highlight=False, emoji=False)
    return output if output.is_terminal else Console(highlight=False, emoji=False, width=200)


def problem_of(name: str, problem: str) -> str:
    """Return a plugin's problem on one line, without the name at its beginning if that is a path."""
    return single_line(problem).removeprefix(f"{name}: ")


def single_line(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())


def escape(text: str) -> str:
    """Return a text in which square brackets are not read as a style."""
    from rich.markup import escape as escape_markup

    return escape_markup(text)
