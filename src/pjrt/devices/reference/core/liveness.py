"""Liveness: the slots that no later step reads, which a step therefore empties."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

from pjrt.devices.reference.core.block import Block, Kernel, Step, encode
from pjrt.stablehlo.operation import Operation, Value


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
