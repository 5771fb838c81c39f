"""Saved executables: the program, its options, and what the server's device has made of it.

The IFRT proxy protocol has no request for them, so clients of this package have an extension. A server that offers it
names it in the attributes of its ``InitResponse``. An executable of another server is saved as its program, which is
compiled again when it is loaded.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import Program
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.programs import compile_options_proto, program_proto

ATTRIBUTE = "pjrt.saved_executables"
"""The name of the extension in the client's attributes."""

_MAGIC = b"pjrt remote executable 1\n"


def load_request(program: Program, options: CompileOptions, serialized: bytes) -> Any:
    """Return the ``LoadExecutableRequest`` of an executable.

    Args:
        program: the program, in StableHLO.
        options: the options of its compilation.
        serialized: the device's bytes; empty if the server saves none.
    """
    return wire.LoadExecutableRequest(
        program=program_proto(program),
        compile_options=compile_options_proto(options),
        serialized_executable=serialized,
    )


def saved(request: Any) -> bytes:
    """Return a ``LoadExecutableRequest`` as the bytes that a client keeps."""
    return _MAGIC + bytes(request.SerializeToString())


def request_of(serialized: bytes) -> Any:
    """Return the ``LoadExecutableRequest`` in what ``saved`` has returned.

    Raises:
        InvalidArgumentError: the bytes are something else, or are cut short.
    """
    if not isinstance(serialized, bytes) or not serialized.startswith(_MAGIC):
        raise InvalidArgumentError("expected a saved executable of a remote device, found other bytes")
    try:
        return wire.LoadExecutableRequest.FromString(serialized[len(_MAGIC) :])
    except DecodeError:
        raise InvalidArgumentError("expected a saved executable of a remote device, found a part of one") from None
