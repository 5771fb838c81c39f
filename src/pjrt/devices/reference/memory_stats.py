"""The memory that a run needs, from the types in the program and the lives of its values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from pjrt.api.executable import CompiledMemoryStats
from pjrt.devices.reference.core.block import Block
from pjrt.devices.reference.evaluator import Evaluator
from pjrt.stablehlo.types import FutureType, TensorType, TupleType, ValueType

_VIEWS = frozenset({"stablehlo.reshape", "stablehlo.transpose", "stablehlo.broadcast_in_dim", "stablehlo.broadcast"})
"""Ops with results that usually take no memory of their own."""


def memory_stats(evaluator: Evaluator, aliased: Iterable[int]) -> CompiledMemoryStats:
    """Return the memory of one run: arguments, results, constants, and the most that steps hold at one time.

    Args:
        evaluator: the program.
        aliased: the numbers of the arguments whose memory goes to a result.
    """
    block = evaluator.region.block
    arguments, outputs = size_of(evaluator.arguments), size_of(evaluator.results)
    peak = _peak(block) + arguments
    return CompiledMemoryStats(
        generated_code_size_in_bytes=_constants(block),
        argument_size_in_bytes=arguments,
        output_size_in_bytes=outputs,
        alias_size_in_bytes=size_of(evaluator.arguments[number] for number in aliased),
        temp_size_in_bytes=max(peak - arguments - outputs, 0),
        peak_memory_in_bytes=peak,
        total_size_in_bytes=max(peak, arguments + outputs),
    )


def size_of(types: Iterable[ValueType]) -> int:
    """Return the bytes of values of some types; sizes that are not static count as nothing."""
    total = 0
    for type_ in types:
        if isinstance(type_, TensorType):
            total += math.prod(type_.sizes) * type_.dtype.itemsize if type_.is_static else 0
        elif isinstance(type_, TupleType | FutureType):
            total += size_of(type_.elements)
    return total


def _peak(block: Block) -> int:
    """Return the most bytes that the steps of a block, and of those inside, hold at one time; without its arguments."""
    held: dict[int, int] = {}
    now = most = 0
    for step, (*_, dead) in zip(block.steps, block.code, strict=True):
        inside = max((_peak(inner) for inner in step.blocks), default=0)
        new = 0 if step.name in _VIEWS else size_of(step.output_types)
        most = max(most, now + max(inside, new))
        for slot, type_ in zip(step.outputs, step.output_types, strict=True):
            held[slot] = 0 if step.name in _VIEWS else size_of([type_])
        now += new - sum(held.pop(slot, 0) for slot in dead)
    return most


def _constants(block: Block) -> int:
    """Return the bytes of all constants of a block and those inside, which a compiled program keeps."""
    own = sum(_held(value) for value in block.template if isinstance(value, np.ndarray | np.generic))
    return own + sum(_constants(inner) for step in block.steps for inner in step.blocks)


def _held(array: np.ndarray[Any, Any] | np.generic[Any]) -> int:
    """Return the bytes of an array in memory, where elements that a view repeats are there once."""
    sizes = (size if stride else min(size, 1) for size, stride in zip(array.shape, array.strides, strict=True))
    return int(array.itemsize * math.prod(sizes))
