"""The terminal: tables to the output, progress to the error stream where somebody looks at it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import click
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table


def print_json(value: Any) -> None:
    """A value as JSON on the output, for other programs to read."""
    click.echo(json.dumps(value, indent=2, default=str))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "", right: Sequence[str] = ()
) -> None:
    """A table; the columns named in ``right`` hold numbers."""
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    cells = [[str(cell) for cell in row] for row in rows]
    for number, column in enumerate(columns):
        words = [column, *(word for row in cells for word in row[number].split())]
        least = max(map(cell_len, words))
        table.add_column(column, justify="right" if column in right else "left", min_width=least)
    for row in cells:
        table.add_row(*map(escape, row))
    output = console()
    # Words stay whole: a table whose words are wider than the terminal is left for the terminal to wrap.
    output.print(table, crop=False, width=max(output.width, sum(_least_widths(table)) + _RULES * len(columns)))


_RULES = 3
"""The columns of the terminal that the box of a table adds to each of its own."""


def _least_widths(table: Table) -> list[int]:
    return [column.min_width or 0 for column in table.columns]


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Names and values, one a line."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        click.echo(f"{name:<{width}}  {value}")


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Shows that something takes time, while it does; nothing where the error stream is no terminal."""
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield
        return
    with errors.status(what):
        yield


def console() -> Console:
    """The output; when it is no terminal it is as wide as its text, so that nothing is cut for whoever reads it
    next.
    """
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=200)


def problem_of(name: str, problem: str) -> str:
    """A plugin's problem on one line, to be printed after its name: of one that is called by its path the problem
    begins with that too.
    """
    return " ".join(problem.split()).removeprefix(f"{name}: ")


def escape(text: str) -> str:
    """Text in which square brackets mean themselves, not a style."""
    from rich.markup import escape as escape_markup

    return escape_markup(text)


def readable_bytes(count: float) -> str:
    """A number of bytes with a unit that suits it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
