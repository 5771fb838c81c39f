"""Ops whose shapes, sizes and places are computed: as their static kin, on every element type, and their errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import TYPES, program, same, sample, tensor

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError

T = ElementType
every_type = pytest.mark.parametrize("t", TYPES, ids=lambda t: t.mlir)


def unknown(rank: int, t: ElementType) -> str:
    return f"tensor<{'?x' * rank}{t.mlir}>"


def i64(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


@every_type
def test_dynamic_reshape(run: Any, t: ElementType) -> None:
    x = sample(t, (2, 6))
    text = program("dynamic_reshape", [unknown(2, t), tensor((3,), T.S64)], unknown(3, t))
    same(run(text, x, i64(3, 1, 4))[0], x.reshape(3, 1, 4))
    same(run(text, x, i64(12, 1, 1))[0], x.reshape(12, 1, 1))


@pytest.mark.parametrize("shape", [(5, 1, 1), (-3, -4, 1), (0, 1, 1)])
def test_a_shape_of_other_elements_is_refused(run: Any, shape: Any) -> None:
    text = program("dynamic_reshape", [unknown(2, T.S32), tensor((3,), T.S64)], unknown(3, T.S32))
    with pytest.raises(InvalidArgumentError, match=r"expected a shape of (12 elements|sizes)"):
        run(text, np.zeros((2, 6), np.int32), i64(*shape))


@every_type
def test_dynamic_broadcast_in_dim(run: Any, t: ElementType) -> None:
    x = sample(t, (3, 1))
    text = program(
        "dynamic_broadcast_in_dim",
        [unknown(2, t), tensor((3,), T.S32)],
        unknown(3, t),
        "broadcast_dimensions = array<i64: 2, 0>",
    )
    (found,) = run(text, x, np.array([2, 4, 3], np.int32))
    same(found, np.broadcast_to(x.T.reshape(1, 1, 3), (2, 4, 3)))
    with pytest.raises(InvalidArgumentError, match="dimension 2"):
        run(text, x, np.array([2, 4, 5], np.int32))


@pytest.mark.parametrize(
    "t", [t for t in TYPES if t is not T.PRED and t.bits >= 8 and t is not T.F8E8M0FNU], ids=lambda t: t.mlir
)
@pytest.mark.parametrize("along", [0, 1])
def test_dynamic_iota(run: Any, t: ElementType, along: int) -> None:
    text = program("dynamic_iota", [tensor((2,), T.S64)], unknown(2, t), f"iota_dimension = {along} : i64")
    expected = np.indices((3, 4))[along].astype(t.dtype)
    same(run(text, i64(3, 4))[0], expected)
    assert run(text, i64(0, 4))[0].shape == (0, 4)
    with pytest.raises(InvalidArgumentError, match="zero or more"):
        run(text, i64(3, -1))


@every_type
def test_dynamic_pad(run: Any, t: ElementType) -> None:
    x, value = sample(t, (2, 3)), sample(t, (1,), 1)[0]
    shape = tensor((2,), T.S64)
    text = program("dynamic_pad", [unknown(2, t), tensor((), t), shape, shape, shape], unknown(2, t))
    (found,) = run(text, x, value, i64(1, -1), i64(0, 2), i64(1, 0))
    v = value
    same(found, np.array([[v] * 4, [x[0, 1], x[0, 2], v, v], [v] * 4, [x[1, 1], x[1, 2], v, v]], t.dtype))
    with pytest.raises(InvalidArgumentError, match="interior"):
        run(text, x, value, i64(0, 0), i64(0, 0), i64(0, -1))


@every_type
def test_real_dynamic_slice(run: Any, t: ElementType) -> None:
    x = sample(t, (5, 4))
    shape = tensor((2,), T.S32)
    text = program("real_dynamic_slice", [unknown(2, t), shape, shape, shape], unknown(2, t))
    parts = [np.array(p, np.int32) for p in ([1, 0], [5, 4], [2, 3])]
    same(run(text, x, *parts)[0], np.array([[x[1, 0], x[1, 3]], [x[3, 0], x[3, 3]]], t.dtype))


@pytest.mark.parametrize("parts", [([0], [6], [1]), ([3], [2], [1]), ([-1], [2], [1]), ([0], [2], [0])])
def test_bounds_outside_of_the_operand_are_refused(run: Any, parts: Any) -> None:
    shape = tensor((1,), T.S64)
    text = program("real_dynamic_slice", [unknown(1, T.S32), shape, shape, shape], unknown(1, T.S32))
    with pytest.raises(InvalidArgumentError, match="expected 0 <= start <= limit <= 5"):
        run(text, np.zeros(5, np.int32), *(i64(*p) for p in parts))


def bounded(t: ElementType) -> str:
    return f"tensor<?x{t.mlir}, #stablehlo.bounds<5>>"


@every_type
def test_set_dimension_size(run: Any, t: ElementType) -> None:
    x = sample(t, (5,))
    text = program("set_dimension_size", [tensor((5,), t), tensor((), T.S32)], bounded(t), "dimension = 0 : i64")
    same(run(text, x, np.int32(3))[0], x[:3])
    same(run(text, x, np.int32(5))[0], x)
    for size in (6, -1):
        with pytest.raises(InvalidArgumentError, match="from 0 to 5"):
            run(text, x, np.int32(size))


def test_a_dimension_grows_up_to_its_bound(run: Any) -> None:
    t = bounded(T.S32)
    text = f"""func.func @main(%x: tensor<5xi32>, %a: tensor<i32>, %b: tensor<i32>) -> ({t}, tensor<i32>) {{
      %0 = "stablehlo.set_dimension_size"(%x, %a) {{dimension = 0 : i64}} : (tensor<5xi32>, tensor<i32>) -> {t}
      %1 = "stablehlo.set_dimension_size"(%0, %b) {{dimension = 0 : i64}} : ({t}, tensor<i32>) -> {t}
      %2 = "stablehlo.get_dimension_size"(%1) {{dimension = 0 : i64}} : ({t}) -> tensor<i32>
      return %1, %2 : {t}, tensor<i32> }}"""
    found, size = run(text, np.arange(1, 6, dtype=np.int32), np.int32(2), np.int32(4))
    assert found[:2].tolist() == [1, 2]
    assert (found.shape, int(size)) == ((4,), 4)


def test_static_ops_on_sizes_known_when_the_program_runs(run: Any) -> None:
    """Pad, reduce, transpose, reverse, concatenate and gather take their sizes from the values."""
    u = unknown(2, T.S32)
    text = f"""func.func @main(%x: {u}, %i: tensor<?x1xi32>, %zero: tensor<i32>) -> (tensor<?xi32>, {u}, {u}, {u}) {{
      %p = stablehlo.pad %x, %zero, low = [1, 0], high = [0, 0], interior = [0, 0] : ({u}, tensor<i32>) -> {u}
      %r = stablehlo.reduce(%p init: %zero) applies stablehlo.add across dimensions = [1]
        : ({u}, tensor<i32>) -> tensor<?xi32>
      %t = stablehlo.transpose %p, dims = [1, 0] : ({u}) -> {u}
      %v = stablehlo.reverse %t, dims = [0] : {u}
      %c = stablehlo.concatenate %v, %t, dim = 0 : ({u}, {u}) -> {u}
      %g = "stablehlo.gather"(%c, %i) {{slice_sizes = array<i64: 1, 3>, dimension_numbers = #stablehlo.gather<
        offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>}}
        : ({u}, tensor<?x1xi32>) -> {u}
      return %r, %c, %g, %t : tensor<?xi32>, {u}, {u}, {u} }}"""
    x = np.arange(8, dtype=np.int32).reshape(2, 4)
    rows = np.array([[0], [7], [2]], np.int32)
    sums, joined, picked, turned = run(text, x, rows, np.int32(0))
    padded = np.concatenate([np.zeros((1, 4), np.int32), x])
    same(sums, padded.sum(1, dtype=np.int32))
    same(turned, padded.T)
    same(joined, np.concatenate([padded.T[::-1], padded.T]))
    same(picked, joined[rows[:, 0]])


def test_bodies_on_sizes_known_when_the_program_runs(run: Any) -> None:
    """Scatter, sort and reduce_window too."""
    u, c = unknown(1, T.S32), "tensor<?x1xi32>"
    text = f"""func.func @main(%x: {u}, %i: {c}, %u: {u}, %zero: tensor<i32>) -> ({u}, {u}, {u}) {{
      %s = "stablehlo.scatter"(%x, %i, %u) ({{
        ^bb0(%a: tensor<i32>, %b: tensor<i32>):
          %r = stablehlo.add %a, %b : tensor<i32>
          stablehlo.return %r : tensor<i32>
      }}) {{scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0],
        scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}} : ({u}, {c}, {u}) -> {u}
      %o = "stablehlo.sort"(%s) ({{
        ^bb0(%a: tensor<i32>, %b: tensor<i32>):
          %p = stablehlo.compare GT, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %p : tensor<i1>
      }}) {{dimension = 0 : i64}} : ({u}) -> {u}
      %w = "stablehlo.reduce_window"(%o, %zero) ({{
        ^bb0(%a: tensor<i32>, %b: tensor<i32>):
          %r = stablehlo.add %a, %b : tensor<i32>
          stablehlo.return %r : tensor<i32>
      }}) {{window_dimensions = array<i64: 2>}} : ({u}, tensor<i32>) -> {u}
      return %s, %o, %w : {u}, {u}, {u} }}"""
    for size in (5, 3):
        x = np.arange(size, dtype=np.int32)
        places = np.array([[0], [2], [0], [9]], np.int32)
        added, ordered, sums = run(text, x, places, np.array([10, 20, 30, 40], np.int32), np.int32(0))
        expected = x + np.array([40, 0, 20, 0, 0][:size], np.int32)
        same(added, expected)
        same(ordered, np.sort(expected)[::-1].copy())
        same(sums, ordered[1:] + ordered[:-1])


@pytest.mark.parametrize(
    ("name", "operands", "result", "attributes", "arguments"),
    [
        ("dynamic_iota", [(2,)], (4, 3), "iota_dimension = 0 : i64", [(2, 3)]),
        ("dynamic_reshape", [(6,), (2,)], (3, 2), "", [range(6), (2, 3)]),
        ("dynamic_broadcast_in_dim", [(3,), (2,)], (4, 3), "broadcast_dimensions = array<i64: 1>", [range(3), (2, 3)]),
        ("dynamic_pad", [(3,), (), (1,), (1,), (1,)], (4,), "", [range(3), 0, (1,), (1,), (0,)]),
        ("real_dynamic_slice", [(7,), (1,), (1,), (1,)], (3,), "", [range(7), (1,), (3,), (1,)]),
    ],
)
def test_sizes_that_are_not_those_of_the_program_are_refused(
    run: Any, name: str, operands: Any, result: Any, attributes: str, arguments: Any
) -> None:
    """The type of a result may be static. Numpy would spread a wrong one over others, or say so in its own words."""
    text = program(name, [tensor(shape, T.S64) for shape in operands], tensor(result, T.S64), attributes)
    spelled = "x".join(map(str, result))
    with pytest.raises(
        InvalidArgumentError, match=rf"expected operands that give tensor<{spelled}xi64>, .* found .*\["
    ):
        run(text, *(np.array(argument, np.int64) for argument in arguments))
