"""Compilations on a server: the program goes there, and the facts about the executable come back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pjrt import stablehlo
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import Program, ProgramFormat
from pjrt.remote.client.executable import CompiledProgram
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.programs import (
    compile_options_of,
    compile_options_proto,
    portable,
    program_of,
    program_proto,
)
from pjrt.remote.protocol.versions import load_request, saved_request_of
from pjrt.stablehlo.format import HLO_ENCODINGS, Encoding, encoding_of
from pjrt.stablehlo.shardings.stated_partitioning import with_partitioning
from pjrt.stablehlo.version import Version

if TYPE_CHECKING:
    from pjrt.remote.client.client import RemoteClient


class Compiler:
    """Compiles programs on the server of a client."""

    def __init__(self, client: RemoteClient) -> None:
        self._client = client

    def compile(self, program: Program, options: CompileOptions | None) -> CompiledProgram:
        """Return the program as the server has compiled it; wait for the server.

        Raises:
            InvalidArgumentError: the program's format is unknown, it is damaged, or needs more devices than there are.
            PjrtError: the server's compiler refuses the program.
        """
        connection = self._client.connection
        program = _stablehlo(program)
        stated = with_partitioning(program, options)
        request = wire.CompileRequest(
            program=program_proto(self._portable(program)),
            compile_options=compile_options_proto(self._with_devices(stated)),
        )
        return self._compiled(program, stated, connection.call("compile", request).result())

    def deserialize(self, serialized: bytes, options: CompileOptions | None) -> CompiledProgram:
        """Return the program of a saved executable, as the server has loaded it; wait for the server.

        Args:
            serialized: what ``RemoteExecutable.serialize`` has returned.
            options: the compile options; ``None`` for those that the executable was compiled with.

        Raises:
            InvalidArgumentError: the bytes are not a saved executable, or it is for other devices.
            PjrtError: the server's device refuses the executable.
        """
        message = saved_request_of(serialized)
        program, options = program_of(message.program), options or compile_options_of(message.compile_options)
        if not message.serialized_executable:  # the server saved none
            return self.compile(program, options)
        stated = with_partitioning(program, options)
        request = load_request(self._portable(program), self._with_devices(stated), message.serialized_executable)
        response = self._client.connection.call("load_executable", request).result()
        return self._compiled(program, stated, response.compiled)

    def _compiled(self, program: Program, options: CompileOptions, response: Any) -> CompiledProgram:
        """Return a program that the server has compiled or loaded.

        Args:
            program: the program.
            options: the options, which leave nothing to the program.
            response: the server's ``CompileResponse``.
        """
        client, connection = self._client, self._client.connection
        handle = response.loaded_executable_handle
        metadata = connection.call(
            "loaded_executable_metadata", wire.LoadedExecutableMetadataRequest(loaded_executable_handle=handle)
        )
        if response.HasField("ready_future_handle"):
            ready = wire.CheckFutureRequest(future_handle=response.ready_future_handle)
            connection.call("check_future", ready).result()
        return CompiledProgram(
            connection,
            client.platform_name,
            client.addressable_devices[0].default_memory_space.kind,
            program,
            options,
            response,
            metadata.result(),
        )

    def _with_devices(self, options: CompileOptions) -> CompileOptions:
        """Return the options with the devices to compile for: servers need not have defaults."""
        # Each of a portable executable's devices gets a compilation of its own, the first one here.
        options = replace(options, compile_portable_executable=False)
        if options.device_assignment is not None:
            return options
        shape = options.partitioning
        if options.device_ordinal > 0 and shape.num_devices == 1:
            device = self._client.lookup_addressable_device(options.device_ordinal)
            return replace(options, device_assignment=DeviceAssignment(((device.id,),)))
        return replace(
            options,
            device_assignment=self._client.default_device_assignment(shape.num_replicas, shape.num_partitions),
        )

    def _portable(self, program: Program) -> Program:
        """Return the program as a portable artifact of a version that the server reads, if it declares one."""
        newest = self._client.attributes.get("stablehlo_current_version")
        if not isinstance(newest, tuple) and encoding_of(program) is Encoding.PORTABLE_ARTIFACT:
            return program
        version = Version.of(newest) if isinstance(newest, tuple) else stablehlo.current_version()
        return portable(program, version)


def _stablehlo(program: Program) -> Program:
    """Return a program as StableHLO.

    Raises:
        InvalidArgumentError: the program is of another format, or XLA cannot convert it.
        DataLossError: the program is damaged.
    """
    if program.format not in tuple(ProgramFormat):
        raise InvalidArgumentError(
            f"expected a program in StableHLO or HLO, which the IFRT proxy protocol carries, found {program.format!r}"
        )
    program = stablehlo.read(program)
    return stablehlo.from_hlo(program, trusted=True) if encoding_of(program) in HLO_ENCODINGS else program
