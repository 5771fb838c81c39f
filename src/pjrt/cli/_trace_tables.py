"""The summary of a trace, as ``pjrt trace`` prints it."""

from __future__ import annotations

from pjrt.api.printable import readable_bytes
from pjrt.cli._console import echo, print_facts, print_table, single_line
from pjrt.cli._timing import readable
from pjrt.layers.trace.trace_views import TraceSummary

_MOST_FUNCTIONS = 15
"""The number of functions that are listed; --json has all."""


def print_summary(summary: TraceSummary) -> None:
    """Print a summary: facts, the programs, and the functions that took the most time."""
    size = readable_bytes(summary.peak_bytes)
    unknown = f", without {summary.buffers_without_size} of unknown size" if summary.buffers_without_size else ""
    print_facts(
        [
            ("process", f"{summary.process} {single_line(summary.command):.100}"),
            ("plugins", ", ".join(summary.plugins) or "none"),
            ("calls", f"{summary.calls} on {summary.threads} threads in {_time(summary.seconds)}"),
            ("errors", summary.errors),
            ("compilations", f"{summary.compilations} in {_time(summary.compile_seconds)}"),
            ("to devices", readable_bytes(summary.bytes_to_device)),
            ("to the host", readable_bytes(summary.bytes_to_host)),
            ("between devices", readable_bytes(summary.bytes_between_devices)),
            ("buffers", f"{summary.buffers}, of which {summary.live_buffers} live at the end"),
            ("at the peak", f"{summary.peak_buffers} buffers, {size}{unknown}"),
        ]
    )
    if summary.programs:
        _print_programs(summary)
    if summary.functions:
        _print_functions(summary)
    for name in summary.unfinished:
        echo(f"{name} did not return")
    for remark in summary.remarks:
        echo(f"note: {remark}")


def _print_programs(summary: TraceSummary) -> None:
    rows = [
        (program.name, _time(program.compile), program.executions, _time(program.enqueue), _time(program.run))
        for program in summary.programs
    ]
    columns = ("program", "compile", "executions", "enqueue", "run")
    print_table(columns, rows, right=columns[1:])


def _print_functions(summary: TraceSummary) -> None:
    rows = [
        (row.name, row.calls, row.errors or "", _time(row.total), _time(row.own), _time(row.median), _time(row.longest))
        for row in summary.functions[:_MOST_FUNCTIONS]
    ]
    columns = ("function", "calls", "errors", "total", "own", "median", "longest")
    print_table(columns, rows, right=columns[1:])
    left = len(summary.functions) - len(rows)
    if left > 0:
        echo(f"and {left} functions that took less time; --json lists all")


def _time(seconds: float | None) -> str:
    return "" if seconds is None else readable(seconds)
