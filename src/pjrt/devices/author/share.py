"""The share of a program that an author's code runs, and the operations that the fallback runs."""

from __future__ import annotations

from pjrt.devices.author.code import PROGRAM_STRUCTURE, RunKernel
from pjrt.devices.author.kernels import INTERPRETER
from pjrt.devices.reference.core.block import Block, Step


def shares(block: Block) -> dict[str, float]:
    """Return the number of ``operations`` of a program, and of those that the fallback runs by ``fallback NAME``.

    An operation in a loop counts once, and the loop itself counts too; calls, and constants, do not.

    Args:
        block: the program as the interpreter compiled it.
    """
    counts: dict[str, float] = {"operations": 0.0}
    _add(block, counts)
    return counts


def _add(block: Block, counts: dict[str, float]) -> None:
    for step in block.steps:
        own = step.runner is not None and step.runner.device != INTERPRETER
        if step.name != "func.call":
            counts["operations"] += _operations(step)
            if not own:
                counts[f"fallback {step.name}"] = counts.get(f"fallback {step.name}", 0.0) + 1
        if step.name in PROGRAM_STRUCTURE:
            for inner in step.blocks:
                _add(inner, counts)


def _operations(step: Step) -> int:
    return step.runner.num_operations if isinstance(step.runner, RunKernel) else 1
