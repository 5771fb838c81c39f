"""Random numbers: known answers of the generators, XLA's bits on every element type, and distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from programs import FLOATS, INTEGERS, program, tensor

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError

T = ElementType


def bits_text(algorithm: str, words: int, shape: tuple[int, ...], t: ElementType) -> str:
    state = tensor((words,), T.U64)
    attributes = f"rng_algorithm = #stablehlo<rng_algorithm {algorithm}>"
    return program("rng_bit_generator", [state], [state, tensor(shape, t)], attributes)


def pack(low: int, high: int) -> int:
    return low | high << 32


def u64(*words: int) -> Any:
    return np.array(words, np.uint64)


# The known answers that the authors of the generators publish: key, counter, random words.
THREEFRY = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]
PHILOX = [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("key", "counter", "words"), THREEFRY)
def test_threefry_knows_its_answers(run: Any, key: Any, counter: Any, words: Any) -> None:
    state, found = run(bits_text("THREE_FRY", 2, (2,), T.U32), u64(pack(*key), pack(*counter)))
    assert found.tolist() == list(words)
    assert state.tolist() == [pack(*key), (pack(*counter) + 1) % 2**64]


@pytest.mark.parametrize(("key", "counter", "words"), PHILOX)
def test_philox_knows_its_answers(run: Any, key: Any, counter: Any, words: Any) -> None:
    start = u64(pack(*key), pack(*counter[:2]), pack(*counter[2:]))
    state, found = run(bits_text("PHILOX", 3, (4,), T.U32), start)
    assert found.tolist() == list(words)
    after = int(start[1]) + (int(start[2]) << 64) + 1
    assert state.tolist() == [int(start[0]), after % 2**64, (after >> 64) % 2**64]


def test_the_specification_s_example(run: Any) -> None:
    state, found = run(bits_text("THREE_FRY", 2, (2, 2), T.U64), u64(1, 2))
    assert state.tolist() == [1, 6]
    assert found.tolist() == [
        [9236835810183407956, 16087790271692313299],
        [18212823393184779219, 2658481902456610144],
    ]


@pytest.mark.parametrize("t", [*INTEGERS, *FLOATS], ids=lambda t: t.mlir)
@pytest.mark.parametrize("algorithm", ["THREE_FRY", "PHILOX", "DEFAULT"])
def test_narrow_types_take_the_low_bits(run: Any, algorithm: str, t: ElementType) -> None:
    start = u64(5, 2**64 - 2)
    wide = T.U64 if t.bits == 64 else T.U32
    state, words = run(bits_text(algorithm, 2, (7, 5), wide), start)
    after, found = run(bits_text(algorithm, 2, (7, 5), t), start)
    assert found.dtype == t.dtype
    assert state.tolist() == after.tolist()
    mask = (1 << t.bits) - 1
    assert (bits_of(found, t) & mask).tolist() == [[int(w) & mask for w in row] for row in words]


def bits_of(x: Any, t: ElementType) -> Any:
    if t.is_integer and t.bits < 8:
        x = x.astype(np.int8)
    return x.view(f"u{x.dtype.itemsize}").astype(object)


STATES = {"THREE_FRY": [(1, 2), (2**64 - 1, 2**64 - 3)], "PHILOX": [(7, 2**64 - 2), (5, 2**64 - 1, 7), (9, 0, 0)]}
STATES["DEFAULT"] = STATES["PHILOX"][1:]


@pytest.mark.full
@pytest.mark.parametrize("algorithm", STATES)
@pytest.mark.parametrize("t", [T.U8, T.U16, T.U32, T.U64], ids=lambda t: t.mlir)
def test_bits_are_xla_s(run: Any, on_xla: Any, algorithm: str, t: ElementType) -> None:
    for state in STATES[algorithm]:
        for shape in ((), (3, 5), (7, 2, 3)) if algorithm != "DEFAULT" else ((3, 5),):
            text = bits_text(algorithm, len(state), shape, t)
            for mine, theirs in zip(run(text, u64(*state)), on_xla(text, u64(*state)), strict=True):
                assert np.array_equal(mine, theirs), (state, shape)


def test_long_runs_do_not_depend_on_pieces(run: Any) -> None:
    """A piece of many counters gives what the counters give one by one."""
    start = 2**40 - 3
    for algorithm, each in (("THREE_FRY", 1), ("PHILOX", 2)):
        count = 70_000
        _, whole = run(bits_text(algorithm, 2, (count,), T.U64), u64(3, start))
        for at in (0, 16_384 * each, 16_384 * each - each, count - each):
            _, part = run(bits_text(algorithm, 2, (each,), T.U64), u64(3, start + at // each))
            assert part.tolist() == whole[at : at + each].tolist()


def test_states_and_types_that_are_not_defined(run: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="2 ui64 for THREE_FRY"):
        run(bits_text("THREE_FRY", 3, (2,), T.U32), u64(1, 2, 3))
    with pytest.raises((InvalidArgumentError, UnimplementedError)):
        run(bits_text("PHILOX", 2, (2,), T.PRED), u64(1, 2))


def rng_text(kind: str, shape: tuple[int, ...], t: ElementType) -> str:
    operands = [tensor((), t), tensor((), t), tensor((len(shape),), T.S64)]
    return program("rng", operands, tensor(shape, t), f"rng_distribution = #stablehlo<rng_distribution {kind}>")


RANGES = {T.PRED: (0, 1), T.S2: (-2, 1), T.U2: (0, 3), T.S4: (-8, 7), T.U4: (1, 15)}


@pytest.mark.parametrize("t", [T.PRED, *INTEGERS], ids=lambda t: t.mlir)
def test_uniform_integers(run: Any, t: ElementType) -> None:
    low, high = RANGES.get(t, (3, 14))
    ends = [np.array(v).astype(t.dtype) for v in (low, high)]
    (found,) = run(rng_text("UNIFORM", (20, 100), t), *ends, np.array([20, 100]))
    assert (found.shape, found.dtype) == ((20, 100), t.dtype)
    # 2,000 draws of at most 14 values: one is missed with a probability below 14·(13/14)^2000, which is 1e-63.
    assert set(found.astype(np.int64).ravel().tolist()) == set(range(low, high))


@pytest.mark.parametrize("t", [t for t in FLOATS if t is not T.F8E8M0FNU], ids=lambda t: t.mlir)
def test_uniform_floats(run: Any, t: ElementType) -> None:
    low, high = np.array(1).astype(t.dtype), np.array(2).astype(t.dtype)
    (found,) = run(rng_text("UNIFORM", (5000,), t), low, high, np.array([5000]))
    wide = found.astype(np.float64)
    assert found.dtype == t.dtype
    assert wide.min() >= 1
    assert wide.max() < 2
    if t.bits >= 16:  # six standard deviations of the mean of 5,000 draws
        assert abs(wide.mean() - 1.5) < 6 * math.sqrt(1 / 12 / 5000) + 2.0**-8


@pytest.mark.parametrize("t", [T.BF16, T.F16, T.F32, T.F64], ids=lambda t: t.mlir)
def test_normal_floats(run: Any, t: ElementType) -> None:
    mean, deviation = np.array(2).astype(t.dtype), np.array(0.5).astype(t.dtype)
    (found,) = run(rng_text("NORMAL", (100, 100), t), mean, deviation, np.array([100, 100]))
    wide = found.astype(np.float64)
    assert (found.shape, found.dtype) == ((100, 100), t.dtype)
    assert abs(wide.mean() - 2) < 6 * 0.5 / 100 + 2.0**-8
    assert abs(wide.std() - 0.5) < 6 * 0.5 / math.sqrt(2) / 100 + 2.0**-8


def test_runs_differ_and_draws_differ(run: Any) -> None:
    text = rng_text("UNIFORM", (100,), T.F64)
    ends = (np.float64(0), np.float64(1), np.array([100]))
    assert not np.array_equal(run(text, *ends)[0], run(text, *ends)[0])


def test_an_empty_range_gives_its_lower_end(run: Any) -> None:
    for t in (T.S32, T.F32):
        low, high = np.array(3).astype(t.dtype), np.array(3).astype(t.dtype)
        assert run(rng_text("UNIFORM", (4,), t), low, high, np.array([4]))[0].tolist() == [3] * 4
