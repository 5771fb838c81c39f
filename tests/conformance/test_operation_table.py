"""The table of operations: every case is a program that the reference interpreter runs, and no operation is missing."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt.conformance
from pjrt import ElementType
from pjrt.conformance import cases_of, operations
from pjrt.conformance.judge import Judge, first_difference
from pjrt.conformance.operation_table import EXACT, FUNCTION, ROUNDED
from pjrt.conformance.values import EVERY, denormals, edges, exact, flushed, mixed, ordinary

PAGE = (Path(__file__).parents[2] / "docs" / "devices" / "reference.md").read_text()

ELSEWHERE = (
    *("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute", "reduce_scatter"),
    *("replica_id", "partition_id"),
)
"""Collectives: the checks of several devices have them."""

UNTESTED = (
    *("after_all", "create_token", "async_done", "async_start", "infeed", "outfeed", "recv", "send"),
    *("composite", "custom_call", "unary_einsum"),
    *("dynamic_conv", "set_dimension_size", "uniform_dequantize", "uniform_quantize"),
)
"""Operations on tokens and the host, those that stand for others, sizes that a run decides, quantized types."""


def test_the_name_stays_a_function_when_the_table_is_made() -> None:
    assert operations()
    assert pjrt.conformance.operations is operations


def test_every_operation_of_stablehlo_is_in_the_table() -> None:
    names = set(re.findall(r"^\| `(stablehlo\.\w+)`", PAGE, re.MULTILINE))
    expected = names - {f"stablehlo.{name}" for name in (*ELSEWHERE, *UNTESTED)}
    assert {name for name in operations() if name.startswith("stablehlo.")} == expected


@pytest.mark.parametrize("operation", operations())
def test_the_reference_interpreter_runs_every_case(operation: str) -> None:
    types = operations()[operation]
    for element_type in {types[0], types[len(types) // 2]}:
        labels = []
        for case in cases_of(operation, element_type):
            labels.append(case.label)
            if case.name == "large":
                continue
            results = Judge(case.program).results(case.inputs)
            if case.verify is not None:
                assert case.verify(results) == ""
            elif not any(word in case.program for word in ("while", "func.func private")):
                assert len(case.program.splitlines()) <= 4
        assert labels
        assert len(set(labels)) == len(labels)


@given(st.sampled_from(EVERY), st.lists(st.integers(0, 5), max_size=3).map(tuple))
@settings(max_examples=60, deadline=None)
def test_values_have_their_type_and_shape(element_type: ElementType, shape: tuple[int, ...]) -> None:
    for array in (mixed(element_type, shape), ordinary(element_type, shape)):
        assert (array.dtype, array.shape) == (element_type.dtype, shape)
    assert edges(element_type).size > 1


def test_denormal_numbers_become_zeros_of_their_sign() -> None:
    small = denormals(ElementType.F32)
    assert small.size == 4
    assert (small != 0).all()
    assert (flushed(small) == 0).all()
    assert (np.signbit(flushed(small)) == np.signbit(small)).all()


def test_accuracies_are_units_in_the_last_place() -> None:
    one = np.array([1, 2, 4], np.float32)
    for accuracy, ulps in ((EXACT, 0), (ROUNDED, 1), (FUNCTION, 32)):
        near, far = one.copy(), one.copy()
        for _ in range(ulps):
            near = np.nextafter(near, np.float32(9))
        far = one + np.float32(2.5 * (ulps + 1)) * np.spacing(one)
        assert first_difference([near], [one], accuracy) is None
        assert first_difference([far], [one], accuracy) is not None


def test_signs_of_zeros_count_where_results_are_exact() -> None:
    zeros = np.zeros(2, np.float32)
    assert first_difference([-zeros], [zeros], ROUNDED) is None
    number, difference = first_difference([-zeros], [zeros], EXACT) or (None, None)
    assert number == 0
    assert difference is not None
    assert difference.worst == (0,)


@pytest.mark.parametrize("shape", [(3, 5), (7, 9), (9,)])
def test_sums_of_four_bits_are_exact_in_any_order(shape: tuple[int, ...]) -> None:
    numbers = exact(ElementType.F4E2M1FN, shape).astype(int)
    assert {*numbers.ravel().tolist()} == {-1, 0, 1}
    assert (numbers == 1).sum() <= 4
    assert (numbers == -1).sum() <= 4


@pytest.mark.parametrize("operation", ["stablehlo.remainder", "chlo.broadcast_remainder"])
def test_no_remainder_needs_a_nan_that_the_type_lacks(operation: str) -> None:
    for case in cases_of(operation, ElementType.F4E2M1FN):
        assert (case.inputs[1] != 0).all()
