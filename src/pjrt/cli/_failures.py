"""How the command fails: one line that says what was expected and found, exit code 2, no traceback."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

import click

from pjrt.api.errors import PjrtError

EXIT_CODE = 2


class CleanGroup(click.Group):
    """A group that loads a subcommand's module when it is called, and turns errors of the device API into one line."""

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

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the subcommand; a ``PjrtError`` becomes one line on the error stream."""
        try:
            return super().invoke(ctx)
        except PjrtError as error:
            click.echo(f"pjrt: error: {one_line(error)}", err=True)
            sys.exit(EXIT_CODE)


def one_line(error: PjrtError) -> str:
    """The message of an error on one line; a status code that says more than 'wrong input' is kept in front."""
    text = " ".join(error.message.split())
    return text if isinstance(error, (ValueError, LookupError)) else f"{error.code.name}: {text}"
