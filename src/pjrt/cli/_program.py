"""The program that a command was given: in a file, or on the standard input as ``-``."""

from __future__ import annotations

import sys

import click

from pjrt.api.errors import InvalidArgumentError, naming
from pjrt.models.model_file import ModelFile

STDIN = "-"
"""The name that stands for the standard input."""

program_argument = click.argument("program", type=click.Path())
"""The argument PROGRAM of a command."""


def read_model_file(path: str) -> ModelFile:
    """Return the model file at a path, or on the standard input.

    Raises:
        InvalidArgumentError: the standard input is a terminal or empty.
        PjrtError: as ``ModelFile.read``.
    """
    if path != STDIN:
        return ModelFile.read(path)
    content = _standard_input()
    with naming(STDIN):
        return ModelFile.of(content, STDIN)


def _standard_input() -> bytes:
    if sys.stdin is not None and sys.stdin.isatty():
        raise InvalidArgumentError(
            "expected a program on the standard input, found a terminal; give the name of a file instead of -, or send "
            "one: pjrt run - < model.mlir"
        )
    content = b"" if sys.stdin is None else sys.stdin.buffer.read()
    if not content:
        raise InvalidArgumentError("expected a program on the standard input, found nothing: 0 bytes")
    return content
