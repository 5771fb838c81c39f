"""Executables: compiled programs that are not loaded on devices (``PjRtExecutable``, ``PJRT_Executable``).

Whether one can run on a runtime is a question of their ABI versions (the AbiVersion extension). Where a new buffer
stands is decided here for implementations of clients; callers do not need it.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pjrt.api.checks import expect
from pjrt.api.device import Device, MemorySpace, NamedValue
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, unimplemented
from pjrt.api.printable import html_table, readable_bytes
from pjrt.api.program import Program

if TYPE_CHECKING:
    from pjrt.api.client import Client
    from pjrt.api.compile_options import CompileOptions
    from pjrt.api.element_type import ElementType
    from pjrt.api.shape_spec import Layout, ShapeSpec


class Executable(abc.ABC):
    """A compiled program, and the facts about it that need no run.

    ``TopologyDescription.compile`` makes one for devices that need not be present; ``Client.load`` loads it on devices.
    """

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def platform_name(self) -> str:
        """The platform that the program was compiled for."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The program's name (``PJRT_Executable_Name``)."""

    @property
    @abc.abstractmethod
    def num_replicas(self) -> int:
        """The number of replicas (``PJRT_Executable_NumReplicas``)."""

    @property
    @abc.abstractmethod
    def num_partitions(self) -> int:
        """The number of partitions of each replica (``PJRT_Executable_NumPartitions``)."""

    @property
    def num_outputs(self) -> int:
        """The number of results on each device (``PJRT_Executable_NumOutputs``)."""
        return len(self.output_specs)

    @property
    def size_of_generated_code(self) -> int:
        """The number of bytes of code on the device (``PJRT_Executable_SizeOfGeneratedCodeInBytes``)."""
        raise unimplemented(self.platform_name, "Executable.size_of_generated_code")

    @property
    def output_specs(self) -> Sequence[ShapeSpec]:
        """The shape and element type of each result on one device. The C API has a function for each half."""
        raise unimplemented(self.platform_name, "Executable.output_specs")

    @property
    def output_element_types(self) -> Sequence[ElementType]:
        """The element type of each result (``PJRT_Executable_OutputElementTypes``)."""
        return [spec.element_type for spec in self.output_specs]

    @property
    def output_shapes(self) -> Sequence[tuple[int, ...]]:
        """The dimensions of each result on one device (``PJRT_Executable_OutputDimensions``)."""
        return [spec.shape for spec in self.output_specs]

    @property
    def output_memory_kinds(self) -> Sequence[str]:
        """The kind of memory of each result (``PJRT_Executable_OutputMemoryKinds``)."""
        raise unimplemented(self.platform_name, "Executable.output_memory_kinds")

    @property
    def parameter_memory_kinds(self) -> Sequence[str]:
        """The expected kind of memory of each parameter (``PJRT_Executable_ParameterMemoryKinds``)."""
        raise unimplemented(self.platform_name, "Executable.parameter_memory_kinds")

    @property
    def parameter_specs(self) -> Sequence[ShapeSpec]:
        """The shape and element type of each parameter on one device. The C API has no function for it: where the
        device is a plugin, it is read from ``optimized_program``.
        """
        raise unimplemented(self.platform_name, "Executable.parameter_specs", "give arguments as numpy arrays")

    @property
    def parameter_names(self) -> Sequence[str]:
        """The name of each parameter in the author's program, such as ``x`` or ``weights['w']``; empty where it is
        unknown. It is read at the first use, from the same source as ``parameter_specs``.
        """
        raise unimplemented(self.platform_name, "Executable.parameter_names", "give arguments by position")

    @property
    def output_layouts(self) -> Sequence[Layout]:
        """The layout of each result (Layouts extension)."""
        raise unimplemented(self.platform_name, "Executable.output_layouts")

    @property
    def parameter_layouts(self) -> Sequence[Layout]:
        """The expected layout of each parameter (Layouts extension)."""
        raise unimplemented(self.platform_name, "Executable.parameter_layouts")

    @property
    def output_shardings(self) -> Sequence[bytes] | None:
        """The sharding of each result as a serialized ``xla.OpSharding``; ``None`` if nothing is sharded
        (Shardings extension).
        """
        raise unimplemented(self.platform_name, "Executable.output_shardings")

    @property
    def parameter_shardings(self) -> Sequence[bytes] | None:
        """The sharding of each parameter as a serialized ``xla.OpSharding``; ``None`` if nothing is sharded
        (Shardings extension).
        """
        raise unimplemented(self.platform_name, "Executable.parameter_shardings")

    def donations(self) -> Mapping[int, int | None]:
        """Return the parameters that each execution donates, each with the number of the result that takes over its
        memory, or ``None``. The C API has no function for it.
        """
        raise unimplemented(self.platform_name, "Executable.donations")

    def cost_analysis(self) -> Mapping[str, float | int]:
        """Return the cost of one run, by PJRT's keys such as ``flops`` and ``bytes accessed``
        (``PJRT_Executable_GetCostAnalysis``).
        """
        raise unimplemented(self.platform_name, "Executable.cost_analysis")

    def memory_stats(self) -> CompiledMemoryStats:
        """Return the memory that one run needs (``PJRT_Executable_GetCompiledMemoryStats``)."""
        raise unimplemented(self.platform_name, "Executable.memory_stats")

    def optimized_program(self) -> Program:
        """Return the program after the compiler's optimizations (``PJRT_Executable_OptimizedProgram``)."""
        raise unimplemented(self.platform_name, "Executable.optimized_program")

    def serialize(self) -> bytes:
        """Return bytes for ``Client.deserialize`` on the same platform (``PJRT_Executable_Serialize``)."""
        raise unimplemented(self.platform_name, "Executable.serialize")

    def fingerprint(self) -> bytes:
        """Return bytes that are equal for equal executables, however often they are compiled
        (``PJRT_Executable_Fingerprint``, ``PJRT_LoadedExecutable_Fingerprint``).
        """
        raise unimplemented(self.platform_name, "Executable.fingerprint")

    def compile_options(self) -> CompileOptions:
        """Return the options of the compilation (``PJRT_Executable_GetCompileOptions``)."""
        raise unimplemented(self.platform_name, "Executable.compile_options")

    def abi_version(self) -> ExecutableAbiVersion:
        """Return the ABI version that a runtime must be compatible with (AbiVersion extension)."""
        raise unimplemented(self.platform_name, "Executable.abi_version")

    def metadata(self) -> bytes:
        """Return the vendor's serialized facts about the executable (ExecutableMetadata extension)."""
        raise unimplemented(self.platform_name, "Executable.metadata")

    def tpu(self) -> TpuExecutable:
        """Return the contents of a TPU executable (TpuExecutable extension)."""
        raise unimplemented(self.platform_name, "Executable.tpu")

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name!r} for {self.platform_name}, {self.num_replicas}×{self.num_partitions}>"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("platform", self.platform_name),
            ("made for", f"{self.num_replicas} replicas × {self.num_partitions} partitions"),
        ]
        with contextlib.suppress(PjrtError):
            rows.append(("memory needed", readable_bytes(self.memory_stats().needed_in_bytes)))
        with contextlib.suppress(PjrtError):
            costs = self.cost_analysis()
            rows += [(name, f"{costs[key]:,.0f}") for name, key in _COSTS.items() if costs.get(key, -1) >= 0]
        return html_table(self.name, rows)


_COSTS = {"FLOPs": "flops", "bytes moved": "bytes accessed"}


class CompiledMemoryStats(NamedTuple):
    """The memory that one run needs on one device, in bytes (``PJRT_Executable_GetCompiledMemoryStats``).

    Attributes:
        generated_code_size_in_bytes: code.
        argument_size_in_bytes: arguments.
        output_size_in_bytes: results.
        alias_size_in_bytes: results that take over an argument's memory; counted in both of the above.
        temp_size_in_bytes: temporaries, which are freed after the run.
        host_generated_code_size_in_bytes: code in host memory.
        host_argument_size_in_bytes: arguments in host memory.
        host_output_size_in_bytes: results in host memory.
        host_alias_size_in_bytes: aliased results in host memory.
        host_temp_size_in_bytes: temporaries in host memory.
        peak_memory_in_bytes: the most that is in use at one time; 0 if the compiler does not report it.
        total_size_in_bytes: everything together; 0 if the compiler does not report it.
        total_allocation_bytes: everything that is allocated; 0 if the compiler does not report it.
        indefinite_allocations: allocations that live as long as the executable; 0 if the compiler does not report them.
        peak_unpadded_heap_bytes: the peak without padding; 0 if the compiler does not report it.
    """

    generated_code_size_in_bytes: int = 0
    argument_size_in_bytes: int = 0
    output_size_in_bytes: int = 0
    alias_size_in_bytes: int = 0
    temp_size_in_bytes: int = 0
    host_generated_code_size_in_bytes: int = 0
    host_argument_size_in_bytes: int = 0
    host_output_size_in_bytes: int = 0
    host_alias_size_in_bytes: int = 0
    host_temp_size_in_bytes: int = 0
    peak_memory_in_bytes: int = 0
    total_size_in_bytes: int = 0
    total_allocation_bytes: int = 0
    indefinite_allocations: int = 0
    peak_unpadded_heap_bytes: int = 0

    @property
    def needed_in_bytes(self) -> int:
        """The bytes that a device must have for one run: the larger of the compiler's peak and the sum of arguments,
        results, temporaries and code. Memory that a result takes over from an argument counts once.
        """
        parts = self.argument_size_in_bytes + self.output_size_in_bytes - self.alias_size_in_bytes
        return max(parts + self.temp_size_in_bytes + self.generated_code_size_in_bytes, self.peak_memory_in_bytes)


class TpuExecutable(abc.ABC):
    """The contents of a serialized TPU executable; no TPU is needed to read it."""

    __slots__ = ("__weakref__",)

    @abc.abstractmethod
    def target_arguments(self) -> bytes:
        """Return the vendor's serialized description of the target hardware
        (``PJRT_TpuExecutable_GetTargetArguments``).
        """

    @abc.abstractmethod
    def hlo_module(self) -> Program:
        """Return the program after the compiler's optimizations, in the format ``hlo_with_config``
        (``PJRT_TpuExecutable_GetHloModuleWithConfig``).
        """

    @abc.abstractmethod
    def memory_stats(self) -> bytes:
        """Return a serialized ``xla.CompiledMemoryStatsProto``, the memory that a run needs, buffer by buffer
        (``PJRT_TpuExecutable_GetCompiledMemoryStats``).
        """

    @abc.abstractmethod
    def cost_analysis(self) -> Mapping[str, NamedValue]:
        """Return the cost of one run, by XLA's keys such as ``flops`` and ``bytes accessed``
        (``PJRT_TpuExecutable_RunHloCostAnalysis``).
        """


class RuntimeAbiVersion(abc.ABC):
    """The ABI version of a client's runtime (``PJRT_RuntimeAbiVersion``)."""

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def platform_id(self) -> int:
        """A number that is the same for versions of the same platform."""

    @abc.abstractmethod
    def to_proto(self) -> bytes:
        """Return the vendor's serialized proto of the version."""

    @abc.abstractmethod
    def check_compatible_with(self, other: RuntimeAbiVersion | ExecutableAbiVersion) -> None:
        """Raise an error unless a runtime of this version can run what was made for the other.

        Raises:
            PjrtError: the versions are incompatible; the message is the vendor's reason.
        """


class ExecutableAbiVersion(abc.ABC):
    """The ABI version that an executable needs (``PJRT_ExecutableAbiVersion``)."""

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def platform_id(self) -> int:
        """A number that is the same for versions of the same platform."""

    @abc.abstractmethod
    def to_proto(self) -> bytes:
        """Return the vendor's serialized proto of the version."""


def choose_place(client: Client, device: Device | None, memory_space: MemorySpace | None) -> tuple[Device, MemorySpace]:
    """Return the device and memory space for a buffer whose caller named either, both or none of them.

    Raises:
        InvalidArgumentError: the two do not belong together or to this client, or this process cannot address them.
        FailedPreconditionError: neither is named, and this process can address no device of the client.
    """
    if memory_space is not None:
        expect(memory_space, MemorySpace, "a memory space of this client, one of client.memory_spaces")
    if device is None:
        if memory_space is None:
            device = default_device(client)
        else:
            device = next((d for d in memory_space.devices if d.is_addressable), None)
            if device is None:
                raise InvalidArgumentError(f"no device of this process can address the memory space {memory_space}")
    expect(device, Device, "a device of this client, one of client.addressable_devices")
    if device.client is not client:
        raise InvalidArgumentError(
            f"{device} belongs to another client ({device.client!r}); use one of client.addressable_devices"
        )
    if not device.is_addressable:
        raise InvalidArgumentError(
            f"{device} belongs to process {device.process_index}; use one of client.addressable_devices"
        )
    if memory_space is None:
        return device, device.default_memory_space
    if memory_space not in device.memory_spaces:
        spaces = ", ".join(str(space) for space in device.memory_spaces)
        raise InvalidArgumentError(f"{device} cannot address the memory space {memory_space}; it has {spaces}")
    return device, memory_space


def default_device(client: Client) -> Device:
    """Return the device that is meant where a caller names none: the client's first addressable one.

    Raises:
        FailedPreconditionError: This process can address no device of the client.
    """
    devices = client.addressable_devices
    if not devices:
        raise FailedPreconditionError(
            f"this process can address none of the {len(client.devices)} devices of '{client.platform_name}', so there "
            "is nowhere to put a buffer; use a process that has devices, one of the process_index of client.devices"
        )
    return devices[0]
