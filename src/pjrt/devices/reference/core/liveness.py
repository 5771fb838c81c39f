"""From the steps of a block to the block: which slots die with which step."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from pjrt.devices.reference.core.block import Block, Kernel, Step, encode


@dataclasses.dataclass(frozen=True)
class Pending:
    """A step before it is known which slots die with it.

    Args:
        kernel: what computes it.
        step: the step as people read it.
        uses: the slots that it reads, those that its regions capture among them.
        environment: whether the kernel takes the environment.
        elementwise: whether the kernel works element by element.
        pure: whether it may run earlier than the program says.
    """

    kernel: Kernel
    step: Step
    uses: tuple[int, ...]
    environment: bool
    elementwise: bool
    pure: bool


def assemble(block: Block, pending: Sequence[Pending], constant: Collection[int]) -> Block:
    """The block with these steps; slots are emptied after their last use, but for constants and the outputs."""
    code, steps = [], []
    live = {*block.outputs, *constant}
    for item in reversed(pending):
        dead = tuple(sorted({slot for slot in item.uses + item.step.outputs if slot not in live}))
        live.update(item.uses, item.step.outputs)
        code.append(encode(item.kernel, item.step.inputs, item.step.outputs, dead, item.environment))
        steps.append(item.step)
    return dataclasses.replace(block, code=tuple(reversed(code)), steps=tuple(reversed(steps)))
