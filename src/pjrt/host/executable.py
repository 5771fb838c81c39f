"""The executables of the host runtime: what an author's ``compile`` declares, its errors, and serialization."""

from __future__ import annotations

import base64
import hashlib
import json
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, UnimplementedError, from_author
from pjrt.api.executable import CompiledMemoryStats, Executable, ExecutableAbiVersion, RuntimeAbiVersion
from pjrt.api.program import Program
from pjrt.api.shape_spec import Layout, ShapeSpec, TiledLayout
from pjrt.host_memory.array import array_dtype, order_of_spec

if TYPE_CHECKING:
    from pjrt.host.device import HostDevice


def without_traceback(error: BaseException) -> PjrtError:
    """Return an exception of a device's code as a ``PjrtError`` that keeps no frames alive.

    A traceback holds the frames, and those hold the arrays they worked on: memory of the device, for as long as
    the error is kept. So the traceback is kept as text, in a note that Python prints with the error; the message
    has the place where the exception was raised.
    """
    wrapped = from_author(error)
    trace = error.__traceback__
    if trace is not None:
        # Without the frame that called the device's code, unless there is no other.
        text = "".join(traceback.format_exception(type(error), error, trace.tb_next or trace))
        del trace
        if not getattr(wrapped, "__notes__", None):
            wrapped.add_note("in the device:\n" + text)
        _drop_frames(error)
        wrapped.__traceback__ = None
    return wrapped


def _drop_frames(error: BaseException | None) -> None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        _drop_frames_of_context(error.__context__, seen)
        error = error.__cause__


def _drop_frames_of_context(error: BaseException | None, seen: set[int]) -> None:
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


# Compiled programs: the declarations of a device author about a function that computes a program.

ParticipantsFunction = Callable[[tuple[int, int], int, int], Iterable[Sequence[tuple[int, int]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A function that computes a program, and its author's declarations.

    Only ``run`` is required. Declare ``outputs`` too whenever they are known: only then can an execution be enqueued
    without waiting for it, because the caller gets buffers of these types at once. Otherwise the call that executes the
    program waits until the function has returned.

    Attributes:
        run: the function: takes one read-only numpy array a parameter, returns one array, or a tuple or list of them.
            It runs on the device's thread and may block it. An exception becomes the error of the outputs. Tokens are
            ``None``, as arguments and as results.
        outputs: shape and element type of each result, and its layout if that is not row-major. In memory of the
            device's own, a layout is one that ``Memory.layout`` gives; without tiles it is completed.
        parameters: shape and element type of each parameter; arguments are checked against them. Frameworks are asked
            for the layouts. Arrays of every layout are accepted, but for memory of the device's own: there arguments
            must have the order of dimensions that is declared.
        parameter_names: the name of each parameter, for calls with keywords, empty where it is unknown; or a function,
            which is called at the first use.
        name: the program's name.
        takes_context: whether ``run`` takes a ``RunContext`` before the arrays. It has the device, the replica and the
            partition of the run, and lets the devices of one launch meet.
        takes_rows: on a device with memory of its own, ``run`` takes and returns arrays whose dimensions are in rows,
            in the memory's tiles. The runtime copies those that the program's caller has, or wants, in another order.
        takes_allocations: on a device with memory of its own, ``run`` takes ``pjrt.host.Allocation``s instead of bare
            handles: the handle with its type, which can be read and copied.
        participants: a function that returns the participants of each collective of a replica and partition, given
            its ``(replica, partition)`` and the numbers of both. A program is refused where they are in processes that
            cannot exchange values; without the function, it fails when they are about to meet.
        runs_on_caller: whether ``run`` may be called on the thread that executes the program, where the arguments are
            ready and the device is idle: handing a call over to the device's thread takes 20 µs. By default the runtime
            measures: functions without a context whose runs take less than 50 µs are called there, one at a time.
            ``True`` is for functions that always return at once, and may be called by several threads at a time;
            ``False`` for those that need the device's thread.
        aliases: result number by parameter number: these parameters are donated, and the result takes over their
            memory. Their arrays are writable: ``run`` may overwrite and return them.
        donated: further parameters that are donated; their arrays are writable too.
        output_memory_kinds: the kind of memory of each result; ``None`` is the device's default.
        parameter_memory_kinds: the expected kind of memory of each parameter; ``None`` is the device's default.
        output_shardings: for each result a serialized ``xla.OpSharding``.
        parameter_shardings: for each parameter a serialized ``xla.OpSharding``.
        cost: the cost of a run, by PJRT's keys such as ``flops``; or a function, which is called on demand.
        memory: the memory that a run needs, or a function, which is called on demand; computed from the types by
            default.
        optimized: the program after the compiler's optimizations, or a function, which is called on demand; the
            original program by default.
        code_size: the bytes of generated code.
        serialize: a function that returns the compiled program as bytes for the client's ``deserialize``; by default
            the program is serialized, and compiled again when it is loaded.
        fingerprint: bytes that are equal for equal executables; by default a hash of program, options and platform
            version.
    """

    run: Callable[..., Any]
    outputs: Sequence[ShapeSpec] | None = None
    parameters: Sequence[ShapeSpec] | None = None
    parameter_names: Sequence[str] | Callable[[], Sequence[str]] | None = None
    name: str = "main"
    takes_context: bool = False
    takes_allocations: bool = False
    takes_rows: bool = False
    participants: ParticipantsFunction | None = None
    runs_on_caller: bool | None = None
    aliases: Mapping[int, int] = field(default_factory=dict)
    donated: Collection[int] = ()
    output_memory_kinds: Sequence[str | None] | None = None
    parameter_memory_kinds: Sequence[str | None] | None = None
    output_shardings: Sequence[bytes] | None = None
    parameter_shardings: Sequence[bytes] | None = None
    cost: Mapping[str, float | int] | Callable[[], Mapping[str, float | int]] | None = None
    memory: CompiledMemoryStats | Callable[[], CompiledMemoryStats] | None = None
    optimized: Program | Callable[[], Program] | None = None
    code_size: int = 0
    serialize: Callable[[], bytes] | None = None
    fingerprint: bytes | None = None

    def __post_init__(self) -> None:
        if not callable(self.run):
            raise InvalidArgumentError(f"Compiled.run must be a function on arrays, found {type(self.run).__name__}")
        for spec in (*(self.outputs or ()), *(self.parameters or ())):
            order_of_spec(untiled(spec))  # A layout of another rank is an error now, not at each execution.
        for parameter, output in self.aliases.items():
            self._check_number("parameter", parameter, self.parameters)
            self._check_number("output", output, self.outputs)
        for parameter in self.donated:
            self._check_number("parameter", parameter, self.parameters)
        if len(set(self.aliases.values())) != len(self.aliases):
            raise InvalidArgumentError(
                f"an output can alias one parameter only, found the aliases {dict(self.aliases)}"
            )

    @staticmethod
    def _check_number(what: str, number: int, declared: Sequence[ShapeSpec] | None) -> None:
        if number < 0 or (declared is not None and number >= len(declared)):
            count = "any number" if declared is None else str(len(declared))
            raise InvalidArgumentError(f"the program has {count} of {what}s, but donation names {what} {number}")

    @staticmethod
    def of(compiled: Any) -> Compiled:
        """Return a value that ``compile`` returned, which may be a bare function, as a ``Compiled``.

        Raises:
            InvalidArgumentError: the value is neither a ``Compiled`` nor callable.
        """
        if isinstance(compiled, Compiled):
            return compiled
        if callable(compiled):
            return Compiled(run=compiled, name=getattr(compiled, "__name__", "main"))
        raise InvalidArgumentError(
            f"compile must return a function on arrays or a pjrt.host.Compiled, it returned {type(compiled).__name__}"
        )


CompileFunction = Callable[..., "Compiled | Callable[..., Any]"]
"""A device author's ``compile(program, options)``."""


# Serialized executables: a header, the program, and the author's own serialization.

_MAGIC = b"pjrt.host executable 1\n"


def pack(origin: Origin, payload: bytes | None) -> bytes:
    """Return an executable as bytes.

    Args:
        origin: its program and options.
        payload: the author's own serialization, if there is one.
    """
    header = {
        "platform": origin.platform_name,
        "version": origin.platform_version,
        "format": str(origin.program.format),
        "options": base64.b64encode(origin.options.to_proto()).decode(),
        "program_size": len(origin.program.code),
        "payload_size": None if payload is None else len(payload),
    }
    line = json.dumps(header, sort_keys=True).encode() + b"\n"
    return _MAGIC + line + origin.program.code + (payload or b"")


def unpack(serialized: bytes, platform_name: str) -> tuple[Program, CompileOptions, bytes | None]:
    """Return the program, the options and the payload in the bytes of ``pack``.

    Raises:
        InvalidArgumentError: the bytes are damaged or incomplete, or for another platform.
    """
    if not serialized.startswith(_MAGIC):
        raise InvalidArgumentError(
            f"expected an executable serialized by '{platform_name}', found {len(serialized)} bytes that begin with "
            f"{serialized[:16]!r}"
        )
    line, _, body = serialized[len(_MAGIC) :].partition(b"\n")
    try:
        header: dict[str, Any] = json.loads(line)
        platform, size, payload_size = header["platform"], int(header["program_size"]), header["payload_size"]
        extra = None if payload_size is None else int(payload_size)
        options = CompileOptions.from_proto(base64.b64decode(header["options"]))
        program_format = str(header["format"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(f"the header of the serialized executable is damaged: {error}") from error
    if platform != platform_name:
        raise InvalidArgumentError(f"the serialized executable is for '{platform}', this is '{platform_name}'")
    if size < 0 or (extra or 0) < 0 or len(body) != size + (extra or 0):
        raise InvalidArgumentError(
            f"the serialized executable is incomplete: expected {size + (extra or 0)} bytes after its header, found "
            f"{len(body)}"
        )
    return Program(body[:size], program_format), options, None if extra is None else body[size:]


# ABI versions of host platforms: an executable runs only on the version that compiled it.


class _PlatformVersion:
    def __init__(self, platform_name: str, platform_version: str) -> None:
        self._name = platform_name
        self._version = platform_version

    @property
    def platform_id(self) -> int:
        """A number that is the same for versions of the same platform."""
        return int.from_bytes(hashlib.sha256(self._name.encode()).digest()[:8], "little")

    def to_proto(self) -> bytes:
        """Return name and version as bytes."""
        return json.dumps({"platform": self._name, "version": self._version}).encode()


class HostRuntimeAbiVersion(_PlatformVersion, RuntimeAbiVersion):
    """The version of a host client."""

    def check_compatible_with(self, other: RuntimeAbiVersion | ExecutableAbiVersion) -> None:
        if other.platform_id == self.platform_id and other.to_proto() == self.to_proto():
            return
        raise FailedPreconditionError(
            f"the runtime is {self.to_proto().decode()}, what is to run on it was made for "
            f"{other.to_proto().decode(errors='replace')}; compile it again"
        )


class HostExecutableAbiVersion(_PlatformVersion, ExecutableAbiVersion):
    """The version of the platform that an executable was compiled for."""


# The executables of the host runtime: compiled programs and their facts.


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
    def size_of_generated_code(self) -> int:
        return self.compiled.code_size

    @property
    def output_specs(self) -> Sequence[ShapeSpec]:
        return self._declared("output_specs", self.compiled.outputs)

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


class LaidOutExecutable(HostExecutable):
    """A compiled program for a device whose memory says how it lays out arrays, and how many bytes they take."""

    __slots__ = ()

    @property
    def home(self) -> HostDevice:
        """The device, or one of several that are equal."""
        raise NotImplementedError

    @property
    def output_layouts(self) -> Sequence[Layout]:
        return self._layouts_in(self.output_specs, self.output_memory_kinds)

    @property
    def parameter_layouts(self) -> Sequence[Layout]:
        return self._layouts_in(self.parameter_specs, self.parameter_memory_kinds)

    def memory_stats(self) -> CompiledMemoryStats:
        stats, compiled, home = super().memory_stats(), self.compiled, self.home
        is_counted = compiled.memory is None or compiled.takes_allocations  # by the types, not by the author
        if not is_counted or not home.memory_spaces[0].has_layouts or None in (compiled.parameters, compiled.outputs):
            return stats
        parameters, outputs = (
            [home.memory_space(kind).size_of(spec) for spec, kind in zip(specs, kinds, strict=True)]
            for specs, kinds in (
                (self.parameter_specs, self.parameter_memory_kinds),
                (self.output_specs, self.output_memory_kinds),
            )
        )
        return with_sizes(stats, compiled, parameters, outputs)

    def _layouts_in(self, specs: Sequence[ShapeSpec], kinds: Sequence[str]) -> list[Layout]:
        return [
            self.home.memory_space(kind).layout(spec) or TiledLayout.row_major(len(spec.shape))
            for spec, kind in zip(specs, kinds, strict=True)
        ]


class TopologyExecutable(LaidOutExecutable):
    """A program that was compiled for described devices with such a memory, and is loaded nowhere."""

    __slots__ = ("home",)

    home: HostDevice

    def __init__(self, compiled: Compiled, origin: Origin, home: HostDevice) -> None:
        super().__init__(compiled, origin)
        self.home = home


def _layouts(specs: Sequence[ShapeSpec]) -> list[Layout]:
    return [TiledLayout(order_of_spec(untiled(spec))[::-1]) for spec in specs]


def untiled(spec: ShapeSpec) -> ShapeSpec:
    """Return a spec with the order of its layout alone."""
    if isinstance(spec.layout, TiledLayout) and (spec.layout.tiles or spec.layout.element_bits):
        return replace(spec, layout=TiledLayout(spec.layout.minor_to_major))
    return spec


def size_of(spec: ShapeSpec) -> int:
    """Return the number of bytes of an array in host memory."""
    return 0 if spec.element_type is ElementType.TOKEN else spec.size * array_dtype(spec.element_type).itemsize


def _memory_by_types(compiled: Compiled) -> CompiledMemoryStats:
    stats = CompiledMemoryStats(generated_code_size_in_bytes=compiled.code_size)
    return with_sizes(
        stats,
        compiled,
        [size_of(spec) for spec in compiled.parameters or ()],
        list(map(size_of, compiled.outputs or ())),
    )


def with_sizes(
    stats: CompiledMemoryStats, compiled: Compiled, parameters: Sequence[int], outputs: Sequence[int]
) -> CompiledMemoryStats:
    """Return the memory that a run needs, with these sizes of its arguments and results in place of those it had."""
    aliased = sum(outputs[output] for output in compiled.aliases.values()) if outputs else 0
    known = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    more = sum(parameters) + sum(outputs) - aliased - known
    return stats._replace(
        argument_size_in_bytes=sum(parameters),
        output_size_in_bytes=sum(outputs),
        alias_size_in_bytes=aliased,
        peak_memory_in_bytes=stats.peak_memory_in_bytes + more,
        total_size_in_bytes=stats.total_size_in_bytes + more,
    )
