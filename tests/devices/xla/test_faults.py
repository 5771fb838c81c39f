"""Faults of XLA's CPU compiler: the device computes what the reference does, or refuses the operation.

One test asks XLA itself for each fault, so that a repair is noticed.
"""

from __future__ import annotations

import inspect
import itertools
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.devices.xla import faults, trial_compilation
from pjrt.devices.xla.faults import mending, place, table
from pjrt.stablehlo import jaxlib, parse_hlo_text, read, serialize, to_hlo, to_module
from pjrt.stablehlo.analysis.outline import Outline
from pjrt.stablehlo.files.hlo_text import to_hlo_text

PAGE = Path(__file__).parents[3] / "docs" / "devices" / "cpu.md"

FLOATS = ("f4E2M1FN", "f8E4M3FN", "f8E5M2", "f8E3M4", "f8E4M3", "f8E8M0FNU", "f16", "bf16", "f32", "f64")
INTEGERS = tuple(f"{sign}{width}" for width in (2, 4, 8, 16, 32, 64) for sign in ("i", "ui"))

Arrays = Sequence[np.ndarray]  # type: ignore[type-arg]
Run = Callable[..., list[list[Any]]]


@pytest.fixture(autouse=True)
def no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA survives these programs, and a trial of each would take a second."""
    monkeypatch.setattr(trial_compilation, "attempt", lambda *_: None)


@pytest.fixture
def both(client: pjrt.Client, reference: pjrt.Client) -> Callable[..., tuple[Any, Any]]:
    """Run a program on the device and on the reference; a list of arguments for each device, or one for one."""

    def run(code: str, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        devices = arguments or ((),)
        found, expected = (_run(each, code, devices, options) for each in (client, reference))
        return found, expected

    return run


@pytest.fixture
def agree(both: Callable[..., tuple[Any, Any]]) -> Callable[..., None]:
    def check(code: str, *arguments: Any, **options: Any) -> None:
        found, expected = both(code, *arguments, **options)
        assert list(map(_bits, found)) == list(map(_bits, expected)), f"{code}\n{found}\nexpected\n{expected}"

    return check


def _run(client: pjrt.Client, code: str, arguments: Sequence[Arrays], options: dict[str, Any]) -> list[Any]:
    executable = client.compile(code, pjrt.CompileOptions(**options))
    given = [
        [client.buffer_from_host(array, device=device) for array in arrays]
        for arrays, device in zip(arguments, client.devices, strict=False)
    ]
    return [np.asarray(buffer) for row in executable.execute(given) for buffer in row]


def _bits(array: Any) -> tuple[str, tuple[int, ...], list[Any]]:
    """Return what two results must have in common: all but the bits of NaN."""
    if np.dtype(array.dtype).kind in "biu" or "int" in str(array.dtype):
        return str(array.dtype), array.shape, array.astype(np.int64).ravel().tolist()
    wide = array.astype(np.float64).ravel()
    return str(array.dtype), array.shape, ["nan" if np.isnan(n) else (float(n), bool(np.signbit(n))) for n in wide]


def _width(kind: str) -> int:
    return int(re.search("[0-9]+", kind).group())  # type: ignore[union-attr]


def _dtype(kind: str) -> Any:
    return pjrt.ElementType.from_mlir(kind).dtype


def _values(kind: str, seed: int, count: int = 24) -> np.ndarray:  # type: ignore[type-arg]
    """Return elements of any bits but those of NaN, which move through floats as they like."""
    random, width = np.random.default_rng(seed), _width(kind)
    if kind[0] in "iu":
        low, high = (
            (-(2 ** (width - 1)), 2 ** (width - 1)) if kind[0] == "i" and width > 1 else (0, 2 ** min(width, 63))
        )
        return random.integers(low, high, count).astype(_dtype(kind))
    bits = random.integers(0, 2 ** min(width, 63), count)
    array = bits.astype(f"u{max(width // 8, 1)}").view(_dtype(kind))
    return np.where(np.isnan(array), np.ones((), array.dtype), array).astype(array.dtype)


def _literal(array: np.ndarray, kind: str) -> str:  # type: ignore[type-arg]
    """Return an array as MLIR spells it."""
    if array.ndim:
        return f"[{', '.join(_literal(part, kind) for part in array)}]"
    if kind == "i1":
        return str(bool(array)).lower()
    if kind[0] in "iu":
        return str(int(array))
    return f"0x{int(array.view(f'u{array.dtype.itemsize}')):0{max(_width(kind) // 4, 1)}X}"


# XLA itself.

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


def _unary(operation: str, given: str, result: str, attributes: str = "") -> str:
    return f"""
    func.func @main(%x: tensor<{given}>) -> tensor<{result}> {{
      %0 = "stablehlo.{operation}"(%x) {{{attributes}}} : (tensor<{given}>) -> tensor<{result}>
      return %0 : tensor<{result}>
    }}"""


def _binary(operation: str, given: str, result: str, attributes: str) -> str:
    return f"""
    func.func @main(%x: tensor<{given}>, %y: tensor<{given}>) -> tensor<{result}> {{
      %0 = "stablehlo.{operation}"(%x, %y) {{{attributes}}} : (tensor<{given}>, tensor<{given}>) -> tensor<{result}>
      return %0 : tensor<{result}>
    }}"""


def _joined(kind: str) -> str:
    return _binary("concatenate", f"3x4x{kind}", f"6x4x{kind}", "dimension = 0 : i64")


def _product(kind: str, result: str, contracted: str = "1] x [0") -> str:
    """Return a program that multiplies matrices of four rows and columns."""
    left, right = contracted.split("] x [")
    numbers = f"#stablehlo.dot<lhs_contracting_dimensions = [{left}], rhs_contracting_dimensions = [{right}]>"
    shape = "4x" * (4 - 2 * len(left.split(",")))
    return _binary("dot_general", f"4x4x{kind}", f"{shape}{result}", f"dot_dimension_numbers = {numbers}")


def _mixed_product(left: str, right: str, result: str, operation: str = "dot_general") -> str:
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
    return _of(product, *reshaped, line, arguments=f"%a: tensor<1x3x{left}>, %b: tensor<3x1x{right}>")


REPLICAS = "replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>"


def _of_constant(operation: str, literal: str, given: str, result: str) -> str:
    return f"""
    func.func @main() -> tensor<{result}> {{
      %0 = stablehlo.constant dense<{literal}> : tensor<{given}>
      %1 = stablehlo.{operation} %0 : (tensor<{given}>) -> tensor<{result}>
      return %1 : tensor<{result}>
    }}"""


def _reduce_precision(kind: str, exponent: int, mantissa: int) -> str:
    bits = f"exponent_bits = {exponent} : i32, mantissa_bits = {mantissa} : i32"
    return _unary("reduce_precision", kind, kind, bits)


def _sort(kind: str, count: int, second: str = "i32", direction: str = "LT", order: str = "NOTYPE") -> str:
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


def _reduce(*kinds: str) -> str:
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


def _largest_of(kind: str, combine: str, shape: str) -> str:
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


def _masked(kind: str, shape: str = "4x") -> str:
    type_, numbers = f"tensor<{shape}{kind}>", f"tensor<4x{kind}>"
    return f"""
    func.func @main(%x: {numbers}, %p: tensor<{shape}i1>) -> {numbers} {{
      %c = stablehlo.convert %p : (tensor<{shape}i1>) -> {type_}
      %b = stablehlo.broadcast_in_dim %c, dims = [{"0" if shape else ""}] : ({type_}) -> {numbers}
      %r = stablehlo.multiply %b, %x : {numbers}
      return %r : {numbers}
    }}"""


def _bits_of_gathered(kind: str, bits: str) -> str:
    """Return a program of constants: a gather that XLA lays out in another order than its result has."""
    rows = f"tensor<8x2x2x1x{kind}>"
    literal = (np.arange(168) % 100).astype(_dtype(kind)).tobytes().hex().upper()
    return _of(
        f"tensor<8x2x2x1x{bits}>",
        f'%x = stablehlo.constant dense<"0x{literal}"> : tensor<8x7x3x{kind}>',
        "%i = stablehlo.constant dense<[[[9, -8, -9], [3, -4, -5]], [[-6, 8, 1], [-2, 4, -9]]]> : tensor<2x2x3xi32>",
        '%g = "stablehlo.gather"(%x, %i) <{dimension_numbers = #stablehlo.gather<offset_dims = [0, 3], '
        "collapsed_slice_dims = [1], start_index_map = [1, 2, 0], index_vector_dim = 2>, "
        f"slice_sizes = array<i64: 8, 1, 1>}}> : (tensor<8x7x3x{kind}>, tensor<2x2x3xi32>) -> {rows}",
        f"%r = stablehlo.bitcast_convert %g : ({rows}) -> tensor<8x2x2x1x{bits}>",
    )


def _turned(kind: str, size: int = 3, reverse: str = "true") -> str:
    one, other, result = (f"tensor<1x1x{each}x{kind}>" for each in (size, 3, size - 2))
    return _of(
        result,
        "%r = stablehlo.convolution(%x, %k) dim_numbers = [b, f, 0]x[o, i, 0]->[b, f, 0], "
        f"window = {{reverse = [{reverse}]}} {{feature_group_count = 1 : i64, batch_group_count = 1 : i64}} : "
        f"({one}, {other}) -> {result}",
        arguments=f"%x: {one}, %k: {other}",
    )


def _with_nan(kind: str, *shape: int) -> np.ndarray:  # type: ignore[type-arg]
    array = np.random.default_rng(0).standard_normal(shape)
    array.flat[7] = np.nan
    return array.astype(_dtype(kind))


def _top_k(kind: str) -> str:
    return f"""
    func.func @main(%x: tensor<3x{kind}>) -> tensor<2x{kind}> {{
      %0:2 = chlo.top_k(%x, k = 2) : tensor<3x{kind}> -> (tensor<2x{kind}>, tensor<2xi32>)
      return %0#0 : tensor<2x{kind}>
    }}"""


def _all_reduce(
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


def _of_devices(kind: str, count: int = 4) -> list[list[Any]]:
    """Return rows of numbers, NaN and both zeros, for each device another order."""
    row = np.array([np.nan, 1, 0.0, -0.0]).astype(_dtype(kind))
    return [[np.roll(row, index)] for index in range(count)]


def _float(kind: str, *numbers: float) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(numbers).astype(_dtype(kind))


def _of(results: str, *lines: str, arguments: str = "") -> str:
    """Return a program of some lines, of which the last one gives the only result, ``%r``."""
    return "\n  ".join([f"func.func @main({arguments}) -> {results} {{", *lines, f"return %r : {results} }}"])


def _constant(name: str, array: np.ndarray, kind: str) -> str:  # type: ignore[type-arg]
    shape = "".join(f"{size}x" for size in array.shape)
    return f"%{name} = stablehlo.constant dense<{_literal(array, kind)}> : tensor<{shape}{kind}>"


def _index(kind: str) -> np.ndarray:  # type: ignore[type-arg]
    """Return the largest index of an unsigned type, the next lower one, and two that are lower still."""
    last = np.iinfo(_dtype(kind)).max
    return np.array([[last, last - 1], [last // 2 + 1, 0]], _dtype(kind))


def _indexed(operation: str, kind: str, is_constant: bool = True) -> tuple[str, list[np.ndarray]]:  # type: ignore[type-arg]
    """Return a program with indices beyond those that a signed type of the same width has, and its arguments."""
    indices, numbers = _index(kind), np.arange(14, dtype="i4").reshape(2, 7)
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
    constants = [_constant("x", numbers, "i32"), _constant("u", updates, "i32")]
    if is_constant:
        constants.append(_constant("i", indices, kind))
    given = "" if is_constant else f"%i: tensor<{shape}{kind}>"
    program = _of(text.rpartition("-> ")[2], *constants, text, arguments=given)
    return program, [] if is_constant else [indices]


def _computed(operation: str, kind: str, *arrays: np.ndarray, dialect: str = "stablehlo") -> str:  # type: ignore[type-arg]
    """Return a program of an elementwise operation of constants."""
    type_ = f"tensor<{'x'.join(map(str, arrays[0].shape))}x{kind}>"
    lines = [_constant(name, array.astype(_dtype(kind)), kind) for name, array in zip("xyz", arrays, strict=False)]
    names, types = ", ".join(f"%{name}" for name in "xyz"[: len(arrays)]), ", ".join([type_] * len(arrays))
    return _of(type_, *lines, f'%r = "{dialect}.{operation}"({names}) : ({types}) -> {type_}')


def _judged(operation: str, kind: str, array: np.ndarray) -> str:  # type: ignore[type-arg]
    """Return a program that asks something of each element of a constant."""
    type_, outer = f"tensor<{array.size}x{kind}>", f"tensor<{array.size}xi1>"
    line = f"%r = chlo.{operation} %x : {type_} -> {outer}"
    return _of(outer, _constant("x", array.astype(_dtype(kind)), kind), line)


def _largest(kind: str, array: np.ndarray) -> str:  # type: ignore[type-arg]
    """Return a program that gives the two largest elements of a constant, and where they are, in one array."""
    type_, outer = f"tensor<{array.size}x{kind}>", "tensor<4xf32>"
    return _of(
        outer,
        _constant("x", array.astype(_dtype(kind)), kind),
        f"%v, %i = chlo.top_k(%x, k = 2) : {type_} -> (tensor<2x{kind}>, tensor<2xi32>)",
        f"%a = stablehlo.convert %v : (tensor<2x{kind}>) -> tensor<2xf32>",
        "%b = stablehlo.convert %i : (tensor<2xi32>) -> tensor<2xf32>",
        f"%r = stablehlo.concatenate %a, %b, dim = 0 : (tensor<2xf32>, tensor<2xf32>) -> {outer}",
    )


def _of_counting(operation: str, kind: str, result: str, line: str = "") -> str:
    """Return a program of an operation of the numbers 0, 1, 2, 3, by default of an iota."""
    type_, outer = f"tensor<4x{kind}>", f"tensor<4x{result}>"
    names = ["%x"] * (2 if operation == "atan2" else 1)
    return _of(
        outer,
        line or f"%x = stablehlo.iota dim = 0 : {type_}",
        f'%r = "stablehlo.{operation}"({", ".join(names)}) : ({", ".join([type_] * len(names))}) -> {outer}',
    )


def _widened(kind: str, line: str) -> str:
    """Return a program that gives the result of a line, of four bits, as bytes."""
    wide = kind.replace("4", "8")
    return f"""
    func.func @main(%x: tensor<2x2x{kind}>) -> tensor<2x2x{wide}> {{
      {line}
      %w = stablehlo.convert %r : (tensor<2x2x{kind}>) -> tensor<2x2x{wide}>
      return %w : tensor<2x2x{wide}>
    }}"""


def _convolution(kind: str) -> str:
    last = 2 ** (_width(kind) - (kind[0] == "i")) - 1
    one, other = f"tensor<1x3x{kind}>", f"tensor<3x1x{kind}>"
    return _of(
        f"tensor<1x1x{kind}>",
        _constant("x", np.full((1, 3), last, _dtype(kind)), kind),
        _constant("y", np.array([[3], [2], [7]]), kind),
        "%r = stablehlo.convolution(%x, %y) dim_numbers = [b, f]x[i, o]->[b, f], window = {} "
        "{feature_group_count = 1 : i64, batch_group_count = 1 : i64} : "
        f"({one}, {other}) -> tensor<1x1x{kind}>",
    )


def _ordered(kind: str, *bits: np.ndarray, direction: str = "LT") -> str:  # type: ignore[type-arg]
    """Return a program that compares constants by their bits, in total order."""
    count = bits[0].size
    return _of(
        f"tensor<{count}xi1>",
        *(_constant(name, each.view(_dtype(kind)), kind) for name, each in zip("xy", bits, strict=True)),
        f"%r = stablehlo.compare {direction}, %x, %y, TOTALORDER : (tensor<{count}x{kind}>, tensor<{count}x{kind}>) "
        f"-> tensor<{count}xi1>",
    )


def _least_zero() -> str:
    return _of(
        "tensor<1xf32>",
        "%x = stablehlo.constant dense<[0.0, -0.0]> : tensor<2xf32>",
        "%z = stablehlo.constant dense<1.0> : tensor<f32>",
        '%r = "stablehlo.reduce_window"(%x, %z) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): '
        '%m = stablehlo.minimum %a, %b : tensor<f32> "stablehlo.return"(%m) : (tensor<f32>) -> () }) '
        "{window_dimensions = array<i64: 2>} : (tensor<2xf32>, tensor<f32>) -> tensor<1xf32>",
    )


BOOLEANS = [np.array(each) for each in zip(*itertools.product([False, True], repeat=3), strict=True)]

COMPLEX = _unary("bitcast_convert", "2x2xcomplex<f32>", "2xcomplex<f64>")

PROBES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "narrow bitcast": lambda: (NARROW,),
    "boolean bitcast": lambda: (_unary("bitcast_convert", "3xui8", "3x8xi1"), [np.array([3, 128, 77], "u1")]),
    "complex bitcast": lambda: (COMPLEX, [np.ones((2, 2), "c8")]),
    "folded bitcast": lambda: (_bits_of_gathered("f32", "i32"),),
    "scatter": lambda: (SCATTER, SCATTERED),
    "maximum": lambda: (_all_reduce("f32", "maximum"), *_of_devices("f32")),
    "sort": lambda: (_sort("i2", 24, "i2"), [_values("i2", 5), _values("i2", 6)]),
    "large maximum": lambda: (_largest_of("f32", "maximum", "64x64"), [_with_nan("f32", 64, 64)]),
    "narrow reduce": lambda: (_reduce("i2", "i32"), [_values("i2", 5, 12).reshape(3, 4), np.ones((3, 4), "i4")]),
    "narrow parts": lambda: (_joined("i2"), [_values("i2", 5, 12).reshape(3, 4)] * 2),
    "narrow all_reduce": lambda: (_all_reduce("i2", "add"), *[[_values("i2", n, 4)] for n in range(4)]),
    "narrow product": lambda: (_product("i2", "i2"), [_values("i2", 5, 16).reshape(4, 4)] * 2),
    "mixed product": lambda: (
        _mixed_product("f8E5M2", "f8E5M2FNUZ", "f32"),
        [_float("f8E5M2", 1, 2, 3).reshape(1, 3), _float("f8E5M2FNUZ", 4, 5, 6).reshape(3, 1)],
    ),
    "wide product": lambda: (_product("i4", "i32"), [_values("i4", 5, 16).reshape(4, 4)] * 2),
    "six bits": lambda: (_unary("convert", "2xf32", "2xf6E2M3FN"), [_float("f32", 3, 1000)]),
    "random bits": lambda: (RANDOM_BITS, [np.array([1, 2], "u8")]),
    "no mantissa": lambda: (_reduce_precision("2xf32", 8, 0), [_float("f32", np.nan, 3)]),
    "narrow precision": lambda: (_reduce_precision("3xf8E4M3FN", 4, 3), [_float("f8E4M3FN", 2**-9, 2**-7, 1)]),
    "boolean factor": lambda: (_masked("f32"), [_float("f32", np.inf, np.nan, -2, 3), np.array([0, 0, 0, 1], bool)]),
    "f4 to integers": lambda: (_unary("convert", "2xf4E2M1FN", "2xi32"), [_float("f4E2M1FN", 6, -6)]),
    "f4 constants": lambda: (_of_constant("convert", "[0x7F800000, 0xFF800000]", "2xf32", "2xf4E2M1FN"),),
    "e8m0 constants": lambda: (_of_constant("convert", "[0.0, -2.0, 4.0]", "3xf32", "3xf8E8M0FNU"),),
    "e8m0 results": lambda: (_computed("subtract", "f8E8M0FNU", np.array([1.0, 2.0]), np.array([1.0, 1.0])),),
    "e8m0 neighbours": lambda: (_computed("next_after", "f8E8M0FNU", np.ones(1), np.array([2.0]), dialect="chlo"),),
    "e8m0 nan": lambda: (_of_constant("convert", "[0xFF, 0x7F]", "2xf8E8M0FNU", "2xf32"),),
    "unsigned indices": lambda: (_indexed("dynamic_slice", "ui8")[0],),
    "four bits": lambda: (
        _widened("i4", "%r = stablehlo.add %x, %x : tensor<2x2xi4>"),
        [np.array([[7, -8], [6, 1]]).astype(_dtype("i4"))],
    ),
    "boolean sums": lambda: (_computed("add", "i1", *BOOLEANS[:2]),),
    "boolean clamp": lambda: (_computed("clamp", "i1", *BOOLEANS),),
    "high product": lambda: (_computed("mulhi", "ui4", np.array([15]), np.array([13]), dialect="chlo"),),
    "population": lambda: (_computed("popcnt", "i4", np.arange(-8, 8)),),
    "reversed window": lambda: (_turned("f32"), [_float("f32", 1, 2, 5).reshape(1, 1, 3)] * 2),
    "integer convolution": lambda: (_convolution("i32"),),
    "narrow division": lambda: (_computed("divide", "f4E2M1FN", np.array([1.0, -2.0]), np.zeros(2)),),
    "combined zeros": lambda: (_least_zero(),),
    "order of NaN": lambda: (_ordered("f8E4M3FNUZ", np.array([-128, 1], "i1"), np.array([1, -128], "i1")),),
    "narrow rounding": lambda: (_computed("round_nearest_even", "f8E3M4", np.array([1.5, -0.25])),),
    "bitcast of a bitcast": lambda: (
        _of(
            "tensor<3x2x2xi16>",
            "%a = stablehlo.constant dense<1> : tensor<3xi64>",
            "%x = stablehlo.optimization_barrier %a : tensor<3xi64>",
            "%y = stablehlo.bitcast_convert %x : (tensor<3xi64>) -> tensor<3x2xi32>",
            "%r = stablehlo.bitcast_convert %y : (tensor<3x2xi32>) -> tensor<3x2x2xi16>",
        ),
    ),
    "f4 infinity": lambda: (_judged("is_inf", "f4E2M1FN", np.array([0.0, 6.0])),),
    "narrow top_k": lambda: (_largest("i4", np.array([3, -8, 7, 1])),),
    "narrow functions": lambda: (_computed("acosh", "f4E2M1FN", np.array([1.5, 2.0, 3.0, 4.0, 6.0]), dialect="chlo"),),
    "sign of zero": lambda: (_computed("sign", "f32", np.array([-0.0, 2.0])),),
    "complex abs": lambda: (_of_counting("abs", "complex<f32>", "f32"),),
    "zeros of atan2": lambda: (_of_counting("atan2", "f32", "f32"),),
    "counting": lambda: (_computed("negate", "f32", np.array([0.0, -1.0, -2.0])),),
}


ASK = f"""
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pjrt
from pjrt.devices.xla import faults, trial_compilation

Arrays = Sequence[Any]
{inspect.getsource(_run)}
{inspect.getsource(_bits)}
faults.mend = trial_compilation.attempt = lambda *_: None
clients = [pjrt.client(name, num_devices=4) for name in ("cpu", "reference")]
for name, (code, *arguments) in pickle.load(sys.stdin.buffer).items():
    print(name, flush=True)
    arguments = arguments or [()]
    try:
        found, expected = (
            list(map(_bits, _run(client, code, arguments, {{"num_replicas": len(arguments)}}))) for client in clients
        )
    except pjrt.PjrtError:
        print("an error", flush=True)
    else:
        print("right" if found == expected else "wrong", flush=True)
"""


@pytest.fixture(scope="module")
def answers_of_xla() -> dict[str, str]:
    """Return what XLA does with each probe: right, wrong, an error, or the end of its process."""
    probes = {name: probe() for name, probe in PROBES.items()}
    answers: dict[str, str] = {}
    while missing := {name: probe for name, probe in probes.items() if name not in answers}:
        done = subprocess.run(
            [sys.executable, "-c", ASK], input=pickle.dumps(missing), capture_output=True, timeout=300, check=False
        )
        lines = done.stdout.decode().splitlines()
        assert lines, done.stderr.decode()
        lines += ["the end of the process"] * (len(lines) % 2)
        answers |= dict(zip(lines[::2], lines[1::2], strict=True))
    return answers


@pytest.mark.full
@pytest.mark.parametrize("name", table.FAULTS)
def test_xla_has_the_fault_in_the_versions_of_the_table(name: str, answers_of_xla: dict[str, str]) -> None:
    answer = answers_of_xla[name]
    if table.FAULTS[name].affects(jaxlib.version()):
        assert answer in (
            ["an error"] if table.FAULTS[name].wrong == "an error" else ["wrong", "the end of the process"]
        ), f"XLA has repaired '{name}' ({answer}): say so in its row, and take out what no version needs"
    else:
        assert answer in ("right", "an error"), f"XLA has the fault '{name}' again: say so in its row"


def test_the_page_of_the_device_has_the_table_of_faults() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = lines.index(table.HEADING) + 2
    rows = list(itertools.takewhile(lambda line: line.startswith("|"), lines[begin:]))
    assert rows == [fault.row() for fault in table.FAULTS.values()]


def test_every_operation_that_is_mended_is_suspect() -> None:
    assert faults.SUSPECT.keys() == mending.MENDERS.keys()


def test_programs_without_suspect_operations_are_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def outlined(code: str, num_partitions: int = 1) -> None:
        with (module := to_module(read(code))) as mlir:
            faults.mend(mlir, num_partitions, Outline.of(module))

    def seen(*_: Any) -> Any:
        raise LookupError("looked through")

    monkeypatch.setattr(mending, "walk", seen)
    for code in (_unary("convert", "4xf16", "4xi8"), _computed("add", "f32", np.ones(2), np.ones(2)), IN_I32):
        outlined(code)
    narrow = _unary("convert", "4xf4E2M1FN", "4xi8"), _computed("add", "i1", *BOOLEANS[:2])
    for code in (SCATTER, *narrow, _indexed("gather", "ui32")[0]):
        with pytest.raises(LookupError):
            outlined(code)
    of_integers = (REDUCE % ("", "", "maximum")).replace("1.0", "1").replace("f32", "i32")
    outlined(of_integers)
    with pytest.raises(LookupError):
        outlined(of_integers, 2)


IN_I32 = """
func.func @main(%x: tensor<3xf32>, %i: tensor<i32>) -> tensor<2xf32> {
  %0 = stablehlo.dynamic_slice %x, %i, sizes = [2] : (tensor<3xf32>, tensor<i32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}"""


# Constants, and integers of few bits.


@pytest.mark.parametrize("operation", ["dynamic_slice", "dynamic_update_slice", "gather", "scatter"])
@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("kind", ["ui8", "ui16", "ui32", "ui64"])
def test_unsigned_indices(operation: str, is_constant: bool, kind: str, agree: Callable[..., None]) -> None:
    program, arguments = _indexed(operation, kind, is_constant)
    agree(program, arguments)


@pytest.mark.parametrize("dialect", ["stablehlo", "chlo"])
def test_sums_and_bounds_of_booleans(dialect: str, agree: Callable[..., None]) -> None:
    if dialect == "stablehlo":
        agree(_computed("add", "i1", *BOOLEANS[:2]))
        agree(_computed("clamp", "i1", *BOOLEANS))
        for low, high in itertools.product([False, True], repeat=2):
            bounds = _constant("l", np.array(low), "i1"), _constant("h", np.array(high), "i1")
            clamp = "%r = stablehlo.clamp %l, %x, %h : (tensor<i1>, tensor<8xi1>, tensor<i1>) -> tensor<8xi1>"
            agree(_of("tensor<8xi1>", *bounds, _constant("x", BOOLEANS[0], "i1"), clamp))
    else:
        agree(_computed("broadcast_add", "i1", *BOOLEANS[:2], dialect="chlo"))


@pytest.mark.parametrize("kind", ["i2", "ui2", "i4", "ui4", "i8", "ui8"])
def test_high_products_and_populations(kind: str, agree: Callable[..., None]) -> None:
    low, high = (0, 2 ** _width(kind)) if kind[0] == "u" else (-(2 ** (_width(kind) - 1)), 2 ** (_width(kind) - 1))
    x, y = np.array(list(itertools.product(range(low, high), repeat=2))[:256]).T
    agree(_computed("mulhi", kind, x, y, dialect="chlo"))
    agree(_computed("popcnt", kind, np.arange(low, high)))
    given = np.arange(low, high).astype(_dtype(kind))
    agree(_unary("popcnt", f"{given.size}x{kind}", f"{given.size}x{kind}"), [given])


@pytest.mark.parametrize("kind", ["i4", "ui4"])
def test_arithmetic_of_four_bits_stays_in_their_range(kind: str, agree: Callable[..., None]) -> None:
    numbers = np.array([[7, 5], [6, 3]]) if kind == "ui4" else np.array([[7, -8], [-6, 3]])
    given = [(numbers * (2 if kind == "ui4" else 1)).astype(_dtype(kind))]
    type_ = f"tensor<2x2x{kind}>"
    lines = [f"%r = stablehlo.{name} %x, %x : {type_}" for name in ("add", "subtract", "multiply", "maximum", "xor")]
    lines += [f"%r = stablehlo.{name} %x : {type_}" for name in ("negate", "not", "popcnt", "count_leading_zeros")]
    if kind == "i4":
        lines += [f"%r = stablehlo.{name} %x : {type_}" for name in ("abs", "sign")]
    for name in ("shift_left", "shift_right_logical", "shift_right_arithmetic", "power"):
        lines.append(f"%c = stablehlo.constant dense<3> : {type_} %r = stablehlo.{name} %x, %c : {type_}")
    lines.append(
        f"%r = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : ({type_}, {type_}) -> {type_}",
    )
    lines.append(
        "%r = stablehlo.convolution(%x, %x) dim_numbers = [b, f]x[i, o]->[b, f], window = {} "
        f"{{feature_group_count = 1 : i64, batch_group_count = 1 : i64}} : ({type_}, {type_}) -> {type_}"
    )
    for line in lines:
        agree(_widened(kind, line), given)


@pytest.mark.parametrize("contracted", ["1] x [0", "0] x [1", "0, 1] x [0, 1"])
@pytest.mark.parametrize(
    ("kind", "result"),
    [*((kind, kind) for kind in INTEGERS[:4]), *((kind, "i32") for kind in INTEGERS[:4]), ("f4E2M1FN", "f32")],
)
def test_products_of_narrow_types(kind: str, result: str, contracted: str, agree: Callable[..., None]) -> None:
    given = [_values(kind, seed, 16).reshape(4, 4) for seed in (3, 4)]
    agree(_product(kind, result, contracted), given)
    if kind == result:
        return
    one, other = f"tensor<1x4x4x1x{kind}>", f"tensor<4x4x1x1x{kind}>"
    reshaped = [
        f"%{name}{name} = stablehlo.reshape %{name} : (tensor<4x4x{kind}>) -> {shape}"
        for name, shape in (("x", one), ("y", other))
    ]
    convolved = (
        "%r = stablehlo.convolution(%xx, %yy) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {} "
        f"{{feature_group_count = 1 : i64, batch_group_count = 1 : i64}} : ({one}, {other}) -> tensor<1x1x1x1x{result}>"
    )
    arguments = f"%x: tensor<4x4x{kind}>, %y: tensor<4x4x{kind}>"
    agree(_of(f"tensor<1x1x1x1x{result}>", *reshaped, convolved, arguments=arguments), given)


@pytest.mark.parametrize("operation", ["dot", "dot_general", "convolution"])
@pytest.mark.parametrize("kind", ["f8E5M2", "f8E4M3"])
def test_products_of_floats_with_the_same_bits(kind: str, operation: str, agree: Callable[..., None]) -> None:
    if operation == "convolution" and jaxlib.version() < (0, 12):
        pytest.skip("jaxlib 0.10 has no convolution of two types")
    for left, right in itertools.permutations((kind, f"{kind}FNUZ")):
        given = _float(left, 1, -2, 0.5).reshape(1, 3), _float(right, 3, 1.5, -4).reshape(3, 1)
        for result in (left, right, "f32"):
            agree(_mixed_product(left, right, result, operation), given)


@pytest.mark.parametrize("kind", ["i2", "ui2"])
def test_parts_of_two_bits(kind: str, agree: Callable[..., None]) -> None:
    parts = [_values(kind, seed, 16).reshape(4, 4) for seed in range(4)]
    agree(_joined(kind), [part[:3] for part in parts[:2]])
    devices, dimensions = [[part] for part in parts], "split_dimension = 0 : i64, concat_dimension = 1 : i64"
    split = f"{dimensions}, split_count = 4 : i64, {REPLICAS}"
    agree(_unary("all_to_all", f"4x4x{kind}", f"1x16x{kind}", split), *devices, num_replicas=4)
    gathered = f"all_gather_dim = 0 : i64, {REPLICAS}"
    agree(_unary("all_gather", f"4x4x{kind}", f"16x4x{kind}", gathered), *devices, num_replicas=4)


@pytest.mark.parametrize("combine", ["add", "multiply", "maximum", "minimum"])
@pytest.mark.parametrize("kind", ["i2", "ui2"])
def test_numbers_of_two_bits_between_replicas(kind: str, combine: str, agree: Callable[..., None]) -> None:
    rows = [[_values(kind, seed, 4)] for seed in range(4)]
    agree(_all_reduce(kind, combine), *rows, num_replicas=4)
    agree(_all_reduce(kind, combine, operation="reduce_scatter", size=1), *rows, num_replicas=4)


@pytest.mark.parametrize("operation", ["abs", "atan2"])
@pytest.mark.parametrize("how", ["constant", "converted", "chosen", "called"])
def test_functions_of_numbers_that_count(operation: str, how: str, both: Callable[..., tuple[Any, Any]]) -> None:
    kind = "complex<f32>" if operation == "abs" else "f32"
    four, part = f"tensor<4x{kind}>", f"tensor<4x{kind.removeprefix('complex<').removesuffix('>')}>"
    numbers = "[0.0, 1.0, 2.0, 3.0]" if kind == "f32" else "[(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (3.0, 0.0)]"
    lines = {
        "constant": f"%x = stablehlo.constant dense<{numbers}> : {four}",
        "converted": f"""%i = stablehlo.constant dense<[0, 1, 2, 3]> : tensor<4xi32>
          %x = stablehlo.convert %i : (tensor<4xi32>) -> {four}""",
        "chosen": f"""%p = stablehlo.constant dense<true> : tensor<i1>
          %i = stablehlo.iota dim = 0 : {four}
          %y = stablehlo.convert %a : ({part}) -> {four}
          %x = stablehlo.select %p, %i, %y : tensor<i1>, {four}""",
        "called": f"""%i = stablehlo.iota dim = 0 : {four}
          %x = func.call @same(%i) : ({four}) -> {four}""",
    }
    same = f"\nfunc.func private @same(%x: {four}) -> {four} {{ return %x : {four} }}"
    code = _of_counting(operation, kind, "f32", lines[how]).replace("@main()", f"@main(%a: {part})")
    ((found,), (expected,)) = both(code + same, [np.ones(4, np.float32)])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_functions_of_arguments_stay_as_they_are(client: pjrt.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place.Place, "add", None)
    client.compile("""func.func @main(%x: tensor<4xcomplex<f32>>) -> tensor<4xf32> {
      %0 = stablehlo.exponential %x : tensor<4xcomplex<f32>>
      %1 = stablehlo.abs %0 : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
      %2 = stablehlo.atan2 %1, %1 : tensor<4xf32>
      return %2 : tensor<4xf32> }""")


@pytest.mark.parametrize("kind", INTEGERS)
def test_convolutions_of_constant_integers(kind: str, agree: Callable[..., None]) -> None:
    if _width(kind) >= 8:  # XLA refuses narrower ones, in some forms
        agree(_convolution(kind))


@pytest.mark.parametrize("kind", ["f8E3M4", "f4E2M1FN"])
@pytest.mark.parametrize("operation", ["divide", "sign", "round_nearest_even", "round_nearest_afz"])
def test_arithmetic_of_constant_narrow_floats(kind: str, operation: str, agree: Callable[..., None]) -> None:
    numbers = np.array([0.0, -0.0, 0.5, -0.5, 1.5, -2.5, 3.0, 6.0])
    pairs = [pair for pair in itertools.product(numbers, repeat=2) if any(pair)]  # not each type has NaN for 0 / 0
    arrays = [numbers] if operation != "divide" else list(np.array(pairs).T)
    agree(_computed(operation, kind, *arrays))


@pytest.mark.parametrize("kind", ["i2", "ui2", "i4", "ui4", "f4E2M1FN"])
def test_the_largest_of_narrow_types(kind: str, agree: Callable[..., None]) -> None:
    agree(_largest(kind, np.array([0, 1, 0, 1, 1]) if kind.startswith("ui") else np.array([1, -1, 0, 1, -2])))


@pytest.mark.parametrize("operation", ["is_inf", "is_pos_inf", "is_neg_inf"])
def test_f4_has_no_infinity(operation: str, agree: Callable[..., None]) -> None:
    agree(_judged(operation, "f4E2M1FN", np.array([0.0, -0.0, 6.0, -6.0])))


@pytest.mark.parametrize("is_constant", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", [*(kind for kind in FLOATS if kind.startswith(("f4", "f8"))), "f8E4M3B11FNUZ"])
def test_functions_of_narrow_floats(kind: str, is_constant: bool, agree: Callable[..., None]) -> None:
    """LLVM takes minutes for some of them with XLA's own program."""
    given, type_ = _float(kind, 0.5, 1.0), f"tensor<2x{kind}>"
    lines = [_constant("x", given, kind)] if is_constant else []
    left_out = {"f4E2M1FN": ("acosh", "zeta"), "f8E8M0FNU": ("lgamma",)}.get(kind, ())  # no NaN, and no zero
    names = [f"%{name}" for name in faults.FUNCTIONS if name not in left_out]
    for name in names:
        function = f"chlo.{name[1:]}"
        lines.append(
            f"{name} = {function} %x, %x : {type_}, {type_} -> {type_}"
            if function in ("chlo.polygamma", "chlo.zeta")
            else f"{name} = {function} %x : {type_} -> {type_}"
        )
    joined, result = f"({', '.join([type_] * len(names))})", f"tensor<{2 * len(names)}x{kind}>"
    lines.append(f"%r = stablehlo.concatenate {', '.join(names)}, dim = 0 : {joined} -> {result}")
    agree(_of(result, *lines, arguments="" if is_constant else f"%x: {type_}"), [] if is_constant else [given])


@pytest.mark.parametrize("is_constant", [True, False])
def test_conversions_to_the_same_type(is_constant: bool, agree: Callable[..., None]) -> None:
    numbers, type_ = np.arange(256, dtype=np.uint8).view(_dtype("f8E8M0FNU")), "tensor<256xf8E8M0FNU>"
    line = f"%r = stablehlo.convert %x : ({type_}) -> {type_}"
    if is_constant:
        agree(_of(type_, _constant("x", numbers, "f8E8M0FNU"), line))
    else:
        agree(_of(type_, line, arguments=f"%x: {type_}"), [numbers])


@pytest.mark.parametrize("kind", [kind for kind in FLOATS if kind != "f8E8M0FNU"])
def test_signs_of_constant_zeros(kind: str, agree: Callable[..., None]) -> None:
    agree(_computed("sign", kind, np.array([0.0, -0.0, 1.0, -3.0])))


SPECIAL = (0.0, -0.0, 1.0, -1.0, np.nan, -np.nan, np.inf, -np.inf)


@pytest.mark.parametrize("direction", ["EQ", "NE", "LT", "LE", "GT", "GE"])
@pytest.mark.parametrize("kind", FLOATS)
def test_total_orders_of_constant_zeros_and_nan(kind: str, direction: str, agree: Callable[..., None]) -> None:
    bits = [
        each.view(f"i{each.itemsize}")
        for each in (_float(kind, *SPECIAL).repeat(8), np.tile(_float(kind, *SPECIAL), 8))
    ]
    agree(_ordered(kind, *bits, direction=direction))


def test_arithmetic_of_constants_without_a_sign(agree: Callable[..., None]) -> None:
    one, other = np.array([1.0, 2.0, 0.25, 4.0, np.nan, 1.0]), np.array([1.0, 4.0, 2.0, 1.0, 1.0, np.nan])
    for operation in sorted(mending.OF_UNSIGNED_FLOATS):
        given = [one, other] if operation in ("remainder", "subtract") else [one]
        agree(_computed(operation, "f8E8M0FNU", *given))
    agree(_computed("next_after", "f8E8M0FNU", one, other, dialect="chlo"))


@pytest.mark.parametrize("combine", ["maximum", "minimum", "add"])
@pytest.mark.parametrize("kind", ["f64", "f32", "f16", "bf16", "f8E5M2"])
def test_constant_zeros_that_are_combined(kind: str, combine: str, agree: Callable[..., None]) -> None:
    """XLA adds constants of some types only, and takes the extremes of none, as the processor does."""
    zeros = _float(kind, 0, -0.0, -0.0, -0.0, 0, 0, -0.0, 0)
    array, one, scalar = f"tensor<8x{kind}>", f"tensor<4x{kind}>", f"tensor<{kind}>"
    lines = [
        _constant("x", zeros, kind),
        _constant("u", -zeros, kind),
        f"%z = stablehlo.constant dense<{'-0.0' if combine != 'minimum' else '0.0'}> : {scalar}",
        f"%w = stablehlo.constant dense<{'0.0' if combine != 'minimum' else '-0.0'}> : {scalar}",
        "%i = stablehlo.constant dense<[[0], [1], [2], [3], [4], [5], [6], [7]]> : tensor<8x1xi32>",
        f"%s = stablehlo.reshape %x : ({array}) -> tensor<4x2x{kind}>",
        f"%t = stablehlo.slice %u [0:4] : ({array}) -> {one}",
    ]
    region = (
        f"({{ ^bb0(%a: {scalar}, %b: {scalar}): %c = stablehlo.{combine} %a, %b : {scalar} "
        f'"stablehlo.return"(%c) : ({scalar}) -> () }})'
    )
    chosen = (
        f"({{ ^bb0(%a: {scalar}, %b: {scalar}): %c = stablehlo.compare GT, %a, %b : ({scalar}, {scalar}) -> tensor<i1> "
        f'"stablehlo.return"(%c) : (tensor<i1>) -> () }}, {region[1:]}'
    )
    places = "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
    for line, result in (
        (
            f'"stablehlo.reduce"(%s, %z) {region} {{dimensions = array<i64: 1>}} : (tensor<4x2x{kind}>, {scalar}) -> ',
            one,
        ),
        (
            f'"stablehlo.reduce_window"(%x, %z) {region} {{window_dimensions = array<i64: 2>, '
            f"window_strides = array<i64: 2>}} : ({array}, {scalar}) -> ",
            one,
        ),
        (
            f'"stablehlo.scatter"(%x, %i, %u) {region} {{scatter_dimension_numbers = #stablehlo.scatter<{places}>}} : '
            f"({array}, tensor<8x1xi32>, {array}) -> ",
            array,
        ),
        (
            f'"stablehlo.select_and_scatter"(%x, %t, %w) {chosen} {{window_dimensions = array<i64: 2>, '
            f"window_strides = array<i64: 2>}} : ({array}, {one}, {scalar}) -> ",
            array,
        ),
    ):
        agree(_of(result, *lines, f"%r = {line}{result}"))


@pytest.mark.parametrize("kind", ["f8E4M3FNUZ", "f8E5M2FNUZ", "f8E4M3B11FNUZ"])
def test_total_orders_of_constants(kind: str, agree: Callable[..., None]) -> None:
    bits = np.array([-128, -127, -2, 0, 1, 126, 3, -128], "i1")
    agree(_ordered(kind, bits, bits[::-1].copy()))
    array = _literal(bits.view(_dtype(kind)), kind)
    region = (
        f"^bb0(%a: tensor<{kind}>, %b: tensor<{kind}>): %s = stablehlo.compare LT, %a, %b, TOTALORDER : "
        f'(tensor<{kind}>, tensor<{kind}>) -> tensor<i1> "stablehlo.return"(%s) : (tensor<i1>) -> ()'
    )
    type_ = f"tensor<8x{kind}>"
    sort = f'"stablehlo.sort"(%x) <{{dimension = 0 : i64, is_stable = true}}> ({{ {region} }}) : ({type_}) -> {type_}'
    agree(_of(type_, f"%x = stablehlo.constant dense<{array}> : {type_}", f"%r = {sort}"))


# Bits.


def _bitcast_pairs() -> Iterator[tuple[str, str, str]]:
    for kind, other in itertools.product(("i1", *INTEGERS, *FLOATS), repeat=2):
        low, high = sorted((_width(kind), _width(other)))
        if kind != other and low < 8 and low != high and not high % low:
            yield kind, other, f"{high // low}x"


@pytest.mark.parametrize(
    "shapes",
    [
        "3xui64 3x2xi32 3x2x2xui16",
        "3x2x2xui16 3x2xi32 3xui64",
        "3x2xui32 3xui64 3x4xi16",
        "3xi32 3x2xi16 3x2xf16 3x2x2xi8",
    ],
)
def test_bitcasts_of_bitcasts(shapes: str, agree: Callable[..., None]) -> None:
    types = [f"tensor<{shape}>" for shape in shapes.split()]
    steps = enumerate(itertools.pairwise(types))
    lines = [f"%v{i + 1} = stablehlo.bitcast_convert %v{i} : ({one}) -> {other}" for i, (one, other) in steps]
    last = f"%r = stablehlo.reshape %v{len(lines)} : ({types[-1]}) -> {types[-1]}"
    shape = tuple(int(size) for size in types[0][7:-1].split("x")[:-1])
    numbers = np.arange(1, 97, dtype=np.uint8).view(_dtype(types[0].split("x")[-1][:-1]))[: np.prod(shape)]
    agree(_of(types[-1], *lines, last, arguments=f"%v0: {types[0]}"), [numbers.reshape(shape)])


@pytest.mark.full
@pytest.mark.parametrize("kind", ["i1", *INTEGERS, *FLOATS])
def test_bitcasts_to_other_widths(kind: str, agree: Callable[..., None]) -> None:
    """Of constants, parameters and values that are computed from either."""
    lines, results = [], []
    array = _values(kind, 3, 128)
    for number, (_, other, parts) in enumerate(pair for pair in _bitcast_pairs() if pair[0] == kind):
        more = _width(kind) > _width(other)
        count = int(parts[:-1])
        shape = (2,) if more else (2, count)
        given = f"tensor<{'x'.join(map(str, shape))}x{kind}>"
        result = f"tensor<2x{parts if more else ''}{other}>"
        values = array[: int(np.prod(shape))].reshape(shape)
        lines.append(f"%c{number} = stablehlo.constant dense<{_literal(values, kind)}> : {given}")
        flat = f"tensor<{values.size}x{kind}>"
        lines.append(f"%s{number} = stablehlo.slice %x [0:{values.size}] : (tensor<128x{kind}>) -> {flat}")
        lines.append(f"%p{number} = stablehlo.reshape %s{number} : ({flat}) -> {given}")
        lines.append(f"%r{number} = stablehlo.reverse %c{number}, dims = [0] : {given}")
        for source in "cpr":
            lines.append(f"%{source}b{number} = stablehlo.bitcast_convert %{source}{number} : ({given}) -> {result}")
            results.append((f"%{source}b{number}", result))
    names, types = (", ".join(each) for each in zip(*results, strict=True))
    body = "\n".join(lines)
    agree(f"func.func @main(%x: tensor<128x{kind}>) -> ({types}) {{\n{body}\nreturn {names} : {types}\n}}", [array])


@pytest.mark.parametrize("kind", ["i2", "ui2", "i4", "ui4"])
@pytest.mark.parametrize("direction", ["LT", "GT"])
def test_sorts_of_narrow_integers(kind: str, direction: str, agree: Callable[..., None]) -> None:
    given = [_values(kind, 5), _values(kind, 6)]
    agree(_sort(kind, 24, kind, direction), given)
    agree(_sort(kind, 24, "f32", direction), [given[0], np.arange(24, dtype="f4")])


@pytest.mark.parametrize(("kind", "bits"), [("f32", "i32"), ("bf16", "i16"), ("i8", "ui8"), ("i64", "f64")])
def test_bits_of_what_is_computed_from_constants(kind: str, bits: str, agree: Callable[..., None]) -> None:
    agree(_bits_of_gathered(kind, bits))


@pytest.mark.parametrize("reverse", ["true", "false"])
@pytest.mark.parametrize("kind", ["f32", "bf16", "i32", "ui8"])
@pytest.mark.parametrize("size", [3, 5])
def test_reversed_windows(kind: str, size: int, reverse: str, agree: Callable[..., None]) -> None:
    numbers = _float(kind, 1, 2, 5, 3, 8)[:size].reshape(1, 1, size)
    agree(_turned(kind, size, reverse), [numbers, numbers[..., :3]])


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
def test_products_with_booleans(kind: str, agree: Callable[..., None]) -> None:
    numbers = _float(kind, np.inf, np.nan, -2, 3)
    agree(_masked(kind), [numbers, np.array([0, 0, 0, 1], bool)])
    agree(_masked(kind, ""), [numbers, np.array(False)])


@pytest.mark.parametrize("kind", ["f6E2M3FN", "f6E3M2FN"])
def test_floats_of_six_bits_are_moved(kind: str, agree: Callable[..., None]) -> None:
    if jaxlib.version() < (0, 11):
        pytest.skip("jaxlib before 0.11 has no floats of six bits")
    numbers = _float(kind, 1, -2, 3, 0.5, -0.0, 4).reshape(2, 3)
    for operation, shape, attributes in (
        ("reshape", "3x2", ""),
        ("transpose", "3x2", "permutation = array<i64: 1, 0>"),
        ("reverse", "2x3", "dimensions = array<i64: 1>"),
        (
            "slice",
            "1x2",
            "start_indices = array<i64: 1, 0>, limit_indices = array<i64: 2, 3>, strides = array<i64: 1, 2>",
        ),
        ("broadcast_in_dim", "4x2x3", "broadcast_dimensions = array<i64: 1, 2>"),
        ("optimization_barrier", "2x3", ""),
    ):
        agree(_unary(operation, f"2x3x{kind}", f"{shape}x{kind}", attributes), [numbers])


@pytest.mark.parametrize("combine", ["maximum", "minimum"])
@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16", "f8E5M2"])
def test_nan_in_large_reductions(kind: str, combine: str, agree: Callable[..., None]) -> None:
    """A larger array than those of the other tests: XLA leaves it to a library, which loses NaN."""
    agree(_largest_of(kind, combine, "64x64"), [_with_nan(kind, 64, 64)])
    agree(_largest_of(kind, combine, "2x50x50"), [_with_nan(kind, 2, 50, 50)])
    agree(_largest_of(kind, combine, "9x521"), [(np.arange(4689) * 37 % 101).astype(_dtype(kind)).reshape(9, 521)])
    agree(_largest_of(kind, combine, "4x1x1029"), [_with_nan(kind, 4, 1, 1029)])
    zeros = np.where(np.arange(4096) % 7, -0.0, 0.0).astype(_dtype(kind))
    agree(_largest_of(kind, combine, "64x64"), [zeros.reshape(64, 64)])


@pytest.mark.parametrize("kinds", [("i2", "i32"), ("ui2", "i2", "i1"), ("f32", "i2"), ("ui2", "i4"), ("i2", "i2")])
def test_reductions_of_narrow_integers_beside_other_types(kinds: Sequence[str], agree: Callable[..., None]) -> None:
    agree(_reduce(*kinds), [_values(kind, 11 + n, 12).reshape(3, 4) for n, kind in enumerate(kinds)])


# Scatters.


def _scatter(kinds: Sequence[str], same: bool = True, window: bool = False) -> str:
    """Scatter as many operands: the same value where the types allow it, or the sum of the operand and 0."""
    shape, updates = ("4x2", "2x2") if window else ("4", "2")
    unique = list(dict.fromkeys(kinds))
    operands = [f"tensor<{shape}x{kind}>" for kind in kinds]
    updated = [f"tensor<{updates}x{kind}>" for kind in kinds]
    scalars = [f"tensor<{kind}>" for kind in kinds]
    n = len(kinds)
    given = ", ".join([f"%o{unique.index(kind)}" for kind in kinds])
    inside = [f"%a{i}: {kind}" for i, kind in enumerate(scalars)] + [f"%u{i}: {kind}" for i, kind in enumerate(scalars)]
    parameters = [f"%o{i}: tensor<{shape}x{kind}>" for i, kind in enumerate(unique)]
    parameters += ["%i: tensor<2x1xi32>", *(f"%v{i}: {kind}" for i, kind in enumerate(updated))]
    results = ", ".join(operands)
    dimensions = "update_window_dims = [1], " if window else ""
    return f"""
    func.func @main({", ".join(parameters)}) -> ({results}) {{
      %0:{n} = "stablehlo.scatter"({given}, %i, {", ".join(f"%v{i}" for i in range(n))}) ({{
        ^bb0({", ".join(inside)}):
          stablehlo.return {", ".join(f"%u{i}" for i in range(n))} : {", ".join(scalars)}
      }}) {{scatter_dimension_numbers = #stablehlo.scatter<{dimensions}inserted_window_dims = [0],
        scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}
        : ({results}, tensor<2x1xi32>, {", ".join(updated)}) -> ({results})
      return {", ".join(f"%0#{i}" for i in range(n))} : {results}
    }}"""


def _scatter_arguments(kinds: Sequence[str], window: bool = False) -> list[Any]:
    shape, updates = ((4, 2), (2, 2)) if window else ((4,), (2,))
    operands = [_values(kind, 7, int(np.prod(shape))).reshape(shape) for kind in dict.fromkeys(kinds)]
    more = [_values(kind, 8 + i, int(np.prod(updates))).reshape(updates) for i, kind in enumerate(kinds)]
    return [*operands, np.array([[0], [2]], "i4"), *more]


@pytest.mark.parametrize("kind", ["i1", *INTEGERS, *FLOATS])
@pytest.mark.parametrize("window", [False, True])
def test_scatters_of_one_value_twice(kind: str, window: bool, agree: Callable[..., None]) -> None:
    agree(_scatter([kind] * 2, window=window), _scatter_arguments([kind] * 2, window))


@pytest.mark.parametrize("kinds", ["i32 i32 i32", "f32 f32 f32", "f64 f64 f64", "i1 i1 i1 i1", "i32 f32 i32 f32"])
def test_scatters_of_one_value_more_often(kinds: str, agree: Callable[..., None]) -> None:
    agree(_scatter(kinds.split()), _scatter_arguments(kinds.split()))


def test_scatters_whose_region_combines_its_arguments(agree: Callable[..., None]) -> None:
    code = SCATTER.replace(
        "stablehlo.return %c, %d",
        "%m = stablehlo.maximum %a, %d : tensor<i32>\n %n = stablehlo.subtract %b, %c : tensor<i32>\n"
        "stablehlo.return %m, %n",
    )
    assert "%m" in code
    agree(code, SCATTERED)


INNER = SCATTER.replace("@main(%o: tensor<4xi32>,", "private @inner(%p: tensor<4xi32>, %q: tensor<4xi32>,")
IN_A_LOOP = (
    INNER.replace("(%o, %o,", "(%p, %q,")
    + """
func.func @main(%o: tensor<4xi32>, %i: tensor<2x1xi32>, %u: tensor<2xi32>, %v: tensor<2xi32>)
    -> (tensor<4xi32>, tensor<4xi32>, tensor<2x2xi4>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %yes = stablehlo.constant dense<true> : tensor<i1>
  %r:3 = stablehlo.while(%n = %zero, %s = %o, %t = %o) : tensor<i32>, tensor<4xi32>, tensor<4xi32>
    cond {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %c = stablehlo.compare LT, %n, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %m = stablehlo.add %n, %one : tensor<i32>
      %x:2 = func.call @inner(%s, %s, %i, %u, %v) : (tensor<4xi32>, tensor<4xi32>, tensor<2x1xi32>, tensor<2xi32>,
        tensor<2xi32>) -> (tensor<4xi32>, tensor<4xi32>)
      stablehlo.return %m, %x#0, %x#1 : tensor<i32>, tensor<4xi32>, tensor<4xi32>
    }
  %parts = "stablehlo.if"(%yes) ({
    %k = stablehlo.constant dense<[18, 250]> : tensor<2xui8>
    %b = stablehlo.bitcast_convert %k : (tensor<2xui8>) -> tensor<2x2xi4>
    stablehlo.return %b : tensor<2x2xi4>
  }, {
    %b = stablehlo.constant dense<0> : tensor<2x2xi4>
    stablehlo.return %b : tensor<2x2xi4>
  }) : (tensor<i1>) -> tensor<2x2xi4>
  return %r#1, %r#2, %parts : tensor<4xi32>, tensor<4xi32>, tensor<2x2xi4>
}"""
)


def test_operations_in_loops_branches_and_functions(agree: Callable[..., None]) -> None:
    agree(IN_A_LOOP, SCATTERED)


def test_scatters_on_several_devices(agree: Callable[..., None]) -> None:
    agree(SCATTER, *[SCATTERED] * 4, num_replicas=4)
    agree(SCATTER, *[SCATTERED] * 2, num_partitions=2)


# Floats of few bits.


@pytest.mark.parametrize("result", ["i1", *INTEGERS])
def test_conversions_of_f4_to_integers(result: str, agree: Callable[..., None]) -> None:
    values = np.arange(16, dtype=np.uint8).view(_dtype("f4E2M1FN"))
    agree(_unary("convert", "16xf4E2M1FN", f"16x{result}"), [values])
    agree(_of_constant("convert", _literal(values, "f4E2M1FN"), "16xf4E2M1FN", f"16x{result}"))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["i1", *INTEGERS, *FLOATS])
@pytest.mark.parametrize("result", ["f4E2M1FN", "f8E8M0FNU"])
def test_conversions_to_narrow_floats(kind: str, result: str, agree: Callable[..., None]) -> None:
    if kind == result:
        return
    values = _values(kind, 9, 40)
    if kind in ("f16", "bf16", "f32", "f64", "f8E5M2", "f8E4M3", "f8E3M4"):
        values[:6] = _float(kind, np.inf, -np.inf, 0.0, -0.0, 1.5, -2)
    if result == "f8E8M0FNU":  # its range begins with a number that is not normal as f32
        values = np.where(np.abs(values.astype(np.float64)) < 2.0**-126, np.zeros((), values.dtype), values)
        values = np.where(np.abs(values.astype(np.float64)) > 2.0**126, np.ones((), values.dtype), values)
        values = values.astype(_dtype(kind))
    agree(_unary("convert", f"40x{kind}", f"40x{result}"), [values])
    agree(_of_constant("convert", _literal(values, kind), f"40x{kind}", f"40x{result}"))


@pytest.mark.parametrize("result", [kind for kind in FLOATS if kind not in ("f4E2M1FN", "f8E8M0FNU")])
def test_conversions_of_nan_from_e8m0(result: str, agree: Callable[..., None]) -> None:
    agree(_of_constant("convert", "[0xFF, 0x7F, 0x80]", "3xf8E8M0FNU", f"3x{result}"))
    agree(_unary("convert", "3xf8E8M0FNU", f"3x{result}"), [_float("f8E8M0FNU", np.nan, 1, 2)])


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64", "f8E5M2", "f8E4M3", "f8E3M4", "f8E4M3FN"])
def test_reduced_precision(kind: str, agree: Callable[..., None]) -> None:
    given = _float(kind, np.nan, 3, -2, 0, -0.0, 1.5, 0.125)
    if kind != "f8E4M3FN":
        given[5] = np.inf
    narrow = _width(kind) == 8
    for exponent, mantissa in ((3, 4), (8, 7), (5, 4)) if narrow and kind != "f8E5M2" else ((8, 0), (3, 2), (5, 0)):
        if kind.startswith("f8E4") and exponent == 3:
            exponent, mantissa = 4, 3
        agree(_reduce_precision(f"7x{kind}", exponent, mantissa), [given])


@pytest.mark.parametrize("kind", ["i8", "i16", "i32", "i64", "ui32"])
def test_random_bits_of_signed_types_are_signed(kind: str, agree: Callable[..., None]) -> None:
    """In the results, and in what is computed with them."""
    agree(
        f"""
        func.func public @main(%state: tensor<2xui64>) -> (tensor<16x{kind}>, tensor<16xf64>) {{
          %0:2 = stablehlo.rng_bit_generator %state, algorithm = THREE_FRY
            : (tensor<2xui64>) -> (tensor<2xui64>, tensor<16x{kind}>)
          %1 = stablehlo.convert %0#1 : (tensor<16x{kind}>) -> tensor<16xf64>
          return %0#1, %1 : tensor<16x{kind}>, tensor<16xf64>
        }}""",
        [np.array([1, 2], np.uint64)],
    )


# Devices.

COMPARED = ("f16", "bf16", "f32", "f64", "f8E5M2", "f8E4M3FN")

REDUCE = """
module {
  %s
  func.func @main(%%x: tensor<4x4xf32> %s) -> tensor<4xf32> {
    %%i = stablehlo.constant dense<1.0> : tensor<f32>
    %%0 = stablehlo.reduce(%%x init: %%i) applies stablehlo.%s across dimensions = [0]
      : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    return %%0 : tensor<4xf32>
  }
}"""

SHARDED_SCATTER = """
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%%o: tensor<4xf32>, %%x: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> tensor<4xf32> {
    %%i = stablehlo.constant dense<0> : tensor<4x1xi32>
    %%0 = "stablehlo.scatter"(%%o, %%i, %%x) ({
      ^bb0(%%a: tensor<f32>, %%b: tensor<f32>):
        %%m = stablehlo.%s %%a, %%b : tensor<f32>
        stablehlo.return %%m : tensor<f32>
    }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], scatter_dims_to_operand_dims = [0],
      index_vector_dim = 1>} : (tensor<4xf32>, tensor<4x1xi32>, tensor<4x4xf32>) -> tensor<4xf32>
    return %%0 : tensor<4xf32>
  }
}"""

ROWS = np.array([[np.nan, 1, 0.0, -0.0], [1, 1, -0.0, 0.0], [1, np.nan, -0.0, 0.0], [1, 1, 0.0, -0.0]], "f4")


@pytest.mark.parametrize("combine", ["maximum", "minimum"])
@pytest.mark.parametrize("kind", COMPARED)
def test_maxima_between_replicas(kind: str, combine: str, agree: Callable[..., None]) -> None:
    agree(_all_reduce(kind, combine), *_of_devices(kind), num_replicas=4)
    agree(_all_reduce(kind, combine, "[[0, 2], [1, 3]]"), *_of_devices(kind), num_replicas=4)
    agree(_all_reduce(kind, combine, operation="reduce_scatter", size=1), *_of_devices(kind), num_replicas=4)


@pytest.mark.parametrize("combine", ["maximum", "minimum"])
def test_maxima_of_several_operands(combine: str, agree: Callable[..., None]) -> None:
    agree(
        f"""
        func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {{
          %y = stablehlo.negate %x : tensor<4xf32>
          %0:2 = "stablehlo.all_reduce"(%x, %y) ({{
            ^bb0(%a: tensor<f32>, %b: tensor<f32>):
              %m = stablehlo.{combine} %a, %b : tensor<f32>
              stablehlo.return %m : tensor<f32>
          }}) {{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}}
            : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
          return %0#0, %0#1 : tensor<4xf32>, tensor<4xf32>
        }}""",
        *_of_devices("f32"),
        num_replicas=4,
    )


@pytest.mark.parametrize("combine", ["maximum", "minimum"])
@pytest.mark.parametrize("shardy", [False, True])
def test_maxima_between_partitions(combine: str, shardy: bool, agree: Callable[..., None]) -> None:
    mesh = 'sdy.mesh @mesh = <["x"=2]>' if shardy else ""
    sharding = (
        '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}' if shardy else '{mhlo.sharding = "{devices=[2,1]<=[2]}"}'
    )
    halves = [[ROWS[:2]], [ROWS[2:]]]
    agree(REDUCE % (mesh, sharding, combine), *halves, num_partitions=2, use_shardy_partitioner=shardy)


@pytest.mark.parametrize("combine", ["maximum", "minimum"])
def test_scatters_of_maxima_between_partitions(combine: str, agree: Callable[..., None]) -> None:
    first = np.zeros(4, "f4")
    halves = [[first, ROWS[:2]], [first, ROWS[2:]]]
    agree(SHARDED_SCATTER % combine, *halves, num_partitions=2, use_shardy_partitioner=True)


TERMS = """
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}], unreduced={"x"}>}) {
    %i = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%x init: %i) applies stablehlo.maximum across dimensions = [0]
      : (tensor<4x4xf32>, tensor<f32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}"""


def test_devices_keep_their_terms_of_a_maximum(client: pjrt.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA leaves a result unreduced where no operation stands before such a sharding. Some versions refuse it."""
    halves = [[np.full((2, 4), 1, "f4")], [np.full((2, 4), 2, "f4")]]

    def outcome() -> Any:
        try:
            results = _run(client, TERMS, halves, {"num_partitions": 2, "use_shardy_partitioner": True})
        except pjrt.InvalidArgumentError as error:
            return error.message
        return [array.tolist() for array in results]

    mended = outcome()
    monkeypatch.setattr(faults, "mend", lambda *_: None)
    assert mended == outcome()
    assert mended == [[1] * 4, [2] * 4] or "unreduced" in mended


@pytest.mark.parametrize("combine", ["add", "maximum"])
def test_integers_and_sums_between_devices_stay_as_they_are(combine: str, agree: Callable[..., None]) -> None:
    agree(_all_reduce("i32", combine), *[[np.array([1, -2, 3, i], "i4")] for i in range(4)], num_replicas=4)


# Refusals, and the ways in.


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (_scatter(["i64"] * 3), "stablehlo.scatter wrongly with so many operands of the type i64"),
        (_scatter(["complex<f32>"] * 2), "with so many operands of the type complex<f32>"),
        (_reduce_precision("2xf8E4M3FN", 4, 2), "stablehlo.reduce_precision wrongly for f8E4M3FN to e4m2"),
        (_unary("convert", "2xf32", "2xf6E2M3FN"), "no code for stablehlo.convert of f6E2M3FN, which it can only move"),
        (_top_k("f6E2M3FN"), "no code for chlo.top_k of f6E2M3FN"),
        (_sort("f6E3M2FN", 4, direction="GT", order="TOTALORDER"), "no code for stablehlo.compare of f6E3M2FN"),
        (_joined("f6E2M3FN"), "no code for stablehlo.concatenate of f6E2M3FN"),
        (_unary("bitcast_convert", "2xf6E2M3FN", "2x6xi1"), "wrongly from f6E2M3FN to i1"),
        (_product("i8", "i4"), "no code for an operation that gives elements of less than a byte for larger ones"),
        (_all_reduce("i32", "xor"), "XLA's compiler combines values of devices by add, multiply, maximum and minimum"),
        (
            _unary("collective_broadcast", "2xi32", "2xi32", REPLICAS),
            "XLA's compiler has no code for collective-broadcast",
        ),
        (COMPLEX, "stablehlo.bitcast_convert wrongly from complex<f32> to complex<f64>"),
        (_all_reduce("f8E8M0FNU", "maximum"), "stablehlo.all_reduce wrongly for f8E8M0FNU between devices"),
        (_all_reduce("f6E2M3FN", "minimum"), "no code for stablehlo.all_reduce of f6E2M3FN"),
    ],
)
def test_what_cannot_be_mended_is_refused(client: pjrt.Client, code: str, reason: str) -> None:
    options = pjrt.CompileOptions(num_replicas=4 if "replica_groups" in code else 1)
    with pytest.raises(pjrt.UnimplementedError, match=re.escape(reason)) as caught:
        client.compile(code, options)
    assert "use the device 'reference'" in caught.value.message


def test_quantized_bitcasts_move_bytes(client: pjrt.Client) -> None:
    (parts,) = client.compile(_unary("bitcast_convert", "2xi32", "2x4x!quant.uniform<i8:f32, 0.5>"))(np.int32([1, -2]))
    assert np.asarray(parts).tolist() == [[1, 0, 0, 0], [-2, -1, -1, -1]]


@pytest.mark.parametrize("form", ["text", "artifact", "hlo", "hlo text"])
def test_every_form_of_program_is_mended(client: pjrt.Client, reference: pjrt.Client, form: str) -> None:
    proto = to_hlo(IN_A_LOOP)
    program: Any = {
        "text": lambda: IN_A_LOOP,
        "artifact": lambda: serialize(IN_A_LOOP, "1.0.0"),
        "hlo": lambda: proto,
        "hlo text": lambda: parse_hlo_text(to_hlo_text(proto).encode()),
    }[form]()
    found, expected = (_run(each, program, [SCATTERED], {}) for each in (client, reference))
    assert list(map(_bits, found)) == list(map(_bits, expected))
