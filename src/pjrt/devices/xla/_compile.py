"""From a program and its options to a loaded executable."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.errors import InvalidArgumentError, PjrtError, StatusCode
from pjrt.api.expecting import expect_bytes
from pjrt.api.partitioning import Partitioning
from pjrt.api.program import Program, ProgramFormat
from pjrt.devices.xla import _raw, custom_calls
from pjrt.devices.xla._errors import converted, status_of
from pjrt.devices.xla._random_bits import with_unsigned_random_bits
from pjrt.devices.xla.executable import XlaExecutable

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient
    from pjrt.devices.xla.device import XlaDevice

_DEFAULT = CompileOptions().completed(Partitioning())


def compile_program(client: XlaClient, program: Program, options: CompileOptions) -> XlaExecutable:
    """Compiles a program for the devices that the options name.

    Raises:
        InvalidArgumentError: it is no program, or the compiler does not take it.
    """
    assignment, devices = _assigned(client, options)
    code = with_unsigned_random_bits(_mlir(program))
    custom_calls.provide(code)
    try:
        raw = client.raw.compile_and_load(
            code, _raw.device_list([device.raw for device in devices]), _raw_options(options, assignment)
        )
    except Exception as error:
        raise _explained(error, program) from error
    return _made(raw, assignment, options)


def deserialize(client: XlaClient, serialized: bytes, options: CompileOptions) -> XlaExecutable:
    """The executable that ``serialize`` gave, on the devices that the options name."""
    serialized = expect_bytes(serialized, "a serialized executable as bytes")
    assignment, devices = _assigned(client, options)
    custom_calls.provide(serialized)
    try:
        raw = client.raw.deserialize_executable(
            serialized, _raw.device_list([device.raw for device in devices]), _raw_options(options, assignment)
        )
    except Exception as error:
        code, message = status_of(error)
        if code is StatusCode.NOT_FOUND:  # it calls an FFI handler that is not registered
            raise converted(error) from error
        raise InvalidArgumentError(
            "expected an executable that was serialized by this version of XLA for the CPU, found "
            f"{len(serialized)} bytes that are none: {message}" + ("" if code is None else f" ({code.name})")
        ) from error
    return _made(raw, assignment, options)


def _made(raw: Any, assignment: DeviceAssignment, options: CompileOptions) -> XlaExecutable:
    custom_calls.settle(raw.hlo_modules()[0].as_serialized_hlo_module_proto())
    return XlaExecutable(raw, assignment, options)


def _assigned(client: XlaClient, options: CompileOptions) -> tuple[DeviceAssignment, list[XlaDevice]]:
    assignment = options.device_assignment
    if assignment is None:
        how = options.partitioning
        assignment = client.default_device_assignment(how.num_replicas, how.num_partitions)
        if assignment.device_ids == ((0,),) and options.device_ordinal > 0:
            assignment = DeviceAssignment(((client.lookup_device(options.device_ordinal).id,),))
    return assignment, [client.device_with_id(number) for row in assignment.device_ids for number in row]


def _raw_options(options: CompileOptions, assignment: DeviceAssignment) -> Any:
    """The options as jaxlib takes them: with a device assignment, and never portable, which it could not run."""
    if assignment.device_ids == ((0,),) and options == _DEFAULT:
        return _raw.jax.CompileOptions()  # spares loading protobuf, which start-up would feel
    complete = replace(options, device_assignment=assignment, compile_portable_executable=False, device_ordinal=-1)
    return _raw.jax.CompileOptions.ParseFromString(complete.to_proto())


def _mlir(program: Program) -> bytes:
    """The program as jaxlib compiles it."""
    if program.format == ProgramFormat.MLIR:
        return program.code
    if program.format == ProgramFormat.HLO:
        try:
            converted_code: bytes = _raw.jax.mlir.hlo_to_stablehlo(program.code)
        except Exception as error:
            raise InvalidArgumentError(
                f"expected an HloModuleProto, found {len(program.code)} bytes that are none: {status_of(error)[1]}"
            ) from error
        return converted_code
    raise InvalidArgumentError(
        f"the device 'cpu' compiles programs in the formats 'mlir' and 'hlo', found '{program.format}'"
    )


def _explained(error: Exception, program: Program) -> PjrtError:
    """The error of a compilation; where the program could not be read, what its bytes say of themselves."""
    code, message = status_of(error)
    if code is not StatusCode.UNKNOWN:
        return converted(error)
    from pjrt.stablehlo import Version, artifact_version

    problem, _, _ = message.partition("<unknown>:0: error: Failed to parse")
    version = artifact_version(program.code)
    newest = _NEWEST.search(message)
    if version is None or newest is None or version <= Version.parse(newest[1]):
        return InvalidArgumentError(f"the program cannot be read: {problem.strip()}")
    return InvalidArgumentError(
        f"the program is a StableHLO portable artifact of version {version}, this device reads artifacts up to version "
        f"{newest[1]}; serialize it for that version, or use a newer jaxlib: {problem.strip()}"
    )


_NEWEST = re.compile(r"using StableHLO v([0-9.]+[0-9])")
