"""Hints of Shardy, which change no value, whatever its type; and small ops without a module of tests of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pjrt.api.element_type import ElementType

T = ElementType
TYPES = [t for t in T if t not in (T.INVALID, T.TOKEN, T.S1, T.U1)]
MESH = 'sdy.mesh @mesh = <["x"=2, "y"=2]>\n'


def patterns(t: ElementType, count: int) -> Any:
    random = np.random.default_rng(t)
    if t is T.PRED:
        return random.integers(0, 2, count).astype(bool)
    high = 256 if t.bits >= 8 else 1 << t.bits
    return random.integers(0, high, count * t.dtype.itemsize, dtype=np.uint8).view(t.dtype)


@pytest.mark.parametrize("t", TYPES, ids=lambda t: t.mlir)
def test_hints(run: Any, t: ElementType) -> None:
    x = patterns(t, 4)
    type_ = f"tensor<4x{t.mlir}>"
    text = f"""{MESH}
    func.func @main(%x: {type_}) -> {type_} {{
      %0 = sdy.sharding_constraint %x <@mesh, [{{"x"}}]> : {type_}
      %1 = sdy.reshard %0 <@mesh, [{{"y"}}]> : {type_}
      %2 = sdy.propagation_barrier %1 allowed_direction=NONE : {type_}
      %r = sdy.reshard %2 <@mesh, [{{"y"}}]> : {type_}
      %3 = sdy.all_gather [{{"y"}}] %r out_sharding=<@mesh, [{{}}]> : {type_}
      %4 = sdy.all_slice [{{"x"}}] %3 out_sharding=<@mesh, [{{"x"}}]> : {type_}
      sdy.sharding_group %4 group_id = 1 : {type_}
      %5 = sdy.named_computation<"part">(%4) (%a: {type_}) {{
        sdy.return %a : {type_}
      }} : ({type_}) -> {type_}
      return %5 : {type_} }}"""
    (found,) = run(text, x)
    assert found.tobytes() == x.tobytes()


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("all_reduce", 'reduction_axes = #sdy<axis_ref_list{"y"}>, out_sharding = #sdy.sharding<@mesh, [{"x"}]>'),
        ("collective_permute", 'out_sharding = #sdy.sharding<@mesh, [{"y"}]>'),
    ],
)
def test_collectives_of_shardy_keep_the_whole(run: Any, op: str, attributes: str) -> None:
    text = f"""{MESH}
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
      %s = sdy.sharding_constraint %x <@mesh, [{{"x"}}]> : tensor<4xf32>
      %0 = "sdy.{op}"(%s) {{{attributes}}} : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32> }}"""
    assert run(text, np.arange(4, dtype=np.float32))[0].tolist() == [0, 1, 2, 3]


def test_a_constant_of_shardy(run: Any) -> None:
    text = """func.func @main() -> tensor<2xf32> {
      %0 = sdy.constant dense<[1.0, 2.0]> : tensor<2xf32>
      return %0 : tensor<2xf32> }"""
    assert run(text)[0].tolist() == [1, 2]


@pytest.mark.parametrize("t", [t for t in TYPES if t is not T.PRED], ids=lambda t: t.mlir)
def test_iota(run: Any, nearest: Any, t: ElementType) -> None:
    """Counts along either dimension, wrapping or rounding as a conversion does."""
    text = f"""func.func @main() -> (tensor<5x3x{t.mlir}>, tensor<5x3x{t.mlir}>) {{
      %0 = stablehlo.iota dim = 0 : tensor<5x3x{t.mlir}>
      %1 = stablehlo.iota dim = 1 : tensor<5x3x{t.mlir}>
      return %0, %1 : tensor<5x3x{t.mlir}>, tensor<5x3x{t.mlir}> }}"""
    rows, columns = np.indices((5, 3))
    for found, expected in zip(run(text), (rows, columns), strict=True):
        assert found.dtype == t.dtype
        if t.is_integer:
            mask = (1 << min(t.bits, 62)) - 1
            assert ((found.astype(np.int64) & mask) == (expected & mask)).all()
        elif t.is_complex:
            assert np.array_equal(found, expected)
        elif t is not T.F8E8M0FNU:  # that one has no zero
            assert found.tobytes() == nearest(expected, t.dtype).tobytes()


WITH_TWO = ["add", "divide", "maximum", "minimum", "multiply", "power", "remainder", "subtract"]
ON_FLOATS = ["atan2", "next_after"]
ON_INTEGERS = ["shift_left", "shift_right_arithmetic", "shift_right_logical"]
LOGIC = ["and", "or", "xor"]
INTEGERS = [t for t in TYPES if t.is_integer]
FLOATS = [t for t in TYPES if t.is_floating and t.bits >= 8 and t is not T.F8E8M0FNU]
BROADCASTS = [(op, t) for op in WITH_TWO for t in INTEGERS + FLOATS]
BROADCASTS += [(op, t) for op in ON_FLOATS for t in FLOATS] + [(op, t) for op in ON_INTEGERS for t in INTEGERS]
BROADCASTS += [(op, t) for op in LOGIC for t in [T.PRED, *INTEGERS]]


@pytest.mark.parametrize(("op", "t"), BROADCASTS, ids=lambda v: v if isinstance(v, str) else v.mlir)
def test_implicit_broadcasting(run: Any, op: str, t: ElementType) -> None:
    """As the op without it, on operands that were broadcast before."""
    x = np.arange(1, 7, dtype=np.int8).reshape(2, 3).astype(t.dtype)
    y = np.array([2, 1, 3], np.int8).astype(t.dtype)
    types = f"tensor<2x3x{t.mlir}>", f"tensor<3x{t.mlir}>"
    plain = "chlo.next_after" if op == "next_after" else f"stablehlo.{op}"
    text = f"""func.func @main(%x: {types[0]}, %y: {types[1]}) -> ({types[0]}, {types[0]}) {{
      %0 = "chlo.broadcast_{op}"(%x, %y) : ({types[0]}, {types[1]}) -> {types[0]}
      %1 = stablehlo.broadcast_in_dim %y, dims = [1] : ({types[1]}) -> {types[0]}
      %2 = "{plain}"(%x, %1) : ({types[0]}, {types[0]}) -> {types[0]}
      return %0, %2 : {types[0]}, {types[0]} }}"""
    found, expected = run(text, x, y)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("t", TYPES, ids=lambda t: t.mlir)
def test_comparing_with_implicit_broadcasting(run: Any, t: ElementType) -> None:
    x = patterns(t, 6).reshape(2, 3)
    y = x[1].copy()
    text = f"""func.func @main(%x: tensor<2x3x{t.mlir}>, %y: tensor<3x{t.mlir}>) -> tensor<2x3xi1> {{
      %0 = chlo.broadcast_compare %x, %y {{comparison_direction = #chlo<comparison_direction EQ>}}
        : (tensor<2x3x{t.mlir}>, tensor<3x{t.mlir}>) -> tensor<2x3xi1>
      return %0 : tensor<2x3xi1> }}"""
    with np.errstate(all="ignore"):
        wide = x.astype(np.float32) if t.is_floating and t is not T.F64 else x
    assert np.array_equal(run(text, x, y)[0], wide == wide[1])


def test_implicit_broadcasting_of_other_results(run: Any) -> None:
    text = """func.func @main(%x: tensor<2x3xf32>, %y: tensor<3xf32>)
        -> (tensor<2x3xi1>, tensor<2x3xcomplex<f32>>, tensor<2x3xf32>) {
      %0 = chlo.broadcast_compare %x, %y {comparison_direction = #chlo<comparison_direction LT>}
        : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xi1>
      %1 = chlo.broadcast_complex %x, %y : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xcomplex<f32>>
      %2 = chlo.broadcast_select %0, %x, %y : (tensor<2x3xi1>, tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
      return %0, %1, %2 : tensor<2x3xi1>, tensor<2x3xcomplex<f32>>, tensor<2x3xf32> }"""
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 2, 3], np.float32)
    less, both, chosen = run(text, x, y)
    assert np.array_equal(less, x < y)
    assert np.array_equal(both, x + 1j * y)
    assert np.array_equal(chosen, np.where(x < y, x, y))


@pytest.mark.parametrize("element", ["f32", "f64"])
def test_parts_of_real_numbers(run: Any, element: str) -> None:
    text = f"""func.func @main(%x: tensor<2x{element}>) -> (tensor<2x{element}>, tensor<2x{element}>) {{
      %0 = stablehlo.real %x : (tensor<2x{element}>) -> tensor<2x{element}>
      %1 = stablehlo.imag %x : (tensor<2x{element}>) -> tensor<2x{element}>
      return %0, %1 : tensor<2x{element}>, tensor<2x{element}> }}"""
    real, imag = run(text, np.array([1, -2], T.from_mlir(element).dtype))
    assert (real.tolist(), imag.tolist()) == ([1, -2], [0, 0])
