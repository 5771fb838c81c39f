"""Compiled programs: the declarations of a device author about a function that computes a program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.executable import CompiledMemoryStats
from pjrt.api.program import Program
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host_memory.array import order_of_spec

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
        outputs: shape and element type of each result, and its layout if that is not row-major.
        parameters: shape and element type of each parameter; arguments are checked against them. Frameworks are asked
            for the layouts; arrays of every layout are accepted.
        parameter_names: the name of each parameter, for calls with keywords, empty where it is unknown; or a function,
            which is called at the first use.
        name: the program's name.
        takes_context: whether ``run`` takes a ``RunContext`` before the arrays. It has the device, the replica and the
            partition of the run, and lets the devices of one launch meet.
        takes_allocations: on a device with memory of its own, ``run`` takes ``pjrt.host.Allocation``s instead of bare
            handles: the handle with its type, which can be read and copied.
        participants: a function that returns the participants of each collective of a replica and partition, given
            its ``(replica, partition)`` and the numbers of both. A program is refused where they are in processes that
            cannot exchange values; without the function, it fails when they are about to meet.
        runs_on_caller: whether ``run`` may be called on the thread that executes the program, where the arguments are
            ready and the device is idle, and then by several threads at a time. It is for functions that return at
            once: handing one over to the device's thread takes 20 µs.
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
    participants: ParticipantsFunction | None = None
    runs_on_caller: bool = False
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
            order_of_spec(spec)  # A layout that host memory cannot have is an error now, not at each execution.
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
