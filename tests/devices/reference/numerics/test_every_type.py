"""Ops that treat all element types alike, on each of them.

What only moves values must keep every bit. What adds up is given values whose sums are exact in every type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from jaxlib.mlir.dialects import stablehlo

import pjrt
from pjrt.api.element_type import ElementType

T = ElementType
TYPES = [t for t in T if t not in (T.INVALID, T.TOKEN, T.S1, T.U1)]
NUMBERS = [t for t in TYPES if t not in (T.PRED, T.F8E8M0FNU)]
SMALL_FLOATS = [t for t in TYPES if t.is_floating and t.bits <= 8 and t is not T.F8E8M0FNU]
has_futures = pytest.mark.skipif(not hasattr(stablehlo, "FutureType"), reason="this jaxlib reads no futures")
every_type = pytest.mark.parametrize("t", TYPES, ids=lambda t: t.mlir)
every_number = pytest.mark.parametrize("t", NUMBERS, ids=lambda t: t.mlir)
every_small_float = pytest.mark.parametrize("t", SMALL_FLOATS, ids=lambda t: t.mlir)


def patterns(t: ElementType, count: int, seed: int = 0) -> Any:
    """Values with any bits."""
    random = np.random.default_rng([seed, t])
    if t is T.PRED:
        return random.integers(0, 2, count).astype(bool)
    width = t.dtype.itemsize
    high = 256 if t.bits >= 8 else 1 << t.bits
    return random.integers(0, high, count * width, dtype=np.uint8).view(t.dtype)


def numbers(t: ElementType, shape: Any, seed: int = 0) -> Any:
    """Zeros and ones."""
    return np.random.default_rng([seed, t]).integers(0, 2, shape).astype(np.int8).astype(t.dtype)


def same(found: Any, expected: Any) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == np.ascontiguousarray(expected).tobytes()


@every_type
def test_control_flow_moves_values(run: Any, t: ElementType) -> None:
    x, y = patterns(t, 4), patterns(t, 4, 1)
    type_ = f"tensor<4x{t.mlir}>"
    text = f"""func.func @main(%x: {type_}, %y: {type_}, %p: tensor<i1>) -> ({type_}, {type_}, tensor<i32>) {{
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %w:3 = stablehlo.while(%i = %zero, %a = %x, %b = %y) : tensor<i32>, {type_}, {type_}
        cond {{
          %c = stablehlo.compare LT, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
          stablehlo.return %c : tensor<i1>
        }} do {{
          %j = stablehlo.add %i, %one : tensor<i32>
          stablehlo.return %j, %b, %a : tensor<i32>, {type_}, {type_}
        }}
      %t = stablehlo.tuple %w#1, %w#2 : tuple<{type_}, {type_}>
      %g = stablehlo.get_tuple_element %t[1] : (tuple<{type_}, {type_}>) -> {type_}
      %o:2 = stablehlo.optimization_barrier %w#1, %g : {type_}, {type_}
      %n = stablehlo.get_dimension_size %o#0, dim = 0 : ({type_}) -> tensor<i32>
      return %o#0, %o#1, %n : {type_}, {type_}, tensor<i32> }}"""
    first, second, size = run(text, x, y, np.True_)
    same(first, y)
    same(second, x)
    assert size == 4


@has_futures
@every_type
def test_futures_move_values(run: Any, t: ElementType) -> None:
    x = patterns(t, 4)
    type_ = f"tensor<4x{t.mlir}>"
    text = f"""func.func @main(%x: {type_}) -> {type_} {{
      %f = "stablehlo.async_start"(%x) ({{
        ^bb0(%u: {type_}):
          %v = "stablehlo.all_gather"(%u) {{all_gather_dim = 0 : i64, replica_groups = dense<[[0]]> : tensor<1x1xi64>}}
            : ({type_}) -> {type_}
          stablehlo.return %v : {type_}
      }}) : ({type_}) -> !stablehlo.future<{type_}>
      %d = "stablehlo.async_done"(%f) : (!stablehlo.future<{type_}>) -> {type_}
      return %d : {type_} }}"""
    same(run(text, x)[0], x)


@every_type
def test_choosing_a_branch(run: Any, t: ElementType) -> None:
    x, y = patterns(t, 4), patterns(t, 4, 1)
    type_ = f"tensor<4x{t.mlir}>"
    text = f"""func.func @main(%x: {type_}, %y: {type_}, %i: tensor<i32>) -> {type_} {{
      %r = "stablehlo.case"(%i) ({{ stablehlo.return %x : {type_} }}, {{ stablehlo.return %y : {type_} }})
        : (tensor<i32>) -> {type_}
      return %r : {type_} }}"""
    same(run(text, x, y, np.int32(0))[0], x)
    same(run(text, x, y, np.int32(1))[0], y)


@every_type
def test_constants(run: Any, t: ElementType) -> None:
    x = patterns(t, 101) if t is not T.PRED else None
    if x is None:
        text = "func.func @main() -> tensor<2xi1> { %0 = stablehlo.constant dense<[true, false]> : tensor<2xi1>"
        assert run(text + " return %0 : tensor<2xi1> }")[0].tolist() == [True, False]
        return
    type_ = f"tensor<101x{t.mlir}>"
    body = f'%0 = stablehlo.constant dense<"0x{x.tobytes().hex()}"> : {type_}'
    same(run(f"func.func @main() -> {type_} {{ {body} return %0 : {type_} }}")[0], x)


@pytest.fixture(scope="module")
def client() -> Any:
    with pjrt.client("reference", num_devices=2, collective_timeout=100.0) as made:
        yield made


PAIR = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"


def two(
    client: Any, t: ElementType, op: str, attributes: str, made: int, values: list[Any], region: str = ""
) -> list[Any]:
    """An op on two replicas, each with four elements."""
    types = f"tensor<4x{t.mlir}>", f"tensor<{made}x{t.mlir}>"
    text = f"""func.func @main(%x: {types[0]}) -> {types[1]} {{
      %0 = "stablehlo.{op}"(%x) {region} {{{attributes}}} : ({types[0]}) -> {types[1]}
      return %0 : {types[1]} }}"""
    exe = client.compile(text, pjrt.CompileOptions(num_replicas=2))
    rows = [[client.buffer_from_host(v, device=d)] for v, d in zip(values, client.devices, strict=True)]
    return [np.asarray(row[0]) for row in exe.execute(rows)]


@every_type
def test_collectives_move_values(client: Any, t: ElementType) -> None:
    x, y = patterns(t, 4), patterns(t, 4, 1)
    for found in two(client, t, "all_gather", f"all_gather_dim = 0 : i64, {PAIR}", 8, [x, y]):
        same(found, np.concatenate([x, y]))
    halves = "split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64"
    first, second = two(client, t, "all_to_all", f"{halves}, {PAIR}", 4, [x, y])
    same(first, np.concatenate([x[:2], y[:2]]))
    same(second, np.concatenate([x[2:], y[2:]]))
    pairs = "source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>"
    first, second = two(client, t, "collective_permute", pairs, 4, [x, y])
    same(first, y)
    same(second, x)
    for found in two(
        client, t, "collective_broadcast", "replica_groups = dense<[[1, 0]]> : tensor<1x2xi64>", 4, [x, y]
    ):
        same(found, y)


@every_type
def test_collectives_combine_values(client: Any, t: ElementType) -> None:
    """The larger of both, which every type has; of f8E8M0FNU too."""
    raw = [np.array([0, 1, 1, 0], np.int8), np.array([1, 0, 1, 0], np.int8)]
    if t is T.F8E8M0FNU:
        raw = [2**v for v in raw]
    values = [v.astype(t.dtype) for v in raw]
    region = f"""({{
      ^bb0(%a: tensor<{t.mlir}>, %b: tensor<{t.mlir}>):
        %c = stablehlo.maximum %a, %b : tensor<{t.mlir}>
        stablehlo.return %c : tensor<{t.mlir}> }})"""
    expected = np.maximum(*raw).astype(t.dtype)
    for found in two(client, t, "all_reduce", PAIR, 4, values, region):
        same(found, expected)
    first, second = two(client, t, "reduce_scatter", f"scatter_dimension = 0 : i64, {PAIR}", 2, values, region)
    same(first, expected[:2])
    same(second, expected[2:])
    if t is T.F8E8M0FNU:
        return
    total = (raw[0].astype(bool) | raw[1].astype(bool)) if t is T.PRED else raw[0] + raw[1]
    for found in two(client, t, "cross-replica-sum", PAIR, 4, values):
        same(found, total.astype(t.dtype))


@every_type
def test_feeds_and_channels(client: Any, t: ElementType) -> None:
    x, y = patterns(t, 4), patterns(t, 4, 1)
    type_ = f"tensor<4x{t.mlir}>"
    channel = "channel_handle = #stablehlo.channel_handle<handle = 1, type = {}>, is_host_transfer = true"
    text = f"""func.func @main(%x: {type_}) -> ({type_}, {type_}) {{
      %t = stablehlo.create_token : !stablehlo.token
      %0:2 = "stablehlo.infeed"(%t) : (!stablehlo.token) -> ({type_}, !stablehlo.token)
      %1 = "stablehlo.outfeed"(%x, %0#1) : ({type_}, !stablehlo.token) -> !stablehlo.token
      %2 = "stablehlo.send"(%0#0, %1) {{{channel.format(2)}}} : ({type_}, !stablehlo.token) -> !stablehlo.token
      %3:2 = "stablehlo.recv"(%2) {{{channel.format(3)}}} : (!stablehlo.token) -> ({type_}, !stablehlo.token)
      return %0#0, %3#0 : {type_}, {type_} }}"""
    from pjrt.api.loaded_executable import RecvCallback, SendCallback

    sent: list[bytes] = []
    options = pjrt.ExecuteOptions(
        send_callbacks=[[SendCallback(1, lambda data, total, last: sent.append(bytes(data)))]],
        recv_callbacks=[[RecvCallback(1, lambda stream: stream.add_chunk(x.tobytes()))]],
    )
    client.devices[0].infeed.put(y)
    ((fed, received),) = client.compile(text).execute([[client.buffer_from_host(x)]], options)
    same(np.asarray(fed), y)
    same(np.asarray(received), x)
    same(client.devices[0].outfeed.get(60), x)
    assert b"".join(sent) == y.tobytes()


@every_type
def test_functions_of_the_host(client: Any, t: ElementType) -> None:
    def turn(x: Any, out: Any) -> None:
        out[...] = x[::-1]

    client.register_ffi_handler(f"turn.{t.name}", turn)
    type_ = f"tensor<4x{t.mlir}>"
    text = f"""func.func @main(%x: {type_}) -> {type_} {{
      %0 = stablehlo.custom_call @turn.{t.name}(%x) {{api_version = 4 : i32, backend_config = {{}}}}
        : ({type_}) -> {type_}
      return %0 : {type_} }}"""
    x = patterns(t, 4)
    same(np.asarray(client.compile(text)(x)[0]), x[::-1])


@every_number
def test_older_products(run: Any, t: ElementType) -> None:
    x, y = numbers(t, (2, 2)), numbers(t, (2, 2), 1)
    type_ = f"tensor<2x2x{t.mlir}>"
    text = f"""func.func @main(%x: {type_}, %y: {type_}) -> ({type_}, {type_}, tensor<2x{t.mlir}>) {{
      %0 = stablehlo.dot %x, %y : ({type_}, {type_}) -> {type_}
      %1 = "stablehlo.einsum"(%x, %y) {{einsum_config = "ij,kj->ik"}} : ({type_}, {type_}) -> {type_}
      %2 = "stablehlo.unary_einsum"(%x) {{einsum_config = "ij->j"}} : ({type_}) -> tensor<2x{t.mlir}>
      return %0, %1, %2 : {type_}, {type_}, tensor<2x{t.mlir}> }}"""
    wide = [v.astype(np.complex64 if t.is_complex else np.float32) for v in (x, y)]
    exact = [wide[0] @ wide[1], wide[0] @ wide[1].T, wide[0].sum(0)]
    for found, expected in zip(run(text, x, y), exact, strict=True):
        whole = t.is_integer and t.bits == 2
        same(found, (expected.astype(np.int8) if whole else expected).astype(t.dtype))


@every_number
def test_convolution_with_padding_as_an_operand(run: Any, t: ElementType) -> None:
    x, kernel = numbers(t, (1, 1, 4)), numbers(t, (1, 1, 1), 1)
    text = f"""func.func @main(%a: tensor<1x1x4x{t.mlir}>, %b: tensor<1x1x1x{t.mlir}>, %p: tensor<1x2xi32>)
        -> tensor<1x1x6x{t.mlir}> {{
      %0 = "stablehlo.dynamic_conv"(%a, %b, %p) {{
        dimension_numbers = #stablehlo.conv<[b, f, 0]x[o, i, 0]->[b, f, 0]>,
        feature_group_count = 1 : i64, batch_group_count = 1 : i64}}
        : (tensor<1x1x4x{t.mlir}>, tensor<1x1x1x{t.mlir}>, tensor<1x2xi32>) -> tensor<1x1x6x{t.mlir}>
      return %0 : tensor<1x1x6x{t.mlir}> }}"""
    (found,) = run(text, x, kernel, np.array([[1, 1]], np.int32))
    expected = np.pad(x, ((0, 0), (0, 0), (1, 1))) if kernel[0, 0, 0] else np.zeros((1, 1, 6), t.dtype)
    same(found, expected)


@every_number
@pytest.mark.parametrize("op", ["add", "multiply", "subtract", "maximum", "minimum"])
def test_broadcasting(run: Any, op: str, t: ElementType) -> None:
    """As the op without broadcasting, on operands that were broadcast before."""
    x, y = numbers(t, (2, 3)), numbers(t, (3,), 1)
    types = f"tensor<2x3x{t.mlir}>", f"tensor<3x{t.mlir}>"
    text = f"""func.func @main(%x: {types[0]}, %y: {types[1]}) -> ({types[0]}, {types[0]}) {{
      %0 = "chlo.broadcast_{op}"(%x, %y) {{broadcast_dimensions = array<i64: 1>}}
        : ({types[0]}, {types[1]}) -> {types[0]}
      %1 = stablehlo.broadcast_in_dim %y, dims = [1] : ({types[1]}) -> {types[0]}
      %2 = stablehlo.{op} %x, %1 : {types[0]}
      return %0, %2 : {types[0]}, {types[0]} }}"""
    found, expected = run(text, x, y)
    same(found, expected)


@pytest.mark.parametrize("t", [t for t in TYPES if t.is_integer or t.is_floating], ids=lambda t: t.mlir)
def test_top_k(run: Any, t: ElementType) -> None:
    x = np.array([1, 2, 1, 2]).astype(np.int8 if t.is_integer else np.float32).astype(t.dtype)
    if t is T.S2:
        x = np.array([-1, 1, -1, 1], np.int8).astype(t.dtype)
    text = f"""func.func @main(%a: tensor<4x{t.mlir}>) -> (tensor<3x{t.mlir}>, tensor<3xi32>) {{
      %0:2 = chlo.top_k(%a, k = 3) : tensor<4x{t.mlir}> -> (tensor<3x{t.mlir}>, tensor<3xi32>)
      return %0#0, %0#1 : tensor<3x{t.mlir}>, tensor<3xi32> }}"""
    values, where = run(text, x)
    assert where.tolist() == [1, 3, 0]
    same(values, x[[1, 3, 0]])


@pytest.mark.parametrize("t", [t for t in TYPES if t.is_floating], ids=lambda t: t.mlir)
def test_infinities(run: Any, t: ElementType) -> None:
    x = patterns(t, 50)
    type_ = f"tensor<50x{t.mlir}>"
    for op, function in (("is_inf", np.isinf), ("is_pos_inf", np.isposinf), ("is_neg_inf", np.isneginf)):
        text = f"""func.func @main(%a: {type_}) -> tensor<50xi1> {{
          %0 = chlo.{op} %a : {type_} -> tensor<50xi1>
          return %0 : tensor<50xi1> }}"""
        assert np.array_equal(run(text, x)[0], function(x.astype(np.float64 if t is T.F64 else np.float32)))


UNARY: dict[str, Callable[[Any], Any]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "conj": lambda x: x,
    "cosh": np.cosh,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "erfc": np.vectorize(math.erfc, otypes=[float]),
    "lgamma": np.vectorize(lambda v: math.lgamma(v) if v > 0 else math.inf, otypes=[float]),
    "sinh": np.sinh,
    "square": np.square,
}


@every_small_float
@pytest.mark.parametrize("op", UNARY)
def test_chlo_on_small_floats(run: Any, nearest: Any, op: str, t: ElementType) -> None:
    """All values of the type but NaN: f32, or f64, is so much finer that the result is the nearest one."""
    x = np.arange(1 << t.bits, dtype=np.uint8).view(t.dtype)
    wide = x.astype(np.float32).astype(np.float64)
    keep = np.isfinite(wide) & (wide >= 0 if op == "lgamma" else np.isfinite(wide))
    x, wide = x[keep], wide[keep]
    with np.errstate(all="ignore"):
        expected = nearest(UNARY[op](wide), t.dtype)
    type_ = f"tensor<{x.size}x{t.mlir}>"
    text = f"func.func @main(%a: {type_}) -> {type_} {{ %0 = chlo.{op} %a : {type_} -> {type_} return %0 : {type_} }}"
    (found,) = run(text, x)
    got, right = (v.astype(np.float32) for v in (found, expected))
    if t.bits >= 8:
        assert np.array_equal(got, right, equal_nan=True)
    else:  # these have no NaN to tell
        known = np.isfinite(UNARY[op](wide)) if op in ("square", "conj", "atan", "asinh") else right == got
        assert np.array_equal(got[known], right[known])


@every_small_float
def test_inverse_and_slope_on_small_floats(run: Any, nearest: Any, t: ElementType) -> None:
    """``erf_inv`` of ``erf`` of points far from where it is flat, and ``digamma`` at whole numbers, in f64."""
    x = np.array([0.5, -0.5] if t.bits == 4 else [0.25, -0.75]).astype(t.dtype)
    whole = np.array([1, 2, 4]).astype(t.dtype)
    two, three = f"tensor<2x{t.mlir}>", f"tensor<3x{t.mlir}>"
    text = f"""func.func @main(%a: {two}, %b: {three}) -> ({two}, {three}) {{
      %0 = chlo.erf_inv %a : {two} -> {two}
      %1 = chlo.digamma %b : {three} -> {three}
      return %0, %1 : {two}, {three} }}"""
    inverse, slope = run(text, x, whole)
    wide = x.astype(np.float32).astype(np.float64)
    exact = [_root(lambda z, y=y: math.erf(z) - y) for y in wide]
    same(inverse, nearest(np.array(exact), t.dtype))
    gamma = 0.5772156649015329
    values = whole.astype(np.float32).astype(int)
    expected = [-gamma + math.fsum(1 / k for k in range(1, n)) for n in values]
    same(slope, nearest(np.array(expected), t.dtype))


def _root(function: Callable[[float], float]) -> float:
    low, high = -3.0, 3.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return low


@every_small_float
def test_precision_of_small_floats(run: Any, nearest: Any, t: ElementType) -> None:
    """Rounded to two bits of mantissa: what has no more stays, and 1.125, where there is one, goes to the even 1."""
    x = np.array([0.5, 1.0, 1.5, 1.125, -2.0]).astype(t.dtype)
    type_ = f"tensor<5x{t.mlir}>"
    text = f"""func.func @main(%a: {type_}) -> {type_} {{
      %0 = stablehlo.reduce_precision %a, format = e8m2 : {type_}
      return %0 : {type_} }}"""
    (found,) = run(text, x)
    wide = [float(v) for v in x.astype(np.float32)]
    rounded = [math.ldexp(round(math.ldexp(m, 3)), e - 3) for m, e in map(math.frexp, wide)]
    same(found, nearest(np.array(rounded), t.dtype))


@every_small_float
def test_solvers_on_small_floats(run: Any, t: ElementType) -> None:
    a = np.array([[4, 2], [2, 2]]).astype(t.dtype)
    b = np.array([[4], [3]]).astype(t.dtype)
    types = f"tensor<2x2x{t.mlir}>", f"tensor<2x1x{t.mlir}>"
    text = f"""func.func @main(%a: {types[0]}, %b: {types[1]}) -> ({types[0]}, {types[1]}) {{
      %0 = stablehlo.cholesky %a, lower = true : {types[0]}
      %1 = "stablehlo.triangular_solve"(%0, %b) {{left_side = true, lower = true, unit_diagonal = false,
        transpose_a = #stablehlo<transpose NO_TRANSPOSE>}} : ({types[0]}, {types[1]}) -> {types[1]}
      return %0, %1 : {types[0]}, {types[1]} }}"""
    factor, solution = run(text, a, b)
    assert factor.astype(np.float32).tolist() == [[2, 0], [1, 1]]
    assert solution.astype(np.float32).tolist() == [[2], [1]]


@every_small_float
def test_batch_norm_on_small_floats(run: Any, t: ElementType) -> None:
    """Two values a feature, one above and one below the mean by the deviation."""
    x = np.array([[1, 2], [3, 2]]).astype(t.dtype)
    one, zero = np.ones(2, np.float32).astype(t.dtype), np.zeros(2, np.float32).astype(t.dtype)
    whole, per = f"tensor<2x2x{t.mlir}>", f"tensor<2x{t.mlir}>"
    attributes = "epsilon = 0.0 : f32, feature_index = 1 : i64"
    made = ", ".join([whole, per, per, whole, whole])
    text = f"""func.func @main(%x: {whole}, %s: {per}, %o: {per}, %m: {per}) -> ({made}) {{
      %0:3 = "stablehlo.batch_norm_training"(%x, %s, %o) {{epsilon = 1.0 : f32, feature_index = 1 : i64}}
        : ({whole}, {per}, {per}) -> ({whole}, {per}, {per})
      %1 = "stablehlo.batch_norm_inference"(%x, %s, %o, %m, %s) {{{attributes}}}
        : ({whole}, {per}, {per}, {per}, {per}) -> {whole}
      %2:3 = "stablehlo.batch_norm_grad"(%x, %s, %m, %s, %x) {{{attributes}}}
        : ({whole}, {per}, {per}, {per}, {whole}) -> ({whole}, {per}, {per})
      return %0#0, %0#1, %0#2, %1, %2#0 : {made} }}"""
    found = [v.astype(np.float32) for v in run(text, x, one, zero, np.array([2, 2]).astype(t.dtype))]
    root = np.float32(1 / math.sqrt(2)).astype(t.dtype).astype(np.float32)
    assert found[0].tolist() == [[-root, 0], [root, 0]]
    assert found[1].tolist() == [2, 2]
    assert found[2].tolist() == [1, 0]
    assert found[3].tolist() == [[-1, 0], [1, 0]]
    assert np.abs(found[4]).max() == 0
