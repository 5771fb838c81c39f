"""Executables of the plugin under test, and their executions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.conformance.plugin.buffers import Buffers
from pjrt.conformance.plugin.outcome import Failed, Unsupported
from pjrt.conformance.plugin.samples import Samples


class Executions(Buffers):
    """Executables of the client.

    Args:
        plugin: the plugin.
        options: the options of clients that the user gave.
        samples: the programs.
    """

    def __init__(self, plugin: raw.Plugin, options: Mapping[str, Any], samples: Samples) -> None:
        super().__init__(plugin, options)
        self.samples = samples

    def program(self, sample: str, tensor: str = "4xf32") -> raw.Struct:
        """Return a sample as the program of a call; see ``samples``.

        Raises:
            Unsupported: the user gave programs, and this one is not among them.
        """
        program = self.samples.program(sample, tensor)
        return raw.Struct("PJRT_Program", code=program.code, format=program.format)

    def compile(self, sample: str, tensor: str = "4xf32", **options: Any) -> int:
        """Return the loaded executable of a sample.

        Args:
            sample: the name of a program in ``samples``.
            tensor: the type of its arrays, such as ``2x3xbf16``.
            options: options of ``CompileOptions``; the program is for one device unless they say otherwise.

        Raises:
            Failed: the plugin returned an error.
            Unsupported: the plugin does not implement something of the program.
        """
        result = self.attempt_compile(self.program(sample, tensor), **options)
        if result.error is not None:
            if result.error.code == StatusCode.UNIMPLEMENTED:
                raise Unsupported(f"the program {sample} of {tensor}: {result.error}")
            raise Failed("PJRT_Client_Compile to succeed", str(result.error))
        return int(result.executable)

    def attempt_compile(self, program: raw.Struct, **options: Any) -> raw.Result:
        """Call ``PJRT_Client_Compile``, which may fail."""
        return self.attempt(
            "PJRT_Client_Compile", client=self.client, program=program, compile_options=compile_options(**options)
        )

    def num_outputs(self, executable: int) -> int:
        """Return the number of results of a loaded executable."""
        unloaded = self.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=executable).executable
        number = int(self.call("PJRT_Executable_NumOutputs", executable=unloaded).num_outputs)
        self.call("PJRT_Executable_Destroy", executable=unloaded)
        return number

    def execute(
        self, executable: int, rows: Sequence[Sequence[int]], *, num_outputs: int | None = None, **options: Any
    ) -> list[list[int]]:
        """Execute a program, and wait until it is done; return the results of each device.

        Args:
            executable: the loaded executable.
            rows: the buffers that are the arguments of each device.
            num_outputs: the number of results, which is asked for by default.
            options: fields of ``PJRT_ExecuteOptions``.
        """
        result = self.attempt_execute(executable, rows, num_outputs=num_outputs, **options)
        if result.error is not None:
            raise Failed("PJRT_LoadedExecutable_Execute to succeed", str(result.error))
        for event in result.device_complete_events:
            self.await_event(event)
        return [[int(each or 0) for each in row] for row in result.output_lists]

    def attempt_execute(
        self,
        executable: int,
        rows: Sequence[Sequence[int]],
        *,
        num_outputs: int | None = None,
        execute_device: int | None = None,
        **options: Any,
    ) -> raw.Result:
        """Call ``PJRT_LoadedExecutable_Execute`` with events, which may fail; the caller awaits and destroys them."""
        count = self.num_outputs(executable) if num_outputs is None else num_outputs
        return self.attempt(
            "PJRT_LoadedExecutable_Execute",
            executable=executable,
            options=raw.Struct("PJRT_ExecuteOptions", options),
            argument_lists=[list(row) for row in rows],
            num_args=len(rows[0]) if rows else 0,
            output_lists=[[None] * count for _ in rows],
            device_complete_events=[None] * len(rows),
            execute_device=execute_device,
        )


def compile_options(**options: Any) -> bytes:
    """Return compile options as the bytes of a ``CompileOptionsProto``: for one device, unless they say otherwise."""
    return CompileOptions(**{"num_replicas": 1, "num_partitions": 1, **options}).to_proto()
