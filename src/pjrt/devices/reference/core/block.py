"""Blocks: functions and regions, compiled; their values, the loop that runs them, and the context of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from pjrt.api.errors import PjrtError, from_author, in_operation
from pjrt.stablehlo.ir.operation import Operation, Value
from pjrt.stablehlo.ir.types import FutureType, OpaqueType, TupleType, ValueType


@dataclass
class Context:
    """One run of a program on one device; shared by all its blocks.

    Args:
        loop: runs a block's steps (``run_fast``, or a loop that ``observers.loop_for`` returns).
        replica_id, partition_id: the device's place.
        num_replicas, num_partitions: how many there are of each.
        host: the host runtime's ``pjrt.host.RunContext``: rendezvous with the other devices of the launch,
            channels to the host, infeed and outfeed; None where the program runs without a client.
        values: values that ops keep during the run, by a key of their module.
    """

    loop: Callable[[Any, list[Any]], None]
    replica_id: int = 0
    partition_id: int = 0
    num_replicas: int = 1
    num_partitions: int = 1
    host: Any = None
    values: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(loop: Callable[[Any, list[Any]], None], host: Any) -> Context:
        """Return the context of a run that a client began, from its ``pjrt.host.RunContext``."""
        assignment = host.device_assignment
        return Context(
            loop, host.replica_id, host.partition_id, assignment.num_replicas, assignment.num_partitions, host
        )


# A block's values live in numbered slots. A step is a kernel with the slots that it reads, the slots that it writes and
# the slots that no later step reads. These are emptied at once, so that memory is returned as early as possible.

Kernel = Callable[..., Any]
"""A function that computes an op when the program runs: arrays in; an array out, or a sequence of as many values as the
op has results.
"""

Environment = list[Any]
"""The slots of the block that a step runs in. Slot 0 is the ``Context`` (``context_of``). Ops do not read the others:
they pass the environment on to regions.
"""

CONTEXT_SLOT = 0


INTERPRETER = "reference"
"""The device that computes what a device's author does not."""


class Runner(Protocol):
    """A kernel of a device's author."""

    @property
    def device(self) -> str:
        """The device that computed the step: that of the author, or ``reference`` if the author declined."""


class Step(NamedTuple):
    """One step in human-readable form: for traces, profiles and breakpoints.

    ``blocks`` are the regions and functions that it runs. ``runner`` knows the device whose author computes the step;
    None where the interpreter computes it.
    """

    name: str
    location: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_types: tuple[ValueType, ...]
    output_types: tuple[ValueType, ...]
    blocks: tuple[Block, ...] = ()
    runner: Runner | None = None

    def __str__(self) -> str:
        inputs, outputs = ", ".join(map(str, self.input_types)), ", ".join(map(str, self.output_types))
        return f"{self.name} ({inputs}) -> ({outputs}) [{self.location}]"


Code = tuple[Kernel, int, Any, Any, Any, tuple[int, ...]]
"""One step as the loop reads it: kernel, kind, two operands whose meaning depends on the kind, the slot or slots of the
result, dead slots.
"""

_GATHERED, _UNARY, _BINARY = 0, 1, 2


@dataclass(frozen=True)
class Block:
    """A compiled function or region.

    Args:
        name: the function's name, or that of the op with this region.
        arguments, results: the types in and out.
        template: the slots at the start of a run: constants in place, None elsewhere.
        code, steps: the same list twice, for the loop and for traces.
        outputs: the slots of the results.
        captures: pairs (slot outside, slot inside) of values used from the block around this one.
    """

    name: str
    arguments: tuple[ValueType, ...]
    results: tuple[ValueType, ...]
    template: list[Any]
    code: tuple[Code, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    captures: tuple[tuple[int, int], ...]

    def run(self, environment: Environment, args: Sequence[Any]) -> list[Any]:
        """Return the results for these arguments; captured values and the context come from the environment around."""
        return self.consume(environment, list(args))

    def consume(self, environment: Environment, args: list[Any]) -> list[Any]:
        """Do as ``run``, and empty the list of arguments.

        Then only the block holds them: their memory is released, or updated in place, as early as possible.
        """
        slots = self.template.copy()
        context = slots[0] = environment[0]
        slots[1 : 1 + len(args)] = args
        args.clear()
        for outside, inside in self.captures:
            slots[inside] = environment[outside]
        context.loop(self, slots)
        return [slots[i] for i in self.outputs]


def context_of(environment: Environment) -> Context:
    """Return the run that a step belongs to: device, replica and partition, collectives, infeed and outfeed."""
    context: Context = environment[CONTEXT_SLOT]
    return context


def run_fast(block: Block, slots: Environment) -> None:
    """Run the steps of a block. Traces, profiles and breakpoints have another loop, in ``observers``."""
    code: Code | None = None
    # The steps of most programs take a few µs: whatever is added to this loop is felt.
    try:
        for code in block.code:
            kernel, kind, a, b, out, dead = code
            if kind == 2:
                value = kernel(slots[a], slots[b])
            elif kind == 1:
                value = kernel(slots[a])
            else:
                value = kernel(*a(slots))
            if out.__class__ is int:
                slots[out] = value
            else:
                for slot, item in zip(out, value, strict=True):
                    slots[slot] = item
            for slot in dead:
                slots[slot] = None
    except Exception as error:
        raise located(error, block, code) from error


def located(error: Exception, block: Block, code: Code | None) -> PjrtError:
    """Return the error of a step with the step's op, types and place in its message; the innermost step wins."""
    if code is None:
        return from_author(error)
    step = next(step for step, other in zip(block.steps, block.code, strict=True) if other is code)
    return in_operation(error, str(step))


def one_or_all(values: Sequence[Any]) -> Any:
    """Return the value of a list of one, else the list: kernels return their results so."""
    return values[0] if len(values) == 1 else values


def encode(
    kernel: Kernel, inputs: tuple[int, ...], outputs: tuple[int, ...], dead: tuple[int, ...], environment: bool
) -> Code:
    """Return a step in the form that the loop reads."""
    out: Any = outputs[0] if len(outputs) == 1 else outputs
    if not outputs:
        kernel = _without_result(kernel)
    if environment:
        return kernel, _GATHERED, _with_environment(inputs), None, out, dead
    if len(inputs) == 2:
        return kernel, _BINARY, inputs[0], inputs[1], out, dead
    if len(inputs) == 1:
        return kernel, _UNARY, inputs[0], None, out, dead
    return kernel, _GATHERED, _gather(inputs), None, out, dead


def _gather(inputs: tuple[int, ...]) -> Callable[[Environment], Sequence[Any]]:
    if len(inputs) >= 2:
        return itemgetter(*inputs)
    return lambda slots: [slots[i] for i in inputs]


def _with_environment(inputs: tuple[int, ...]) -> Callable[[Environment], Sequence[Any]]:
    return lambda slots: (slots, *[slots[i] for i in inputs])


def _without_result(kernel: Kernel) -> Kernel:
    def run(*args: Any) -> tuple[()]:
        kernel(*args)
        return ()

    return run


@dataclasses.dataclass(frozen=True)
class Pending:
    """A step whose dead slots are not known yet.

    Args:
        kernel: computes it.
        step: the step in human-readable form.
        uses: the slots that it reads, those that its regions capture among them.
        environment: whether the kernel takes the environment.
        elementwise: whether the kernel works element by element.
        pure: whether it may run earlier than in the program.
        operation: the operation, where the author of a device may compute it.
        captured: the values that regions of the operation take from outside, by their slots; constants are among them.
    """

    kernel: Kernel
    step: Step
    uses: tuple[int, ...]
    environment: bool
    elementwise: bool
    pure: bool
    operation: Operation | None = None
    captured: Mapping[int, Value] = dataclasses.field(default_factory=dict)


def assemble(block: Block, pending: Sequence[Pending], constant: Collection[int]) -> Block:
    """Return the block with these steps; slots are emptied after their last use, except constants and the outputs."""
    code, steps = [], []
    live = {*block.outputs, *constant}
    for item in reversed(pending):
        dead = tuple(sorted({slot for slot in item.uses + item.step.outputs if slot not in live}))
        live.update(item.uses, item.step.outputs)
        code.append(encode(item.kernel, item.step.inputs, item.step.outputs, dead, item.environment))
        steps.append(item.step)
    return dataclasses.replace(block, code=tuple(reversed(code)), steps=tuple(reversed(steps)))


# Types are read from MLIR when a program is compiled, so that no MLIR object is alive (or needs a lock) while it runs.

EXPECTED = "expected ranked tensors of StableHLO's element types, tuples or tokens"
"""The first half of the message of errors about other types."""


class _Token:
    def __repr__(self) -> str:
        return "TOKEN"


TOKEN = _Token()
"""The one value of type ``TokenType``."""


def unknown_type(types: Iterable[ValueType]) -> OpaqueType | None:
    """Return the first of the types, or of their elements, that this device does not compute with; None if all are
    supported.
    """
    for type_ in types:
        if isinstance(type_, OpaqueType):
            return type_
        if isinstance(type_, TupleType | FutureType) and (inner := unknown_type(type_.elements)) is not None:
            return inner
    return None


def leaves(types: Iterable[ValueType]) -> Iterator[ValueType]:
    """Return the types with tuples taken apart: PJRT, and what is outside of the program, have their elements one by
    one.
    """
    for type_ in types:
        if isinstance(type_, TupleType):
            yield from leaves(type_.elements)
        else:
            yield type_


def unpacked(values: Iterable[Any]) -> Iterator[Any]:
    """Return values with tuples taken apart."""
    for value in values:
        if isinstance(value, tuple):
            yield from unpacked(value)
        else:
            yield value


def packed(types: Sequence[ValueType], values: Iterator[Any]) -> list[Any]:
    """Return values of some types, put together from their leaves."""
    return [tuple(packed(t.elements, values)) if isinstance(t, TupleType) else next(values) for t in types]
