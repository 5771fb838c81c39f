"""The process that compiles: the loop that answers the requests of the runtime in C.

The runtime starts it as ``python -m pjrt.native.compiling SPEC FOLDER``; its standard input is a socket to the runtime.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InternalError, InvalidArgumentError, UnimplementedError, from_author
from pjrt.api.program import Program
from pjrt.api.protobuf import message_classes
from pjrt.native.code import Code

# The messages are written and read in C: see native/library/compiler.c.
_CLASSES = message_classes(
    "pjrt_native_compiling",
    {
        "Request": {
            "format": (1, "string"),
            "program": (2, "bytes"),
            "options": (3, "bytes"),
            "platform": (4, "string"),
            "num_devices": (5, "uint64"),
        },
        "Answer": {"code": (1, "uint64"), "message": (2, "string"), "executable": (3, "bytes")},
    },
)

CompileFunction = Callable[..., Code]
"""A function ``compile(program, options)``: a ``pjrt.stablehlo.ParsedProgram`` and ``pjrt.CompileOptions``."""


def main(spec: str, folder: str = "") -> None:
    """Answer requests until the runtime closes its end.

    Args:
        spec: ``package.module:attribute`` or ``/path/of/file.py:attribute`` of the function that compiles.
        folder: a folder to import the module from; empty where it is installed.
    """
    connection = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # a device that reads its input must not read requests
    if folder:
        sys.path.append(folder)  # the last: what is installed is never imported from it
    compile_function: CompileFunction | None = None
    while (request := _receive(connection)) is not None:
        try:
            compile_function = compile_function or _find(spec)
            answer = _CLASSES["Answer"](executable=_compiled(compile_function, request))
        except Exception as error:
            answer = _refusal(error)
        _send(connection, answer.SerializeToString())


def _find(spec: str) -> CompileFunction:
    from pjrt.capi.export.import_spec import find_attribute

    function = find_attribute(spec)
    if not callable(function):
        raise InvalidArgumentError(f"{spec!r}: expected a function that compiles, found {type(function).__name__}")
    return function  # type: ignore[no-any-return]


def _compiled(compile_function: CompileFunction, serialized: bytes) -> bytes:
    from pjrt import stablehlo
    from pjrt.stablehlo.signatures import signature_of

    request = _CLASSES["Request"].FromString(serialized)
    program = Program(request.program, format=request.format)
    options = CompileOptions.from_proto(request.options)
    partitions = options.partitioning.num_partitions
    if partitions > 1:
        raise UnimplementedError(
            f"the runtime in C runs programs of one partition on each device, found a program for {partitions}; "
            "use one device, or a device in Python"
        )
    parsed = stablehlo.parse(program)
    signature = signature_of(parsed)
    code = compile_function(parsed, options)
    if not isinstance(code, Code):
        raise InternalError(f"expected pjrt.native.Code from the function that compiles, found {type(code).__name__}")
    return code.serialize(program, options, signature)


def _refusal(error: Exception) -> Any:
    known = from_author(error)
    return _CLASSES["Answer"](code=int(known.code), message=known.message)


def _receive(connection: socket.socket) -> bytes | None:
    head = _read(connection, 8)
    return None if head is None else _read(connection, int.from_bytes(head, "little"))


def _read(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(len(message).to_bytes(8, "little") + message)


if __name__ == "__main__":
    # Not as __main__: errors tell the author's code from ours by the names of modules.
    from pjrt.native import compiling

    compiling.main(*sys.argv[1:])
