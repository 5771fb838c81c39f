"""Memory while a program runs: at most one and a half times its live arrays."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pjrt

SIDE = 1500  # from 2²¹ elements on, functions that hold arrays on the way to their result run in chunks

X = f"tensor<{SIDE}x{SIDE}xf32>"
B = f"tensor<{SIDE}x{SIDE}xbf16>"
ROW = f"tensor<{SIDE}xbf16>"
COMPARATOR = """({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1> })"""
ADD = """({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32> })"""
LARGEST = """({
    ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
      %d = stablehlo.abs %b : tensor<bf16>
      %c = stablehlo.maximum %a, %d : tensor<bf16>
      stablehlo.return %c : tensor<bf16> })"""
INDICES, UPDATES = f"tensor<{SIDE * SIDE}x2xi32>", f"tensor<{SIDE * SIDE}xf32>"
FULL, HALF = np.ones((SIDE, SIDE), np.float32), np.ones((SIDE, SIDE), ml_dtypes.bfloat16)
EVERYWHERE = np.indices((SIDE, SIDE), np.int32).reshape(2, -1).T.copy()


def matrix_and_vector(element: str, result: str) -> tuple[str, str]:
    x, y, r = f"tensor<{SIDE}x{SIDE}x{element}>", f"tensor<{SIDE}x{element}>", f"tensor<{SIDE}x{result}>"
    return f"stablehlo.dot_general %0, %1, contracting_dims = [1] x [0] : ({x}, {y}) -> {r}", r


CASES = {
    "logistic": (f"stablehlo.logistic %0 : {X}", X, [FULL]),
    "remainder": (f"stablehlo.remainder %0, %0 : {X}", X, [FULL]),
    "reduce_precision": (f"stablehlo.reduce_precision %0, format = e5m10 : {X}", X, [FULL]),
    "sort": (f'"stablehlo.sort"(%0) {COMPARATOR} {{dimension = 1 : i64}} : ({X}) -> {X}', X, [FULL]),
    "dot_general i8": (*matrix_and_vector("i8", "i32"), [FULL.astype(np.int8), FULL[0].astype(np.int8)]),
    "dot_general complex": (
        *matrix_and_vector("complex<f32>", "complex<f32>"),
        [FULL.astype(np.complex64), FULL[0].astype(np.complex64)],
    ),
    **{
        f"reduce along {dimension}": (
            f'"stablehlo.reduce"(%0, %1) {LARGEST} {{dimensions = array<i64: {dimension}>}} : '
            f"({B}, tensor<bf16>) -> {ROW}",
            ROW,
            [HALF, np.zeros((), ml_dtypes.bfloat16)],
        )
        for dimension in (0, 1)
    },
    "map": (f'"stablehlo.map"(%0, %0) {LARGEST} {{dimensions = array<i64: 0, 1>}} : ({B}, {B}) -> {B}', B, [HALF]),
    "reduce_window": (
        f'"stablehlo.reduce_window"(%0, %1) {LARGEST} {{window_dimensions = array<i64: 3, 3>, '
        f"padding = dense<1> : tensor<2x2xi64>}} : ({B}, tensor<bf16>) -> {B}",
        B,
        [HALF, np.zeros((), ml_dtypes.bfloat16)],
    ),
    "gather": (
        '"stablehlo.gather"(%0, %1) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0, 1], '
        "start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>} : "
        f"({X}, {INDICES}) -> {UPDATES}",
        UPDATES,
        [FULL, EVERYWHERE],
    ),
    "scatter": (
        f'"stablehlo.scatter"(%0, %1, %2) {ADD} {{scatter_dimension_numbers = #stablehlo.scatter<'
        "inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>} : "
        f"({X}, {INDICES}, {UPDATES}) -> {X}",
        X,
        [FULL, EVERYWHERE, FULL.reshape(-1)],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_operations_hold_little_more_than_arguments_and_results(case: str) -> None:
    operation, result, arguments = CASES[case]
    client = pjrt.client("reference")
    parameters = ", ".join(f"%{number}: {tensor(array)}" for number, array in enumerate(arguments))
    executable = client.compile(
        f"func.func @main({parameters}) -> {result} {{ %r = {operation} return %r : {result} }}"
    )
    buffers = [client.buffer_from_host(array) for array in arguments]
    executable(*buffers)[0].ready().result()
    tracemalloc.start()
    try:
        (found,) = executable(*buffers)
        found.ready().result()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    inputs = sum(buffer.on_device_size for buffer in buffers)
    assert inputs + peak <= 1.5 * (inputs + found.on_device_size)


def tensor(array: Any) -> str:
    sizes = "".join(f"{size}x" for size in array.shape)
    return f"tensor<{sizes}{pjrt.ElementType.of(array.dtype).mlir}>"
