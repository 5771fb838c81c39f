"""Programs, compile options, execute options and host callbacks inside messages."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from pjrt import stablehlo
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.loaded_executable import ExecuteOptions
from pjrt.api.program import Program, ProgramFormat
from pjrt.remote.protocol.messages import wire
from pjrt.stablehlo.encodings.format import Version
from pjrt.stablehlo.encodings.hlo_parameters import ELEMENT_TYPES

_PROGRAM = "xla::ifrt::XlaProgram"
_COMPILE_OPTIONS = "xla::ifrt::XlaCompileOptions"
_REFUSED = {
    "xla::ifrt::PluginProgram": "it is for the runtime of one vendor",
    "xla::ifrt::CustomCallProgram": "it holds Python functions of the client, which a server does not run",
    "xla::ifrt::IfrtIRProgram": "it is a program of several meshes, which only Pathways runs",
}


def program_of(serialized: Any) -> Program:
    """Return the program in a ``Serialized``: StableHLO as a portable artifact.

    Raises:
        UnimplementedError: the program is of another kind.
    """
    name = serialized.type_name
    if name != _PROGRAM:
        reason = _REFUSED.get(name, "its kind is unknown here")
        raise UnimplementedError(f"expected a program of the type {_PROGRAM}, found one of the type {name!r}: {reason}")
    return Program(serialized.data, ProgramFormat.MLIR)


def program_proto(program: Program) -> Any:
    """Return a program of StableHLO as a ``Serialized``."""
    return wire.Serialized(type_name=_PROGRAM, data=program.code)


def portable(program: Program, version: Version) -> Program:
    """Return a program as a portable artifact of a version, or as it is if it cannot be written as one."""
    try:
        return stablehlo.serialize(program, version, trusted=True)
    except PjrtError:
        # The program does not parse here, is of another format, or has parts that portable artifacts lack. Who gets it
        # may read it, or its error has the reason.
        return program


def compile_options_proto(options: CompileOptions) -> Any:
    """Return compile options as a ``Serialized``."""
    message = wire.XlaCompileOptionsProto(compile_options=options.to_proto())
    return wire.Serialized(type_name=_COMPILE_OPTIONS, data=message.SerializeToString())


def compile_options_of(serialized: Any) -> CompileOptions:
    """Return the compile options in a ``Serialized``.

    Raises:
        UnimplementedError: the options are for another kind of program.
        InvalidArgumentError: the bytes are not compile options.
    """
    name = serialized.type_name
    if name != _COMPILE_OPTIONS:
        raise UnimplementedError(f"expected compile options of the type {_COMPILE_OPTIONS}, found the type {name!r}")
    try:
        message = wire.XlaCompileOptionsProto.FromString(serialized.data)
    except DecodeError as error:
        raise InvalidArgumentError(f"expected serialized {_COMPILE_OPTIONS}, found other bytes") from error
    return CompileOptions.from_proto(message.compile_options)


_DEFAULT_OPTIONS = ExecuteOptions()


def execute_options_of(proto: Any) -> ExecuteOptions:
    """Return the options in an ``ExecuteOptionsProto``. Custom options and streams have no meaning for our devices."""
    if not proto.launch_id and not proto.non_donatable_input_indices:
        return _DEFAULT_OPTIONS
    return ExecuteOptions(
        launch_id=proto.launch_id, non_donatable_input_indices=frozenset(proto.non_donatable_input_indices)
    )


class Channel(NamedTuple):
    """One operand or result of a host callback.

    Attributes:
        channel_id: the channel of the program's send or receive.
        size: the number of bytes of a value.
    """

    channel_id: int
    size: int


class CallbackSignature(NamedTuple):
    """The operands and results of a host callback (``XlaHostCallbackProto``).

    Attributes:
        operands: the channels on which the program sends the operands.
        results: the channels on which the program receives the results.
        is_row_major: whether the values are row-major, whatever the device's layout.
    """

    operands: tuple[Channel, ...]
    results: tuple[Channel, ...]
    is_row_major: bool


def callback_signature_of(serialized: bytes) -> CallbackSignature:
    """Return the operands and results of a host callback.

    Raises:
        InvalidArgumentError: the bytes are not a host callback's, or it has no operand, or its types are not arrays'.
    """
    try:
        proto = wire.XlaHostCallbackProto.FromString(serialized)
    except DecodeError as error:
        raise InvalidArgumentError("expected a serialized XlaHostCallbackProto, found other bytes") from error
    if not proto.operands:
        raise InvalidArgumentError(
            "expected a host callback with an operand, whose arrival begins a call, found one without"
        )
    operands, results = (tuple(map(_channel, channels)) for channels in (proto.operands, proto.results))
    return CallbackSignature(operands, results, proto.use_major_to_minor_data_layout_for_callbacks)


def _channel(info: Any) -> Channel:
    element_type = ELEMENT_TYPES.get(info.shape.element_type)
    if element_type is None:
        raise InvalidArgumentError(
            f"expected arrays as the operands and results of a host callback, found XLA's type "
            f"{info.shape.element_type}"
        )
    return Channel(info.channel_id, element_type.dtype.itemsize * math.prod(info.shape.dimensions))
