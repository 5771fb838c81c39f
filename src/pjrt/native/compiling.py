"""The process that compiles: the loop that answers the requests of the runtime in C.

The messages are those of the worker, too.

The runtime starts it as ``python -m pjrt.native.compiling SPEC FOLDER``; its standard input is a socket to the runtime.
Descriptor 4 is a socket for questions to the framework's process (see ``questions``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InternalError, InvalidArgumentError, from_author
from pjrt.api.program import Program
from pjrt.api.protobuf import message_classes
from pjrt.capi.import_spec import find_attribute
from pjrt.native.code import Code
from pjrt.native.partitioners import Partitioners
from pjrt.native.questions import Questions, receive, send

# The messages are written and read in C: see native/library/process.c.
_CLASSES = message_classes(
    "pjrt_native_compiling",
    {
        "Request": {
            "method": (1, "string"),
            "format": (2, "string"),
            "program": (3, "bytes"),
            "options": (4, "bytes"),
            "number": (5, "uint64"),
            "data": (6, "bytes"),
            "client_options": (7, "[Option]"),
            "handlers": (8, "[string]"),
            "handler_addresses": (9, "[uint64]"),
            "handler_traits": (10, "[int64]"),
            "partitioned": (11, "[string]"),
            "partitioned_traits": (12, "[int64]"),
        },
        "Option": {
            "name": (1, "string"),
            "text": (2, "string", "value"),
            "number": (3, "int64", "value"),
            "flag": (4, "bool", "value"),
        },
        "Answer": {"code": (1, "uint64"), "message": (2, "string"), "data": (3, "bytes"), "number": (4, "uint64")},
    },
)

COLLECTIVES = frozenset(
    {"all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute", "reduce_scatter"}
)
"""The operations in which devices wait for one another."""

REQUEST = _CLASSES["Request"]
ANSWER = _CLASSES["Answer"]

CompileFunction = Callable[..., Code]
"""A function ``compile(program, options)``: a ``pjrt.stablehlo.ParsedProgram`` and ``pjrt.CompileOptions``."""


def main(spec: str, folder: str = "") -> None:
    """Answer requests until the runtime closes its end.

    Args:
        spec: ``package.module:attribute`` or ``/path/of/file.py:attribute`` of the function that compiles.
        folder: a folder to import the module from; empty where it is installed.
    """
    connection = take_connection(folder)
    partitioners = Partitioners(Questions(socket.socket(fileno=4)))
    compile_function: CompileFunction | None = None

    def answer(request: Any) -> Any:
        nonlocal compile_function
        with partitioners.asking(request):
            compile_function = compile_function or checked_function(find_attribute(spec), spec, "compiles")
            return ANSWER(data=compiled(compile_function, request))

    serve(connection, answer)


def take_connection(folder: str) -> socket.socket:
    """Return the socket to the runtime; let the process import from a folder, and read no requests as its input.

    Args:
        folder: the folder; empty for none.
    """
    # The terminal's Ctrl-C goes to all processes of a program. Whether this one ends, the framework's decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # the framework's process shows each line
    if folder:
        sys.path.append(folder)  # the last: what is installed is never imported from it
    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = _debug
    return connection


def _debug() -> None:
    """Stop the caller of ``breakpoint()`` in a debugger on the terminal, where this process has no input and output."""
    from pdb import Pdb  # few workers need it

    typed, shown = open("/dev/tty"), open("/dev/tty", "w")  # noqa: SIM115  # open after this function: the caller stops
    Pdb(stdin=typed, stdout=shown, nosigint=True).set_trace(sys._getframe(1))


def serve(connection: socket.socket, answer: Callable[[Any], Any]) -> None:
    """Answer requests until the runtime closes its end, perhaps before an answer; exceptions become answers."""
    with contextlib.suppress(ConnectionError):
        while (message := receive(connection)) is not None:
            send(connection, answered(answer, message))


def answered(answer: Callable[[Any], Any], message: bytes) -> bytes:
    """Return the answer to a request as a message; an exception becomes one, too."""
    try:
        given = answer(REQUEST.FromString(message))
    except Exception as error:
        known = from_author(error)
        given = ANSWER(code=int(known.code), message=known.message)
    return bytes(given.SerializeToString())


def checked_function(value: Any, spec: str, does: str) -> Callable[..., Any]:
    """Return the function that a spec names.

    Raises:
        InvalidArgumentError: it names something else than a function that does this.
    """
    if not callable(value):
        raise InvalidArgumentError(f"{spec!r}: expected a function that {does}, found {type(value).__name__}")
    return value  # type: ignore[no-any-return]


def compiled(compile_function: CompileFunction, request: Any) -> bytes:
    """Return the answer to a request to compile: the code, with the program and its signature.

    Raises:
        PjrtError: the program is wrong, or the function refuses it.
    """
    from pjrt import stablehlo
    from pjrt.stablehlo.encodings.safe_parse import vet_if_delicate
    from pjrt.stablehlo.facts.signatures import signature_of

    program = Program(request.program, format=request.format)
    options = CompileOptions.from_proto(request.options)
    # A parser that a damaged program ends takes this process along, and the next program starts a new one. To look at
    # each program in one more process would cost more than the rest of a compilation.
    vet_if_delicate(program)
    partitioned = stablehlo.partition(program, options) if options.partitioning.num_partitions > 1 else None
    parsed = stablehlo.parse(program if partitioned is None else partitioned.program, trusted=True)
    signature = signature_of(parsed)
    code = compile_function(parsed, options)
    if not isinstance(code, Code):
        raise InternalError(f"expected pjrt.native.Code from the function that compiles, found {type(code).__name__}")
    code = code if code.name else replace(code, name=parsed.name or "main")
    operations = (operation.name for function in parsed.functions.values() for operation in _walk(function))
    has_collectives = any(name.removeprefix("stablehlo.") in COLLECTIVES for name in operations)
    return code.serialize(
        program,
        options,
        signature,
        partitioned,
        has_collectives=has_collectives,
        has_layouts=request.number != 0,  # of the driver's own
    )


def _walk(function: Any) -> Any:
    return () if function.body is None else function.body.walk()


if __name__ == "__main__":
    # Not as __main__: errors tell the author's code from ours by the names of modules.
    from pjrt.native import compiling

    compiling.main(*sys.argv[1:])
