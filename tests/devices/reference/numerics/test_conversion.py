"""Conversions: every element type to every other one, by value and by bits, against Python's exact numbers."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pjrt.api.element_type import ElementType
from pjrt.conformance import values

T = ElementType
TYPES = [t for t in T if t not in (T.INVALID, T.TOKEN, T.S1, T.U1)]
FLOATS = [t for t in TYPES if t.is_floating]
ROUNDED = [t for t in FLOATS if t not in (T.F8E8M0FNU, T.F32, T.F64)]


def program(op: str, source: str, target: str, attributes: str = "") -> str:
    body = f'%0 = "stablehlo.{op}"(%a) {attributes} : ({source}) -> {target}'
    return f"func.func @main(%a: {source}) -> {target} {{ {body} return %0 : {target} }}"


def convert(run: Any, x: Any, target: ElementType) -> Any:
    source = f"tensor<{x.size}x{T.of(x.dtype).mlir}>"
    return run(program("convert", source, f"tensor<{x.size}x{target.mlir}>"), x)[0]


def samples(t: ElementType) -> Any:
    random = np.random.default_rng(t)
    if t is T.PRED:
        return np.array([False, True])
    if t.is_complex:
        return (random.standard_normal((2, 40)) * 50).astype(np.float32).view(np.complex64)[0].astype(t.dtype)
    if t.bits <= 8:
        return np.arange(1 << t.bits, dtype=np.uint8).view(t.dtype)
    if t.is_integer:
        info = np.iinfo(t.dtype)
        edges = np.array([0, 1, 2, 100, info.max, info.max - 1, info.min, info.min + 1], t.dtype)
        return np.concatenate([edges, random.integers(info.min, info.max, 200, dtype=t.dtype, endpoint=True)])
    edges = [
        0.0,
        -0.0,
        0.5,
        1.5,
        -1.5,
        127.5,
        128,
        -129,
        255,
        256,
        3e9,
        -3e9,
        1e19,
        -1e19,
        math.inf,
        -math.inf,
        math.nan,
    ]
    with np.errstate(over="ignore"):
        return np.concatenate([edges, random.standard_normal(200) * 1000]).astype(t.dtype)


def numbers(x: Any) -> list[Any]:
    """The exact values: integers, or floats for what is not finite."""
    t = T.of(x.dtype)
    if t is T.PRED or t.is_integer:
        return [int(v) for v in (x.astype(np.uint64) if x.dtype == np.uint64 else x.astype(np.int64))]
    if t.is_complex:
        return numbers(np.ascontiguousarray(x.real))
    with np.errstate(all="ignore"):
        wide = x if t is T.F64 else x.astype(np.float32).astype(np.float64)
    return [Fraction(float(v)) if math.isfinite(v) else float(v) for v in wide]


def bounds(t: ElementType) -> tuple[int, int]:
    if t.name[0] == "U":
        return 0, (1 << t.bits) - 1
    return -(1 << (t.bits - 1)), (1 << (t.bits - 1)) - 1


def to_integer(value: Any, source: ElementType, t: ElementType) -> int:
    low, high = bounds(t)
    if source.is_integer or source is T.PRED:
        wrapped = value & ((1 << t.bits) - 1)
        return wrapped - (1 << t.bits) if wrapped > high else wrapped
    if isinstance(value, float):
        return 0 if math.isnan(value) else high if value > 0 else low
    return min(max(math.trunc(value), low), high)


@pytest.mark.parametrize("target", [t for t in TYPES if t.is_integer], ids=lambda t: t.mlir)
@pytest.mark.parametrize("source", TYPES, ids=lambda t: t.mlir)
def test_to_integers(run: Any, source: ElementType, target: ElementType) -> None:
    """Integers wrap; floats are truncated and end at the ends of the range, NaN becomes 0 (as XLA does it)."""
    x = samples(source)
    found = convert(run, x, target)
    assert found.dtype == target.dtype
    assert numbers(found) == [to_integer(v, source, target) for v in numbers(x)]


@pytest.mark.parametrize("source", TYPES, ids=lambda t: t.mlir)
def test_to_booleans(run: Any, source: ElementType) -> None:
    x = samples(source)
    expected = [v != 0 for v in numbers(x.real if source.is_complex else x)]
    assert convert(run, x, T.PRED).tolist() == expected


@pytest.mark.parametrize("target", ROUNDED, ids=lambda t: t.mlir)
@pytest.mark.parametrize("source", TYPES, ids=lambda t: t.mlir)
def test_to_narrow_floats(run: Any, nearest: Any, source: ElementType, target: ElementType) -> None:
    """Every value is rounded once, to the nearest, ties to even."""
    x = samples(source)
    found = convert(run, x, target)
    real = x.real if source.is_complex else x
    with np.errstate(all="ignore"):
        wide = real.astype(np.float32) if source.is_floating and source is not T.F64 else real
        wide = wide.astype(np.int64) if source.is_integer and source.bits < 8 else wide
        expected = nearest(wide.astype(np.longdouble), target.dtype)
    assert found.dtype == target.dtype
    given, got = np.isnan(wide.astype(np.float64)), found.astype(np.float32)
    if target.bits < 8:  # these have no NaN, and no sign says what becomes of it
        assert (got[given] == 0).all()
    assert (np.isnan(got) == np.isnan(expected.astype(np.float32))).all()
    plain = ~given & ~np.isnan(got)
    assert found[plain].tobytes() == expected[plain].tobytes()


@pytest.mark.parametrize("target", [T.F32, T.F64], ids=lambda t: t.mlir)
@pytest.mark.parametrize("source", TYPES, ids=lambda t: t.mlir)
def test_to_wide_floats(run: Any, source: ElementType, target: ElementType) -> None:
    x = samples(source)
    found = convert(run, x, target)
    for value, got in zip(numbers(x), found.tolist(), strict=True):
        if isinstance(value, float):
            assert got == value or (math.isnan(got) and math.isnan(value))
        elif target is T.F64:
            assert got == float(value)  # Python rounds integers and fractions correctly
        elif abs(got) != math.inf:
            below, above = (np.nextafter(np.float32(got), np.float32(s * math.inf)) for s in (-1, 1))
            error = abs(Fraction(got) - value)
            assert error <= min(abs(Fraction(float(n)) - value) for n in (below, above) if np.isfinite(n))


@pytest.mark.parametrize("target", [T.C64, T.C128], ids=lambda t: t.mlir)
@pytest.mark.parametrize("source", TYPES, ids=lambda t: t.mlir)
def test_to_complex(run: Any, source: ElementType, target: ElementType) -> None:
    x = samples(source)
    found = convert(run, x, target)
    half = T.F32 if target is T.C64 else T.F64
    assert found.dtype == target.dtype
    if source.is_complex:
        assert np.array_equal(found, x.astype(target.dtype))
        return
    assert np.array_equal(found.real, convert(run, x, half), equal_nan=True)
    assert (found.imag == 0).all()


@pytest.mark.parametrize("target", [t for t in ROUNDED if t is not T.F16], ids=lambda t: t.mlir)
def test_no_value_is_rounded_twice(run: Any, target: ElementType) -> None:
    """Just above a tie, by less than f32 can tell: by way of f32 it would become the tie, and then round to even."""
    import ml_dtypes

    digits = int(ml_dtypes.finfo(target.dtype).nmant)
    step = Fraction(1, 1 << (digits + 1))
    just_above = float(1 + step + Fraction(1, 1 << 40))
    assert float(convert(run, np.array([just_above]), target)[0]) == 1 + 2.0**-digits
    if target is T.BF16:
        big = (1 << 50) + (1 << (50 - digits - 1)) + 1
        for kind in (np.int64, np.uint64):
            assert float(convert(run, np.array([big], kind), target)[0]) == 2.0**50 + 2.0 ** (50 - digits)


BY_BITS: dict[int, list[ElementType]] = {}
for _t in TYPES:
    if _t is not T.PRED:
        BY_BITS.setdefault(_t.bits, []).append(_t)


@pytest.mark.parametrize(
    ("source", "target"),
    [(a, b) for group in BY_BITS.values() for a in group for b in group if a.is_complex == b.is_complex],
    ids=lambda t: t.mlir,
)
def test_bits_of_equal_width(run: Any, source: ElementType, target: ElementType) -> None:
    x = samples(source)
    types = [f"tensor<{x.size}x{t.mlir}>" for t in (source, target)]
    (found,) = run(program("bitcast_convert", *types), x)
    assert found.dtype == target.dtype
    mask = (1 << source.bits) - 1
    if source.bits < 64:
        width = f"u{x.dtype.itemsize}"
        assert ((found.view(width) & mask) == (x.view(width) & mask)).all()
    else:
        assert found.tobytes() == x.tobytes()


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (T.S2, T.S4),
        (T.U2, T.U8),
        (T.S4, T.S8),
        (T.U4, T.F8E4M3FN),
        (T.F4E2M1FN, T.S16),
        (T.S4, T.F32),
        (T.S8, T.BF16),
        (T.U8, T.F32),
        (T.U16, T.F64),
        (T.F32, T.U64),
        (T.F16, T.S32),
    ],
    ids=lambda t: t.mlir,
)
def test_bits_of_other_widths(run: Any, narrow: ElementType, wide: ElementType) -> None:
    """The first narrow element is the lowest part of the wide one."""
    count = wide.bits // narrow.bits
    random = np.random.default_rng(0)
    parts = random.integers(0, 1 << min(narrow.bits, 62), (5, count), dtype=np.uint64)
    wholes = [sum(int(p) << (narrow.bits * i) for i, p in enumerate(row)) for row in parts]
    small = parts.astype(f"u{narrow.dtype.itemsize}").view(narrow.dtype)
    large = np.array(wholes, np.uint64).astype(f"u{wide.dtype.itemsize}").view(wide.dtype)
    narrow_type, wide_type = f"tensor<5x{count}x{narrow.mlir}>", f"tensor<5x{wide.mlir}>"
    (joined,) = run(program("bitcast_convert", narrow_type, wide_type), small)
    assert joined.tobytes() == large.tobytes()
    (split,) = run(program("bitcast_convert", wide_type, narrow_type), large)
    mask = (1 << narrow.bits) - 1
    width = f"u{narrow.dtype.itemsize}"
    assert ((split.view(width) & mask) == (small.view(width) & mask)).all()


def reduced(value: float, exponent_bits: int, mantissa_bits: int) -> float:
    """The definition, on an exact number."""
    if math.isnan(value) and not mantissa_bits:
        return math.inf  # such a format has no NaN
    if value == 0 or not math.isfinite(value):
        return value
    mantissa, exponent = math.frexp(abs(value))  # 0.5 <= mantissa < 1
    scaled = Fraction(mantissa) * (1 << (mantissa_bits + 1))
    rounded = Fraction(round(scaled)) / (1 << (mantissa_bits + 1)) * Fraction(2) ** exponent
    top = (1 << (exponent_bits - 1)) - 1
    if rounded >= Fraction(2) ** (top + 1):
        return math.copysign(math.inf, value)
    if rounded < Fraction(2) ** (1 - top):
        return math.copysign(0.0, value)
    return math.copysign(float(rounded), value)


@pytest.mark.parametrize("t", [T.F16, T.BF16, T.F32, T.F64], ids=lambda t: t.mlir)
@pytest.mark.parametrize(("exponent_bits", "mantissa_bits"), [(5, 10), (8, 7), (4, 3), (5, 2), (2, 1), (3, 0)])
def test_reduce_precision(run: Any, t: ElementType, exponent_bits: int, mantissa_bits: int) -> None:
    random = np.random.default_rng(1)
    x = np.concatenate(
        [samples(t), (2.0 ** random.uniform(-20, 15, 300) * random.choice([-1, 1], 300)).astype(t.dtype)]
    )
    wide = x.astype(np.float64)
    native_exponent = {T.F16: 5, T.BF16: 8, T.F32: 8, T.F64: 11}[t]
    native_mantissa = {T.F16: 10, T.BF16: 7, T.F32: 23, T.F64: 52}[t]
    x = x[(np.abs(wide) >= 2.0 ** (2 - (1 << (native_exponent - 1)))) | ~(np.abs(wide) > 0)]  # without subnormals
    type_ = f"tensor<{x.size}x{t.mlir}>"
    attributes = f"{{exponent_bits = {exponent_bits} : i32, mantissa_bits = {mantissa_bits} : i32}}"
    (found,) = run(program("reduce_precision", type_, type_, attributes), x)
    assert found.dtype == t.dtype
    limits = min(exponent_bits, native_exponent), min(mantissa_bits, native_mantissa)
    expected = [reduced(float(v), *limits) for v in x.astype(np.float64)]
    assert np.array_equal(found.astype(np.float64), expected, equal_nan=True)


@pytest.mark.parametrize("t", [t for t in TYPES if not (t.is_complex or t is T.F8E8M0FNU)], ids=lambda t: t.mlir)
def test_conversion_agrees_with_the_other_interpreter(run: Any, interpret: Any, t: ElementType) -> None:
    """The other interpreter's bindings give no complex values, and it knows no f8E8M0FNU."""
    x = np.array([0.0, 1.0, 1.5, 0.75], np.float32)
    text = program("convert", "tensor<4xf32>", f"tensor<4x{t.mlir}>")
    assert run(text, x)[0].tobytes() == interpret(text, x)[0].tobytes()


def test_a_boolean_ignores_the_imaginary_part(run: Any) -> None:
    x = np.array([0, 1j, complex(0, math.nan), complex(math.nan, 0), 1], np.complex64)
    assert convert(run, x, T.PRED).tolist() == [False, False, False, True, True]


@pytest.mark.parametrize("t", [T.F64, T.F32, T.F16, T.BF16], ids=lambda t: t.mlir)
def test_no_mantissa_bits_leave_powers_of_two(run: Any, t: ElementType) -> None:
    """A tie goes to the even exponent field, what passes the largest exponent is infinite."""
    x = np.array([1, 1.25, 1.5, 1.75, 3, 6, -1.5, 0.0, math.inf, -math.inf, math.nan]).astype(t.dtype)
    large = np.array([1.75 * 2.0 ** {T.F64: 1023, T.F32: 127, T.BF16: 127, T.F16: 15}[t]]).astype(t.dtype)
    bits = {T.F64: 11, T.F32: 8, T.BF16: 8, T.F16: 5}[t]
    x = np.concatenate([x, large])
    type_ = f"tensor<{x.size}x{t.mlir}>"
    attributes = f"{{exponent_bits = {bits} : i32, mantissa_bits = 0 : i32}}"
    (found,) = run(program("reduce_precision", type_, type_, attributes), x)
    expected = [1, 1, 2, 2, 2, 8, -2, 0, math.inf, -math.inf, math.inf, math.inf]
    assert np.array_equal(found.astype(np.float64), expected, equal_nan=True)


@pytest.mark.parametrize("t", [t for t in FLOATS if t.dtype.type(np.inf) == np.inf], ids=lambda t: t.mlir)
@pytest.mark.parametrize("exponent_bits", [1, 2, 3, 4, 5, 8, 11])
def test_reduced_precision_is_that_of_the_other_interpreter(
    run: Any, interpret: Any, t: ElementType, exponent_bits: int
) -> None:
    """Subnormal numbers, infinity and both NaNs too, in all types that have an infinity."""
    bits = np.dtype(f"u{t.dtype.itemsize}")
    if t.bits == 8:
        x = np.arange(256, dtype=bits).view(t.dtype)
    else:
        nan = np.array([math.nan, -math.nan]).astype(t.dtype)
        random = np.random.default_rng(0).integers(0, np.iinfo(bits).max, 200, bits, endpoint=True).view(t.dtype)
        x = np.concatenate([values.edges(t), values.denormals(t), nan, random])
    type_ = f"tensor<{x.size}x{t.mlir}>"
    for mantissa_bits in (0, 1, 2, 3, 4, 7, 10, 23, 52):
        attributes = f"{{exponent_bits = {exponent_bits} : i32, mantissa_bits = {mantissa_bits} : i32}}"
        text = program("reduce_precision", type_, type_, attributes)
        with np.errstate(invalid="ignore"):  # signaling NaN
            found, expected = (each(text, x)[0].astype(np.float64) for each in (run, interpret))
        assert np.array_equal(found, expected, equal_nan=True)
        number = ~np.isnan(expected)
        assert np.array_equal(np.signbit(found[number]), np.signbit(expected[number]))


@pytest.mark.parametrize("t", [t for t in FLOATS if t.bits <= 8], ids=lambda t: t.mlir)
def test_precision_that_a_type_has_already_changes_nothing(run: Any, t: ElementType) -> None:
    x = np.arange(1 << t.bits, dtype=np.uint8).view(t.dtype)
    info = ml_dtypes.finfo(t.dtype)
    attributes = f"{{exponent_bits = {info.nexp} : i32, mantissa_bits = {max(info.nmant, 1)} : i32}}"
    type_ = f"tensor<{x.size}x{t.mlir}>"
    (found,) = run(program("reduce_precision", type_, type_, attributes), x)
    assert np.array_equal(found.astype(np.float64), x.astype(np.float64), equal_nan=True)


@pytest.mark.parametrize(("source", "target"), [("0xbf16", "0x4xi4"), ("0x4xi4", "0xbf16"), ("0x2xf32", "0xf64")])
def test_bits_of_nothing(run: Any, source: str, target: str) -> None:
    x = np.zeros([int(size) for size in source.split("x")[:-1]], T.from_mlir(source.split("x")[-1]).dtype)
    (found,) = run(program("bitcast_convert", f"tensor<{source}>", f"tensor<{target}>"), x)
    assert list(found.shape) == [int(size) for size in target.split("x")[:-1]]
    assert found.dtype == T.from_mlir(target.split("x")[-1]).dtype
