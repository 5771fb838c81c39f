"""Compiled programs: what a device author's ``compile`` gives back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.executable import CompiledMemoryStats
from pjrt.api.program import Program
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host_memory.layout import order_of_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A function that computes a program, and what its author likes to say about it.

    Only ``run`` is needed. Say ``outputs`` too wherever they are known: only then can an execution be enqueued without
    waiting for it, because the caller is given buffers of these types at once. Where they are not said, executing
    waits for the function to return.

    Attributes:
        run: the function: takes one read-only numpy array a parameter, gives one array, or a tuple or list of them.
            It runs on the device's thread and may block it. An exception becomes the error of the outputs. Tokens are
            ``None``, both ways.
        outputs: shape and element type of each result, and its layout if that is not row-major.
        parameters: shape and element type of each parameter; arguments are checked against them. A layout is what
            frameworks are told to give; arrays of every layout are taken.
        name: the program's name.
        takes_context: ``run`` takes an ``RunContext`` before the arrays: it says on which device and for which
            replica and partition it runs, and lets the devices of one launch meet.
        aliases: result number by parameter number: these parameters are donated, and their memory goes to that
            result. Their arrays arrive writable and are ``run``'s to overwrite and return.
        donated: further parameters that are donated; their arrays arrive writable too.
        output_memory_kinds: the kind of memory that each result goes to; the device's default if not said.
        parameter_memory_kinds: the kind of memory in which each parameter is expected; likewise.
        output_shardings: for each result a serialized ``xla.OpSharding``.
        parameter_shardings: for each parameter a serialized ``xla.OpSharding``.
        cost: what a run costs, by PJRT's keys such as ``flops``; a function is called when somebody asks.
        memory: what memory a run needs; a function is called when somebody asks. What the types tell is the default.
        optimized: the program as it was compiled; a function is called when somebody asks. The program as it came is
            the default.
        code_size: the bytes of generated code.
        serialize: gives the compiled program as bytes for the client's ``deserialize``; if not said, the program is
            kept and compiled again when it is loaded.
        fingerprint: bytes that are equal for equal executables; a hash of program, options and platform version if
            not said.
    """

    run: Callable[..., Any]
    outputs: Sequence[ShapeSpec] | None = None
    parameters: Sequence[ShapeSpec] | None = None
    name: str = "main"
    takes_context: bool = False
    aliases: Mapping[int, int] = field(default_factory=dict)
    donated: Collection[int] = ()
    output_memory_kinds: Sequence[str] | None = None
    parameter_memory_kinds: Sequence[str] | None = None
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
            order_of_spec(spec)  # a layout that host memory cannot have is an error now, not at each execution
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
    def of(made: Any) -> Compiled:
        """What ``compile`` gave, be it a bare function.

        Raises:
            InvalidArgumentError: it is neither a ``Compiled`` nor callable.
        """
        if isinstance(made, Compiled):
            return made
        if callable(made):
            return Compiled(run=made, name=getattr(made, "__name__", "main"))
        raise InvalidArgumentError(
            f"compile must return a function on arrays or a pjrt.host.Compiled, it returned {type(made).__name__}"
        )


CompileFunction = Callable[..., "Compiled | Callable[..., Any]"]
"""A device author's ``compile(program, options)``."""
