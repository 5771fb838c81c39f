"""Faster kernels of single ops: their registry, updates in place, and choices without a branch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.devices.reference.core.block import Block, Code, Environment, Kernel, Step, encode, run_fast
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.reducers import Reducer
from pjrt.devices.reference.ops.data_movement import Window
from pjrt.devices.reference.ops.gathering import static_scatter
from pjrt.devices.reference.ops.windows import select_and_scatter_with
from pjrt.host_memory import references

FasterCompile = Callable[[OpView], Kernel | None]
"""A function that returns a faster kernel of an op, or None where it has none for these types or attributes."""

_COMPILERS: dict[str, FasterCompile] = {}


def faster(name: str) -> Callable[[FasterCompile], FasterCompile]:
    """Register the decorated function for the ops of a name."""

    def register(function: FasterCompile) -> FasterCompile:
        _COMPILERS[name] = function
        return function

    return register


def faster_kernel(view: OpView) -> Kernel | None:
    """Return the faster kernel of an op, or None if it has none."""
    compile_faster = _COMPILERS.get(view.name)
    return None if compile_faster is None else compile_faster(view)


# Values are immutable, which makes an update of one row of a large array a copy of all of it, and a loop that fills an
# array quadratic. Where no later step reads the operand, and nothing but the step itself refers to its memory, a copy
# cannot be told from an update in place. The first is known when a program is compiled: then the loop gets the kernel's
# ``consuming`` form. The second is known when it runs, by counting references: views, exports and traces hold
# references too. How many the step itself holds is measured once, with the same loop: it differs from Python to Python.

Array = Any


@faster("stablehlo.dynamic_update_slice")
def dynamic_update_slice(view: OpView) -> Kernel | None:
    """Update a window of the operand in place."""
    operand, update = view.operand(), view.operand(1)
    if not (operand.is_static and update.is_static and (window := Window(operand.sizes, update.sizes)).moving):
        return None

    def run(x: Array, update: Array, *starts: Array) -> Array:
        out = np.array(x, order="C")
        out[window.at(starts)] = update
        return out

    def consuming(x: Array, update: Array, *starts: Array) -> Array:
        out = x if is_free(x) else np.array(x, order="C")
        out[window.at(starts)] = update
        return out

    return _with_consuming(run, consuming)


@faster("stablehlo.scatter")
def scatter(view: OpView) -> Kernel | None:
    """Scatter into the operand in place."""
    if view.regions[0].block.captures:  # a captured value could be the operand
        return None
    reducer = Reducer(view.regions[0], view.results)
    apply = static_scatter(view, reducer)
    if apply is None or reducer.count > 1:
        return None

    def run(environment: Environment, x: Array, indices: Array, update: Array) -> Array:
        return apply(environment, (x,), indices, (update,), False)[0]

    def consuming(environment: Environment, x: Array, indices: Array, update: Array) -> Array:
        free = is_free(x, True)
        return apply(environment, (x,), indices, (update,), free)[0]

    return _with_consuming(run, consuming)


def _with_consuming(kernel: Kernel, consuming: Kernel) -> Kernel:
    """Give a kernel the form that runs where no later step reads its first operand.

    That form calls ``is_free(x)`` (or ``is_free(x, True)`` where it takes the environment) in its own frame, with ``x``
    a parameter of its own.
    """
    kernel.consuming = consuming  # type: ignore[attr-defined]
    return kernel


def with_updates_in_place(block: Block) -> Block:
    """Return the block with the consuming forms of kernels whose first operand no later step reads."""
    code = tuple(map(_consuming_code, block.code, block.steps))
    return dataclasses.replace(block, code=code)


def _consuming_code(code: Code, step: Step) -> Code:
    kernel, *rest, dead = code
    if not (hasattr(kernel, "consuming") and step.inputs[0] in dead and step.inputs.count(step.inputs[0]) == 1):
        return code
    return kernel.consuming, *rest, dead


def is_free(x: Array, environment: bool = False) -> bool:
    """Whether the first operand of the running step may be written to: it owns its memory and nothing else holds it."""
    return (
        references.to_argument(x) <= _HELD[environment]
        and x.__class__ is np.ndarray
        and x.base is None
        and x.flags.writeable
        and x.flags.c_contiguous
    )


def _held_by_a_step(environment: bool) -> int:
    """Return how many references to a step's first operand ``is_free`` counts where nothing else holds one."""
    counts = []

    def count(x: Array, environment: bool = False) -> None:
        counts.append(references.to_argument(x))

    def plain(x: Array, update: Array, *starts: Array) -> None:
        count(x)

    def with_environment(_: Environment, x: Array, indices: Array, update: Array) -> None:
        count(x, True)

    kernel = with_environment if environment else plain
    code = encode(kernel, (1, 2, 3), (4,), (1,), environment)
    block = Block("counting", (), (), [], (code,), (), (), ())
    run_fast(block, [None, np.zeros(1), None, None, None])
    return counts[0]


_HELD = (_held_by_a_step(False), _held_by_a_step(True))


# ``numpy.where`` branches at each element, and a condition without a pattern makes the processor guess wrong every
# other time: that took 11 ns an element where a choice by bit masks took 0.4.

_SMALLEST = 512
"""Fewer elements are faster with numpy's one call."""


@faster("stablehlo.select")
def select(view: OpView) -> Kernel | None:
    """Choose by masks."""
    return select_by_mask


@faster("stablehlo.select_and_scatter")
def select_and_scatter(view: OpView) -> Kernel | None:
    """Choose each window's element by masks."""
    return select_and_scatter_with(view, select_by_mask)


def select_by_mask(condition: Array, x: Array, y: Array) -> Array:
    """Return ``x`` where the condition holds and ``y`` elsewhere; all three broadcast together, ``x`` and ``y`` have
    one dtype.
    """
    if condition.ndim == 0 and x.shape == y.shape:
        return x if condition else y
    width = x.dtype.itemsize
    if condition.size < _SMALLEST or width > 8:
        return np.where(condition, x, y)
    whole = np.dtype(f"i{width}")
    mask = np.negative(np.asarray(condition).view(np.int8), dtype=whole)
    x, y = np.asarray(x), np.asarray(y)
    second = y.view(whole)
    difference = np.bitwise_and(np.bitwise_xor(x.view(whole), second), mask)
    return np.bitwise_xor(difference, second, out=difference).view(x.dtype)  # it has the common shape already
