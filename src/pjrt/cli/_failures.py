"""The command's failures: one line on the error stream, exit code 2, no traceback."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import click

from pjrt.api.errors import InvalidArgumentError, PjrtError, ResourceExhaustedError
from pjrt.cli._console import echo, single_line

EXIT_CODE = 2
_JSON = "--json"


class CleanGroup(click.Group):
    """A group that imports a subcommand's module when it is called, and prints errors on one line."""

    def __init__(self, *args: Any, lazy_commands: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy_commands = lazy_commands

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
        """Write the subcommands with their lines of help, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._lazy_commands[name][1]) for name in self.list_commands(ctx)])

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
        error: PjrtError = InvalidArgumentError(f"{usage.format_message().rstrip('.')}{help_at}")
    except PjrtError as raised:
        error = raised
    except MemoryError as memory:
        error = ResourceExhaustedError(f"there is not enough memory: {memory}")
    if as_json:
        import json

        echo(json.dumps(error_as_dict(error), indent=2))
    fail(one_line(error))


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
