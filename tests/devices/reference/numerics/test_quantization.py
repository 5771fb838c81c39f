"""Uniform-quantized types: the definition, one number at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.api.element_type import ElementType

T = ElementType
X = np.array([-100.0, -1.3, -0.26, -0.25, 0.0, 0.24, 0.25, 0.75, 1.25, 3.0, 100.0], np.float32)


def stored(value: float, scale: float, zero: int, low: int, high: int) -> int:
    """Python's ``round`` rounds halves to even, as the specification does."""
    return min(max(round(value / scale) + zero, low), high)


KINDS = [
    ("i8", T.S8, -128, 127),
    ("u8", T.U8, 0, 255),
    ("i4", T.S4, -8, 7),
    ("i16", T.S16, -(2**15), 2**15 - 1),
    ("i32", T.S32, -(2**31), 2**31 - 1),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k[0])
@pytest.mark.parametrize("expressed", ["f32", "bf16", "f16"])
def test_there_and_back(run: Any, kind: Any, expressed: str) -> None:
    spelled, storage, low, high = kind
    zero = 3 if storage is not T.S32 else 0
    q = f"tensor<11x!quant.uniform<{spelled}:{expressed}, 5.000000e-01:{zero}>>"
    real = f"tensor<11x{expressed}>"
    text = f"""func.func @main(%x: {real}) -> ({q}, {real}) {{
      %0 = stablehlo.uniform_quantize %x : ({real}) -> {q}
      %1 = stablehlo.uniform_dequantize %0 : ({q}) -> {real}
      return %0, %1 : {q}, {real} }}"""
    x = X.astype(T.from_mlir(expressed).dtype)
    integers, back = run(text, x)
    expected = [stored(float(v), 0.5, zero, low, high) for v in x]
    assert integers.dtype == storage.dtype
    assert [int(v) for v in integers.astype(np.int64)] == expected
    assert back.dtype == x.dtype
    assert back.astype(np.float64).tolist() == [(v - zero) * 0.5 for v in expected]


def test_per_axis(run: Any) -> None:
    q = "tensor<2x3x!quant.uniform<i8:f32:0, {0.5:0, 2.0:10}>>"
    text = f"""func.func @main(%x: tensor<2x3xf32>) -> ({q}, tensor<2x3xf32>) {{
      %0 = stablehlo.uniform_quantize %x : (tensor<2x3xf32>) -> {q}
      %1 = stablehlo.uniform_dequantize %0 : ({q}) -> tensor<2x3xf32>
      return %0, %1 : {q}, tensor<2x3xf32> }}"""
    integers, back = run(text, np.array([[1, 2.25, -3], [4, 5, -6]], np.float32))
    assert integers.tolist() == [[2, 4, -6], [12, 12, 7]]
    assert back.tolist() == [[1, 2, -3], [4, 4, -6]]


def test_numbers_beyond_the_storage_become_its_ends(run: Any) -> None:
    """Those of 32 bits are no numbers of f32."""
    q = "tensor<2x!quant.uniform<i32:f32, 0.5>>"
    text = f"""func.func @main(%x: tensor<2xf32>) -> {q} {{
      %0 = stablehlo.uniform_quantize %x : (tensor<2xf32>) -> {q}
      return %0 : {q} }}"""
    assert run(text, np.array([-1e30, 1e30], np.float32))[0].tolist() == [-(2**31), 2**31 - 1]


def test_a_narrower_range_of_storage(run: Any) -> None:
    q = "tensor<3x!quant.uniform<i8<-10:10>:f32, 1.0:0>>"
    text = f"""func.func @main(%x: tensor<3xf32>) -> {q} {{
      %0 = stablehlo.uniform_quantize %x : (tensor<3xf32>) -> {q}
      return %0 : {q} }}"""
    assert run(text, np.array([-50, 3, 50], np.float32))[0].tolist() == [-10, 3, 10]


def test_from_one_quantization_to_another(run: Any) -> None:
    a, b = "tensor<3x!quant.uniform<i8:f32, 0.5:0>>", "tensor<3x!quant.uniform<i8:f32, 0.25:1>>"
    text = f"""func.func @main(%x: {a}) -> {b} {{
      %0 = stablehlo.uniform_quantize %x : ({a}) -> {b}
      return %0 : {b} }}"""
    assert run(text, np.array([-4, 1, 100], np.int8))[0].tolist() == [-7, 3, 127]


Q = "!quant.uniform<i8:f32, 0.5:2>"
ONE: dict[str, Callable[[float], float]] = {"abs": abs, "negate": lambda v: -v, "tanh": np.tanh, "ceil": np.ceil}
TWO: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": max,
}
A, B = np.array([-100, -3, 2, 5, 120], np.int8), np.array([4, 3, 2, -7, 90], np.int8)


@pytest.mark.parametrize("op", [*ONE, *TWO])
def test_other_ops_are_done_on_real_numbers(run: Any, op: str) -> None:
    count = 1 if op in ONE else 2
    given = ", ".join(f"%a{i}: tensor<5x{Q}>" for i in range(count))
    names = ", ".join(f"%a{i}" for i in range(count))
    types = ", ".join([f"tensor<5x{Q}>"] * count)
    text = f"""func.func @main({given}) -> tensor<5x{Q}> {{
      %0 = "stablehlo.{op}"({names}) : ({types}) -> tensor<5x{Q}>
      return %0 : tensor<5x{Q}> }}"""
    (found,) = run(text, *(A, B)[:count])
    wide = [(v.astype(np.float64) - 2) * 0.5 for v in (A, B)[:count]]
    function: Any = {**ONE, **TWO}[op]
    assert found.dtype == np.int8
    assert found.tolist() == [stored(float(function(*v)), 0.5, 2, -128, 127) for v in zip(*wide, strict=True)]


def test_products_of_matrices(run: Any) -> None:
    types = f"tensor<2x3x{Q}>", f"tensor<3x2x{Q.replace(':2', ':0')}>", "tensor<2x2x!quant.uniform<i32:f32, 0.25:0>>"
    text = f"""func.func @main(%a: {types[0]}, %b: {types[1]}) -> {types[2]} {{
      %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({types[0]}, {types[1]}) -> {types[2]}
      return %0 : {types[2]} }}"""
    a, b = np.arange(6, dtype=np.int8).reshape(2, 3), np.arange(6, dtype=np.int8).reshape(3, 2)
    expected = (a.astype(int) - 2) @ b.astype(int)  # times 0.5², over 0.25
    (found,) = run(text, a, b)
    assert found.dtype == np.int32
    assert np.array_equal(found, expected)


def test_moving_data_keeps_the_integers(run: Any) -> None:
    types = f"tensor<2x3x{Q}>", f"tensor<3x2x{Q}>", f"tensor<6x{Q}>"
    text = f"""func.func @main(%a: {types[0]}) -> {types[2]} {{
      %0 = stablehlo.transpose %a, dims = [1, 0] : ({types[0]}) -> {types[1]}
      %1 = stablehlo.reshape %0 : ({types[1]}) -> {types[2]}
      return %1 : {types[2]} }}"""
    a = np.arange(6, dtype=np.int8).reshape(2, 3)
    assert run(text, a)[0].tolist() == a.T.ravel().tolist()


LARGE = "!quant.uniform<i32:f32, 0.5:3>"
"""Real numbers of f32 do not have all of its integers."""

MOVES = {
    "call": "%0 = func.call @same(%x) : (T) -> T",
    "composite": '%0 = stablehlo.composite "a.b" %x {decomposition = @same} : (T) -> T',
    "if": """%p = stablehlo.constant dense<true> : tensor<i1>
      %0 = "stablehlo.if"(%p) ({ stablehlo.return %x : T }, { stablehlo.return %x : T }) : (tensor<i1>) -> T""",
    "case": """%p = stablehlo.constant dense<0> : tensor<i32>
      %0 = "stablehlo.case"(%p) ({ stablehlo.return %x : T }) : (tensor<i32>) -> T""",
    "while": """%p = stablehlo.constant dense<true> : tensor<i1>
      %l:2 = stablehlo.while(%a = %p, %b = %x) : tensor<i1>, T
        cond { stablehlo.return %a : tensor<i1> }
        do { %q = stablehlo.constant dense<false> : tensor<i1>
          stablehlo.return %q, %b : tensor<i1>, T }
      %0 = stablehlo.optimization_barrier %l#1 : T""",
    "tuple": """%t = stablehlo.tuple %x, %x : tuple<T, T>
      %0 = stablehlo.get_tuple_element %t[1] : (tuple<T, T>) -> T""",
    "custom_call": "%0 = stablehlo.custom_call @Sharding(%x) : (T) -> T",
    "all_gather": '%0 = "stablehlo.all_gather"(%x) {all_gather_dim = 0 : i64, GROUPS} : (T) -> T',
    "all_to_all": """%0 = "stablehlo.all_to_all"(%x) {split_dimension = 0 : i64, concat_dimension = 0 : i64,
      split_count = 1 : i64, GROUPS} : (T) -> T""",
    "collective_broadcast": '%0 = "stablehlo.collective_broadcast"(%x) {GROUPS} : (T) -> T',
    "collective_permute": """%0 = "stablehlo.collective_permute"(%x)
      {source_target_pairs = dense<[[0, 0]]> : tensor<1x2xi64>} : (T) -> T""",
    "bitcast_convert": "%0 = stablehlo.bitcast_convert %x : (T) -> T",
}


@pytest.mark.parametrize("name", MOVES)
def test_operations_that_move_values_move_the_integers(name: str) -> None:
    body = MOVES[name].replace("GROUPS", "replica_groups = dense<[[0]]> : tensor<1x1xi64>")
    text = f"func.func @main(%x: T) -> T {{ {body} return %0 : T }}"
    text += "func.func private @same(%x: T) -> T { return %x : T }"
    x = np.array([4, -7, 2**30 + 1, 5], np.int32)
    with pjrt.client("reference") as client:
        (found,) = client.compile(text.replace("T", f"tensor<4x{LARGE}>"))(x)
        assert np.asarray(found).tolist() == x.tolist()


def test_loops_compute_with_the_integers(run: Any) -> None:
    """A body that dequantizes gets what it was written for."""
    text = f"""func.func @main(%x: tensor<5x{Q}>) -> tensor<5x{Q}> {{
      %p = stablehlo.constant dense<true> : tensor<i1>
      %l:2 = stablehlo.while(%a = %p, %b = %x) : tensor<i1>, tensor<5x{Q}>
        cond {{ stablehlo.return %a : tensor<i1> }}
        do {{ %q = stablehlo.constant dense<false> : tensor<i1>
          %n = stablehlo.negate %b : tensor<5x{Q}>
          stablehlo.return %q, %n : tensor<i1>, tensor<5x{Q}> }}
      return %l#1 : tensor<5x{Q}> }}"""
    assert run(text, B)[0].tolist() == [stored(-(v - 2) * 0.5, 0.5, 2, -128, 127) for v in B.tolist()]


BITS = [
    ("i8:f32, 0.5:3", T.S8),
    ("u8:f32, 0.5:3", T.U8),
    ("i4:f32, 0.5:1", T.S4),
    ("i16:f32, 0.5:3", T.S16),
    ("i32:f32, 0.5", T.S32),
    ("i8:bf16, 0.5", T.S8),
    ("i8<-10:10>:f32, 1.0", T.S8),
]


@pytest.mark.parametrize(("spelled", "storage"), BITS, ids=lambda v: str(v))
def test_bits_are_those_of_the_storage(run: Any, spelled: str, storage: ElementType) -> None:
    x = np.array([0, 1, -2, 3], np.int8).astype(storage.dtype)
    q, plain = f"tensor<4x!quant.uniform<{spelled}>>", f"tensor<4x{storage.mlir}>"
    for source, target in ((q, plain), (plain, q), (q, q)):
        assert run(bitcast(source, target), x)[0].tobytes() == x.tobytes()


def test_bits_of_a_quantization_per_axis(run: Any) -> None:
    q = "tensor<2x2x!quant.uniform<i8:f32:1, {0.5:0, 2.0:10}>>"
    x = np.array([[1, 2], [-3, 100]], np.int8)
    assert run(bitcast(q, "tensor<2x2xi8>"), x)[0].tolist() == x.tolist()


def test_bits_of_other_widths(run: Any) -> None:
    bytes_, words = "tensor<2x4x!quant.uniform<i8:f32, 0.5>>", "tensor<2xi32>"
    x = np.array([0x04030201, -2], np.int32)
    parts = np.array([[1, 2, 3, 4], [-2, -1, -1, -1]], np.int8)
    assert run(bitcast(words, bytes_), x)[0].tolist() == parts.tolist()
    assert run(bitcast(bytes_, words), parts)[0].tolist() == x.tolist()
    halves = "tensor<2x2x!quant.uniform<i16:f32, 0.5>>"
    assert run(bitcast(halves, words), x.view(np.int16).reshape(2, 2))[0].tolist() == x.tolist()


def bitcast(source: str, target: str) -> str:
    return f"""func.func @main(%x: {source}) -> {target} {{
      %0 = stablehlo.bitcast_convert %x : ({source}) -> {target}
      return %0 : {target} }}"""


def test_constants_are_the_integers(run: Any) -> None:
    type_ = f"tensor<2x{Q}>"
    text = f"""func.func @main() -> (tensor<2xf32>) {{
      %0 = stablehlo.constant() {{value = dense<[4, -2]> : tensor<2xi8>}} : () -> {type_}
      %1 = stablehlo.uniform_dequantize %0 : ({type_}) -> tensor<2xf32>
      return %1 : tensor<2xf32> }}"""
    assert run(text)[0].tolist() == [1, -2]


def test_agrees_with_the_other_interpreter(run: Any, interpret: Any) -> None:
    text = f"""func.func @main(%x: tensor<11xf32>, %y: tensor<11xf32>) -> tensor<11xf32> {{
      %0 = stablehlo.uniform_quantize %x : (tensor<11xf32>) -> tensor<11x{Q}>
      %1 = stablehlo.uniform_quantize %y : (tensor<11xf32>) -> tensor<11x{Q}>
      %2 = stablehlo.add %0, %1 : tensor<11x{Q}>
      %3 = stablehlo.uniform_dequantize %2 : (tensor<11x{Q}>) -> tensor<11xf32>
      return %3 : tensor<11xf32> }}"""
    assert np.array_equal(run(text, X, X[::-1].copy())[0], interpret(text, X, X[::-1].copy())[0])


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
@pytest.mark.parametrize("sign", ["u", "i"])
def test_a_constant_is_of_the_storage_type(run: Any, sign: str, bits: int) -> None:
    """MLIR stores it as an integer without a sign, whatever the storage type is."""
    quantized = f"!quant.uniform<{sign}{bits}:f32, 0.5:0>"
    stored = [1, (1 << bits) - 1]
    expected = [0.5, stored[1] / 2 if sign == "u" else -0.5]
    text = f"""func.func @main() -> (tensor<2xf32>, tensor<2x{quantized}>) {{
      %0 = "stablehlo.constant"() {{value = dense<[{stored[0]}, {stored[1]}]> : tensor<2xi{bits}>}}
        : () -> tensor<2x{quantized}>
      %1 = stablehlo.uniform_dequantize %0 : (tensor<2x{quantized}>) -> tensor<2xf32>
      return %1, %0 : tensor<2xf32>, tensor<2x{quantized}> }}"""
    real, integers = run(text)
    assert real.tolist() == expected
    assert ElementType.of(integers.dtype).mlir == f"{'ui' if sign == 'u' else 'i'}{bits}"
