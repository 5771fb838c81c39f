"""Scatters whose indices may be out of bounds: IREE skips these updates, as the reference interpreter does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.devices.iree.scatters import keep_in_bounds
from pjrt.devices.iree.support import refusal

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


def test_programs_without_scatters_stay_the_same() -> None:
    program = pjrt.stablehlo.parse(
        "func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {return %x: tensor<3xf32>}"
    )
    assert keep_in_bounds(program) is program


def test_scatters_of_dynamic_shapes_are_left_to_the_fallback() -> None:
    arrays, indices, updates, numbers, body = CASES["elements"]
    text = scatter(arrays, indices.astype(np.int32), updates, numbers, body).replace("tensor<5xf32>", "tensor<?xf32>")
    (operation, _) = pjrt.stablehlo.parse(text).entry.body.operations
    assert "dynamic shape" in refusal(operation)
