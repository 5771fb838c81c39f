"""``pjrt trace``: the calls that a program makes of a plugin: as a log, for trace viewers, and in numbers."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import pjrt
from pjrt import system
from pjrt.api.printable import readable_bytes
from pjrt.cli._console import echo, print_facts, print_json, print_table, progress, readable, single_line
from pjrt.cli._options import complete_device, complete_file, json_option
from pjrt.layers import run_program
from pjrt.layers.trace import (
    Trace,
    TraceOptions,
    is_trace_file,
    log_lines,
    read_trace,
    save_trace,
    summarize,
    switch_trace,
    write_chrome_trace,
)
from pjrt.layers.trace.trace_views import BLOCKING, TraceSummary

# The summary of a trace.

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
    if summary.blocking:
        _print_blocking(summary)
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


def _print_blocking(summary: TraceSummary) -> None:
    echo(f"calls that need not wait, and took {_time(BLOCKING)} or longer:")
    rows = [
        (row.name, f"{row.blocked} of {row.calls}", _time(row.total), _time(row.longest)) for row in summary.blocking
    ]
    columns = ("function", "calls", "total", "longest")
    print_table(columns, rows, right=columns[1:])


def _time(seconds: float | None) -> str:
    return "" if seconds is None else readable(seconds)


# The command.

_RAW = ".trace"
_SUFFIXES = {".json": "for trace viewers", ".log": "a log", ".txt": "a log", _RAW: "to read again"}

_EXAMPLES = """
\b
Examples:
  pjrt trace -o train.json --plugin cuda -- python train.py
  pjrt trace --log -f 'Client_*' -p ./plugin.so -- python train.py
  pjrt trace -o train.trace --slower 1ms -p tpu -- python train.py
  pjrt trace --summary train.trace
  pjrt trace --off train.trace
"""


@click.command(epilog=_EXAMPLES, context_settings={"allow_interspersed_args": False})
@click.argument(
    "words",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    metavar="FILE... | -- COMMAND...",
    shell_complete=complete_file,
)
@click.option(
    "--plugin",
    "-p",
    metavar="NAME",
    shell_complete=complete_device,
    help="The device that the program uses by default: a name, as in 'pjrt plugins', or the path of a library. "
    "A built-in device is offered to the program as a plugin. Without it, the program chooses; every plugin that it "
    "loads is traced.",
)
@click.option(
    "--output",
    "-o",
    "outputs",
    shell_complete=complete_file,
    multiple=True,
    metavar="PATH",
    help="Write a file: .json for trace viewers such as ui.perfetto.dev, .log for a log, .trace to read again. "
    "May be given several times.",
)
@click.option("--log", "as_log", is_flag=True, help="Print the log: one line for each call.")
@click.option("--summary", "as_summary", is_flag=True, help="Print the summary. The default, if there is no output.")
@json_option
@click.option(
    "--functions",
    "-f",
    multiple=True,
    metavar="PATTERN",
    help="Record only functions of this name, such as 'Buffer_*'; '!' before it leaves them out. "
    "May be given several times.",
)
@click.option("--errors", is_flag=True, help="Record only calls that fail.")
@click.option(
    "--slower", metavar="TIME", default="", help="Record only calls that take at least so long, such as 10us."
)
@click.option("--sample", type=click.IntRange(min=1), default=1, metavar="N", help="Record 1 of N calls of a function.")
@click.option("--ring", metavar="SIZE", default="", help="Keep so much of the trace, such as 256m. The default is 64m.")
@click.option(
    "--keep",
    type=click.Choice(["last", "first"]),
    default="last",
    show_default=True,
    help="What to keep when the ring is full.",
)
@click.option("--text", type=click.IntRange(0, 4096), metavar="BYTES", help="Record so much of a text; 256 by default.")
@click.option("--array", type=click.IntRange(0, 512), metavar="N", help="Record N elements of an array; 16 by default.")
@click.option(
    "--ready",
    type=click.Choice(["calls", "events", "buffers"]),
    default="calls",
    show_default=True,
    help="How to learn when work is done: from the program's own calls, by listening to each event, or also to each "
    "buffer.",
)
@click.option(
    "--ask/--no-ask",
    default=True,
    show_default=True,
    help="Ask the plugin about each program that runs: its outputs, and what it donates. The summary's bytes need it.",
)
@click.option(
    "--on/--off",
    "switch",
    default=None,
    help="With a file: switch the recording of its running process on or off. With a command: begin so.",
)
def trace(
    words: tuple[str, ...],
    plugin: str | None,
    outputs: tuple[str, ...],
    as_log: bool,
    as_summary: bool,
    as_json: bool,
    switch: bool | None,
    functions: tuple[str, ...],
    **recorded: Any,
) -> None:
    """Record the calls that a program makes of PJRT plugins.

    COMMAND is a program that uses JAX, PyTorch/XLA, TensorFlow or this package, and needs no change; its exit code
    is passed on. FILE is a trace that was recorded before, also of a process that died.
    """
    paths = [_output_path(output) for output in outputs]
    show = _Show(as_log, as_summary or not (as_log or paths), as_json, paths)
    if Path(words[0]).suffix == _RAW or is_trace_file(words[0]):
        if switch is None:
            show.files(words)
        for word in words if switch is not None else ():
            switch_trace(word, switch is True)
        return
    _refuse_other_outputs(words[0])
    with _raw_files(paths) as (pattern, found):
        options = TraceOptions(pattern, functions=functions, on=switch is not False, **recorded)
        code = run_program(words, ["trace"], plugin=plugin, options={"trace": options.as_dict()})
        names = found()
        if names:
            show.files(names)
        elif code == 0:
            raise pjrt.NotFoundError(
                f"{words[0]}: expected a program that uses a PJRT plugin, found no call of one; JAX's own CPU is no "
                "plugin: use --plugin cpu"
            )
    sys.exit(code)


def _refuse_other_outputs(word: str) -> None:
    """Refuse a log or a file for trace viewers in place of a trace, unless it is a program."""
    path = Path(word)
    if path.suffix in _SUFFIXES and path.is_file() and not os.access(path, os.X_OK):
        raise pjrt.InvalidArgumentError(
            f"{word}: expected a trace file or a program, found a file with {path.suffix} ({_SUFFIXES[path.suffix]}), "
            f"which cannot be read back; record with -o {path.stem}{_RAW} to read a trace again"
        )


@contextlib.contextmanager
def _raw_files(outputs: Sequence[Path]) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """Give the pattern for the files of the processes, and a function that lists them; remove them at the end.

    If the user keeps the trace, they are beside that output, so that they are found if this process is killed, too.
    """
    kept = next((path for path in outputs if path.suffix == _RAW), None)
    stem = "" if kept is None else f"{kept.stem}."
    with system.TemporaryFolder("trace") if kept is None else contextlib.nullcontext(kept.parent) as folder:
        before = set(folder.glob(f"{stem}*{_RAW}"))

        def found() -> list[str]:
            files = (
                each for each in folder.glob(f"{stem}*{_RAW}") if each not in before or each.stat().st_mtime > start
            )
            return [str(path) for path in files if path.stem.removeprefix(stem).isdecimal()]

        start = time.time()
        try:
            yield f"{folder}/{stem}%p{_RAW}", found
        finally:
            for name in found():
                Path(name).unlink(missing_ok=True)


def _output_path(text: str) -> Path:
    path = Path(text)
    if path.suffix not in _SUFFIXES:
        kinds = ", ".join(f"{suffix} ({meaning})" for suffix, meaning in _SUFFIXES.items())
        raise pjrt.InvalidArgumentError(f"--output {text}: expected a file name that ends in {kinds}")
    if not path.parent.is_dir():
        raise pjrt.NotFoundError(f"--output {text}: the folder {path.parent} does not exist")
    return path


@dataclass(frozen=True)
class _Show:
    """The output that the user chose: files, and text on the terminal."""

    log: bool
    summary: bool
    json: bool
    outputs: Sequence[Path]

    def files(self, names: Sequence[str]) -> None:
        """Write and print the traces of one or several processes."""
        with progress("reading the trace"), _no_collection():
            traces = sorted((read_trace(name) for name in names), key=lambda trace: trace.start)
            for path in self.outputs:
                _write(path, traces)
        if self.log:
            for trace in traces:
                for line in log_lines(trace):
                    echo(line)
        if self.json:
            print_json([summarize(trace).as_dict() for trace in traces])
        elif self.summary:
            for trace in traces:
                print_summary(summarize(trace))
        for path in self.outputs:
            echo(f"written to {path}", err=True)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Switch the garbage collector off: a trace has up to a million objects, and no cycles among them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _write(path: Path, traces: Sequence[Trace]) -> None:
    if path.suffix == _RAW:
        for number, trace in enumerate(traces):
            # Not PATH.PROCESS.trace: that is what is copied.
            save_trace(trace.path, path if number == 0 else path.with_stem(f"{path.stem}-{trace.process}"))
        return
    with open(path, "w", encoding="utf-8") as file:
        if path.suffix == ".json":
            write_chrome_trace(traces, file)
        else:
            for trace in traces:
                file.writelines(f"{line}\n" for line in log_lines(trace))
