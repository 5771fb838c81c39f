"""Quantized types on XLA's CPU, which has none: the numbers are those of the interpreter, or the program is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt
from pjrt.devices.xla import quantization
from pjrt.stablehlo import read, to_module
from pjrt.stablehlo.ir.mlir_module import write_text

TYPE = "tensor<2x3x!quant.uniform<{storage}:{expressed}{axis}, {parameters}>>"
PER_TENSOR = TYPE.format(storage="i8", expressed="f32", axis="", parameters="0.5:3")
PER_AXIS = TYPE.format(storage="i8", expressed="f32", axis=":1", parameters="{0.5:3, 2.0:-1, 0.25:0}")


def program(operation: str, *types: str) -> str:
    given = ", ".join(f"%{number}: {type_}" for number, type_ in enumerate(types[:-1]))
    return f"func.func @main({given}) -> {types[-1]} {{ %r = {operation}\n return %r : {types[-1]} }}"


def of_one_type(operation: str, type_: str, count: int) -> str:
    operands, types = ", ".join(f"%{i}" for i in range(count)), ", ".join([type_] * count)
    return program(f'"stablehlo.{operation}"({operands}) : ({types}) -> {type_}', *[type_] * count, type_)


def converted(to: str, *types: str) -> str:
    return program(f"stablehlo.uniform_{to} %0 : ({types[0]}) -> {types[1]}", *types)


def written_out(text: str) -> str:
    module = to_module(read(text))
    assert quantization.write_out(module)
    return write_text(module, locations=False)


ALL = np.arange(-128, 126, dtype=np.int8)[: 42 * 6].reshape(42, 2, 3)
"""Numbers whose quotients by the scale are ties, too."""


@pytest.mark.parametrize(
    "text",
    [
        *(of_one_type(name, PER_TENSOR, 1) for name in ("abs", "negate", "ceil", "sign", "round_nearest_even")),
        *(of_one_type(name, PER_TENSOR, 2) for name in ("add", "subtract", "multiply", "maximum")),
        of_one_type("clamp", PER_TENSOR, 3),
        of_one_type("add", PER_AXIS, 2),
        converted("dequantize", PER_TENSOR, "tensor<2x3xf32>"),
        converted("quantize", PER_TENSOR, TYPE.format(storage="i4", expressed="f32", axis="", parameters="1.0:-1")),
        converted("quantize", PER_TENSOR, PER_AXIS),
        converted("quantize", PER_AXIS, PER_TENSOR),
        program(
            f"stablehlo.compare LT, %0, %1 : ({PER_TENSOR}, {PER_TENSOR}) -> tensor<2x3xi1>",
            *[PER_TENSOR] * 2,
            "tensor<2x3xi1>",
        ),
    ],
)
def test_the_integers_are_those_of_the_interpreter(client: pjrt.Client, reference: pjrt.Client, text: str) -> None:
    ours, theirs = reference.compile(text), client.compile(written_out(text))
    count = text.partition("->")[0].count("%")
    for number in range(0, len(ALL), 6):
        arguments = [ALL[(number + 17 * place) % len(ALL)] for place in range(count)]
        for here, there in zip(ours(*arguments), theirs(*arguments), strict=True):
            assert np.asarray(here).dtype == np.asarray(there).dtype
            assert np.asarray(here).tolist() == np.asarray(there).tolist()


@given(
    power=st.integers(-6, 2),
    zero=st.integers(-20, 20),
    value=st.lists(st.floats(-300, 300, width=16), min_size=6, max_size=6),
)
@settings(max_examples=8, deadline=None)
def test_numbers_are_rounded_before_the_zero_point(
    client: pjrt.Client, reference: pjrt.Client, power: int, zero: int, value: list[float]
) -> None:
    scale = 2.0**power  # XLA divides by others by a multiplication, and may miss a tie
    type_ = TYPE.format(storage="i8", expressed="f32", axis="", parameters=f"{scale}:{zero}")
    text = converted("quantize", "tensor<2x3xf32>", type_)
    x = np.array(value, np.float32).reshape(2, 3)
    ties = (np.round(x / np.float32(scale)) + np.float32(0.5)) * np.float32(scale)
    ours, theirs = reference.compile(text), client.compile(written_out(text))
    for each in (x, ties):
        assert np.asarray(ours(each)[0]).tolist() == np.asarray(theirs(each)[0]).tolist()


MATRICES = (
    "tensor<2x3x!quant.uniform<i8:f32, 0.5:3>>",
    "tensor<3x2x!quant.uniform<i8:f32, 0.25:0>>",
    "tensor<2x2x!quant.uniform<i32:f32, 0.125:0>>",
)


def test_a_quantized_program_runs(client: pjrt.Client, reference: pjrt.Client) -> None:
    text = program(
        f"stablehlo.dot_general %0, %1, contracting_dims = [1] x [0] : ({MATRICES[0]}, {MATRICES[1]}) -> {MATRICES[2]}",
        *MATRICES,
    )
    x, y = np.arange(-3, 3, dtype=np.int8).reshape(2, 3), np.arange(6, dtype=np.int8).reshape(3, 2)
    expected, found = (np.asarray(each.compile(text)(x, y)[0]) for each in (reference, client))
    assert (found.dtype, found.tolist()) == (np.int32, expected.tolist())
    assert client.supports(text).verdict is not pjrt.Verdict.NO


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            of_one_type("abs", TYPE.format(storage="u8", expressed="f32", axis="", parameters="0.5:3"), 1),
            r"stablehlo.abs of tensor<.*u8:f32.*>> \(<program>:1:\d+\): StableHLO's passes take unsigned integers for",
        ),
        (
            of_one_type("abs", TYPE.format(storage="i8", expressed="bf16", axis="", parameters="0.5:3"), 1),
            r"of tensor<.*i8:bf16.*>> \(<program>:1:\d+\): StableHLO's passes know numbers of f32 alone",
        ),
        (
            program(f"stablehlo.reverse %0, dims = [0] : {PER_TENSOR}", PER_TENSOR, PER_TENSOR),
            r"stablehlo.reverse \(<program>:1:\d+\): StableHLO's passes do not write it out",
        ),
    ],
)
def test_what_cannot_be_written_out_is_refused_by_name(client: pjrt.Client, text: str, reason: str) -> None:
    with pytest.raises(pjrt.UnimplementedError, match=reason + ".*; run it on 'reference'"):
        client.compile(text)
