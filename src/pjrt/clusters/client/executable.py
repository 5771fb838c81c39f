"""Executables of a cluster: the facts are those of one member, because all compile the same program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import PjrtError
from pjrt.api.executable import CompiledMemoryStats, Executable, ExecutableAbiVersion
from pjrt.api.program import Program
from pjrt.api.shape_spec import Layout, ShapeSpec
from pjrt.clusters.client.member import Member
from pjrt.clusters.client.serialization import packed

T = TypeVar("T")

_MOST_THREADS = 64


class ClusterExecutable(Executable):
    """A program that members of a cluster have compiled.

    Args:
        executables: the executable of each member that takes part; the first one answers for all.
        program: the program; ``None`` for a saved executable.

    Attributes:
        executables: the executable of each member that takes part.
        program: the program; ``None`` for a saved executable.
    """

    __slots__ = ("executables", "program")

    def __init__(self, executables: Sequence[tuple[Member, Executable]], program: Program | None) -> None:
        self.executables = executables
        self.program = program

    @property
    def inner(self) -> Executable:
        """The executable that answers for all."""
        return self.executables[0][1]

    def _fact(self, read: Callable[[Executable], T]) -> T:
        try:
            return read(self.inner)
        except PjrtError as error:
            self.executables[0][0].fail(error)

    @property
    def platform_name(self) -> str:
        return self.inner.platform_name

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def num_replicas(self) -> int:
        return self.inner.num_replicas

    @property
    def num_partitions(self) -> int:
        return self.inner.num_partitions

    @property
    def num_outputs(self) -> int:
        return self.inner.num_outputs

    @property
    def size_of_generated_code(self) -> int:
        return self._fact(lambda inner: inner.size_of_generated_code)

    @property
    def output_element_types(self) -> Sequence[ElementType]:
        return self._fact(lambda inner: inner.output_element_types)

    @property
    def output_shapes(self) -> Sequence[tuple[int, ...]]:
        return self._fact(lambda inner: inner.output_shapes)

    @property
    def output_memory_kinds(self) -> Sequence[str]:
        return self._fact(lambda inner: inner.output_memory_kinds)

    @property
    def parameter_memory_kinds(self) -> Sequence[str]:
        return self._fact(lambda inner: inner.parameter_memory_kinds)

    @property
    def parameter_specs(self) -> Sequence[ShapeSpec]:
        return self._fact(lambda inner: inner.parameter_specs)

    @property
    def parameter_names(self) -> Sequence[str]:
        return self._fact(lambda inner: inner.parameter_names)

    @property
    def output_layouts(self) -> Sequence[Layout]:
        return self._fact(lambda inner: inner.output_layouts)

    @property
    def parameter_layouts(self) -> Sequence[Layout]:
        return self._fact(lambda inner: inner.parameter_layouts)

    @property
    def output_shardings(self) -> Sequence[bytes] | None:
        return self._fact(lambda inner: inner.output_shardings)

    @property
    def parameter_shardings(self) -> Sequence[bytes] | None:
        return self._fact(lambda inner: inner.parameter_shardings)

    def cost_analysis(self) -> Mapping[str, float | int]:
        return self._fact(lambda inner: inner.cost_analysis())

    def memory_stats(self) -> CompiledMemoryStats:
        return self._fact(lambda inner: inner.memory_stats())

    def optimized_program(self) -> Program:
        return self._fact(lambda inner: inner.optimized_program())

    def serialize(self) -> bytes:
        with ThreadPoolExecutor(min(len(self.executables), _MOST_THREADS)) as threads:  # each waits for its member
            return packed(dict(threads.map(_serialized, self.executables)))

    def fingerprint(self) -> bytes:
        return self._fact(lambda inner: inner.fingerprint())

    def compile_options(self) -> CompileOptions:
        return self._fact(lambda inner: inner.compile_options())

    def abi_version(self) -> ExecutableAbiVersion:
        return self._fact(lambda inner: inner.abi_version())

    def metadata(self) -> bytes:
        return self._fact(lambda inner: inner.metadata())


def _serialized(place: tuple[Member, Executable]) -> tuple[int, bytes]:
    member, executable = place
    try:
        return member.process_index, executable.serialize()
    except PjrtError as error:
        member.fail(error)
