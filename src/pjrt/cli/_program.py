"""The program that a command was given: in a file, or on the standard input as ``-``."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

import pjrt
from pjrt import plugins, stablehlo
from pjrt.api.errors import InvalidArgumentError, UnimplementedError, naming
from pjrt.cli._console import echo, single_line
from pjrt.models.inputs import check_sources
from pjrt.models.model_file import ModelFile
from pjrt.stablehlo.encodings import jaxlib

STDIN = "-"
"""The name that stands for the standard input."""

_ENTRY = "--entry"


def _note_entry(context: click.Context, _: click.Parameter, name: str | None) -> None:
    context.meta[_ENTRY] = name


def program_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument PROGRAM, and the option for its function, which ``read_model_file`` heeds."""
    entry = click.option(
        _ENTRY,
        metavar="NAME",
        expose_value=False,
        callback=_note_entry,
        help="The function of PROGRAM to run. The default is main, or else the only public one.",
    )
    return click.argument("program", type=click.Path())(entry(command))


def check_first(devices: Iterable[str | None] = (), inputs: Sequence[str] = ()) -> None:
    """Check what needs no program, before it is read: the conversion of one of PyTorch takes seconds.

    Raises:
        PjrtError: there is no such device, or it cannot be used, or a file of an input is not there.
    """
    for name in devices:
        plugins.declaration(plugins.default() if name is None else name).check_usable()
    check_sources(inputs)


@contextlib.contextmanager
def printing_warnings() -> Iterator[None]:
    """Print each warning for users, from within a block, as a line on the error stream."""
    with warnings.catch_warnings(record=True, action="always", category=UserWarning) as warned:
        yield
    for text in dict.fromkeys(single_line(str(each.message)) for each in warned):
        echo(f"pjrt: warning: {text}", err=True)


def read_model_file(path: str, device: str | None = None, options: Mapping[str, Any] | None = None) -> ModelFile:
    """Return the model file at a path, or on the standard input; each warning is a line on the error stream.

    Args:
        path: the path.
        device: the device that will run it. Its compiler reads bytecode where jaxlib is not installed.
        options: the options of its clients.

    Raises:
        InvalidArgumentError: the standard input is a terminal or empty.
        PjrtError: as ``ModelFile.read``.
    """
    entry = click.get_current_context().meta.get(_ENTRY) or ""
    with printing_warnings():
        if path != STDIN:
            file = ModelFile.read(path, entry)
        else:
            content = _standard_input()
            with naming(STDIN):
                file = ModelFile.of(content, STDIN, entry)
    if file.program is not None:
        from pjrt.stablehlo.reading.parser import vet_in_fork  # here: the help of a command needs no parser

        vet_in_fork(file.program)  # commands read their program before they make a client
        if options is not None and not file.is_readable:
            with pjrt.client(device, **options) as client:
                file.learn_signature(client)
    return file


def check_needs_no_infeed(file: ModelFile) -> ModelFile:
    """Return a file whose program is to be run, if that needs no values of the infeed: no command gives any.

    Raises:
        UnimplementedError: the program would wait for such values for ever.
        PjrtError: the program is damaged.
    """
    if file.program is not None and b"infeed" in file.program.code and jaxlib.is_installed():
        with naming(file.source):
            if any(operation.name == "stablehlo.infeed" for operation in stablehlo.parse(file.program).walk()):
                raise UnimplementedError(
                    "the program waits for values of the host in stablehlo.infeed, and no command gives any; run it "
                    "from Python on a device with infeed, such as reference, and give them to device.infeed.put"
                )
    return file


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
