"""Random numbers, and the bits that they are made of, in XLA's layout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.devices.reference.core.block import Environment, Kernel, context_of
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import op
from pjrt.devices.reference.numerics.element_types import FLOAT, INTEGER, compute_dtype

# Threefry 2x32 and Philox 4x32 turn a counter and a key into bits by rounds of simple arithmetic (Salmon et al.,
# "Parallel random numbers: as easy as 1, 2, 3", 2011), here on whole arrays of counters, in pieces that fit into the
# cache.

Array = Any

_PIECE = 1 << 14
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def threefry_bits(state: Array, shape: tuple[int, ...], bits: int) -> tuple[Array, Array]:
    """Return the state after, and random unsigned integers of 32 or 64 bits.

    Args:
        state: key and counter, u64 each.
        shape: the shape of the result.
        bits: 32 or 64.
    """
    if bits == 64:
        first, second = _threefry_pair(state, math.prod(shape))
        words = np.bitwise_or(first.astype(np.uint64), np.left_shift(second.astype(np.uint64), _HALF))
        return _advanced(state, math.prod(shape)), words.reshape(shape)
    if not shape:
        return _advanced(state, 1), _threefry_pair(state, 1)[0].reshape(())
    axis = next((d for d, size in enumerate(shape) if size % 2 == 0), int(np.argmax(shape)))
    half = (*shape[:axis], (shape[axis] + 1) // 2, *shape[axis + 1 :])
    pair = [words.reshape(half) for words in _threefry_pair(state, math.prod(half))]
    both = np.stack(pair, axis + 1).reshape(*shape[:axis], 2 * half[axis], *shape[axis + 1 :])
    return _advanced(state, math.prod(half)), both[(slice(None),) * axis + (slice(shape[axis]),)]


def _advanced(state: Array, count: int) -> Array:
    out = np.array(state)
    out[1] += np.uint64(count)
    return out


def _threefry_pair(state: Array, count: int) -> tuple[Array, Array]:
    """Return the two words for each of ``count`` counters from that of the state on."""
    key, start = state
    first, second = np.empty(count, np.uint32), np.empty(count, np.uint32)
    keys = (np.uint32(key & _LOW), np.uint32(key >> _HALF))
    for begin in range(0, count, _PIECE):
        end = min(begin + _PIECE, count)
        counters = np.add(np.arange(begin, end, dtype=np.uint64), start)
        x, y = first[begin:end], second[begin:end]
        x[...], y[...] = counters, np.right_shift(counters, _HALF)
        _threefry_rounds(x, y, keys)
    return first, second


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _threefry_rounds(x: Array, y: Array, keys: tuple[Array, Array]) -> None:
    """Do twenty rounds, in place."""
    schedule = (*keys, np.uint32(0x1BD11BDA) ^ keys[0] ^ keys[1])
    x += schedule[0]
    y += schedule[1]
    spare = np.empty_like(x)
    for group in range(1, 6):
        for rotation in _ROTATIONS[(group - 1) % 2]:
            x += y
            np.left_shift(y, np.uint32(rotation), out=spare)
            y >>= np.uint32(32 - rotation)
            y |= spare
            y ^= x
        x += schedule[group % 3]
        y += schedule[(group + 1) % 3]
        y += np.uint32(group)


def philox_bits(state: Array, shape: tuple[int, ...], bits: int) -> tuple[Array, Array]:
    """Do as ``threefry_bits``.

    The state is a key and the two halves of a counter, the low one first; or one word that is the key and the counter's
    high half too, and the low half.
    """
    key = state[0]
    low, high = (state[1], state[2]) if len(state) > 2 else (state[1], state[0])
    words = math.prod(shape) * bits // 32
    count = -(-words // 4)
    random = _philox_words(key, low, high, count).reshape(-1)[:words]
    flat = random.view(np.uint64) if bits == 64 else random
    after = np.uint64(low + np.uint64(count))
    carried = high + np.uint64(after < low)
    return np.array([key, after, carried], np.uint64)[: len(state)], flat.reshape(shape)


_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_RAISES = (0x9E3779B9, 0xBB67AE85)


def _philox_words(key: Array, low: Array, high: Array, count: int) -> Array:
    """Return four words for each of ``count`` counters from (low, high) on."""
    random = np.empty((count, 4), np.uint32)
    for begin in range(0, count, _PIECE):
        end = min(begin + _PIECE, count)
        lows = np.add(np.arange(begin, end, dtype=np.uint64), low)
        highs = np.add((lows < low).astype(np.uint64), high)
        words = [np.bitwise_and(lows, _LOW), np.right_shift(lows, _HALF)]
        words += [np.bitwise_and(highs, _LOW), np.right_shift(highs, _HALF)]
        keys = [int(key & _LOW), int(key >> _HALF)]
        for _ in range(10):
            words = _philox_round(words, keys)
            keys = [(k + by) & 0xFFFFFFFF for k, by in zip(keys, _RAISES, strict=True)]
        for number, word in enumerate(words):
            random[begin:end, number] = word
    return random


def _philox_round(words: list[Array], keys: list[int]) -> list[Array]:
    """Do one round on 32-bit words held in 64 bits, which have room for a product."""
    first, second = np.multiply(words[0], _MULTIPLIERS[0]), np.multiply(words[2], _MULTIPLIERS[1])
    one = np.bitwise_xor(np.right_shift(second, _HALF), words[1])
    one ^= np.uint64(keys[0])
    three = np.bitwise_xor(np.right_shift(first, _HALF), words[3])
    three ^= np.uint64(keys[1])
    second &= _LOW
    first &= _LOW
    return [one, second, three, first]


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
