"""The executables of the host runtime: compiled programs and their facts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import UnimplementedError
from pjrt.api.executable import CompiledMemoryStats, Executable
from pjrt.api.program import Program
from pjrt.api.shape_spec import Layout, ShapeSpec, TiledLayout
from pjrt.host.abi_version import HostExecutableAbiVersion
from pjrt.host.compiled import Compiled
from pjrt.host.serialization import pack
from pjrt.host_memory.array import array_dtype, order_of_spec


@dataclass(frozen=True, slots=True)
class Origin:
    """The input of a compilation.

    Attributes:
        platform_name: the platform that the program was compiled for.
        platform_version: its version.
        default_memory_kind: the default kind of memory of its devices.
        program: the program.
        options: the compile options.
    """

    platform_name: str
    platform_version: str
    default_memory_kind: str
    program: Program
    options: CompileOptions


class HostExecutable(Executable):
    """A compiled program: the author's function and declarations."""

    __slots__ = ("compiled", "origin")

    def __init__(self, compiled: Compiled, origin: Origin) -> None:
        self.compiled = compiled
        self.origin = origin

    @property
    def platform_name(self) -> str:
        return self.origin.platform_name

    @property
    def name(self) -> str:
        return self.compiled.name

    @property
    def num_replicas(self) -> int:
        return self.origin.options.partitioning.num_replicas

    @property
    def num_partitions(self) -> int:
        return self.origin.options.partitioning.num_partitions

    @property
    def num_outputs(self) -> int:
        return len(self._declared("num_outputs", self.compiled.outputs))

    @property
    def size_of_generated_code(self) -> int:
        return self.compiled.code_size

    @property
    def output_element_types(self) -> Sequence[ElementType]:
        return [spec.element_type for spec in self._declared("output_element_types", self.compiled.outputs)]

    @property
    def output_shapes(self) -> Sequence[tuple[int, ...]]:
        return [spec.shape for spec in self._declared("output_shapes", self.compiled.outputs)]

    @property
    def output_memory_kinds(self) -> Sequence[str]:
        if self.compiled.output_memory_kinds is not None:
            return [kind or self.origin.default_memory_kind for kind in self.compiled.output_memory_kinds]
        return [self.origin.default_memory_kind] * self.num_outputs

    @property
    def parameter_memory_kinds(self) -> Sequence[str]:
        if self.compiled.parameter_memory_kinds is not None:
            return [kind or self.origin.default_memory_kind for kind in self.compiled.parameter_memory_kinds]
        count = len(self._declared("parameter_memory_kinds", self.compiled.parameters))
        return [self.origin.default_memory_kind] * count

    @property
    def parameter_specs(self) -> Sequence[ShapeSpec]:
        return self._declared("parameter_specs", self.compiled.parameters)

    @property
    def parameter_names(self) -> Sequence[str]:
        names = self.compiled.parameter_names
        if names is None:
            return super().parameter_names
        return names() if callable(names) else names

    @property
    def output_layouts(self) -> Sequence[Layout]:
        return _layouts(self._declared("output_layouts", self.compiled.outputs))

    @property
    def parameter_layouts(self) -> Sequence[Layout]:
        return _layouts(self._declared("parameter_layouts", self.compiled.parameters))

    @property
    def output_shardings(self) -> Sequence[bytes] | None:
        return self.compiled.output_shardings

    @property
    def parameter_shardings(self) -> Sequence[bytes] | None:
        return self.compiled.parameter_shardings

    def donations(self) -> Mapping[int, int | None]:
        return {**dict.fromkeys(self.compiled.donated), **self.compiled.aliases}

    def cost_analysis(self) -> Mapping[str, float | int]:
        cost = self.compiled.cost
        if cost is None:
            return super().cost_analysis()
        return dict(cost() if callable(cost) else cost)

    def memory_stats(self) -> CompiledMemoryStats:
        memory = self.compiled.memory
        if memory is None:
            return _memory_by_types(self.compiled)
        return memory() if callable(memory) else memory

    def optimized_program(self) -> Program:
        optimized = self.compiled.optimized
        if optimized is None:
            return self.origin.program
        return optimized() if callable(optimized) else optimized

    def serialize(self) -> bytes:
        payload = None if self.compiled.serialize is None else self.compiled.serialize()
        return pack(self.origin, payload)

    def fingerprint(self) -> bytes:
        if self.compiled.fingerprint is not None:
            return self.compiled.fingerprint
        # Without the bytes that the options were read from: XLA writes the entries of a map in them in any order.
        options = replace(self.origin.options, base=b"")
        parts = (self.origin.platform_name, self.origin.platform_version, str(self.origin.program.format), options)
        return hashlib.sha256(repr(parts).encode() + self.origin.program.code).digest()

    def compile_options(self) -> CompileOptions:
        return self.origin.options

    def abi_version(self) -> HostExecutableAbiVersion:
        return HostExecutableAbiVersion(self.origin.platform_name, self.origin.platform_version)

    def _declared(self, operation: str, specs: Sequence[ShapeSpec] | None) -> Sequence[ShapeSpec]:
        if specs is None:
            raise UnimplementedError(
                f"the device '{self.platform_name}' does not offer Executable.{operation} for {self.name!r}: its "
                "compile did not declare the program's types (pjrt.host.Compiled(outputs=…, parameters=…))"
            )
        return specs


def _layouts(specs: Sequence[ShapeSpec]) -> list[Layout]:
    return [TiledLayout(order_of_spec(spec)[::-1]) for spec in specs]


def size_of(spec: ShapeSpec) -> int:
    """Return the number of bytes of an array in host memory."""
    return 0 if spec.element_type is ElementType.TOKEN else spec.size * array_dtype(spec.element_type).itemsize


def _memory_by_types(compiled: Compiled) -> CompiledMemoryStats:
    parameters = [size_of(spec) for spec in compiled.parameters or ()]
    outputs = [size_of(spec) for spec in compiled.outputs or ()]
    aliased = sum(outputs[output] for output in compiled.aliases.values()) if outputs else 0
    total = sum(parameters) + sum(outputs) - aliased
    return CompiledMemoryStats(
        generated_code_size_in_bytes=compiled.code_size,
        argument_size_in_bytes=sum(parameters),
        output_size_in_bytes=sum(outputs),
        alias_size_in_bytes=aliased,
        peak_memory_in_bytes=total,
        total_size_in_bytes=total,
    )
