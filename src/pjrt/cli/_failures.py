"""How the command fails: one line that says what was expected and found, exit code 2, no traceback."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import click

from pjrt.api.errors import InvalidArgumentError, PjrtError, ResourceExhaustedError

EXIT_CODE = 2
_JSON = "--json"


class CleanGroup(click.Group):
    """A group that loads a subcommand's module when it is called, and turns a user's errors into one line each."""

    def __init__(self, *args: Any, lazy_commands: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy_commands = lazy_commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the subcommands."""
        return sorted(self._lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The subcommand, imported now so that the others cost nothing."""
        target = self._lazy_commands.get(cmd_name)
        if target is None:
            return None
        module, _, name = target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **kwargs: Any) -> click.Context:
        """Parses the options that stand before the subcommand."""
        as_json = _JSON in args
        with _failing_in_one_line(as_json):
            made = super().make_context(info_name, args, *rest, **kwargs)
        made.meta[_JSON] = as_json
        return made

    def invoke(self, ctx: click.Context) -> Any:
        """Parses the subcommand's options and runs it."""
        with _failing_in_one_line(ctx.meta[_JSON]):
            return super().invoke(ctx)


@contextlib.contextmanager
def _failing_in_one_line(as_json: bool) -> Iterator[None]:
    """Turn the errors of users into one line on the error stream; with ``--json`` the output is an object that has the
    error, so that whoever parses the output finds one in any case.
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
        click.echo(json.dumps(error_as_dict(error), indent=2))
    fail(one_line(error))


def error_as_dict(error: PjrtError) -> dict[str, Any]:
    """Return an error as the output has it with ``--json``."""
    return {"error": {"code": error.code.name, "message": " ".join(error.message.split())}}


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Puts a file's path in front of what is said against its content, which knows of no file."""
    try:
        yield
    except PjrtError as error:
        raise PjrtError.of(error.code, f"{path}: {error.message}") from error


def fail(message: str) -> NoReturn:
    """End the command with an error on the error stream."""
    click.echo(f"pjrt: error: {' '.join(message.split())}", err=True)
    sys.exit(EXIT_CODE)


def one_line(error: PjrtError) -> str:
    """The message of an error on one line; a status code that says more than 'wrong input' is kept in front."""
    text = " ".join(error.message.split())
    return text if isinstance(error, (ValueError, LookupError)) else f"{error.code.name}: {text}"
