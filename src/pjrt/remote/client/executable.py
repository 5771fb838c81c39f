"""Executables of a server: compiled programs and the facts about them.

The protocol's messages do not have the types of a program's parameters and results on one device: they are made here.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pjrt import stablehlo
from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import PjrtError, UnimplementedError
from pjrt.api.executable import CompiledMemoryStats, Executable
from pjrt.api.program import Program, ProgramFormat
from pjrt.api.shape_spec import Layout, ShapeSpec, TiledLayout
from pjrt.remote.client.connection import Connection
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.programs import portable
from pjrt.remote.protocol.values import attributes_of, error_of, layout_of_xla_proto
from pjrt.remote.protocol.versions import (
    BATCHES,
    COST_ANALYSIS,
    PROGRAM_TEXT,
    SAVED_EXECUTABLES,
    load_request,
    saved_executable,
)
from pjrt.stablehlo.encodings.format import looks_like_hlo_text
from pjrt.stablehlo.facts.signatures import ArgumentInfo, ResultInfo, Signature, shape_spec
from pjrt.stablehlo.files.hlo_text import parse_hlo_text
from pjrt.stablehlo.ir.sharding import Sharding


@dataclass(frozen=True, slots=True)
class ValueType:
    """One parameter or result.

    Attributes:
        name: its name in the author's program; empty if unknown.
        memory_kind: the kind of memory that the program asks for; empty if it asks for none.
        whole: its type in the program; ``None`` if its shape is known only when the program runs.
        local: its type on one device; ``None`` as above.
        sharding: its sharding as a serialized ``xla.OpSharding``; ``None`` if it is not sharded.
    """

    name: str
    memory_kind: str
    whole: ShapeSpec | None
    local: ShapeSpec | None
    sharding: bytes | None


@dataclass(frozen=True, slots=True)
class ProgramTypes:
    """The parameters and results of a program."""

    parameters: tuple[ValueType, ...]
    results: tuple[ValueType, ...]


def program_types(
    program: Program,
    parameter_shardings: Sequence[bytes] | None,
    output_shardings: Sequence[bytes] | None,
    num_partitions: int,
) -> ProgramTypes:
    """Return the types of a program that a server has compiled, with the shardings that it reports."""
    signature = _signatures.of(program)
    return ProgramTypes(
        _values(signature.arguments, parameter_shardings, num_partitions),
        _values(signature.results, output_shardings, num_partitions),
    )


class _Signatures:
    """The signature of the last program: the clients of many servers may compile the same one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: tuple[weakref.ref[Program], Signature] | None = None

    def of(self, program: Program) -> Signature:
        with self._lock:
            if self._last is None or self._last[0]() is not program:
                self._last = weakref.ref(program), stablehlo.signature(program, trusted=True)
            return self._last[1]


_signatures = _Signatures()


def _values(
    infos: Sequence[ArgumentInfo | ResultInfo], shardings: Sequence[bytes] | None, num_partitions: int
) -> tuple[ValueType, ...]:
    protos: Sequence[bytes | None] = [None] * len(infos) if shardings is None else shardings
    return tuple(_value(info, proto, num_partitions) for info, proto in zip(infos, protos, strict=True))


def _value(info: ArgumentInfo | ResultInfo, proto: bytes | None, num_partitions: int) -> ValueType:
    whole = shape_spec(info.type)
    local = whole
    # Each device has a token, and an array of the shape of a value that one device has.
    is_token = whole is not None and whole.element_type is ElementType.TOKEN
    if proto is not None and (is_token or Sharding.is_maximal(proto)):
        proto = None
    if whole is not None and proto is not None:
        sharding = Sharding.from_proto(proto, num_partitions)
        local = ShapeSpec(sharding.shard_shape(whole.shape), whole.element_type)
    return ValueType(info.name, info.memory_kind, whole, local, proto)


def shares_values(program: Program) -> bool:
    """Whether the devices of a program exchange values, or compute different values by their numbers."""
    info = stablehlo.inspect(program, trusted=True)
    names = {operation.name for operation in info.operations}
    # A custom call may do anything.
    return bool(info.collectives or info.custom_calls or names & _BY_NUMBER)


_BY_NUMBER = frozenset(("stablehlo.replica_id", "stablehlo.partition_id", "stablehlo.send", "stablehlo.recv"))


class CompiledProgram:
    """A program that a server has compiled, shared by its executables. Its end releases the server's executable.

    Args:
        connection: the server's connection.
        platform_name: the server's platform.
        default_memory_kind: the default kind of memory of its devices.
        program: the program.
        options: the compile options.
        response: the server's answer to the compilation (``CompileResponse``).
        metadata: its facts about the executable (``LoadedExecutableMetadataResponse``).

    Attributes:
        handle: the executable's handle.
        types: the types of the parameters and results.
        donated: the numbers of the parameters whose buffers an execution uses up.
        optimized: the program after the compiler's optimizations; ``None`` if it was not asked for.
    """

    def __init__(
        self,
        connection: Connection,
        platform_name: str,
        default_memory_kind: str,
        program: Program,
        options: CompileOptions,
        response: Any,
        metadata: Any,
    ) -> None:
        self.connection = connection
        self.handle: int = response.loaded_executable_handle
        self.platform_name = platform_name
        self.default_memory_kind = default_memory_kind
        self.program = program
        self.options = options
        self.response = response
        self.metadata = metadata
        # Asked of the server once; frameworks read it several times for each program.
        self.optimized: Program | None = None
        self.types: ProgramTypes = program_types(
            program,
            self.shardings("parameter_shardings"),
            self.shardings("output_shardings"),
            options.partitioning.num_partitions,
        )
        self.donated = frozenset(metadata.donated_input_indices.donated_input_indices)

    def shardings(self, name: str) -> list[bytes] | None:
        """Return the shardings of the parameters or results; ``None`` if nothing is sharded."""
        return list(getattr(self.metadata, name).shardings) if self.metadata.HasField(name) else None

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Bound as a default, because the names of the module may be gone at the end of the interpreter.
        if hasattr(self, "handle") and not is_finalizing():
            self.connection.release(functools.partial(_destruct, self.connection, self.handle))


class RemoteExecutable(Executable):
    """A program that a server has compiled.

    Attributes:
        compiled: the program on the server.
    """

    __slots__ = ("compiled",)

    def __init__(self, compiled: CompiledProgram) -> None:
        self.compiled = compiled

    @property
    def platform_name(self) -> str:
        return self.compiled.platform_name

    @property
    def name(self) -> str:
        name: str = self.compiled.response.name
        return name

    @property
    def num_replicas(self) -> int:
        return self.compiled.options.partitioning.num_replicas

    @property
    def num_partitions(self) -> int:
        return self.compiled.options.partitioning.num_partitions

    @property
    def num_outputs(self) -> int:
        return len(self.compiled.types.results)

    @property
    def size_of_generated_code(self) -> int:
        size: int = self.compiled.metadata.size_of_generated_code_in_bytes
        return size

    @property
    def output_specs(self) -> Sequence[ShapeSpec]:
        return self._specs(self.compiled.types.results, "results")

    @property
    def output_memory_kinds(self) -> Sequence[str]:
        kinds = self.compiled.metadata.output_memory_kinds
        error = error_of(kinds.status)
        lists = kinds.memory_kind_lists
        if error is None and lists and len(lists[0].memory_kinds) == self.num_outputs:
            return [kind or self.compiled.default_memory_kind for kind in lists[0].memory_kinds]
        return [value.memory_kind or self.compiled.default_memory_kind for value in self.compiled.types.results]

    @property
    def parameter_memory_kinds(self) -> Sequence[str]:
        # The protocol does not report them: the program's, and the default kind where it asks for none.
        return [value.memory_kind or self.compiled.default_memory_kind for value in self.compiled.types.parameters]

    @property
    def parameter_specs(self) -> Sequence[ShapeSpec]:
        return self._specs(self.compiled.types.parameters, "parameters")

    @property
    def parameter_names(self) -> Sequence[str]:
        return [value.name for value in self.compiled.types.parameters]

    @property
    def output_layouts(self) -> Sequence[Layout]:
        return self._layouts("output_layouts", self.compiled.types.results, "results")

    @property
    def parameter_layouts(self) -> Sequence[Layout]:
        return self._layouts("parameter_layouts", self.compiled.types.parameters, "parameters")

    @property
    def output_shardings(self) -> Sequence[bytes] | None:
        return self.compiled.shardings("output_shardings")

    @property
    def parameter_shardings(self) -> Sequence[bytes] | None:
        return self.compiled.shardings("parameter_shardings")

    def cost_analysis(self) -> Mapping[str, float | int]:
        self.compiled.connection.check()
        self.compiled.connection.require_version(COST_ANALYSIS, "Executable.cost_analysis")
        request = wire.LoadedExecutableCostAnalysisRequest(loaded_executable_handle=self.compiled.handle)
        response = self.compiled.connection.call("loaded_executable_cost_analysis", request).result()
        _check(response.status)
        return {
            name: value
            for name, value in attributes_of(response.attributes).items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        }

    def memory_stats(self) -> CompiledMemoryStats:
        self.compiled.connection.check()
        if not self.compiled.metadata.HasField("compiled_memory_stats"):
            _check(self.compiled.metadata.compiled_memory_stats_error)
            raise UnimplementedError(f"the server did not report the memory that {self.name!r} needs")
        stats = self.compiled.metadata.compiled_memory_stats
        return CompiledMemoryStats(
            **{name: getattr(stats, name) for name in CompiledMemoryStats._fields if hasattr(stats, name)}
        )

    def optimized_program(self) -> Program:
        compiled = self.compiled
        if compiled.optimized is None:
            compiled.connection.check()
            compiled.optimized = _optimized(compiled.connection, compiled.handle)
        return compiled.optimized

    def serialize(self) -> bytes:
        compiled, serialized = self.compiled, b""
        compiled.connection.check()
        if compiled.connection.attributes.get(SAVED_EXECUTABLES) is True:
            request = wire.SerializeExecutableRequest(loaded_executable_handle=compiled.handle)
            response = compiled.connection.call("serialize_executable", request).result()
            serialized = response.serialized_executable
        program = portable(compiled.program, stablehlo.current_version())
        return saved_executable(load_request(program, compiled.options, serialized))

    def fingerprint(self) -> bytes:
        _check(self.compiled.response.fingerprint_error)
        fingerprint: bytes = self.compiled.response.fingerprint_value
        return fingerprint or super().fingerprint()

    def compile_options(self) -> CompileOptions:
        return self.compiled.options

    def _specs(self, values: Sequence[ValueType], title: str) -> list[ShapeSpec]:
        specs = [value.local for value in values]
        static = [spec for spec in specs if spec is not None]
        if len(static) != len(specs):
            raise UnimplementedError(
                f"expected {title} of static shapes, found {self.name!r}, some of which are known only when it runs; "
                "compile it with shapes=…"
            )
        return static

    def _layouts(self, name: str, values: Sequence[ValueType], title: str) -> list[Layout]:
        if self.compiled.metadata.HasField(f"{name}_list"):
            return [layout_of_xla_proto(proto) for proto in getattr(self.compiled.metadata, f"{name}_list").layouts]
        error = error_of(getattr(self.compiled.metadata, f"{name}_error"))
        if error is not None and not isinstance(error, UnimplementedError):
            raise error
        return [TiledLayout.row_major(len(spec.shape)) for spec in self._specs(values, title)]


def _optimized(connection: Connection, handle: int) -> Program:
    """Return the program after the compiler's optimizations."""
    if connection.attributes.get(BATCHES) is True:  # a server of this package, perhaps an older one
        with contextlib.suppress(UnimplementedError):
            request = wire.OptimizedProgramRequest(loaded_executable_handle=handle)
            response = connection.call("optimized_program", request).result()
            return Program(response.code, response.format)
    connection.require_version(PROGRAM_TEXT, "Executable.optimized_program")
    request = wire.LoadedExecutableHumanReadableProgramTextRequest(loaded_executable_handle=handle)
    response = connection.call("loaded_executable_human_readable_program_text", request).result()
    _check(response.status)
    code = response.human_readable_program_text.encode()
    return parse_hlo_text(code, trusted=True) if looks_like_hlo_text(code) else Program(code, ProgramFormat.MLIR)


def _check(status: Any) -> None:
    error: PjrtError | None = error_of(status)
    if error is not None:
        raise error


def _destruct(connection: Connection, handle: int) -> None:
    message = wire.LoadedExecutableDestructRequest(loaded_executable_handle=handle)
    connection.post("loaded_executable_destruct", message)
