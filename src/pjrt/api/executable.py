"""Executables: compiled programs, loaded nowhere (``PjRtExecutable``, ``PJRT_Executable``)."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pjrt.api.abi_version import ExecutableAbiVersion
from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import unimplemented
from pjrt.api.layout import Layout
from pjrt.api.program import Program
from pjrt.api.tpu_executable import TpuExecutable


class Executable(abc.ABC):
    """A compiled program with what can be known of it without running it.

    ``TopologyDescription.compile`` makes one for devices that need not be here; ``Client.load`` makes it runnable where
    they are.
    """

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def platform_name(self) -> str:
        """The platform it was compiled for."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The program's name (``PJRT_Executable_Name``)."""

    @property
    @abc.abstractmethod
    def num_replicas(self) -> int:
        """The number of replicas it runs as (``PJRT_Executable_NumReplicas``)."""

    @property
    @abc.abstractmethod
    def num_partitions(self) -> int:
        """The number of partitions of each replica (``PJRT_Executable_NumPartitions``)."""

    @property
    @abc.abstractmethod
    def num_outputs(self) -> int:
        """The number of results on each device (``PJRT_Executable_NumOutputs``)."""

    @property
    def size_of_generated_code(self) -> int:
        """The bytes of code on the device (``PJRT_Executable_SizeOfGeneratedCodeInBytes``)."""
        raise unimplemented(self.platform_name, "Executable.size_of_generated_code")

    @property
    def output_element_types(self) -> Sequence[ElementType]:
        """The element type of each result (``PJRT_Executable_OutputElementTypes``)."""
        raise unimplemented(self.platform_name, "Executable.output_element_types")

    @property
    def output_shapes(self) -> Sequence[tuple[int, ...]]:
        """The dimensions of each result on one device (``PJRT_Executable_OutputDimensions``)."""
        raise unimplemented(self.platform_name, "Executable.output_shapes")

    @property
    def output_memory_kinds(self) -> Sequence[str]:
        """The kind of memory each result is put in (``PJRT_Executable_OutputMemoryKinds``)."""
        raise unimplemented(self.platform_name, "Executable.output_memory_kinds")

    @property
    def parameter_memory_kinds(self) -> Sequence[str]:
        """The kind of memory each parameter is expected in (``PJRT_Executable_ParameterMemoryKinds``)."""
        raise unimplemented(self.platform_name, "Executable.parameter_memory_kinds")

    @property
    def output_layouts(self) -> Sequence[Layout]:
        """The layout of each result (Layouts extension)."""
        raise unimplemented(self.platform_name, "Executable.output_layouts")

    @property
    def parameter_layouts(self) -> Sequence[Layout]:
        """The layout each parameter is expected in (Layouts extension)."""
        raise unimplemented(self.platform_name, "Executable.parameter_layouts")

    @property
    def output_shardings(self) -> Sequence[bytes] | None:
        """The sharding of each result as a serialized ``xla.OpSharding``; ``None`` where nothing is sharded
        (Shardings extension).
        """
        raise unimplemented(self.platform_name, "Executable.output_shardings")

    @property
    def parameter_shardings(self) -> Sequence[bytes] | None:
        """The sharding of each parameter as a serialized ``xla.OpSharding``; ``None`` where nothing is sharded
        (Shardings extension).
        """
        raise unimplemented(self.platform_name, "Executable.parameter_shardings")

    def cost_analysis(self) -> Mapping[str, float | int]:
        """What one run costs, by PJRT's own keys such as ``flops`` and ``bytes accessed``
        (``PJRT_Executable_GetCostAnalysis``).
        """
        raise unimplemented(self.platform_name, "Executable.cost_analysis")

    def memory_stats(self) -> CompiledMemoryStats:
        """What memory one run needs (``PJRT_Executable_GetCompiledMemoryStats``)."""
        raise unimplemented(self.platform_name, "Executable.memory_stats")

    def optimized_program(self) -> Program:
        """The program as the compiler left it (``PJRT_Executable_OptimizedProgram``)."""
        raise unimplemented(self.platform_name, "Executable.optimized_program")

    def serialize(self) -> bytes:
        """The executable as bytes for ``Client.deserialize`` on the same platform (``PJRT_Executable_Serialize``)."""
        raise unimplemented(self.platform_name, "Executable.serialize")

    def fingerprint(self) -> bytes:
        """Bytes that are equal for equal executables, however often compiled
        (``PJRT_Executable_Fingerprint``, ``PJRT_LoadedExecutable_Fingerprint``)."""
        raise unimplemented(self.platform_name, "Executable.fingerprint")

    def compile_options(self) -> CompileOptions:
        """The options it was compiled with (``PJRT_Executable_GetCompileOptions``)."""
        raise unimplemented(self.platform_name, "Executable.compile_options")

    def abi_version(self) -> ExecutableAbiVersion:
        """What a runtime must offer to run it (AbiVersion extension)."""
        raise unimplemented(self.platform_name, "Executable.abi_version")

    def metadata(self) -> bytes:
        """The vendor's serialized facts about the executable (ExecutableMetadata extension)."""
        raise unimplemented(self.platform_name, "Executable.metadata")

    def tpu(self) -> TpuExecutable:
        """Return what a TPU executable holds (TpuExecutable extension)."""
        raise unimplemented(self.platform_name, "Executable.tpu")

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name!r} for {self.platform_name}, {self.num_replicas}×{self.num_partitions}>"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledMemoryStats:
    """What memory one run of an executable needs on one device, in bytes (``PJRT_Executable_GetCompiledMemoryStats``).

    Attributes:
        generated_code_size_in_bytes: code.
        argument_size_in_bytes: arguments.
        output_size_in_bytes: results.
        alias_size_in_bytes: results that take over an argument's memory; counted in both of the above.
        temp_size_in_bytes: what is needed while it runs and freed after.
        host_generated_code_size_in_bytes: likewise on the host, as the following four.
        host_argument_size_in_bytes: arguments in host memory.
        host_output_size_in_bytes: results in host memory.
        host_alias_size_in_bytes: aliased results in host memory.
        host_temp_size_in_bytes: temporaries in host memory.
        peak_memory_in_bytes: the most that is in use at one time; 0 where the compiler does not say.
        total_size_in_bytes: everything together; 0 where the compiler does not say.
        total_allocation_bytes: everything that is allocated; 0 where the compiler does not say.
        indefinite_allocations: bytes of allocations that live for as long as the executable; 0 where the compiler does
            not say.
        peak_unpadded_heap_bytes: the peak without padding; 0 where the compiler does not say.
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
        """The bytes that a device must have for one run: the compiler's peak, or arguments, results, temporaries and
        code together where that is more. What results take over from arguments counts once.
        """
        parts = self.argument_size_in_bytes + self.output_size_in_bytes - self.alias_size_in_bytes
        return max(parts + self.temp_size_in_bytes + self.generated_code_size_in_bytes, self.peak_memory_in_bytes)
