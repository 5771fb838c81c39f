"""The terminal: what commands print on it, how they fail, and how they are asked to end.

Nothing in the texts of files, programs and peers reaches it that it would obey. Rich is imported for tables and
progress alone: it takes as long to import as numpy's Python half.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import click

from pjrt.api.errors import InvalidArgumentError, PjrtError, ResourceExhaustedError
from pjrt.api.printable import perhaps, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text, on the output or the error stream, with the end of a line or without."""
    click.echo(printable(text), err=err, nl=nl)


def note_overwriting(path: str) -> None:
    """Print a warning where a file that is about to be written is there already."""
    if os.path.exists(path):
        echo(f"pjrt: warning: --output {path}: the file is there already, and is overwritten", err=True)


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
    """Return the output; if it is no terminal it is as wide as COLUMNS says, or else wide for the next program."""
    from rich.console import Console

    output = Console(highlight=False, emoji=False)
    columns = os.environ.get("COLUMNS", "")
    if output.is_terminal:
        return output
    return Console(highlight=False, emoji=False, width=int(columns) if columns.isdecimal() and int(columns) else 200)


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


# Times.


@dataclass(frozen=True)
class Timing:
    """The seconds of compiling, of the first run, and of the runs after it."""

    compile: float
    first: float
    repeats: Sequence[float] = ()

    def as_dict(self) -> dict[str, float | int]:
        """Return the times by name, for ``--json``."""
        facts: dict[str, float | int] = {"compile_seconds": self.compile, "first_run_seconds": self.first}
        if self.repeats:
            low, median, high = self.spread()
            facts |= {
                "repeats": len(self.repeats),
                "median_seconds": median,
                "p10_seconds": low,
                "p90_seconds": high,
                "min_seconds": min(self.repeats),
            }
        return facts

    def spread(self) -> tuple[float, float, float]:
        """Return the tenth percentile, the median and the ninetieth percentile of the repeated runs."""
        from pjrt.models.measurement import Latencies  # most runs are not repeated

        latencies = Latencies.of([round(seconds * 1e9) for seconds in self.repeats])
        return latencies.percentile(10), latencies.median, latencies.percentile(90)


def readable(seconds: float) -> str:
    """Return a time with a suitable unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


# Failures: one line on the error stream, exit code 2, no traceback.

EXIT_CODE = 2
_JSON = "--json"


class CleanGroup(click.Group):
    """A group that imports a subcommand's module when it is called, and prints errors on one line."""

    def __init__(self, *args: Any, lazy_commands: Mapping[str, Mapping[str, tuple[str, str]]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = lazy_commands
        self._lazy_commands = {name: each for section in lazy_commands.values() for name, each in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the subcommands."""
        return sorted(self._lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a subcommand; the others cost nothing."""
        if cmd_name not in self._lazy_commands:
            return None
        target, short_help = self._lazy_commands[cmd_name]
        module, _, name = target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        command.short_help = short_help
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the subcommands by section with their lines of help, without importing them."""
        widest = max(map(len, self._lazy_commands))
        for title, section in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), short_help) for name, (_, short_help) in section.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand that the arguments begin with.

        Raises:
            UsageError: there is none of this name; the message has the nearest one.
        """
        name = args[0]
        if name in self._lazy_commands or name.startswith("-"):
            return super().resolve_command(ctx, args)
        raise click.UsageError(f"there is no command {name!r}{perhaps(name, self._lazy_commands)}", ctx)

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **kwargs: Any) -> click.Context:
        """Parse the options before the subcommand."""
        as_json = _JSON in args
        with _failing_in_one_line(as_json):
            context = super().make_context(info_name, args, *rest, **kwargs)
        context.meta[_JSON] = as_json
        return context

    def invoke(self, ctx: click.Context) -> Any:
        """Parse the subcommand's options and run it."""
        with _failing_in_one_line(ctx.meta[_JSON]):
            return super().invoke(ctx)


@contextlib.contextmanager
def _failing_in_one_line(as_json: bool) -> Iterator[None]:
    """Turn a user's error into one line on the error stream.

    With ``--json`` the error is printed as an object as well: the output can be parsed in any case.
    """
    try:
        yield
        return
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as usage:
        help_at = f"; see '{usage.ctx.command_path} --help'" if usage.ctx else ""
        error: PjrtError = InvalidArgumentError(f"{usage.format_message().rstrip('.')}{_short_ones(usage)}{help_at}")
    except PjrtError as raised:
        error = raised
    except MemoryError as memory:
        error = ResourceExhaustedError(f"there is not enough memory: {memory}")
    if as_json:
        import json

        echo(json.dumps(error_as_dict(error), indent=2))
    fail(one_line(error))


def _short_ones(usage: click.UsageError) -> str:
    """Return what a wrong option of one letter may stand for; click looks for the names of long ones only."""
    if not isinstance(usage, click.NoSuchOption) or usage.ctx is None or len(usage.option_name) != 2:
        return ""
    options = [each.opts for each in usage.ctx.command.get_params(usage.ctx) if isinstance(each, click.Option)]
    letter = usage.option_name[1].lower()
    alike = [names for names in options if any(name.lstrip("-")[0].lower() == letter for name in names)]
    of_one_letter = [names for names in options if any(len(name) == 2 for name in names)]
    return f"; there are {', '.join('/'.join(sorted(names, key=len)) for names in alike or of_one_letter)}"


def error_as_dict(error: PjrtError) -> dict[str, Any]:
    """Return an error as ``--json`` prints it."""
    return {"error": {"code": error.code.name, "message": single_line(error.message)}}


def fail(message: str) -> NoReturn:
    """End the command with an error on the error stream."""
    echo(f"pjrt: error: {single_line(message)}", err=True)
    sys.exit(EXIT_CODE)


def one_line(error: PjrtError) -> str:
    """Return an error's message on one line, after its status code if that means more than wrong input."""
    text = single_line(error.message)
    return text if isinstance(error, (ValueError, LookupError)) else f"{error.code.name}: {text}"


# The end of commands that run until they are asked to end.

INTERRUPTED = 130
"""The exit code where an interrupt from the keyboard ended the work, as shells report it."""

_ENDING = (signal.SIGINT, signal.SIGTERM)


class EndRequest:
    """A request to end, which a signal or another thread makes.

    It is a byte in a pipe, which Python writes in the signal's own handler in C. A lock would not do: a signal that
    comes just before the main thread waits for it is handled in Python only when the thread goes on, which is never.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def wakeup_fd(self) -> int:
        """The descriptor to which a signal's number is written (``signal.set_wakeup_fd``)."""
        return self._write

    def set(self) -> None:
        """Make the request, from a thread. May be called again, also when nobody waits any more."""
        with self._lock, contextlib.suppress(BlockingIOError):  # the pipe is full of requests
            if not self._is_closed:
                os.write(self._write, bytes([signal.SIGTERM]))

    def wait(self) -> None:
        """Wait until the request is made."""
        while not any(number in _ENDING for number in os.read(self._read, 64)):
            pass

    def close(self) -> None:
        """Close the pipe."""
        with self._lock:
            self._is_closed = True
            os.close(self._read)
            os.close(self._write)


@contextlib.contextmanager
def asked_to_end() -> Iterator[EndRequest]:
    """Yield a request to end, which Ctrl-C and SIGTERM make; they do nothing else meanwhile."""
    request = EndRequest()
    handlers = {number: signal.signal(number, lambda *_: None) for number in _ENDING}
    wakeup_fd = signal.set_wakeup_fd(request.wakeup_fd, warn_on_full_buffer=False)
    try:
        yield request
    finally:
        signal.set_wakeup_fd(wakeup_fd)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        request.close()


@contextlib.contextmanager
def ended_within(seconds: float, message: str) -> Iterator[None]:
    """End the process if the block takes more than so many seconds; print a message then.

    It ends also while code in C does not return, and without a wait for the threads that run it.
    """

    def end() -> None:
        echo(message, err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
