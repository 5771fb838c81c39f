"""Programs with operations that XLA computes wrongly, and the arrays for them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

import pjrt

FLOATS = ("f4E2M1FN", "f8E4M3FN", "f8E5M2", "f8E3M4", "f8E4M3", "f8E8M0FNU", "f16", "bf16", "f32", "f64")
INTEGERS = tuple(f"{sign}{width}" for width in (2, 4, 8, 16, 32, 64) for sign in ("i", "ui"))


def width_of(kind: str) -> int:
    return int(re.search("[0-9]+", kind).group())  # type: ignore[union-attr]


def dtype_of(kind: str) -> Any:
    return pjrt.ElementType.from_mlir(kind).dtype


def values_of(kind: str, seed: int, count: int = 24) -> np.ndarray:  # type: ignore[type-arg]
    """Return elements of any bits but those of NaN, which move through floats as they like."""
    random, width = np.random.default_rng(seed), width_of(kind)
    if kind[0] in "iu":
        low, high = (
            (-(2 ** (width - 1)), 2 ** (width - 1)) if kind[0] == "i" and width > 1 else (0, 2 ** min(width, 63))
        )
        return random.integers(low, high, count).astype(dtype_of(kind))
    bits = random.integers(0, 2 ** min(width, 63), count)
    array = bits.astype(f"u{max(width // 8, 1)}").view(dtype_of(kind))
    return np.where(np.isnan(array), np.ones((), array.dtype), array).astype(array.dtype)


def literal_of(array: np.ndarray, kind: str) -> str:  # type: ignore[type-arg]
    """Return an array as MLIR spells it."""
    if array.ndim:
        return f"[{', '.join(literal_of(part, kind) for part in array)}]"
    if kind == "i1":
        return str(bool(array)).lower()
    if kind[0] in "iu":
        return str(int(array))
    return f"0x{int(array.view(f'u{array.dtype.itemsize}')):0{max(width_of(kind) // 4, 1)}X}"


SCATTER = """
func.func @main(%o: tensor<4xi32>, %i: tensor<2x1xi32>, %u: tensor<2xi32>, %v: tensor<2xi32>)
    -> (tensor<4xi32>, tensor<4xi32>) {
  %0:2 = "stablehlo.scatter"(%o, %o, %i, %u, %v) ({
    ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<i32>, %d: tensor<i32>):
      stablehlo.return %c, %d : tensor<i32>, tensor<i32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
    index_vector_dim = 1>} : (tensor<4xi32>, tensor<4xi32>, tensor<2x1xi32>, tensor<2xi32>, tensor<2xi32>)
    -> (tensor<4xi32>, tensor<4xi32>)
  return %0#0, %0#1 : tensor<4xi32>, tensor<4xi32>
}"""


SCATTERED = (np.arange(4, dtype="i4"), np.array([[0], [2]], "i4"), np.array([5, 6], "i4"), np.array([7, 8], "i4"))


NARROW = """
func.func @main() -> tensor<3x2xi32> {
  %0 = stablehlo.constant dense<[31, 128, 122]> : tensor<3xui8>
  %1 = stablehlo.bitcast_convert %0 : (tensor<3xui8>) -> tensor<3x2xi4>
  %2 = stablehlo.convert %1 : (tensor<3x2xi4>) -> tensor<3x2xi32>
  return %2 : tensor<3x2xi32>
}"""


RANDOM_BITS = """
func.func @main(%state: tensor<2xui64>) -> tensor<8xi32> {
  %0:2 = stablehlo.rng_bit_generator %state, algorithm = THREE_FRY : (tensor<2xui64>) -> (tensor<2xui64>, tensor<8xi32>)
  return %0#1 : tensor<8xi32>
}"""


def unary(operation: str, given: str, result: str, attributes: str = "") -> str:
    return f"""
    func.func @main(%x: tensor<{given}>) -> tensor<{result}> {{
      %0 = "stablehlo.{operation}"(%x) {{{attributes}}} : (tensor<{given}>) -> tensor<{result}>
      return %0 : tensor<{result}>
    }}"""


def binary(operation: str, given: str, result: str, attributes: str) -> str:
    return f"""
    func.func @main(%x: tensor<{given}>, %y: tensor<{given}>) -> tensor<{result}> {{
      %0 = "stablehlo.{operation}"(%x, %y) {{{attributes}}} : (tensor<{given}>, tensor<{given}>) -> tensor<{result}>
      return %0 : tensor<{result}>
    }}"""


def joined(kind: str) -> str:
    return binary("concatenate", f"3x4x{kind}", f"6x4x{kind}", "dimension = 0 : i64")


def product_of(kind: str, result: str, contracted: str = "1] x [0") -> str:
    """Return a program that multiplies matrices of four rows and columns."""
    left, right = contracted.split("] x [")
    numbers = f"#stablehlo.dot<lhs_contracting_dimensions = [{left}], rhs_contracting_dimensions = [{right}]>"
    shape = "4x" * (4 - 2 * len(left.split(",")))
    return binary("dot_general", f"4x4x{kind}", f"{shape}{result}", f"dot_dimension_numbers = {numbers}")


def mixed_product(left: str, right: str, result: str, operation: str = "dot_general") -> str:
    """Return a program that multiplies a row of one type by a column of another, or convolves them."""
    if operation == "convolution":
        one, other, product = f"tensor<1x3x1x{left}>", f"tensor<3x1x1x{right}>", f"tensor<1x1x1x{result}>"
        reshaped = (
            f"%y = stablehlo.reshape %a : (tensor<1x3x{left}>) -> {one}",
            f"%k = stablehlo.reshape %b : (tensor<3x1x{right}>) -> {other}",
        )
        text = (
            "stablehlo.convolution(%y, %k) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {} "
            "{batch_group_count = 1 : i64, feature_group_count = 1 : i64}"
        )
    else:
        one, other, product, reshaped = f"tensor<1x3x{left}>", f"tensor<3x1x{right}>", f"tensor<1x1x{result}>", ()
        text = f"stablehlo.{operation} %a, %b" + (", contracting_dims = [1] x [0]" if operation != "dot" else "")
    line = f"%r = {text} : ({one}, {other}) -> {product}"
    return program_of(product, *reshaped, line, arguments=f"%a: tensor<1x3x{left}>, %b: tensor<3x1x{right}>")


REPLICAS = "replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>"


def of_constant(operation: str, literal: str, given: str, result: str) -> str:
    return f"""
    func.func @main() -> tensor<{result}> {{
      %0 = stablehlo.constant dense<{literal}> : tensor<{given}>
      %1 = stablehlo.{operation} %0 : (tensor<{given}>) -> tensor<{result}>
      return %1 : tensor<{result}>
    }}"""


def reduce_precision(kind: str, exponent: int, mantissa: int) -> str:
    bits = f"exponent_bits = {exponent} : i32, mantissa_bits = {mantissa} : i32"
    return unary("reduce_precision", kind, kind, bits)


def sorted_by(kind: str, count: int, second: str = "i32", direction: str = "LT", order: str = "NOTYPE") -> str:
    one, other = f"tensor<{count}x{kind}>", f"tensor<{count}x{second}>"
    return f"""
    func.func @main(%x: {one}, %y: {other}) -> ({one}, {other}) {{
      %0:2 = "stablehlo.sort"(%x, %y) ({{
        ^bb0(%a: tensor<{kind}>, %b: tensor<{kind}>, %c: tensor<{second}>, %d: tensor<{second}>):
          %p = stablehlo.compare {direction}, %a, %b, {order} : (tensor<{kind}>, tensor<{kind}>) -> tensor<i1>
          stablehlo.return %p : tensor<i1>
      }}) {{dimension = 0 : i64, is_stable = true}} : ({one}, {other}) -> ({one}, {other})
      return %0#0, %0#1 : {one}, {other}
    }}"""


def reduced(*kinds: str) -> str:
    """Return a program that adds up rows of numbers of several types at once."""
    numbers, types = range(len(kinds)), ", ".join(f"tensor<{kind}>" for kind in kinds)
    rows, sums = (", ".join(f"tensor<{shape}x{kind}>" for kind in kinds) for shape in ("3x4", "3"))
    begin = [f"%z{n} = stablehlo.convert %c : (tensor<i32>) -> tensor<{kind}>" for n, kind in enumerate(kinds)]
    added = [f"%s{n} = stablehlo.add %a{n}, %b{n} : tensor<{kind}>" for n, kind in enumerate(kinds)]
    block = ", ".join(f"%{side}{n}: tensor<{kind}>" for side in "ab" for n, kind in enumerate(kinds))
    lines = "\n      ".join(
        [
            "%c = stablehlo.constant dense<1> : tensor<i32>",
            *begin,
            f'%r:{len(kinds)} = "stablehlo.reduce"({", ".join(f"%{side}{n}" for side in "xz" for n in numbers)}) ({{',
            f"^bb0({block}):",
            *added,
            f"stablehlo.return {', '.join(f'%s{n}' for n in numbers)} : {types}",
            f"}}) {{dimensions = array<i64: 1>}} : ({rows}, {types}) -> ({sums})",
            f"return {', '.join(f'%r#{n}' for n in numbers)} : {sums}",
        ]
    )
    given = ", ".join(f"%x{n}: tensor<3x4x{kind}>" for n, kind in enumerate(kinds))
    return f"func.func @main({given}) -> ({sums}) {{\n      {lines}\n    }}"


def largest_of(kind: str, combine: str, shape: str) -> str:
    """Return a program that takes the largest or smallest element of an array, or of each of its first rows."""
    dimensions = list(range(shape.count("x") + 1))[-2:]
    result = "".join(f"{size}x" for size in shape.split("x")[:-2]) + kind
    return f"""
    func.func @main(%x: tensor<{shape}x{kind}>) -> tensor<{result}> {{
      %z = stablehlo.constant dense<0.0> : tensor<{kind}>
      %r = stablehlo.reduce(%x init: %z) applies stablehlo.{combine} across dimensions = {dimensions}
        : (tensor<{shape}x{kind}>, tensor<{kind}>) -> tensor<{result}>
      return %r : tensor<{result}>
    }}"""


def masked(kind: str, shape: str = "4x") -> str:
    type_, numbers = f"tensor<{shape}{kind}>", f"tensor<4x{kind}>"
    return f"""
    func.func @main(%x: {numbers}, %p: tensor<{shape}i1>) -> {numbers} {{
      %c = stablehlo.convert %p : (tensor<{shape}i1>) -> {type_}
      %b = stablehlo.broadcast_in_dim %c, dims = [{"0" if shape else ""}] : ({type_}) -> {numbers}
      %r = stablehlo.multiply %b, %x : {numbers}
      return %r : {numbers}
    }}"""


def bits_of_gathered(kind: str, bits: str) -> str:
    """Return a program of constants: a gather that XLA lays out in another order than its result has."""
    rows = f"tensor<8x2x2x1x{kind}>"
    literal = (np.arange(168) % 100).astype(dtype_of(kind)).tobytes().hex().upper()
    return program_of(
        f"tensor<8x2x2x1x{bits}>",
        f'%x = stablehlo.constant dense<"0x{literal}"> : tensor<8x7x3x{kind}>',
        "%i = stablehlo.constant dense<[[[9, -8, -9], [3, -4, -5]], [[-6, 8, 1], [-2, 4, -9]]]> : tensor<2x2x3xi32>",
        '%g = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [0, 3], '
        "collapsed_slice_dims = [1], start_index_map = [1, 2, 0], index_vector_dim = 2>, "
        f"slice_sizes = array<i64: 8, 1, 1>}}> : (tensor<8x7x3x{kind}>, tensor<2x2x3xi32>) -> {rows}",
        f"%r = stablehlo.bitcast_convert %g : ({rows}) -> tensor<8x2x2x1x{bits}>",
    )


def turned(kind: str, size: int = 3, reverse: str = "true") -> str:
    one, other, result = (f"tensor<1x1x{each}x{kind}>" for each in (size, 3, size - 2))
    return program_of(
        result,
        "%r = stablehlo.convolution(%x, %k) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], "
        f"window = {{reverse = [{reverse}]}} {{feature_group_count = 1 : i64, batch_group_count = 1 : i64}} : "
        f"({one}, {other}) -> {result}",
        arguments=f"%x: {one}, %k: {other}",
    )


def with_nan(kind: str, *shape: int) -> np.ndarray:  # type: ignore[type-arg]
    array = np.random.default_rng(0).standard_normal(shape)
    array.flat[7] = np.nan
    return array.astype(dtype_of(kind))


def top_k(kind: str) -> str:
    return f"""
    func.func @main(%x: tensor<3x{kind}>) -> tensor<2x{kind}> {{
      %0:2 = chlo.top_k(%x, k = 2) : tensor<3x{kind}> -> (tensor<2x{kind}>, tensor<2xi32>)
      return %0#0 : tensor<2x{kind}>
    }}"""


def all_reduce(
    kind: str, combine: str, groups: str = "[[0, 1, 2, 3]]", operation: str = "all_reduce", size: int = 4
) -> str:
    given, result = f"tensor<4x{kind}>", f"tensor<{size}x{kind}>"
    count = groups.count("[") - 1
    dimension = "scatter_dimension = 0 : i64, " if operation == "reduce_scatter" else ""
    return f"""
    func.func @main(%x: {given}) -> {result} {{
      %0 = "stablehlo.{operation}"(%x) ({{
        ^bb0(%a: tensor<{kind}>, %b: tensor<{kind}>):
          %m = stablehlo.{combine} %a, %b : tensor<{kind}>
          stablehlo.return %m : tensor<{kind}>
      }}) {{{dimension}replica_groups = dense<{groups}> : tensor<{count}x{4 // count}xi64>}} : ({given}) -> {result}
      return %0 : {result}
    }}"""


def of_devices(kind: str, count: int = 4) -> list[list[Any]]:
    """Return rows of numbers, NaN and both zeros, for each device another order."""
    row = np.array([np.nan, 1, 0.0, -0.0]).astype(dtype_of(kind))
    return [[np.roll(row, index)] for index in range(count)]


def floats(kind: str, *numbers: float) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(numbers).astype(dtype_of(kind))


def program_of(results: str, *lines: str, arguments: str = "") -> str:
    """Return a program of some lines, of which the last one gives the only result, ``%r``."""
    return "\n  ".join([f"func.func @main({arguments}) -> {results} {{", *lines, f"return %r : {results} }}"])


def constant_of(name: str, array: np.ndarray, kind: str) -> str:  # type: ignore[type-arg]
    shape = "".join(f"{size}x" for size in array.shape)
    return f"%{name} = stablehlo.constant dense<{literal_of(array, kind)}> : tensor<{shape}{kind}>"


def last_indices(kind: str) -> np.ndarray:  # type: ignore[type-arg]
    """Return the largest index of an unsigned type, the next lower one, and two that are lower still."""
    last = np.iinfo(dtype_of(kind)).max
    return np.array([[last, last - 1], [last // 2 + 1, 0]], dtype_of(kind))


def indexed(operation: str, kind: str, is_constant: bool = True) -> tuple[str, list[np.ndarray]]:  # type: ignore[type-arg]
    """Return a program with indices beyond those that a signed type of the same width has, and its arguments."""
    indices, numbers = last_indices(kind), np.arange(14, dtype="i4").reshape(2, 7)
    if operation.startswith("dynamic"):
        indices = indices[0, 0]
    shape = "2x2x" if indices.ndim else ""
    text = {
        "dynamic_slice": f"%r = stablehlo.dynamic_slice %x, %i, %i, sizes = [1, 7] : "
        f"(tensor<2x7xi32>, tensor<{kind}>, tensor<{kind}>) -> tensor<1x7xi32>",
        "dynamic_update_slice": f"%r = stablehlo.dynamic_update_slice %x, %u, %i, %i : "
        f"(tensor<2x7xi32>, tensor<1x2xi32>, tensor<{kind}>, tensor<{kind}>) -> tensor<2x7xi32>",
        "gather": f'%r = "stablehlo.gather"(%x, %i) <{{dimension_numbers = #stablehlo.gather<offset_dims = [0, 1], '
        "start_index_map = [0, 1], index_vector_dim = 1>, slice_sizes = array<i64: 1, 1>}> : "
        f"(tensor<2x7xi32>, tensor<2x2x{kind}>) -> tensor<1x1x2xi32>",
        "scatter": f'%r = "stablehlo.scatter"(%x, %i, %u) <{{scatter_dimension_numbers = #stablehlo.scatter<'
        "inserted_window_dims = [0, 1], scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}> ({ "
        '^bb0(%a: tensor<i32>, %b: tensor<i32>): "stablehlo.return"(%b) : (tensor<i32>) -> () }) : '
        f"(tensor<2x7xi32>, tensor<2x2x{kind}>, tensor<2xi32>) -> tensor<2x7xi32>",
    }[operation]
    updates = np.array([[100, 200]] if operation.startswith("dynamic") else [100, 200], "i4")
    constants = [constant_of("x", numbers, "i32"), constant_of("u", updates, "i32")]
    if is_constant:
        constants.append(constant_of("i", indices, kind))
    given = "" if is_constant else f"%i: tensor<{shape}{kind}>"
    program = program_of(text.rpartition("-> ")[2], *constants, text, arguments=given)
    return program, [] if is_constant else [indices]


def computed(operation: str, kind: str, *arrays: np.ndarray, dialect: str = "stablehlo") -> str:  # type: ignore[type-arg]
    """Return a program of an elementwise operation of constants."""
    type_ = f"tensor<{'x'.join(map(str, arrays[0].shape))}x{kind}>"
    lines = [constant_of(name, array.astype(dtype_of(kind)), kind) for name, array in zip("xyz", arrays, strict=False)]
    names, types = ", ".join(f"%{name}" for name in "xyz"[: len(arrays)]), ", ".join([type_] * len(arrays))
    return program_of(type_, *lines, f'%r = "{dialect}.{operation}"({names}) : ({types}) -> {type_}')


def judged(operation: str, kind: str, array: np.ndarray) -> str:  # type: ignore[type-arg]
    """Return a program that asks something of each element of a constant."""
    type_, outer = f"tensor<{array.size}x{kind}>", f"tensor<{array.size}xi1>"
    line = f"%r = chlo.{operation} %x : {type_} -> {outer}"
    return program_of(outer, constant_of("x", array.astype(dtype_of(kind)), kind), line)


def largest(kind: str, array: np.ndarray) -> str:  # type: ignore[type-arg]
    """Return a program that gives the two largest elements of a constant, and where they are, in one array."""
    type_, outer = f"tensor<{array.size}x{kind}>", "tensor<4xf32>"
    return program_of(
        outer,
        constant_of("x", array.astype(dtype_of(kind)), kind),
        f"%v, %i = chlo.top_k(%x, k = 2) : {type_} -> (tensor<2x{kind}>, tensor<2xi32>)",
        f"%a = stablehlo.convert %v : (tensor<2x{kind}>) -> tensor<2xf32>",
        "%b = stablehlo.convert %i : (tensor<2xi32>) -> tensor<2xf32>",
        f"%r = stablehlo.concatenate %a, %b, dim = 0 : (tensor<2xf32>, tensor<2xf32>) -> {outer}",
    )


def of_counting(operation: str, kind: str, result: str, line: str = "") -> str:
    """Return a program of an operation of the numbers 0, 1, 2, 3, by default of an iota."""
    type_, outer = f"tensor<4x{kind}>", f"tensor<4x{result}>"
    names = ["%x"] * (2 if operation == "atan2" else 1)
    return program_of(
        outer,
        line or f"%x = stablehlo.iota dim = 0 : {type_}",
        f'%r = "stablehlo.{operation}"({", ".join(names)}) : ({", ".join([type_] * len(names))}) -> {outer}',
    )


def widened(kind: str, line: str) -> str:
    """Return a program that gives the result of a line, of four bits, as bytes."""
    wide = kind.replace("4", "8")
    return f"""
    func.func @main(%x: tensor<2x2x{kind}>) -> tensor<2x2x{wide}> {{
      {line}
      %w = stablehlo.convert %r : (tensor<2x2x{kind}>) -> tensor<2x2x{wide}>
      return %w : tensor<2x2x{wide}>
    }}"""


def convolution_of(kind: str) -> str:
    last = 2 ** (width_of(kind) - (kind[0] == "i")) - 1
    one, other = f"tensor<1x3x{kind}>", f"tensor<3x1x{kind}>"
    return program_of(
        f"tensor<1x1x{kind}>",
        constant_of("x", np.full((1, 3), last, dtype_of(kind)), kind),
        constant_of("y", np.array([[3], [2], [7]]), kind),
        "%r = stablehlo.convolution(%x, %y) dim_numbers = [b, f]x[i, o]->[b, f], window = {} "
        "{feature_group_count = 1 : i64, batch_group_count = 1 : i64} : "
        f"({one}, {other}) -> tensor<1x1x{kind}>",
    )


def ordered(kind: str, *bits: np.ndarray, direction: str = "LT") -> str:  # type: ignore[type-arg]
    """Return a program that compares constants by their bits, in total order."""
    count = bits[0].size
    return program_of(
        f"tensor<{count}xi1>",
        *(constant_of(name, each.view(dtype_of(kind)), kind) for name, each in zip("xy", bits, strict=True)),
        f"%r = stablehlo.compare {direction}, %x, %y, TOTALORDER : (tensor<{count}x{kind}>, tensor<{count}x{kind}>) "
        f"-> tensor<{count}xi1>",
    )


def least_zero() -> str:
    return program_of(
        "tensor<1xf32>",
        "%x = stablehlo.constant dense<[0.0, -0.0]> : tensor<2xf32>",
        "%z = stablehlo.constant dense<1.0> : tensor<f32>",
        '%r = "stablehlo.reduce_window"(%x, %z) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): '
        '%m = stablehlo.minimum %a, %b : tensor<f32> "stablehlo.return"(%m) : (tensor<f32>) -> () }) '
        "{window_dimensions = array<i64: 2>} : (tensor<2xf32>, tensor<f32>) -> tensor<1xf32>",
    )


BOOLEANS = [np.array(each) for each in zip(*itertools.product([False, True], repeat=3), strict=True)]


COMPLEX = unary("bitcast_convert", "2x2xcomplex<f32>", "2xcomplex<f64>")


SCAN = """
func.func @main(%x: tensor<3x2xf32>) -> tensor<3x2xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<2xf32>
  %0:2 = "stablehlo.composite"(%x, %zero) <{name = "chlo.scan", decomposition = @sums, version = 1 : i32,
    composite_attributes = {dimension = 0 : i64, is_associative = true, is_reverse = false, scan_dim_size = 3 : i64,
      operandSegmentSizes = array<i32: 1, 1>, resultSegmentSizes = array<i32: 1, 1>}}> ({
    ^bb0(%a: tensor<2xf32>, %b: tensor<2xf32>):
      %c = stablehlo.add %a, %b : tensor<2xf32>
      stablehlo.return %c, %c : tensor<2xf32>, tensor<2xf32>
  }) : (tensor<3x2xf32>, tensor<2xf32>) -> (tensor<3x2xf32>, tensor<2xf32>)
  return %0#0 : tensor<3x2xf32>
}
func.func private @sums(%x: tensor<3x2xf32>, %zero: tensor<2xf32>) -> (tensor<3x2xf32>, tensor<2xf32>) {
  %none = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%x, %none) <{window_dimensions = array<i64: 3, 1>,
      padding = dense<[[2, 0], [0, 0]]> : tensor<2x2xi64>}> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
  }) : (tensor<3x2xf32>, tensor<f32>) -> tensor<3x2xf32>
  %1 = stablehlo.slice %0 [2:3, 0:2] : (tensor<3x2xf32>) -> tensor<1x2xf32>
  %2 = stablehlo.reshape %1 : (tensor<1x2xf32>) -> tensor<2xf32>
  return %0, %2 : tensor<3x2xf32>, tensor<2xf32>
}"""


def factorization(shape: Sequence[int], kind: str = "f32") -> str:
    """Return a program with the custom call by which XLA's builders factorize matrices."""
    *stack, rows, columns = shape
    sizes = ([*shape], kind), ([*stack, min(rows, columns)], "i32"), ([*stack, rows], "i32")
    whole, *others = (f"tensor<{'x'.join([*map(str, each), element])}>" for each, element in sizes)
    types = ", ".join([whole, *others])
    return f"""func.func @main(%x: {whole}) -> ({types}) {{
      %0:3 = stablehlo.custom_call @LuDecomposition(%x) {{api_version = 4 : i32}} : ({whole}) -> ({types})
      return %0#0, %0#1, %0#2 : {types} }}"""


MATRIX = np.array([[1.0, 2.0], [4.0, 9.0]], "f4")  # its factors have few bits
