"""CHLO: what is done directly, against Python's own functions, and what is decomposed, against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from jaxlib.mlir.dialects import chlo

from pjrt.api.element_type import ElementType
from pjrt.devices.reference import Evaluator
from pjrt.devices.reference.core import mlir

T = ElementType
FLOATS = [T.BF16, T.F16, T.F32, T.F64]


def unary(run: Any, op: str, x: Any, result: str | None = None) -> Any:
    given = f"tensor<{x.size}x{T.of(x.dtype).mlir}>"
    made = f"tensor<{x.size}x{result}>" if result else given
    text = f"func.func @main(%a: {given}) -> {made} {{ %0 = chlo.{op} %a : {given} -> {made} return %0 : {made} }}"
    return run(text, x)[0]


def binary(run: Any, op: str, x: Any, y: Any, attributes: str = "") -> Any:
    types = [f"tensor<{''.join(f'{s}x' for s in a.shape)}{T.of(a.dtype).mlir}>" for a in (x, y)]
    shape = np.broadcast_shapes(x.shape, y.shape)
    made = f"tensor<{''.join(f'{s}x' for s in shape)}{T.of(x.dtype).mlir}>"
    text = (
        f"func.func @main(%a: {types[0]}, %b: {types[1]}) -> {made} {{"
        f' %0 = "chlo.{op}"(%a, %b) {attributes} : ({types[0]}, {types[1]}) -> {made} return %0 : {made} }}'
    )
    return run(text, x, y)[0]


def close(found: Any, expected: Any, ulps: int) -> None:
    """Within some units of the last place of the type, and equal where not finite."""
    wide = found.astype(np.float64)
    expected = np.asarray(expected, np.float64)
    eps = {T.BF16: 2.0**-8, T.F16: 2.0**-11, T.F32: 2.0**-24, T.F64: 2.0**-53}[T.of(found.dtype)] * 2
    tiny = {T.BF16: 2.0**-133, T.F16: 2.0**-24, T.F32: 2.0**-149, T.F64: 2.0**-49}[T.of(found.dtype)]  # sums of 1
    finite = np.isfinite(expected)
    assert np.array_equal(wide[~finite], expected[~finite], equal_nan=True)
    assert (np.abs(wide[finite] - expected[finite]) <= ulps * eps * np.abs(expected[finite]) + tiny).all()


POINTS = [
    0.0,
    -0.0,
    0.1,
    -0.3,
    0.46,
    0.47,
    0.9,
    1.0,
    -1.0,
    1.7,
    -2.5,
    3.9,
    4.1,
    -4.5,
    6.0,
    9.0,
    -9.0,
    math.inf,
    -math.inf,
]

# Two ULP for the type's own rounding and for Python's; f64 gets what the approximations promise.
ERRORS: dict[str, Callable[[float], float]] = {"erf": math.erf, "erfc": math.erfc}


@pytest.mark.parametrize("t", FLOATS, ids=lambda t: t.mlir)
@pytest.mark.parametrize("op", ERRORS)
def test_error_functions(run: Any, op: str, t: ElementType) -> None:
    largest = np.float64(ml_dtypes.finfo(t.dtype).max)
    x = np.array([*POINTS, math.nan, largest, -largest], np.float64).astype(t.dtype)
    expected = np.array([ERRORS[op](float(v)) for v in x]).astype(t.dtype)
    close(unary(run, op, x), expected.astype(np.float64), 8 if t is T.F64 else 1)


@pytest.mark.parametrize("t", FLOATS, ids=lambda t: t.mlir)
def test_the_inverse_of_the_error_function(run: Any, t: ElementType) -> None:
    """Known by Newton's method on ``math.erf``, in 60 halvings of an interval."""

    def inverse(y: float) -> float:
        if abs(y) >= 1:
            return math.copysign(math.inf, y) if abs(y) == 1 else math.nan
        low, high = 0.0, 7.0
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if math.erfc(middle) > 1 - abs(y) else (low, middle)
        return math.copysign(low, y)

    x = np.array([0.5, -0.5, 0.25, 0.75, -0.875, 0.9375, 1.0, -1.0, 1.5, 1 - 2.0**-8], np.float64).astype(t.dtype)
    expected = np.array([inverse(float(v)) for v in x])
    close(unary(run, "erf_inv", x), expected.astype(t.dtype).astype(np.float64), 16 if t is T.F64 else 1)
    if t is T.F64:
        tails = 1 - 2.0 ** -np.arange(20, 52)
        close(unary(run, "erf_inv", tails), [inverse(v) for v in tails], 16)


@pytest.mark.parametrize("t", FLOATS, ids=lambda t: t.mlir)
def test_log_of_gamma(run: Any, t: ElementType) -> None:
    x = np.array([0.5, 1, 1.5, 2, 3, 4.25, 10, 33, 100, 0.125, -0.5, -1.25, -3.75], np.float64).astype(t.dtype)
    expected = np.array([math.lgamma(float(v)) for v in x])
    close(unary(run, "lgamma", x), expected.astype(t.dtype).astype(np.float64), 64 if t is T.F64 else 1)
    poles = np.array([0, -1, -2, math.inf, -math.inf], t.dtype)
    assert (unary(run, "lgamma", poles).astype(np.float64) == math.inf).all()


@pytest.mark.parametrize("t", FLOATS, ids=lambda t: t.mlir)
def test_digamma(run: Any, t: ElementType) -> None:
    """At whole and half numbers it is a finite sum; below zero its reflection."""
    gamma = 0.5772156649015329

    def known(twice: int) -> float:
        if twice % 2 == 0:
            return -gamma + math.fsum(1 / k for k in range(1, twice // 2))
        return -gamma - 2 * math.log(2) + math.fsum(2 / (2 * k - 1) for k in range(1, (twice + 1) // 2))

    x = np.arange(1, 40, dtype=np.float64) / 2
    expected = np.array([known(k) for k in range(1, 40)])
    close(
        unary(run, "digamma", x.astype(t.dtype)), expected.astype(t.dtype).astype(np.float64), 64 if t is T.F64 else 1
    )
    below = unary(run, "digamma", np.array([-0.5, -1.5], t.dtype))  # there the cotangent vanishes
    close(below, np.array([known(3), known(5)]).astype(t.dtype).astype(np.float64), 64 if t is T.F64 else 1)
    assert np.isnan(unary(run, "digamma", np.array([0, -1, -2], t.dtype)).astype(np.float64)).all()


def test_large_arrays_are_done_in_chunks(run: Any) -> None:
    x = np.linspace(-5, 5, 20_001, dtype=np.float32)
    found = unary(run, "erf", x)
    assert np.array_equal(found[::400], unary(run, "erf", x[::400].copy()))


DIRECT: dict[str, Callable[[Any], Any]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "cosh": np.cosh,
    "sinh": np.sinh,
    "square": np.square,
}


@pytest.mark.parametrize("t", FLOATS, ids=lambda t: t.mlir)
@pytest.mark.parametrize("op", DIRECT)
def test_functions_of_one_number(run: Any, op: str, t: ElementType) -> None:
    x = (np.linspace(1.01, 4, 20) if op == "acosh" else np.linspace(-0.99, 0.99, 21)).astype(t.dtype)
    with np.errstate(all="ignore"):
        expected = DIRECT[op](x.astype(np.longdouble)).astype(t.dtype)
    close(unary(run, op, x), expected.astype(np.float64), 1 if t in (T.BF16, T.F16) else 4)


@pytest.mark.parametrize("t", [T.C64, T.C128], ids=lambda t: t.mlir)
@pytest.mark.parametrize("op", [*DIRECT, "conj"])
def test_functions_of_one_complex(run: Any, op: str, t: ElementType) -> None:
    random = np.random.default_rng(0)
    x = (random.standard_normal(40) + 1j * random.standard_normal(40)).astype(t.dtype)
    function = np.conjugate if op == "conj" else DIRECT[op]
    expected = function(x.astype(np.clongdouble))
    eps = np.finfo(np.float32 if t is T.C64 else np.float64).eps
    assert (np.abs(unary(run, op, x) - expected) <= 8 * eps * np.abs(expected)).all()


def test_infinities(run: Any) -> None:
    x = np.array([1, math.inf, -math.inf, math.nan], np.float32)
    assert unary(run, "is_inf", x, "i1").tolist() == [False, True, True, False]
    assert unary(run, "is_pos_inf", x, "i1").tolist() == [False, True, False, False]
    assert unary(run, "is_neg_inf", x, "i1").tolist() == [False, False, True, False]


@pytest.mark.parametrize(
    "t", [t for t in T if t.is_floating and t.bits >= 8 and t is not T.F8E8M0FNU], ids=lambda t: t.mlir
)
def test_next_after(run: Any, t: ElementType) -> None:
    """The neighbours are those of the bit patterns."""
    one = np.array([1.0, 1.0, 0.0, 0.0, -1.0, 2.0, 1.0], t.dtype)
    towards = np.array([2.0, 0.0, 1.0, -1.0, 0.0, 2.0, math.nan], t.dtype)
    found = binary(run, "next_after", one, towards)
    width = f"i{t.dtype.itemsize}"
    bits, start = found.view(width), one.view(width)
    assert bits[0] == start[0] + 1
    assert bits[1] == start[1] - 1
    assert found[2] > 0
    assert bits[2] == 1
    assert found[3] < 0
    assert found[3] == -found[2]
    assert bits[4] == start[4] - 1
    assert found[5] == 2
    assert np.isnan(found[6])
    zeros = np.array([0.0, -0.0], t.dtype)  # some types have one only
    found = binary(run, "next_after", zeros, zeros[::-1].copy())
    assert np.array_equal(np.signbit(found.astype(float)), np.signbit(zeros[::-1].astype(float)))


@pytest.mark.skipif(not hasattr(chlo, "MulhiOp"), reason="this jaxlib has no chlo.mulhi")
@pytest.mark.parametrize("t", [t for t in T if t.is_integer and t not in (T.S1, T.U1)], ids=lambda t: t.mlir)
def test_upper_half_of_a_product(run: Any, t: ElementType) -> None:
    low, high = (-(1 << (t.bits - 1)), (1 << (t.bits - 1)) - 1) if t.name[0] == "S" else (0, (1 << t.bits) - 1)
    random = np.random.default_rng(0)
    wide = np.uint64 if t is T.U64 else np.int64
    x = random.integers(low, high, 200, dtype=wide, endpoint=True).astype(t.dtype)
    y = random.integers(low, high, 200, dtype=wide, endpoint=True)
    y[:2] = low, high
    y = y.astype(t.dtype)
    found = binary(run, "mulhi", x, y)
    assert [int(v) for v in found] == [(int(a) * int(b)) >> t.bits for a, b in zip(x, y, strict=True)]


def test_broadcasting(run: Any) -> None:
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([10, 20, 30], np.float32)
    assert np.array_equal(binary(run, "broadcast_add", x, y), x + y)
    assert np.array_equal(binary(run, "broadcast_multiply", y, x), x * y)
    column = np.array([1, 2], np.float32)
    text = """func.func @main(%a: tensor<2x3xf32>, %b: tensor<2xf32>) -> tensor<2x3xf32> {
      %0 = chlo.broadcast_subtract %a, %b {broadcast_dimensions = array<i64: 0>}
        : (tensor<2x3xf32>, tensor<2xf32>) -> tensor<2x3xf32>
      return %0 : tensor<2x3xf32> }"""
    assert np.array_equal(run(text, x, column)[0], x - column[:, None])


def test_constant_like(run: Any) -> None:
    text = """func.func @main(%a: tensor<2x3xbf16>) -> tensor<2x3xbf16> {
      %0 = "chlo.constant_like"(%a) {value = 1.5 : bf16} : (tensor<2x3xbf16>) -> tensor<2x3xbf16>
      return %0 : tensor<2x3xbf16> }"""
    (found,) = run(text, np.zeros((2, 3), T.BF16.dtype))
    assert found.astype(np.float32).tolist() == [[1.5] * 3] * 2


def test_constant_like_is_one_element_in_memory(run: Any) -> None:
    """No machine has the memory for the whole of it."""
    large = "tensor<1048576x1048576xf32>"
    text = f"""func.func @main(%a: tensor<f32>, %i: tensor<i32>) -> tensor<1x2xf32> {{
      %0 = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> {large}
      %1 = "chlo.constant_like"(%0) {{value = 1.5 : f32}} : ({large}) -> {large}
      %2 = stablehlo.dynamic_slice %1, %i, %i, sizes = [1, 2] : ({large}, tensor<i32>, tensor<i32>) -> tensor<1x2xf32>
      return %2 : tensor<1x2xf32> }}"""
    (found,) = run(text, np.float32(0), np.int32(7))
    assert found.tolist() == [[1.5, 1.5]]


@pytest.mark.parametrize("t", [T.F32, T.BF16, T.S32, T.U8, T.S4], ids=lambda t: t.mlir)
def test_top_k(run: Any, t: ElementType) -> None:
    x = np.array([[3, 1, 3, 0, 2], [5, 5, 5, 5, 5]]).astype(t.dtype)
    type_ = f"tensor<2x5x{t.mlir}>"
    text = f"""func.func @main(%a: {type_}) -> (tensor<2x3x{t.mlir}>, tensor<2x3xi32>) {{
      %0:2 = chlo.top_k(%a, k = 3) : {type_} -> (tensor<2x3x{t.mlir}>, tensor<2x3xi32>)
      return %0#0, %0#1 : tensor<2x3x{t.mlir}>, tensor<2x3xi32> }}"""
    largest, where = run(text, x)
    assert largest.astype(np.int64).tolist() == [[3, 3, 2], [5, 5, 5]]
    assert where.tolist() == [[0, 2, 4], [0, 1, 2]]


def in_order(t: ElementType) -> Any:
    """Numbers of a type in rising total order: -NaN first, then -infinity …, -0, +0 …, infinity, NaN."""
    numbers = np.array([-math.nan, -math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan])
    with np.errstate(all="ignore"):
        x = numbers.astype(t.dtype)
    if t.name.endswith("FNUZ"):
        return x[[0, 2, 4, 5]]  # its NaN has a sign
    if t is T.F8E8M0FNU:
        return x[[5, 7]]
    if t.bits < 8:
        return x[2:6]
    return x if t.dtype.type(math.inf) == math.inf else x[[0, 2, 3, 4, 5, 7]]


FORMS = {
    "chlo": "%0:2 = chlo.top_k(%a, k = {k}) : {type} -> ({values}, {places})",
    "mhlo.topk": "%0:2 = stablehlo.custom_call @mhlo.topk(%a) {{mhlo.attributes = {{k = {k} : i64, largest = true}}}} "
    ": ({type}) -> ({values}, {places})",
    "TopK": "%0:2 = stablehlo.custom_call @TopK(%a) : ({type}) -> ({values}, {places})",
    "composite": '%0:2 = stablehlo.composite "chlo.top_k" %a {{decomposition = @largest}} '
    ": ({type}) -> ({values}, {places})",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("t", FLOATS, ids=lambda t: t.mlir)
def test_top_k_is_in_total_order(run: Any, t: ElementType, form: str) -> None:
    ordered = in_order(t)
    shuffle = np.random.default_rng(0).permutation(ordered.size)
    x = ordered[shuffle]
    for k in (1, ordered.size):
        types = {"type": f"tensor<{x.size}x{t.mlir}>", "values": f"tensor<{k}x{t.mlir}>", "places": f"tensor<{k}xi32>"}
        text = """func.func @main(%a: {type}) -> ({values}, {places}) {{
          FORM
          return %0#0, %0#1 : {values}, {places} }}
        func.func private @largest(%a: {type}) -> ({values}, {places}) {{
          %0:2 = chlo.top_k(%a, k = {k}) : {type} -> ({values}, {places})
          return %0#0, %0#1 : {values}, {places} }}""".replace("FORM", FORMS[form]).format(k=k, **types)
        largest, places = run(text, x)
        assert largest.tobytes() == ordered[::-1][:k].tobytes()
        assert x[places].tobytes() == largest.tobytes()


def test_what_numpy_has_no_function_for_is_decomposed(run: Any) -> None:
    """Zeta and polygamma at whole numbers have closed forms."""
    two, one = np.array([2, 4], np.float32), np.array([1, 1], np.float32)
    close(binary(run, "zeta", two, one, "").astype(np.float32), [math.pi**2 / 6, math.pi**4 / 90], 8)
    close(binary(run, "polygamma", np.array([1], np.float32), np.array([1], np.float32)), [math.pi**2 / 6], 8)


@pytest.mark.parametrize("kind", ["f4E2M1FN", "f6E3M2FN", "f8E5M2", "f8E4M3B11FNUZ", "f8E8M0FNU", "f16", "bf16"])
def test_what_is_decomposed_is_computed_in_f32(run: Any, kind: str) -> None:
    """And what has a function of its own stays as it is: the pass has no ``erf`` of some of these types."""
    dtype = ElementType.from_mlir(kind).dtype
    x = np.array([1, 2, 4], dtype)
    narrow, wide = f"tensor<3x{kind}>", "tensor<3xf32>"
    text = f"""func.func @main(%x: {narrow}, %y: {wide}) -> ({narrow}, {wide}, {narrow}, {wide}, {narrow}) {{
      %0 = chlo.bessel_i1e %x : {narrow} -> {narrow}
      %1 = chlo.bessel_i1e %y : {wide} -> {wide}
      %2 = chlo.polygamma %x, %x : {narrow}, {narrow} -> {narrow}
      %3 = chlo.polygamma %y, %y : {wide}, {wide} -> {wide}
      %4 = chlo.erf %x : {narrow} -> {narrow}
      return %0, %1, %2, %3, %4 : {narrow}, {wide}, {narrow}, {wide}, {narrow} }}"""
    bessel, bessel32, polygamma, polygamma32, _ = run(text, x, x.astype(np.float32))
    assert bessel.tobytes() == bessel32.astype(dtype).tobytes()
    assert polygamma.tobytes() == polygamma32.astype(dtype).tobytes()


def test_decomposing_leaves_the_module_as_it_was() -> None:
    text = """func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
      %0 = chlo.bessel_i1e %a : tensor<2xf32> -> tensor<2xf32>
      return %0 : tensor<2xf32> }"""
    module = mlir.parse(text)
    evaluator = Evaluator(module)
    assert "chlo.bessel_i1e" in str(module)
    (found,) = evaluator(np.array([0, 1], np.float32))
    assert found[0] == 0
    assert found[1] == pytest.approx(0.2079104153497085, rel=1e-6)  # I1(1) / e


SCANS = pytest.mark.skipif(not hasattr(chlo, "ScanOp"), reason="the CHLO of this jaxlib has no scan yet")


def scan_text(dimension: int, backwards: bool, length: int = 4) -> str:
    """Of each row or column: what is carried on, before the step ``carried * y + x``."""
    shape = (3, length)
    whole, part = f"{shape[0]}x{shape[1]}", shape[1 - dimension]
    return f"""func.func @main(%x: tensor<{whole}xf32>, %y: tensor<{whole}xi32>, %i: tensor<{part}xf32>)
        -> (tensor<{whole}xf32>, tensor<{part}xf32>) {{
      %0:2 = "chlo.scan"(%x, %y, %i) <{{dimension = {dimension} : i64, is_reverse = {str(backwards).lower()},
          operandSegmentSizes = array<i32: 2, 1>, resultSegmentSizes = array<i32: 1, 1>}}> ({{
        ^bb0(%a: tensor<{part}xf32>, %b: tensor<{part}xi32>, %c: tensor<{part}xf32>):
          %f = stablehlo.convert %b : (tensor<{part}xi32>) -> tensor<{part}xf32>
          %m = stablehlo.multiply %c, %f : tensor<{part}xf32>
          %s = stablehlo.add %a, %m : tensor<{part}xf32>
          stablehlo.return %c, %s : tensor<{part}xf32>, tensor<{part}xf32>
      }}) : (tensor<{whole}xf32>, tensor<{whole}xi32>, tensor<{part}xf32>) -> (tensor<{whole}xf32>, tensor<{part}xf32>)
      return %0#0, %0#1 : tensor<{whole}xf32>, tensor<{part}xf32> }}"""


@SCANS
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("dimension", [0, 1])
def test_scan(run: Any, dimension: int, backwards: bool) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    y = (np.arange(12, dtype=np.int32) % 5 - 2).reshape(3, 4)
    carried = np.ones(x.shape[1 - dimension], np.float32)
    given = carried
    slices = {}
    for step in range(x.shape[dimension])[:: -1 if backwards else 1]:
        slices[step] = carried
        carried = carried * y.take(step, dimension) + x.take(step, dimension)
    found, last = run(scan_text(dimension, backwards), x, y, given)
    assert np.array_equal(found, np.stack([slices[step] for step in sorted(slices)], dimension))
    assert np.array_equal(last, carried)


@SCANS
def test_a_scan_of_no_slices_gives_what_it_was_given(run: Any) -> None:
    none = np.zeros((3, 0))
    found, last = run(scan_text(1, False, 0), none.astype(np.float32), none.astype(np.int32), np.ones(3, np.float32))
    assert found.shape == (3, 0)
    assert last.tolist() == [1, 1, 1]


def ragged_dot_text(left: str, right: str, groups: str, result: str, numbers: tuple[Any, ...]) -> str:
    names = ["lhs_batching", "rhs_batching", "lhs_contracting", "rhs_contracting", "lhs_ragged", "rhs_group"]
    spelled = ", ".join(f"{name}_dimensions = {list(d)}" for name, d in zip(names, numbers, strict=True))
    return f"""func.func @main(%a: tensor<{left}xf32>, %b: tensor<{right}xf32>, %g: tensor<{groups}xi64>)
        -> tensor<{result}xf32> {{
      %0 = "chlo.ragged_dot"(%a, %b, %g) <{{ragged_dot_dimension_numbers = #chlo.ragged_dot<{spelled}>,
          precision_config = [#chlo<precision DEFAULT>, #chlo<precision DEFAULT>]}}>
        : (tensor<{left}xf32>, tensor<{right}xf32>, tensor<{groups}xi64>) -> tensor<{result}xf32>
      return %0 : tensor<{result}xf32> }}"""


@SCANS  # older ones do not decompose this either
def test_ragged_dot_multiplies_each_group_of_rows_with_its_own_matrix(run: Any) -> None:
    rng = np.random.default_rng(0)
    left = rng.integers(-4, 5, (4, 8, 3)).astype(np.float32)
    right = rng.integers(-4, 5, (4, 2, 3, 5)).astype(np.float32)
    groups = np.array([[1, 3], [8, 0], [0, 8], [2, 2]])
    expected = np.zeros((4, 8, 5), np.float32)
    for batch, (first, second) in enumerate(groups):
        expected[batch, :first] = left[batch, :first] @ right[batch, 0]
        expected[batch, first : first + second] = left[batch, first : first + second] @ right[batch, 1]
    text = ragged_dot_text("4x8x3", "4x2x3x5", "4x2", "4x8x5", ([0], [0], [2], [2], [1], [1]))
    assert np.array_equal(run(text, left, right, groups)[0], expected)


@SCANS
def test_ragged_dot_sums_over_each_group(run: Any) -> None:
    rng = np.random.default_rng(1)
    left, right = (rng.integers(-4, 5, (8, n)).astype(np.float32) for n in (3, 5))
    text = ragged_dot_text("8x3", "8x5", "2", "2x3x5", ([], [], [0], [0], [0], []))
    found = run(text, left, right, np.array([3, 4]))[0]
    assert np.array_equal(found, [left[:3].T @ right[:3], left[3:7].T @ right[3:7]])
