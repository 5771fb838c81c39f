"""Arithmetic and logic: every op on every element type that it is defined on.

Expected values come from extended precision (``numpy.longdouble``, complex256) rounded once to the type, from Python's
integers, or from the definition. Types of eight bits and fewer are tested on every value they have.

Tolerances, in units of the last place of the result's type: 0 where IEEE 754 prescribes the result; 4 for functions in
f32 and f64, which is what numpy's vector kernels promise; 1 for the types that are computed in f32 and rounded, because
an error of 4 ULP there moves a value across at most one rounding boundary. Complex functions are compared by distance
relative to the magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pjrt.api.element_type import ElementType
from pjrt.api.errors import UnimplementedError

T = ElementType
TYPES = [t for t in T if t not in (T.INVALID, T.TOKEN, T.S1, T.U1)]
FLOATS = [t for t in TYPES if t.is_floating]
WHOLE_FLOATS = [t for t in FLOATS if t is not T.F8E8M0FNU]  # that one has neither zero nor sign
INTEGERS = [t for t in TYPES if t.is_integer]
SIGNED = [t for t in INTEGERS if t.name[0] == "S"]
COMPLEX = [T.C64, T.C128]
L = np.longdouble


def text(op: str, operands: list[str], result: str) -> str:
    params = ", ".join(f"%a{i}: {t}" for i, t in enumerate(operands))
    names = ", ".join(f"%a{i}" for i in range(len(operands)))
    body = f'%0 = "stablehlo.{op}"({names}) : ({", ".join(operands)}) -> {result}'
    return f"func.func @main({params}) -> {result} {{ {body} return %0 : {result} }}"


def tensor(array: Any) -> str:
    return f"tensor<{array.size}x{ElementType.of(array.dtype).mlir}>"


def apply(run: Any, op: str, *args: Any, result: ElementType | None = None) -> Any:
    given = f"tensor<{args[0].size}x{result.mlir}>" if result else tensor(args[0])
    (found,) = run(text(op, [tensor(a) for a in args], given), *args)
    return found


def values(t: ElementType, count: int = 400) -> Any:
    """All values of a small type; edges and a random sample of a large one."""
    random = np.random.default_rng(t)
    if t is T.PRED:
        return np.array([False, True] * 8)
    if t.is_complex:
        half = np.float32 if t is T.C64 else np.float64
        parts = random.standard_normal((2, count)).astype(half) * 3
        return (parts[0] + 1j * parts[1]).astype(t.dtype)
    if t.bits <= 8:
        return np.arange(1 << t.bits, dtype=np.uint8).view(t.dtype)
    if t.is_integer:
        info = np.iinfo(t.dtype)
        edges = [0, 1, 2, 3, 7, 31, 63, 64, info.max, info.max - 1, info.min, info.min + 1]
        sample = random.integers(info.min, info.max, count, dtype=t.dtype, endpoint=True)
        return np.concatenate([np.array(edges, t.dtype), sample])
    edges = [0.0, -0.0, 0.5, -0.5, 1, -1, 1.5, 2.5, -2.5, math.pi, math.inf, -math.inf, math.nan, 1e-3, 60.0, -60.0]
    with np.errstate(over="ignore"):
        return np.concatenate([edges, random.standard_normal(count) * 4]).astype(t.dtype)


def pairs(t: ElementType) -> tuple[Any, Any]:
    """Each value with each other where there are few, else two samples against each other."""
    one = values(t)
    if len(one) <= 256:
        return np.repeat(one, len(one)), np.tile(one, len(one))
    return one, np.roll(one, 7)


def exact(x: Any) -> Any:
    """A float array in extended precision."""
    with np.errstate(all="ignore"):
        return (x if x.dtype.kind == "f" else x.astype(np.float32)).astype(L)


def ulps(found: Any, expected: Any) -> int:
    """The largest distance in representable values; NaN equals NaN."""
    nan_found, nan_expected = np.isnan(exact(found)), np.isnan(exact(expected))
    assert (nan_found == nan_expected).all(), (found[nan_found != nan_expected], expected[nan_found != nan_expected])
    width = found.dtype.itemsize
    sign = 1 << (8 * width - 1)
    if ElementType.of(found.dtype).bits < 8:
        sign = 1 << (ElementType.of(found.dtype).bits - 1)

    def place(x: Any) -> Any:
        bits = np.ascontiguousarray(x).view(f"u{width}").astype(object)
        return np.where(bits >= sign, sign - bits, bits)

    distance = np.abs(place(found[~nan_found]) - place(expected[~nan_found]))
    return int(distance.max(initial=0))


def tolerance(t: ElementType) -> int:
    return 4 if t in (T.F32, T.F64) else 1


EXACT: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "floor": np.floor,
    "negate": np.negative,
    "round_nearest_even": np.rint,
    "round_nearest_afz": lambda x: np.copysign(np.floor(np.abs(x) + L(0.5)), x),
    "sign": lambda x: np.where((x == 0) | np.isnan(x), x, np.copysign(L(1), x)),
    "sqrt": np.sqrt,
    "real": lambda x: x,
}

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "cbrt": np.cbrt,
    "cosine": np.cos,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "log": np.log,
    "log_plus_one": np.log1p,
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sine": np.sin,
    "tan": np.tan,
    "tanh": np.tanh,
}


@pytest.mark.parametrize("t", WHOLE_FLOATS, ids=lambda t: t.mlir)
@pytest.mark.parametrize("op", [*EXACT, *FUNCTIONS])
def test_functions_of_one_float(run: Any, nearest: Any, op: str, t: ElementType) -> None:
    x = values(t)
    with np.errstate(all="ignore"):
        expected = nearest({**EXACT, **FUNCTIONS}[op](exact(x)), t.dtype)
    found = apply(run, op, x)
    assert found.dtype == t.dtype
    assert ulps(found, expected) <= (0 if op in EXACT else tolerance(t))


@pytest.mark.parametrize("t", [t for t in WHOLE_FLOATS if t.bits <= 16], ids=lambda t: t.mlir)
@pytest.mark.parametrize("op", ["negate", "tanh"])
def test_many_small_floats_have_the_values_of_few(run: Any, op: str, t: ElementType) -> None:
    few = values(t)
    many = np.resize(few, 1 << 16)  # enough for a table of all results
    assert apply(run, op, many).tobytes() == np.resize(apply(run, op, few), 1 << 16).tobytes()


@pytest.mark.parametrize("t", FLOATS, ids=lambda t: t.mlir)
def test_is_finite(run: Any, t: ElementType) -> None:
    x = values(t)
    assert (apply(run, "is_finite", x, result=T.PRED) == np.isfinite(exact(x))).all()


COMPLEX_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs,
    "cbrt": lambda x: np.power(x, L(1) / 3),
    "cosine": np.cos,
    "exponential": np.exp,
    "exponential_minus_one": lambda x: np.exp(x) - 1,
    "imag": np.imag,
    "log": np.log,
    "log_plus_one": lambda x: np.log(1 + x),
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "negate": np.negative,
    "real": np.real,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sign": lambda x: x / np.abs(x),
    "sine": np.sin,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}


@pytest.mark.parametrize("t", COMPLEX, ids=lambda t: t.mlir)
@pytest.mark.parametrize("op", COMPLEX_FUNCTIONS)
def test_functions_of_one_complex(run: Any, op: str, t: ElementType) -> None:
    x = values(t)
    half = T.F32 if t is T.C64 else T.F64
    found = apply(run, op, x, result=half if op in ("abs", "imag", "real") else t)
    expected = COMPLEX_FUNCTIONS[op](x.astype(np.clongdouble))
    assert found.dtype == (half if op in ("abs", "imag", "real") else t).dtype
    # 16 ULP of the magnitude: the real and the imaginary part are sums of products of a few functions of 4 ULP each.
    assert (np.abs(found - expected) <= 16 * np.finfo(half.dtype).eps * np.abs(expected)).all()


def test_zeros_of_complex(run: Any) -> None:
    zero = np.zeros(1, np.complex64)
    assert apply(run, "sign", zero)[0] == 0
    assert apply(run, "power", zero, zero)[0] == 1
    assert np.isnan(apply(run, "sign", np.array([complex(math.nan, 0)], np.complex64))[0])


def signed(pattern: int, t: ElementType) -> int:
    """The number that the lowest bits of an integer mean in a type."""
    pattern &= (1 << t.bits) - 1
    return pattern - (1 << t.bits) if t.name[0] == "S" and pattern >> (t.bits - 1) else pattern


def whole(x: Any) -> list[int]:
    return [int(v) for v in (x.astype(np.int64) if x.dtype != np.uint64 else x)]


def shift_left(x: int, y: int, t: ElementType) -> int:
    return x << y if 0 <= y < t.bits else 0


def shift_logical(x: int, y: int, t: ElementType) -> int:
    return (x & ((1 << t.bits) - 1)) >> y if 0 <= y < t.bits else 0


def shift_arithmetic(x: int, y: int, t: ElementType) -> int:
    pattern = x & ((1 << t.bits) - 1)
    with_sign = pattern - (1 << t.bits) if pattern >> (t.bits - 1) else pattern
    return with_sign >> (y if 0 <= y < t.bits else t.bits - 1)


def divide(x: int, y: int, t: ElementType) -> int:
    return -1 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def power(x: int, y: int, t: ElementType) -> int:
    if y < 0:
        return {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)
    return pow(x, y, 1 << t.bits)


ON_INTEGERS: dict[str, Callable[[int, int, ElementType], int]] = {
    "add": lambda x, y, t: x + y,
    "subtract": lambda x, y, t: x - y,
    "multiply": lambda x, y, t: x * y,
    "divide": divide,
    "remainder": lambda x, y, t: x if y == 0 else x - y * divide(x, y, t),
    "power": power,
    "maximum": lambda x, y, t: max(x, y),
    "minimum": lambda x, y, t: min(x, y),
    "and": lambda x, y, t: x & y,
    "or": lambda x, y, t: x | y,
    "xor": lambda x, y, t: x ^ y,
    "shift_left": shift_left,
    "shift_right_logical": shift_logical,
    "shift_right_arithmetic": shift_arithmetic,
}


@pytest.mark.parametrize("t", INTEGERS, ids=lambda t: t.mlir)
@pytest.mark.parametrize("op", ON_INTEGERS)
def test_two_integers(run: Any, op: str, t: ElementType) -> None:
    x, y = pairs(t)
    if len(x) > 10_000:
        x, y = x[::7], y[::7]
    if op.startswith("shift") and t.bits > 8:
        y = (y.astype(np.uint64) % np.uint64(2 * t.bits)).astype(t.dtype)
    expected = [signed(ON_INTEGERS[op](a, b, t), t) for a, b in zip(whole(x), whole(y), strict=True)]
    found = apply(run, op, x, y)
    assert found.dtype == t.dtype
    assert whole(found) == expected


@pytest.mark.parametrize("t", INTEGERS, ids=lambda t: t.mlir)
def test_one_integer(run: Any, t: ElementType) -> None:
    x = values(t)
    patterns = [v & ((1 << t.bits) - 1) for v in whole(x)]
    assert whole(apply(run, "popcnt", x)) == [signed(p.bit_count(), t) for p in patterns]
    assert whole(apply(run, "count_leading_zeros", x)) == [signed(t.bits - p.bit_length(), t) for p in patterns]
    assert whole(apply(run, "not", x)) == [signed(~p, t) for p in patterns]
    assert whole(apply(run, "negate", x)) == [signed(-p, t) for p in patterns]
    if t in SIGNED:
        assert whole(apply(run, "abs", x)) == [signed(abs(v), t) for v in whole(x)]
        assert whole(apply(run, "sign", x)) == [(v > 0) - (v < 0) for v in whole(x)]


def test_booleans(run: Any) -> None:
    x, y = np.array([False, False, True, True]), np.array([False, True, False, True])
    for op in ("add", "or", "maximum"):
        assert apply(run, op, x, y).tolist() == [False, True, True, True]
    for op in ("multiply", "and", "minimum"):
        assert apply(run, op, x, y).tolist() == [False, False, False, True]
    assert apply(run, "xor", x, y).tolist() == [False, True, True, False]
    assert apply(run, "not", x).tolist() == [True, True, False, False]


ON_FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "remainder": np.fmod,
    "power": np.power,
    "atan2": np.arctan2,
}


@pytest.mark.parametrize("t", WHOLE_FLOATS, ids=lambda t: t.mlir)
@pytest.mark.parametrize("op", ON_FLOATS)
def test_two_floats(run: Any, nearest: Any, op: str, t: ElementType) -> None:
    x, y = pairs(t)
    with np.errstate(all="ignore"):
        expected = nearest(ON_FLOATS[op](exact(x), exact(y)), t.dtype)
    assert ulps(apply(run, op, x, y), expected) <= (tolerance(t) if op in ("power", "atan2") else 0)


@pytest.mark.parametrize("op", [*EXACT, *FUNCTIONS, *ON_FLOATS])
def test_powers_of_two_alone(run: Any, op: str) -> None:
    """f8E8M0FNU: what is not positive is NaN, all else is rounded to a power of two."""
    x = values(T.F8E8M0FNU)
    y = x[::-1].copy()
    with np.errstate(all="ignore"):
        if op in ON_FLOATS:
            wide, found = ON_FLOATS[op](exact(x), exact(y)), apply(run, op, x, y)
        else:
            wide, found = {**EXACT, **FUNCTIONS}[op](exact(x)), apply(run, op, x)
        log = np.log2(wide)
        inside = (wide > 0) & (log > -126.4) & (log < 127)
    assert np.isnan(exact(found)[np.isnan(wide) | (wide <= 0)]).all()
    # Large arguments of periodic functions differ by the rounding of f32, which a power of two cannot hide near a zero.
    inside &= (np.abs(exact(x)) < 1e4) | (op not in ("sine", "cosine", "tan"))
    ratio = exact(found)[inside] / wide[inside]
    assert ((ratio > 0.66) & (ratio < 1.34)).all()


ON_COMPLEX: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "atan2": lambda y, x: -1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y)),
}


@pytest.mark.parametrize("t", COMPLEX, ids=lambda t: t.mlir)
@pytest.mark.parametrize("op", ON_COMPLEX)
def test_two_complex(run: Any, op: str, t: ElementType) -> None:
    x, y = pairs(t)
    expected = ON_COMPLEX[op](x.astype(np.clongdouble), y.astype(np.clongdouble))
    eps = np.finfo(np.float32 if t is T.C64 else np.float64).eps
    scale = np.abs(expected) * (1 if op != "power" else 1 + np.abs(y) * np.abs(np.log(np.abs(x)) + 1j * np.angle(x)))
    if op in ("add", "subtract"):  # each part is rounded once
        scale = np.abs(x) + np.abs(y)
    assert (np.abs(apply(run, op, x, y) - expected) <= 8 * eps * (scale + (op == "atan2"))).all()


def test_complex_order_is_lexicographic(run: Any) -> None:
    x, y = np.array([1 + 5j, 2 + 1j], np.complex64), np.array([1 + 4j, 3 + 0j], np.complex64)
    assert apply(run, "maximum", x, y).tolist() == [1 + 5j, 3 + 0j]
    assert apply(run, "minimum", x, y).tolist() == [1 + 4j, 2 + 1j]


@pytest.mark.parametrize("t", COMPLEX, ids=lambda t: t.mlir)
def test_complex_remainder_is_smaller_than_the_divisor(run: Any, t: ElementType) -> None:
    x, y = np.array([7 + 3j, -7.5 + 1j], t.dtype), np.array([2, 2], t.dtype)
    assert apply(run, "remainder", x, y).tolist() == [1 + 1j, -1.5 + 1j]


@pytest.mark.parametrize(("half", "whole_type"), [(T.F32, T.C64), (T.F64, T.C128)])
def test_complex_from_parts(run: Any, half: ElementType, whole_type: ElementType) -> None:
    x, y = values(half), values(half)[::-1].copy()
    found = apply(run, "complex", x, y, result=whole_type)
    assert np.array_equal(found.real, x, equal_nan=True)
    assert np.array_equal(found.imag, y, equal_nan=True)


DIRECTIONS = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def comparison(t: ElementType, count: int, direction: str, kind: str | None = None) -> str:
    type_ = f"tensor<{count}x{t.mlir}>"
    named = f", {kind}" if kind else ""
    return (
        f"func.func @main(%a: {type_}, %b: {type_}) -> tensor<{count}xi1> {{"
        f" %0 = stablehlo.compare {direction}, %a, %b{named} : ({type_}, {type_}) -> tensor<{count}xi1>"
        f" return %0 : tensor<{count}xi1> }}"
    )


@pytest.mark.parametrize("t", TYPES, ids=lambda t: t.mlir)
def test_compare(run: Any, t: ElementType) -> None:
    x, y = pairs(t)
    wide_x, wide_y = (exact(x), exact(y)) if t.is_floating else (x, y)
    if t.is_integer:
        wide_x, wide_y = np.array(whole(x), object), np.array(whole(y), object)
    for direction in ("EQ", "NE") if t.is_complex else DIRECTIONS:
        (found,) = run(comparison(t, x.size, direction), x, y)
        assert (found == DIRECTIONS[direction](wide_x, wide_y).astype(bool)).all(), direction


@pytest.mark.parametrize("t", [t for t in WHOLE_FLOATS if t.bits <= 16 or t.bits >= 32], ids=lambda t: t.mlir)
def test_total_order(run: Any, t: ElementType) -> None:
    """Along all values in the order of the definition, each is less than the next."""
    width = t.dtype.itemsize
    patterns = np.arange(1 << t.bits, dtype=np.uint64) if t.bits <= 8 else values(t).view(f"u{width}").astype(np.uint64)
    patterns = np.unique(patterns)
    sign = np.uint64(1 << (t.bits - 1))
    negative = patterns[patterns >= sign][::-1]
    if t.name.endswith("FNUZ"):  # NaN has the bits of -0, and is the least
        negative = np.roll(negative, 1)
    ordered = np.concatenate([negative, patterns[patterns < sign]])
    ordered = ordered.astype(f"u{width}").view(t.dtype)
    less, more = ordered[:-1].copy(), ordered[1:].copy()
    assert run(comparison(t, less.size, "LT", "TOTALORDER"), less, more)[0].all()
    assert not run(comparison(t, less.size, "GE", "TOTALORDER"), less, more)[0].any()
    assert run(comparison(t, less.size, "EQ", "TOTALORDER"), less, less)[0].all()


@pytest.mark.parametrize("t", TYPES, ids=lambda t: t.mlir)
def test_select(run: Any, t: ElementType) -> None:
    x, y = values(t), values(t)[::-1].copy()
    pick = np.arange(x.size) % 3 == 0
    found = run(text("select", [tensor(pick), tensor(x), tensor(x)], tensor(x)), pick, x, y)[0]
    assert found.tobytes() == np.where(pick, x, y).tobytes()
    one = run(text("select", ["tensor<i1>", tensor(x), tensor(x)], tensor(x)), np.bool_(False), x, y)[0]
    assert one.tobytes() == y.tobytes()


@pytest.mark.parametrize("t", [t for t in TYPES if t not in COMPLEX], ids=lambda t: t.mlir)
def test_clamp(run: Any, t: ElementType) -> None:
    x = values(t)
    ordered = np.sort(exact(x)[np.isfinite(exact(x))]) if t.is_floating else np.array(sorted(whole(x)), object)
    low, high = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
    bounds = [np.asarray(b).astype(np.float64 if t.is_floating else np.int64).astype(t.dtype) for b in (low, high)]
    found = run(
        text("clamp", [f"tensor<{t.mlir}>", tensor(x), f"tensor<{t.mlir}>"], tensor(x)), bounds[0], x, bounds[1]
    )[0]
    if t.is_floating:
        expected = np.minimum(np.maximum(exact(x), low), high)
        assert np.array_equal(exact(found), expected, equal_nan=True)
    else:
        assert whole(found) == [min(max(v, int(low)), int(high)) for v in whole(x)]


@pytest.mark.parametrize(("op", "t"), [("popcnt", T.F32), ("negate", T.PRED), ("tanh", T.S32), ("subtract", T.PRED)])
def test_refuses_what_is_not_defined(run: Any, op: str, t: ElementType) -> None:
    from pjrt.devices.reference.core import registry
    from pjrt.devices.reference.core.op_view import OpView
    from pjrt.stablehlo.ir.types import TensorType

    operand = TensorType((2,), t)
    rule = registry.find(f"stablehlo.{op}")
    assert rule is not None
    count = 2 if op == "subtract" else 1
    with pytest.raises(UnimplementedError, match=rf"stablehlo.{op}.*tensor<2x{t.mlir}>.*here.py:1"):
        rule.compile(OpView(f"stablehlo.{op}", [operand] * count, [operand], {}, location="here.py:1"))


def test_agrees_with_the_other_interpreter(run: Any, interpret: Any) -> None:
    """One sample per op, as a check of the test's own formulas."""
    x, y = np.array([0.5, 2.5, -1.25], np.float32), np.array([2.0, -3.0, 0.75], np.float32)
    for op in [*EXACT, *FUNCTIONS]:
        program = text(op, ["tensor<3xf32>"], "tensor<3xf32>")
        assert ulps(run(program, x)[0], interpret(program, x)[0]) <= 4, op
    for op in ON_FLOATS:
        program = text(op, ["tensor<3xf32>"] * 2, "tensor<3xf32>")
        assert ulps(run(program, x, y)[0], interpret(program, x, y)[0]) <= 4, op


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("magnitude", [0, 3, 20, 26, 40])
def test_remainders_are_exact_for_quotients_of_any_size(run: Any, dtype: Any, magnitude: int) -> None:
    random, count = np.random.default_rng(magnitude), 20_000
    y = (random.standard_normal(count) * 2.0 ** random.integers(-20, 20, count)).astype(dtype)
    whole = np.floor(random.uniform(-(2.0**magnitude), 2.0**magnitude, count))
    near = np.nextafter((y * whole).astype(dtype), random.choice([-np.inf, 0, np.inf], count).astype(dtype))
    name = "f32" if dtype == np.float32 else "f64"
    program = text("remainder", [f"tensor<{count}x{name}>"] * 2, f"tensor<{count}x{name}>")
    for x in (near, (y * whole).astype(dtype), (y * random.uniform(-9, 9, count)).astype(dtype)):
        (result,) = run(program, x, y)
        assert result.tobytes() == np.fmod(x, y).tobytes()


@pytest.mark.parametrize("y", [np.inf, -np.inf, 0.0, np.nan, 5e-324, 1e-310, 1e308])
def test_remainders_by_special_numbers(run: Any, y: float) -> None:
    x = np.concatenate([np.linspace(-9, 9, 500), [0.0, -0.0, np.inf, -np.inf, np.nan, 1e308, 1e-310]])
    program = text("remainder", [f"tensor<{x.size}xf64>"] * 2, f"tensor<{x.size}xf64>")
    with np.errstate(all="ignore"):
        expected = np.fmod(x, y)
        (result,) = run(program, x, np.full(x.size, y))
        assert np.array_equal(result, expected, equal_nan=True)
        assert np.array_equal(np.signbit(result), np.signbit(expected))
