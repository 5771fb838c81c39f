"""Differences of results on the terminal, and the options of comparisons."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from pjrt.cli._console import echo, print_table
from pjrt.cli._options import complete_file
from pjrt.host_memory.tolerance import Tolerance

if TYPE_CHECKING:
    from pjrt.host_memory.difference import Difference
    from pjrt.models.comparison.comparison import ResultDifference

DIFFER = 1
"""The exit code where results differ."""

_MOST_ROWS = 20
"""The most rows of a table: those that are the furthest off."""

Command = Callable[..., Any]

expect_option = click.option(
    "--expect",
    metavar="PATH",
    shell_complete=complete_file,
    help="Compare with the results in a file, as 'pjrt run -o' writes it.",
)


def tolerance_options(command: Command) -> Command:
    """Add the options for the tolerance, which the command gets as ``tolerance``."""

    @functools.wraps(command)
    def with_tolerance(*args: Any, rtol: float | None, atol: float | None, **others: Any) -> Any:
        return command(*args, tolerance=Tolerance(rtol, atol), **others)

    for option in reversed(_TOLERANCE):
        with_tolerance = option(with_tolerance)
    return with_tolerance


_TOLERANCE = (
    click.option("--rtol", type=float, metavar="R", help="The relative tolerance. By default that of each type."),
    click.option("--atol", type=float, metavar="A", help="The absolute tolerance. By default that of each type."),
)


def _differ(difference: Difference) -> str:
    """Return how many elements differ, and of which there is no error that could be shown."""
    counts = {"NaN": difference.nan_disagreements, "infinite": difference.infinity_disagreements}
    odd = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{difference.mismatches} differ" + (f" ({odd} in one only)" if odd else "")


def print_differences(differences: Sequence[ResultDifference]) -> None:
    """Print a table of the differences of results, of many those that are the furthest off."""
    from pjrt.host_memory.difference import spelled

    rows = []
    shown = sorted(differences, key=lambda each: -each.difference.severity)[:_MOST_ROWS]
    for each in [each for each in differences if each in shown]:
        difference = each.difference
        if difference.problem:
            rows.append((each.device, each.result, difference.problem, "", "", "", "", "", ""))
            continue
        rows.append(
            (
                each.device,
                each.result,
                f"{difference.element_type.name.lower()}[{','.join(map(str, difference.shape))}]",
                "agrees" if difference.agrees else _differ(difference),
                f"{difference.max_absolute:.3g}",
                f"{difference.max_relative:.3g}",
                str(difference.max_ulp),
                "" if difference.worst is None else f"[{','.join(map(str, difference.worst))}]",
                ""
                if difference.worst is None
                else f"{spelled(difference.value)}, expected {spelled(difference.expected)}",
            )
        )
    columns = ("device", "result", "type", "", "absolute", "relative", "ulp", "worst at", "worst value")
    if rows:
        print_table(columns, rows, right=("absolute", "relative", "ulp"))
    if len(differences) > len(rows):
        differing = sum(not each.difference.agrees for each in differences)
        echo(f"{len(differences) - len(rows)} more results, {differing} of all {len(differences)} differ")
