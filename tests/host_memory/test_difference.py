"""Differences of arrays: errors, distances in units in the last place, NaN and infinity, the worst element."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pjrt
from pjrt.host_memory.difference import _CHUNK, ulp_distance
from pjrt.models import DEFAULT_TOLERANCES, Difference, Tolerance

FLOATS = [
    *(np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    *(ml_dtypes.float8_e4m3, ml_dtypes.float8_e3m4, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz),
    *(ml_dtypes.float8_e4m3b11fnuz, ml_dtypes.float8_e8m0fnu, ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn),
    ml_dtypes.float6_e3m2fn,
]


@pytest.mark.parametrize("dtype", [d for d in FLOATS if np.dtype(d).itemsize <= 2])
def test_neighbours_are_one_apart(dtype: Any) -> None:
    """All numbers of a type in order: the distance of any two is how many steps lie between."""
    bits = pjrt.ElementType.of(dtype).bits
    everything = np.arange(1 << bits).astype(np.uint16 if bits > 8 else np.uint8).view(dtype)
    with np.errstate(invalid="ignore"):
        numbers = everything[np.isfinite(everything.astype(np.float64))]
    wide, first = np.unique(numbers.astype(np.float64), return_index=True)
    assert len(wide) > 10
    ordered = numbers[first]
    assert ulp_distance(ordered[:-1], ordered[1:]).tolist() == [1] * (len(wide) - 1)
    assert int(ulp_distance(ordered[:1], ordered[-1:])[0]) == len(wide) - 1


@pytest.mark.parametrize("dtype", [*FLOATS, np.complex64, np.complex128])
def test_zeros_of_two_signs(dtype: Any) -> None:
    """They agree, unless the tolerance tells them apart. Types without -0 have one zero, or none."""
    zeros = np.array([0.0, 1.0, 0.0]).astype(dtype)
    others = np.array([-0.0, 1.0, 0.0]).astype(dtype)
    wide = others.astype(np.complex128).real
    assert Difference.of(others, zeros).agrees
    found = Difference.of(others, zeros, Tolerance(tells_zeros_apart=True))
    if wide[0] == 0 and np.signbit(wide[0]):
        assert (found.mismatches, found.worst) == (1, (0,))
        assert str(found).startswith("1 of 3 elements differ")
    else:
        assert found.agrees


def test_a_part_of_a_complex_zero_has_a_sign() -> None:
    apart = Tolerance(tells_zeros_apart=True)
    assert Difference.of(np.array([complex(0.0, -0.0)]), np.array([0j]), apart).mismatches == 1
    assert Difference.of(np.array([complex(1.0, 0.0)]), np.array([1 + 0j]), apart).agrees


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.integers(0, 50))
def test_steps_of_f32(value: float, steps: int) -> None:
    start = end = np.float32(value)
    for _ in range(steps):
        end = np.nextafter(end, np.float32(np.inf))
    if np.isfinite(end):
        # From below 0 to above it one step is from -0 to 0, which are one number.
        assert int(ulp_distance(np.array([start]), np.array([end]))[0]) == steps


def test_distances_beyond_63_bits_and_of_complex_numbers() -> None:
    largest = np.array([np.finfo(np.float64).max])
    assert int(ulp_distance(largest, -largest)[0]) == 2 * 0x7FEFFFFFFFFFFFFF
    a, b = np.array([1 + 1j], np.complex64), np.array([1 + np.nextafter(np.float32(1), np.float32(2)) * 1j])
    assert ulp_distance(a, b.astype(np.complex64)).tolist() == [1]
    with pytest.raises(pjrt.InvalidArgumentError, match="one floating-point type"):
        ulp_distance(np.array([1]), np.array([1]))


@pytest.mark.parametrize("dtype", FLOATS)
def test_equal_arrays(dtype: Any) -> None:
    array = np.array([1.0, 2.0, 0.5]).astype(dtype)
    difference = Difference.of(array, array.copy())
    assert difference.agrees
    assert (difference.max_ulp, difference.severity, difference.worst) == (0, 0.0, None)
    assert str(difference) == "equal"


def test_the_worst_element_is_the_one_furthest_beyond_its_tolerance() -> None:
    expected = np.array([[1000.0, 1.0], [0.0, -2.0]], np.float32)
    value = expected + np.array([[0.5, 0.01], [0.0, 0.0]], np.float32)
    difference = Difference.of(value, expected, Tolerance(rtol=1e-3, atol=0.0))
    assert difference.mismatches == 1
    assert difference.worst == (0, 1)
    assert (difference.value, difference.expected) == (np.float32(1.01), 1.0)
    assert difference.max_absolute == 0.5
    assert difference.max_relative == pytest.approx(0.01, rel=1e-5)
    assert difference.severity == pytest.approx(10, rel=1e-4)


def test_nan_and_infinity() -> None:
    expected = np.array([np.nan, np.nan, 1.0, np.inf, np.inf, -np.inf, 3.0])
    value = np.array([np.nan, 1.0, np.nan, np.inf, -np.inf, 2.0, 3.0])
    difference = Difference.of(value, expected)
    assert (difference.nan_disagreements, difference.infinity_disagreements, difference.mismatches) == (2, 2, 4)
    assert difference.worst == (1,)
    assert difference.max_absolute == 0
    json.dumps(difference.as_dict(), allow_nan=False)


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.int64, ml_dtypes.int4, bool])
def test_integers_and_truth_values_are_compared_exactly(dtype: Any) -> None:
    expected, value = np.array([0, 1, 1]).astype(dtype), np.array([0, 1, 0]).astype(dtype)
    assert Difference.of(expected, expected).agrees
    difference = Difference.of(value, expected, Tolerance(10.0, 10.0))
    assert (difference.mismatches, difference.worst, difference.max_absolute) == (1, (2,), 1)
    json.dumps(difference.as_dict(), allow_nan=False)


def test_integers_of_64_bits_do_not_wrap() -> None:
    low, high = np.array([-(2**63)]), np.array([2**63 - 1])
    assert Difference.of(low, high).max_ulp == 2**64 - 1


def test_other_shapes_and_types_differ() -> None:
    for value in (np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float64)):
        difference = Difference.of(value, np.zeros((3, 2), np.float32))
        assert not difference.agrees
        assert "expected f32[3,2], found f" in str(difference)


def test_large_arrays_are_compared_in_chunks() -> None:
    expected = np.zeros(2 * _CHUNK + 3, np.float16)
    value = expected.copy()
    value[5], value[_CHUNK + 7], value[-1] = 0.5, 2.0, 1.0
    difference = Difference.of(value, expected)
    assert (difference.mismatches, difference.worst, difference.max_absolute) == (3, (_CHUNK + 7,), 2.0)
    assert Difference.of(np.zeros((0, 3)), np.zeros((0, 3))).agrees


def test_tolerances() -> None:
    for element_type, (rtol, atol) in DEFAULT_TOLERANCES.items():
        assert Tolerance().of(element_type) == (rtol, atol)
    assert Tolerance().of(pjrt.ElementType.F8E5M2) == (0.25, 0.05)
    assert Tolerance(rtol=0.5).of(pjrt.ElementType.F32) == (0.5, 1e-5)
    assert Tolerance(1.0, 1.0).of(pjrt.ElementType.S32) == (0.0, 0.0)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(pjrt.InvalidArgumentError, match="expected rtol to be a number from 0 up"):
            Tolerance(rtol=wrong)
