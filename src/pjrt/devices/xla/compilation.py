"""From a program and its options to a loaded executable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pjrt.api.checks import expect_bytes
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.errors import InvalidArgumentError, PjrtError, StatusCode
from pjrt.api.partitioning import Partitioning
from pjrt.api.program import Program, ProgramFormat
from pjrt.devices.xla import _jaxlib, custom_calls, trial_compilation
from pjrt.devices.xla.errors import converted, status_of
from pjrt.devices.xla.executable import XlaExecutable
from pjrt.devices.xla.random_bits import with_unsigned_random_bits
from pjrt.stablehlo import read, to_module
from pjrt.stablehlo.outline import Outline

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient
    from pjrt.devices.xla.device import XlaDevice

_DEFAULT = CompileOptions().completed(Partitioning())


def compile_program(client: XlaClient, program: Program, options: CompileOptions) -> XlaExecutable:
    """Compiles a program for the devices that the options name; one that is out of the ordinary is tried elsewhere
    first, because XLA's compiler may end the process over it.

    Raises:
        InvalidArgumentError: it is no program, or the compiler does not take it.
        UnimplementedError: the compiler does not survive it.
    """
    return _compile(client, program, options, trial_compilation.attempt)


def compile_here(client: XlaClient, program: Program, options: CompileOptions) -> XlaExecutable:
    """Compile as ``compile_program`` does, without a trial: in a process that may end with the compiler."""
    return _compile(client, program, options, None)


def _compile(
    client: XlaClient,
    program: Program,
    options: CompileOptions,
    attempt: Callable[[Program, CompileOptions, int], None] | None,
) -> XlaExecutable:
    assignment, devices = _assigned(client, options)
    module = _module(program)
    if program.format == ProgramFormat.MLIR:
        code = with_unsigned_random_bits(program.code)
        if code is not program.code:
            module = _module(Program(code))
    custom_calls.provide(program.code)
    if attempt is not None:
        outline = Outline.of(module)
        outline.check()
        if not trial_compilation.is_ordinary(outline):
            attempt(program, options, len(client.devices))
    places, jaxlib_options = (
        _jaxlib.device_list([device.jaxlib_device for device in devices]),
        _jaxlib_options(options, assignment),
    )
    try:
        with module as mlir:
            jaxlib_executable = client.jaxlib_client.compile_and_load(mlir, places, jaxlib_options)
    except Exception as error:
        raise _explained(error) from error
    del mlir, module  # as large as the program's constants; so is what comes next
    return _made(jaxlib_executable, assignment, options)


def _explained(error: Exception) -> PjrtError:
    """The error of a compilation; a pass of MLIR's that fails says only that, not that the program is to blame."""
    code, message = status_of(error)
    if code is StatusCode.UNKNOWN:
        return InvalidArgumentError(f"the device 'cpu' does not compile this program: {message}")
    return converted(error)


def _module(program: Program) -> Any:
    """The program as the MLIR module that jaxlib compiles."""
    if program.format not in (ProgramFormat.MLIR, ProgramFormat.HLO):
        raise InvalidArgumentError(
            f"the device 'cpu' compiles programs in the formats 'mlir' and 'hlo', found '{program.format}'"
        )
    # Operations of XLA's own may stay: it compiles them.
    return to_module(read(program), trusted=True, legalized=False)


def deserialize(client: XlaClient, serialized: bytes, options: CompileOptions) -> XlaExecutable:
    """The executable that ``serialize`` gave, on the devices that the options name."""
    serialized = expect_bytes(serialized, "a serialized executable as bytes")
    assignment, devices = _assigned(client, options)
    custom_calls.provide(serialized)
    try:
        jaxlib_executable = client.jaxlib_client.deserialize_executable(
            serialized,
            _jaxlib.device_list([device.jaxlib_device for device in devices]),
            _jaxlib_options(options, assignment),
        )
    except Exception as error:
        code, message = status_of(error)
        if code is StatusCode.NOT_FOUND:  # it calls an FFI handler that is not registered
            raise converted(error) from error
        raise InvalidArgumentError(
            "expected an executable that was serialized by this version of XLA for the CPU, found "
            f"{len(serialized)} bytes that are none: {message}" + ("" if code is None else f" ({code.name})")
        ) from error
    return _made(jaxlib_executable, assignment, options)


def _made(jaxlib_executable: Any, assignment: DeviceAssignment, options: CompileOptions) -> XlaExecutable:
    custom_calls.settle(jaxlib_executable.hlo_modules()[0].as_serialized_hlo_module_proto())
    return XlaExecutable(jaxlib_executable, assignment, options)


def _assigned(client: XlaClient, options: CompileOptions) -> tuple[DeviceAssignment, list[XlaDevice]]:
    assignment = options.device_assignment
    if assignment is None:
        how = options.partitioning
        assignment = client.default_device_assignment(how.num_replicas, how.num_partitions)
        if assignment.device_ids == ((0,),) and options.device_ordinal > 0:
            assignment = DeviceAssignment(((client.lookup_device(options.device_ordinal).id,),))
    return assignment, [client.device_with_id(number) for row in assignment.device_ids for number in row]


def _jaxlib_options(options: CompileOptions, assignment: DeviceAssignment) -> Any:
    """The options as jaxlib takes them: with a device assignment, and never portable, which it could not run."""
    if assignment.device_ids == ((0,),) and options == _DEFAULT:
        return _jaxlib.jax.CompileOptions()  # spares loading protobuf, which start-up would feel
    complete = replace(options, device_assignment=assignment, compile_portable_executable=False, device_ordinal=-1)
    return _jaxlib.jax.CompileOptions.ParseFromString(complete.to_proto())
