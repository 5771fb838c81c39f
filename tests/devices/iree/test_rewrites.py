"""Operations that IREE alone computes wrongly: the device computes them as the reference interpreter does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.devices.iree.support import refusal, rewrite

pytestmark = pytest.mark.full

FAR = np.iinfo(np.int32).max


def scatter(arrays: list[Any], indices: Any, updates: list[Any], numbers: str, body: str, unique: bool = False) -> str:
    """Return a program that scatters updates into its first arguments, with indices that are its next one."""
    types = [type_of(each) for each in (*arrays, indices, *updates)]
    elements = [f"tensor<{type_.removesuffix('>').split('x')[-1].removeprefix('tensor<')}>" for type_ in types]
    count = len(arrays)
    names = [f"%x{n}" for n in range(len(types))]
    block = ", ".join(f"%{letter}{n}: {elements[n]}" for letter in "ab" for n in range(count))
    outputs = ", ".join(f"%c{n}" for n in range(count))
    results = ", ".join(types[:count])
    parameters = ", ".join(f"{name}: {type_}" for name, type_ in zip(names, types, strict=True))
    return f"""
func.func public @main({parameters}) -> ({results}) {{
  %r:{count} = "stablehlo.scatter"({", ".join(names)}) <{{
    scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, unique_indices = {str(unique).lower()}
  }}> ({{
    ^bb0({block}):
      {body}
      stablehlo.return {outputs} : {", ".join(elements[:count])}
  }}) : ({", ".join(types)}) -> ({results})
  return {", ".join(f"%r#{n}" for n in range(count))} : {results}
}}"""


def type_of(array: Any) -> str:
    element = {"f": f"f{array.itemsize * 8}", "i": f"i{array.itemsize * 8}", "u": f"ui{array.itemsize * 8}"}
    return f"tensor<{''.join(f'{size}x' for size in array.shape)}{element[array.dtype.kind]}>"


def ramp(*shape: int, dtype: Any = np.float32) -> Any:
    return np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)


ADD = "%c0 = stablehlo.add %a0, %b0 : tensor<f32>"
REPLACE = "%c0 = stablehlo.maximum %b0, %b0 : tensor<f32>"
BOTH = """%c0 = stablehlo.add %a0, %b0 : tensor<f32>
      %c1 = stablehlo.maximum %a1, %b1 : tensor<i32>"""
ELEMENTS = "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
CASES: dict[str, tuple[list[Any], Any, list[Any], str, str]] = {
    "elements": ([ramp(5)], np.array([[1], [5], [-1], [FAR]]), [ramp(4) + 9], ELEMENTS, ADD),
    "the last one wins": ([ramp(5)], np.array([[1], [5], [1], [4]]), [ramp(4) + 9], ELEMENTS, REPLACE),
    "one index": (
        [ramp(5)],
        np.array(5),
        [ramp() + 9],
        "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]",
        ADD,
    ),
    "indices of one byte": ([ramp(300)], np.array([[1], [255]], np.uint8), [ramp(2) + 9], ELEMENTS, ADD),
    "indices of eight bytes": ([ramp(3)], np.array([[1], [2**32], [2]]), [ramp(3) + 9], ELEMENTS, ADD),
    "indices without a sign": ([ramp(3)], np.array([[1], [2**32 - 1]], np.uint32), [ramp(2) + 9], ELEMENTS, ADD),
    "windows": (
        [ramp(4, 5)],
        np.array([[2, 3], [3, 0], [0, 4], [-1, 0], [0, 0]]),
        [ramp(5, 2, 2) + 9],
        "update_window_dims = [1, 2], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1",
        ADD,
    ),
    "rows in another order": (
        [ramp(3, 2, 4)],
        np.array([[0, 3, 1], [2, 0, 7]]).T.copy(),
        [ramp(2, 3) + 9],
        "update_window_dims = [0], inserted_window_dims = [0, 2], scatter_dims_to_operand_dims = [2, 0], "
        "index_vector_dim = 1",
        ADD,
    ),
    "batches": (
        [ramp(2, 3)],
        np.array([[[0], [3]], [[-1], [2]]]),
        [ramp(2, 2) + 9],
        "inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], "
        "scatter_dims_to_operand_dims = [1], index_vector_dim = 2",
        ADD,
    ),
    "two operands": (
        [ramp(4), ramp(4, dtype=np.int32)],
        np.array([[4], [0], [-7]]),
        [ramp(3) + 9, ramp(3, dtype=np.int32) + 9],
        ELEMENTS,
        BOTH,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_updates_out_of_bounds_are_skipped(name: str) -> None:
    arrays, indices, updates, numbers, body = CASES[name]
    if indices.dtype == np.int64 and indices.max(initial=0) <= FAR:
        indices = indices.astype(np.int32)
    text = scatter(arrays, indices, updates, numbers, body)
    reference, iree = (pjrt.client(device).compile(text) for device in ("reference", "iree"))
    expected = [np.asarray(each) for each in reference(*arrays, indices, *updates)]
    assert any((one != other).any() for one, other in zip(expected, arrays, strict=True)) or name == "one index"
    for result, correct in zip(iree(*arrays, indices, *updates), expected, strict=True):
        np.testing.assert_array_equal(np.asarray(result), correct)


def test_scatters_in_loops_and_functions() -> None:
    text = """
func.func public @main(%x: tensor<3xf32>, %n: tensor<i32>) -> tensor<3xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<3xf32>
    cond { %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1> }
    do { %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      %more = func.call @put(%y, %i) : (tensor<3xf32>, tensor<i32>) -> tensor<3xf32>
      stablehlo.return %next, %more : tensor<i32>, tensor<3xf32> }
  return %r#1 : tensor<3xf32>
}
func.func private @put(%x: tensor<3xf32>, %i: tensor<i32>) -> tensor<3xf32> {
  %one = stablehlo.constant dense<1.0> : tensor<f32>
  %y = "stablehlo.scatter"(%x, %i, %one) <{scatter_dimension_numbers = #stablehlo.scatter<
    inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
  }) : (tensor<3xf32>, tensor<i32>, tensor<f32>) -> tensor<3xf32>
  return %y : tensor<3xf32>
}"""
    (result,) = pjrt.client("iree").compile(text)(ramp(3), np.array(1000, np.int32))
    np.testing.assert_array_equal(np.asarray(result), [1, 2, 3])


def test_programs_without_such_operations_stay_the_same() -> None:
    program = pjrt.stablehlo.parse(
        "func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {return %x: tensor<3xf32>}"
    )
    assert rewrite(program) is program


def test_scatters_of_dynamic_shapes_are_left_to_the_fallback() -> None:
    arrays, indices, updates, numbers, body = CASES["elements"]
    text = scatter(arrays, indices.astype(np.int32), updates, numbers, body).replace("tensor<5xf32>", "tensor<?xf32>")
    (operation, _) = pjrt.stablehlo.parse(text).entry.body.operations
    assert "dynamic shape" in refusal(operation)


def agree(text: str, *arguments: Any) -> None:
    """Run a program with IREE alone and with the interpreter, and compare."""
    reference, iree = (pjrt.client(name, **options).compile(text) for name, options in DEVICES)
    for result, expected in zip(iree(*arguments), reference(*arguments), strict=True):
        np.testing.assert_array_equal(np.asarray(result), np.asarray(expected))


DEVICES: tuple[tuple[str, dict[str, Any]], ...] = (("reference", {}), ("iree", {"fallback": None}))


@pytest.mark.parametrize("dtype", [np.uint64, np.uint32, np.int64, np.int8])
def test_indices_beyond_the_operand_are_limited(dtype: Any) -> None:
    """IREE takes indices of ui64 from 2**63 on for negative ones; a gather reads memory of others with them."""
    limits = np.iinfo(dtype)
    indices = np.array([[limits.max], [limits.max // 2 + 1], [limits.min], [1]], dtype)
    element = type_of(indices).removesuffix(">").split("x")[-1]
    text = f"""
func.func public @main(%x: tensor<5xf32>, %i: tensor<4x1x{element}>, %j: tensor<{element}>, %u: tensor<2xf32>)
    -> (tensor<4xf32>, tensor<4x2xf32>, tensor<2xf32>, tensor<5xf32>) {{
  %taken = "stablehlo.gather"(%x, %i) <{{slice_sizes = array<i64: 1>, dimension_numbers = #stablehlo.gather<
    collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>}}>
    : (tensor<5xf32>, tensor<4x1x{element}>) -> tensor<4xf32>
  %windows = "stablehlo.gather"(%x, %i) <{{slice_sizes = array<i64: 2>, dimension_numbers = #stablehlo.gather<
    offset_dims = [1], start_index_map = [0], index_vector_dim = 1>}}>
    : (tensor<5xf32>, tensor<4x1x{element}>) -> tensor<4x2xf32>
  %slice = stablehlo.dynamic_slice %x, %j, sizes = [2] : (tensor<5xf32>, tensor<{element}>) -> tensor<2xf32>
  %updated = stablehlo.dynamic_update_slice %x, %u, %j
    : (tensor<5xf32>, tensor<2xf32>, tensor<{element}>) -> tensor<5xf32>
  return %taken, %windows, %slice, %updated : tensor<4xf32>, tensor<4x2xf32>, tensor<2xf32>, tensor<5xf32>
}}"""
    agree(text, ramp(5), indices, np.array(limits.max, dtype), ramp(2) + 9)


@pytest.mark.parametrize("reversal", ["true, true", "true, false", "false, false"])
@pytest.mark.parametrize("groups", [1, 3])
def test_windows_of_convolutions_are_reversed(groups: int, reversal: str) -> None:
    kernel = f"tensor<2x3x{3 // groups}x6xf32>"
    text = f"""
func.func public @main(%x: tensor<1x5x5x3xf32>, %w: {kernel}) -> tensor<1x4x3x6xf32> {{
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{stride = [1, 1], reverse = [{reversal}]}}
    {{batch_group_count = 1 : i64, feature_group_count = {groups} : i64}}
    : (tensor<1x5x5x3xf32>, {kernel}) -> tensor<1x4x3x6xf32>
  return %0 : tensor<1x4x3x6xf32>
}}"""
    agree(text, ramp(1, 5, 5, 3), ramp(2, 3, 3 // groups, 6))


SORTS = {
    # An order that takes a value from outside, and has operations after its return value.
    "by a part": (
        "%m = stablehlo.and %a, %mask : tensor<i32>\n%n = stablehlo.and %b, %mask : tensor<i32>\n"
        "%l = stablehlo.compare GT, %m, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>",
        1,
    ),
    "not at all": ("%l = stablehlo.constant dense<false> : tensor<i1>", 0),
    # An order that is not strict says of equal elements that each comes first.
    "by the second operand": (
        "%l = stablehlo.compare LT, %c, %d : (tensor<f32>, tensor<f32>) -> tensor<i1>",
        1,
    ),
}


@pytest.mark.parametrize("name", SORTS)
def test_stable_sorts_are_stable(name: str) -> None:
    order, dimension = SORTS[name]
    text = f"""
func.func public @main(%x: tensor<2x9xi32>, %y: tensor<2x9xf32>) -> (tensor<2x9xi32>, tensor<2x9xf32>) {{
  %mask = stablehlo.constant dense<3> : tensor<i32>
  %0:2 = "stablehlo.sort"(%x, %y) <{{dimension = {dimension} : i64, is_stable = true}}> ({{
    ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<f32>, %d: tensor<f32>):
      {order}
      stablehlo.return %l : tensor<i1>
  }}) : (tensor<2x9xi32>, tensor<2x9xf32>) -> (tensor<2x9xi32>, tensor<2x9xf32>)
  return %0#0, %0#1 : tensor<2x9xi32>, tensor<2x9xf32>
}}"""
    random = np.random.default_rng(0)
    agree(text, random.integers(0, 20, (2, 9), dtype=np.int32), random.integers(0, 3, (2, 9)).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8])
def test_the_greatest_come_in_their_order(dtype: Any) -> None:
    """IREE lets equal elements change places, takes unsigned ones for signed ones, and leaves out NaN."""
    x = np.array([[1, 3, 3, 200, 0, 1], [1, 0, 1, 0, 1, 0]], np.float32)
    if dtype is np.float32:
        x[0, ::3] = np.nan, -np.nan
    x = x.astype(dtype)
    element = type_of(x).removesuffix(">").split("x")[-1]
    results = f"(tensor<2x4x{element}>, tensor<2x4xi32>)"
    text = f"""
func.func public @main(%x: tensor<2x6x{element}>) -> {results} {{
  %0:2 = chlo.top_k(%x, k = 4) : tensor<2x6x{element}> -> {results}
  return %0#0, %0#1 : tensor<2x4x{element}>, tensor<2x4xi32>
}}"""
    iree, reference = (pjrt.client(name).compile(text) for name in ("iree", "reference"))
    for result, expected in zip(iree(x), reference(x), strict=True):
        np.testing.assert_array_equal(np.asarray(result), np.asarray(expected))


@pytest.mark.parametrize(
    ("given", "result", "bits", "expected"),
    [
        ("f8E4M3FN", "f32", [0x7F, 0xFF, 0x38], [np.nan, np.nan, 1.0]),
        ("f8E4M3FN", "f8E5M2", [0xFF, 0x38], [np.nan, 1.0]),
        ("f8E4M3FN", "i32", [0x7F, 0xFF, 0x38], [0, 0, 1]),
        ("f8E5M2FNUZ", "f8E5M2", [0x07], [2.0**-14]),
    ],
)
def test_conversions_of_floats_of_eight_bits(given: str, result: str, bits: list[int], expected: list[float]) -> None:
    types = [f"tensor<{len(bits)}x{kind}>" for kind in (given, result)]
    text = f"""func.func @main(%x: {types[0]}) -> {types[1]} {{
      %r = stablehlo.convert %x : ({types[0]}) -> {types[1]}
      return %r : {types[1]} }}"""
    array = np.array(bits, np.uint8).view(pjrt.ElementType.from_mlir(given).dtype)
    with pjrt.client("iree") as client:
        found = np.asarray(client.compile(text)(array)[0]).astype(np.float64)
    np.testing.assert_array_equal(found, expected)
