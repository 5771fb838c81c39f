"""Runs of operations that an author's compiler takes whole: which ones, and each as a program of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from pjrt.devices.reference.core.block import Block, Step
from pjrt.devices.reference.core.liveness import Pending, assemble
from pjrt.stablehlo.location import Location
from pjrt.stablehlo.operation import Block as Body
from pjrt.stablehlo.operation import Function, Operation, ParsedProgram, Value
from pjrt.stablehlo.types import FunctionType, TensorType, ValueType


class OperationRun(NamedTuple):
    """Operations that run one after the other, as a program.

    Attributes:
        program: the program: one function, whose results are those that the rest of the block needs.
        inputs: the slots of its arguments.
        step: the run as a step, but for its kernel.
        pending: the steps that it is made of.
    """

    program: ParsedProgram
    inputs: tuple[int, ...]
    step: Step
    pending: tuple[Pending, ...]


class Split(NamedTuple):
    """The steps of a block, cut around one run: those before it, those of it, and those after it."""

    before: list[Pending]
    run: list[Pending]
    after: list[Pending]


def split(pending: Sequence[Pending], accepts: Callable[[Pending], bool], longest: int | None = None) -> Split:
    """Return the first run of steps that the author accepts, as large as the order of the steps allows.

    A step that the author does not accept, and that does not need a result of the run, moves in front of it. A step
    that needs one moves behind it, and so do the steps that need that one's results. Steps with effects keep their
    order.
    """
    before: list[Pending] = []
    run: list[Pending] = []
    after: list[Pending] = []
    produced: set[int] = set()
    later: set[int] = set()
    effects_later = False
    for number, item in enumerate(pending):
        if longest is not None and len(run) >= longest:
            after.extend(pending[number:])
            break
        # What a region of the run captures comes from the block around, so it must be there when the run begins.
        if later.isdisjoint(item.uses) and produced.isdisjoint(item.captured) and accepts(item):
            run.append(item)
            produced.update(item.step.outputs)
        elif later.isdisjoint(item.uses) and produced.isdisjoint(item.uses) and (item.pure or not effects_later):
            before.append(item)
        else:
            after.append(item)
            later.update(item.step.outputs)
            effects_later = effects_later or not item.pure
    return Split(before, run, after)


def operation_run(
    name: str,
    device: str,
    run: Sequence[Pending],
    needed: Collection[int],
    template: Sequence[Any],
    constant: Collection[int],
    accepts: Callable[[Operation], bool],
) -> OperationRun:
    """Return a run of steps as a program.

    Args:
        name: the name of the program's function.
        device: the name of the author's device.
        run: the steps; each has its ``operation``.
        needed: the slots that the rest of the block reads.
        template: the values in the slots of constants.
        constant: the slots of constants.
        accepts: whether a constant becomes an operation of the program; otherwise it is an argument.
    """
    types = {slot: type_ for item in run for slot, type_ in zip(item.step.inputs, item.step.input_types, strict=True)}
    types |= {s: type_ for item in run for s, type_ in zip(item.step.outputs, item.step.output_types, strict=True)}
    types |= {slot: value.type for item in run for slot, value in item.captured.items()}
    produced = {slot for item in run for slot in item.step.outputs}
    used = (slot for item in run for slot in (*item.step.inputs, *item.captured))
    read = list(dict.fromkeys(slot for slot in used if slot not in produced))
    constants = {slot: _constant(types[slot], template[slot]) for slot in read if slot in constant}
    inside = {slot: operation for slot, operation in constants.items() if accepts(operation)}
    inputs = tuple(slot for slot in read if slot not in inside)
    outputs = tuple(slot for item in run for slot in item.step.outputs if slot in needed)
    program = _program(name, run, inputs, inside, outputs, types)
    if len(run) == 1:  # its costs are those of the operation
        name_of_step, blocks, flops = run[0].step.name, run[0].step.blocks, run[0].step.flops
    else:
        block = Block(name, (), (), [], (), (), outputs, ())
        name_of_step, blocks, flops = f"{len(run)} operations of {device}", (assemble(block, run, constant),), 0.0
    step = Step(
        name=name_of_step,
        location=run[-1].step.location,
        inputs=inputs,
        outputs=outputs,
        input_types=tuple(types[slot] for slot in inputs),
        output_types=tuple(types[slot] for slot in outputs),
        blocks=blocks,
        flops=flops,
    )
    return OperationRun(program, inputs, step, tuple(run))


def _program(
    name: str,
    run: Sequence[Pending],
    inputs: Sequence[int],
    constants: Mapping[int, Operation],
    outputs: Sequence[int],
    types: Mapping[int, ValueType],
) -> ParsedProgram:
    body = Body()
    values = {slot: Value(types[slot], f"%arg{number}", body, number) for number, slot in enumerate(inputs)}
    operations: list[Operation] = []

    def add(operation: Operation, slots: Sequence[int]) -> None:
        prefix = f"%{len(operations)}"
        operation.results = tuple(
            Value(types[slot], f"{prefix}#{index}" if len(slots) > 1 else prefix, operation, index)
            for index, slot in enumerate(slots)
        )
        values.update(zip(slots, operation.results, strict=True))
        operations.append(operation)

    for slot, operation in constants.items():
        add(operation, [slot])
    for item in run:
        source = item.operation
        assert source is not None  # only such steps are taken
        operands = tuple(values[slot] for slot in item.step.inputs)
        # A region may take the operation's own operands from outside, too.
        names = dict(zip(map(id, source.operands), operands, strict=True))
        names.update((id(value), values[slot]) for slot, value in item.captured.items())
        regions = tuple(region.renamed(names) for region in source.regions)
        add(Operation(source.name, operands, source.attributes, source.location, (), regions), item.step.outputs)
    location = operations[-1].location
    operations.append(Operation("func.return", tuple(values[slot] for slot in outputs), {}, location))
    body.arguments = tuple(values[slot] for slot in inputs)
    body.operations = tuple(operations)
    type_ = FunctionType(tuple(types[slot] for slot in inputs), tuple(types[slot] for slot in outputs))
    attributes: tuple[dict[str, Any], ...] = ({},)
    function = Function(
        name, type_, True, ("",) * len(inputs), attributes * len(inputs), attributes * len(outputs), body, location
    )
    return ParsedProgram(name, {name: function}, {})


def _constant(type_: ValueType, value: Any) -> Operation:
    operation = Operation("stablehlo.constant", (), {"value": value}, Location("unknown"))
    operation.results = (Value(type_, "%0", operation, 0),)
    return operation


def with_constants(pending: Pending, template: Sequence[Any], constant: Collection[int]) -> Operation:
    """Return the operation of a step; operands that are constants have their constant as ``owner``, as in a program.

    Args:
        pending: the step; it has its ``operation``.
        template: the values in the slots of constants.
        constant: the slots of constants.
    """
    operation, step = pending.operation, pending.step
    assert operation is not None
    if not any(slot in constant for slot in step.inputs):
        return operation
    operands = tuple(
        _constant(type_, template[slot]).results[0] if slot in constant else operand
        for slot, type_, operand in zip(step.inputs, step.input_types, operation.operands, strict=True)
    )
    return dataclasses.replace(operation, operands=operands)


def is_whole(pending: Pending) -> bool:
    """Whether a step can be part of a run: its operation is known and has no effects, and all its types are static."""
    step = pending.step
    captured = (value.type for value in pending.captured.values())
    return (
        pending.operation is not None
        and pending.pure
        and all(isinstance(t, TensorType) and t.is_static for t in (*step.input_types, *step.output_types, *captured))
    )
