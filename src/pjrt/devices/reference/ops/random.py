"""Random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.devices.reference.core.block import Environment, Kernel, context_of
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics.element_types import FLOAT, INTEGER, compute_dtype
from pjrt.devices.reference.numerics.threefry_philox import philox_bits, threefry_bits

Array = Any


@op("stablehlo.rng_bit_generator")
def rng_bit_generator(view: OpView) -> Kernel:
    """Return random bits from a state, and the state after; bit for bit those of XLA on a CPU.

    ``DEFAULT`` is Philox. Types below 32 bits take the low bits of 32 random ones.
    """
    algorithm = view.attr("rng_algorithm")
    state, result = view.operand(), view.result(1)
    if result.element not in FLOAT | INTEGER:
        raise view.unimplemented(f"expected random bits of an integer or float type, found {result.element.mlir}")
    allowed = (2,) if algorithm == "THREE_FRY" else (2, 3)
    if state.element is not ElementType.U64 or state.rank != 1 or state.shape[0] not in allowed:
        raise view.invalid(f"expected a state of {' or '.join(map(str, allowed))} ui64 for {algorithm}, found {state}")
    generate = threefry_bits if algorithm == "THREE_FRY" else philox_bits
    sizes, element = result.sizes, result.element
    bits = 64 if element.bits == 64 else 32

    def run(start: Array) -> tuple[Array, Array]:
        after, words = generate(start, sizes, bits)
        return after, _from_words(words, element)

    return run


def _from_words(words: Array, element: ElementType) -> Array:
    """Return the low bits of unsigned integers as values of a type."""
    dtype = element.dtype
    if element.bits < 8 and element in INTEGER:
        return words.astype(np.uint8).astype(dtype)
    whole = np.dtype(f"u{dtype.itemsize}")
    narrow = words.astype(whole)
    if element.bits < 8:
        narrow = np.bitwise_and(narrow, (1 << element.bits) - 1)
    return narrow.view(dtype)


@op("stablehlo.rng", environment=True, foldable=False)
def rng(view: OpView) -> Kernel:
    """Return uniform or normal random numbers, other ones at each run."""
    element, dtype = view.result().element, view.result().dtype
    if view.attr("rng_distribution") == "NORMAL":
        if element not in FLOAT:
            raise view.invalid(f"expected a floating-point type for a normal distribution, found {element.mlir}")
        wide = compute_dtype(element)

        def run_normal(environment: Environment, mean: Array, deviation: Array, shape: Array) -> Array:
            sample = _generator(environment).standard_normal(_sizes(shape), wide)
            return np.asarray(sample * deviation.astype(wide) + mean.astype(wide)).astype(dtype)

        return run_normal
    draw = _draw_floats if element in FLOAT else _draw_integers

    def run(environment: Environment, low: Array, high: Array, shape: Array) -> Array:
        return draw(_generator(environment), low, high, _sizes(shape), element)

    return run


def _draw_floats(generator: np.random.Generator, low: Array, high: Array, sizes: Any, element: ElementType) -> Array:
    wide = compute_dtype(element)
    start, span = low.astype(wide), np.subtract(high.astype(wide), low.astype(wide))
    sample = np.asarray(generator.random(sizes, wide) * span + start).astype(element.dtype)
    # Rounding can reach the upper end, which is not part of the range.
    return np.where(sample.astype(wide) < high.astype(wide), sample, low)


def _draw_integers(generator: np.random.Generator, low: Array, high: Array, sizes: Any, element: ElementType) -> Array:
    start, end = int(low), int(high)
    if start >= end:  # an empty range, for which the specification promises nothing
        return np.full(sizes, low, element.dtype)
    wide = np.uint64 if element is ElementType.U64 else np.int64
    return np.asarray(generator.integers(start, end, sizes, wide)).astype(element.dtype)


def _sizes(shape: Array) -> tuple[int, ...]:
    return tuple(int(size) for size in shape)


def _generator(environment: Environment) -> np.random.Generator:
    """Return the run's own random generator."""
    values = context_of(environment).values
    if "rng" not in values:
        values["rng"] = np.random.Generator(np.random.Philox())
    generator: np.random.Generator = values["rng"]
    return generator
