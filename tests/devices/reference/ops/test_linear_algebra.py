"""Dot products against exact sums, factorizations and solvers against their definitions."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt.api.element_type import ElementType
from pjrt.devices.reference import Evaluator
from pjrt.devices.reference.core import mlir

T = ElementType
TYPES = [t for t in T if t not in (T.INVALID, T.TOKEN, T.S1, T.U1, T.F8E8M0FNU)]
FLOATS = [T.BF16, T.F16, T.F32, T.F64]


def tensor(shape: Any, t: ElementType) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{t.mlir}>"


def dot_text(
    left: tuple[int, ...],
    right: tuple[int, ...],
    batching: tuple[list[int], list[int]],
    contracting: tuple[list[int], list[int]],
    types: tuple[ElementType, ElementType, ElementType],
    extra: str = "",
) -> tuple[str, tuple[int, ...]]:
    free = [
        [s for d, s in enumerate(shape) if d not in batching[i] + contracting[i]]
        for i, shape in enumerate((left, right))
    ]
    shape = (*(left[d] for d in batching[0]), *free[0], *free[1])
    types_ = [tensor(s, t) for s, t in zip((left, right, shape), types, strict=True)]
    text = f"""func.func @main(%a: {types_[0]}, %b: {types_[1]}) -> {types_[2]} {{
      %0 = "stablehlo.dot_general"(%a, %b) {{dot_dimension_numbers = #stablehlo.dot<
        lhs_batching_dimensions = {batching[0]}, rhs_batching_dimensions = {batching[1]},
        lhs_contracting_dimensions = {contracting[0]}, rhs_contracting_dimensions = {contracting[1]}>{extra}}}
        : ({types_[0]}, {types_[1]}) -> {types_[2]}
      return %0 : {types_[2]} }}"""
    return text, shape


def letters(left: int, right: int, batching: Any, contracting: Any) -> str:
    """The einsum of a dot_general."""
    names = iter("abcdefghijklmnop")
    first = [next(names) for _ in range(left)]
    second = [""] * right
    for pair in (batching, contracting):
        for i, j in zip(*pair, strict=True):
            second[j] = first[i]
    second = [name or next(names) for name in second]
    out = [first[d] for d in batching[0]]
    out += [n for d, n in enumerate(first) if d not in batching[0] + contracting[0]]
    out += [n for d, n in enumerate(second) if d not in batching[1] + contracting[1]]
    return f"{''.join(first)},{''.join(second)}->{''.join(out)}"


def small(t: ElementType, shape: Any, seed: int = 0) -> Any:
    """Values whose sums of products are exact in every type but the very small ones."""
    random = np.random.default_rng(seed)
    if t is T.PRED:
        return random.integers(0, 2, shape).astype(bool)
    low = 0 if t.name[0] == "U" else -1
    values = random.integers(low, 2, shape)
    if t.is_complex:
        return (values + 1j * random.integers(-1, 2, shape)).astype(t.dtype)
    return values.astype(t.dtype)


@pytest.mark.parametrize("t", TYPES, ids=lambda t: t.mlir)
def test_dot_of_every_type(run: Any, t: ElementType) -> None:
    x, y = small(t, (3, 4)), small(t, (4, 2), 1)
    text, _ = dot_text((3, 4), (4, 2), ([], []), ([1], [0]), (t, t, t))
    (found,) = run(text, x, y)
    assert found.dtype == t.dtype
    if t.is_complex:
        assert np.array_equal(found, x @ y)
        return
    wide = [v.astype(np.int64) for v in (x, y)]
    expected = wide[0] @ wide[1]
    if t is T.PRED:
        assert np.array_equal(found, expected > 0)
    elif t.is_integer:
        mask = (1 << t.bits) - 1
        got = found.astype(np.uint64 if t is T.U64 else np.int64)
        assert [int(v) & mask for v in got.ravel()] == [int(v) & mask for v in expected.ravel()]
    else:
        assert np.array_equal(found.astype(np.float64), expected)


@pytest.mark.parametrize(
    ("t", "wide"),
    [(T.S8, T.S32), (T.U8, T.U32), (T.S4, T.S32), (T.BF16, T.F32), (T.F16, T.F32), (T.F8E4M3FN, T.F32), (T.F32, T.F64),
     (T.S8, T.F32), (T.S32, T.S64), (T.C64, T.C128), (T.S8, T.C128), (T.BF16, T.C128), (T.F8E4M3FN, T.C128)],
)  # fmt: skip
def test_a_result_wider_than_the_operands(run: Any, t: ElementType, wide: ElementType) -> None:
    random = np.random.default_rng(0)
    high = 100 if t.bits >= 8 and t.is_integer else 7
    x, y = (random.integers(0, high, (2, 300)).astype(t.dtype) for _ in range(2))
    text, _ = dot_text((2, 300), (2, 300), ([], []), ([1], [1]), (t, t, wide))
    (found,) = run(text, x, y)
    exact = x.astype(np.complex128) @ y.astype(np.complex128).T
    assert found.dtype == wide.dtype
    assert np.array_equal(found.astype(np.complex128), exact)


@pytest.mark.parametrize("t", [T.S8, T.S16, T.S32, T.S64, T.U8, T.U32, T.U64], ids=lambda t: t.mlir)
def test_integers_wrap(run: Any, t: ElementType) -> None:
    info = np.iinfo(t.dtype)
    random = np.random.default_rng(0)
    x, y = (random.integers(info.min, info.max, (5, 7), dtype=t.dtype, endpoint=True) for _ in range(2))
    text, _ = dot_text((5, 7), (5, 7), ([], []), ([1], [1]), (t, t, t))
    (found,) = run(text, x, y)
    exact = x.astype(object) @ y.astype(object).T
    mask = (1 << t.bits) - 1
    assert [int(v) & mask for v in found.ravel()] == [int(v) & mask for v in exact.ravel()]


@pytest.mark.parametrize("t", FLOATS, ids=lambda t: t.mlir)
def test_floats_are_rounded_once(run: Any, t: ElementType) -> None:
    """Against exact rational sums. Half an ULP for the result, and for the sum in the compute type n/2 ULP of its
    own.
    """
    random = np.random.default_rng(3)
    x, y = (random.standard_normal((4, 64)).astype(t.dtype) for _ in range(2))
    text, _ = dot_text((4, 64), (4, 64), ([], []), ([1], [1]), (t, t, t))
    (found,) = run(text, x, y)
    digits = {T.BF16: 8, T.F16: 11, T.F32: 24, T.F64: 53}[t]
    inner = 53 if t is T.F64 else 24
    wide = [[[Fraction(float(v)) for v in row] for row in a] for a in (x, y)]
    for i, j in product(range(4), range(4)):
        terms = [p * q for p, q in zip(wide[0][i], wide[1][j], strict=True)]
        exact, size = sum(terms, Fraction(0)), sum(map(abs, terms), Fraction(0))
        allowed = abs(exact) * Fraction(1, 2**digits) + size * Fraction(64, 2**inner)
        assert abs(Fraction(float(found[i, j])) - exact) <= allowed


@st.composite
def dots(draw: st.DrawFn) -> Any:
    """Shapes and dimension numbers, in any order."""
    sizes = st.integers(0, 3)
    batch = draw(st.lists(sizes, max_size=2))
    inner = draw(st.lists(sizes, max_size=2))
    free = [draw(st.lists(sizes, max_size=2)) for _ in range(2)]
    shapes, batching, contracting = [], [], []
    for extra in free:
        labels = [("b", i, s) for i, s in enumerate(batch)] + [("c", i, s) for i, s in enumerate(inner)]
        labels += [("f", i, s) for i, s in enumerate(extra)]
        order = draw(st.permutations(labels))
        shapes.append(tuple(size for _, _, size in order))
        batching.append([order.index(("b", i, s)) for i, s in enumerate(batch)])
        contracting.append([order.index(("c", i, s)) for i, s in enumerate(inner)])
    return shapes, tuple(batching), tuple(contracting)


@settings(max_examples=60, deadline=None)
@given(dots())
def test_all_dimension_numbers(case: Any) -> None:
    shapes, batching, contracting = case
    text, shape = dot_text(shapes[0], shapes[1], batching, contracting, (T.S32, T.S32, T.S32))
    x, y = (np.random.default_rng(i).integers(-5, 6, s).astype(np.int32) for i, s in enumerate(shapes))
    (found,) = Evaluator(mlir.parse(text)).run([x, y])
    assert found.shape == shape
    assert np.array_equal(found, np.einsum(letters(x.ndim, y.ndim, batching, contracting), x, y))


def algorithm(left: str, right: str, operations: int) -> str:
    return (
        f", algorithm = #stablehlo.dot_algorithm<lhs_precision_type = {left}, rhs_precision_type = {right}, "
        f"accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, "
        f"num_primitive_operations = {operations}, allow_imprecise_accumulation = false>"
    )


@pytest.mark.parametrize(("precision", "digits"), [("bf16", 8), ("tf32", 11), ("f16", 11), ("f32", 24)])
def test_algorithms_round_their_operands(run: Any, precision: str, digits: int) -> None:
    x, y = np.array([[1 + 2.0**-7 + 2.0**-12]], np.float32), np.array([[1.0]], np.float32)
    text, _ = dot_text((1, 1), (1, 1), ([], []), ([1], [0]), (T.F32,) * 3, algorithm(precision, precision, 1))
    expected = round(float(x[0, 0]) * 2 ** (digits - 1)) / 2 ** (digits - 1)
    assert run(text, x, y)[0][0, 0] == expected
    several, _ = dot_text((1, 1), (1, 1), ([], []), ([1], [0]), (T.F32,) * 3, algorithm("bf16", "bf16", 3))
    assert run(several, x, y)[0][0, 0] == x[0, 0]


def test_the_older_forms(run: Any) -> None:
    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(3, dtype=np.float32)
    text = """func.func @main(%a: tensor<2x3xf32>, %b: tensor<3xf32>) -> (tensor<2xf32>, tensor<f32>, tensor<2xf32>) {
      %0 = stablehlo.dot %a, %b : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2xf32>
      %1 = stablehlo.dot %b, %b : (tensor<3xf32>, tensor<3xf32>) -> tensor<f32>
      %2 = "stablehlo.einsum"(%a, %b) {einsum_config = "ij,j->i"} : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2xf32>
      return %0, %1, %2 : tensor<2xf32>, tensor<f32>, tensor<2xf32> }"""
    found = run(text, x, y)
    assert [f.tolist() for f in found] == [[5, 14], 5, [5, 14]]
    text = """func.func @main(%a: tensor<2x3xi32>) -> tensor<3xi32> {
      %0 = "stablehlo.unary_einsum"(%a) {einsum_config = "ij->j"} : (tensor<2x3xi32>) -> tensor<3xi32>
      return %0 : tensor<3xi32> }"""
    assert run(text, x.astype(np.int32))[0].tolist() == [3, 5, 7]


def definite(t: ElementType, shape: tuple[int, ...]) -> Any:
    """Positive definite matrices."""
    random = np.random.default_rng(0)
    a = random.standard_normal(shape)
    if t.is_complex:
        a = a + 1j * random.standard_normal(shape)
    return (a @ np.conj(np.swapaxes(a, -1, -2)) + shape[-1] * np.eye(shape[-1])).astype(t.dtype)


def accuracy(t: ElementType) -> float:
    return {T.BF16: 2.0**-8, T.F16: 2.0**-10, T.F32: 2.0**-20, T.F64: 2.0**-48, T.C64: 2.0**-20, T.C128: 2.0**-48}[t]


def wide(x: Any) -> Any:
    return x.astype(np.complex128)


def cholesky_text(shape: tuple[int, ...], t: ElementType, lower: bool) -> str:
    type_ = tensor(shape, t)
    return f"""func.func @main(%a: {type_}) -> {type_} {{
      %0 = stablehlo.cholesky %a, lower = {str(lower).lower()} : {type_}
      return %0 : {type_} }}"""


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("t", [*FLOATS, T.C64, T.C128], ids=lambda t: t.mlir)
def test_cholesky(run: Any, t: ElementType, lower: bool) -> None:
    a = definite(t, (2, 5, 5))
    triangle = np.tril(a.astype(np.complex64)) if lower else np.triu(a.astype(np.complex64))
    given_ = np.where(triangle != 0, a, np.full((), 77, t.dtype))  # the other triangle is not to be looked at
    (found,) = run(cholesky_text((2, 5, 5), t, lower), given_.astype(t.dtype))
    factor = wide(found)
    adjoint = np.conj(np.swapaxes(factor, -1, -2))
    again = factor @ adjoint if lower else adjoint @ factor
    assert np.abs(again - wide(a)).max() <= accuracy(t) * np.abs(wide(a)).max()
    assert (np.triu(factor, 1) == 0).all() if lower else (np.tril(factor, -1) == 0).all()


def test_cholesky_of_what_is_not_definite_is_nan(run: Any) -> None:
    a = np.stack([np.eye(3), -np.eye(3), 4 * np.eye(3)]).astype(np.float32)
    (found,) = run(cholesky_text((3, 3, 3), T.F32, True), a)
    assert np.array_equal(found[0], np.eye(3))
    assert np.isnan(found[1][np.tril_indices(3)]).all()
    assert np.array_equal(found[2], 2 * np.eye(3))


@pytest.mark.parametrize("size", [1, 4, 70])
@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
@pytest.mark.parametrize(("left", "lower", "unit"), list(product([True, False], repeat=3)))
def test_triangular_solve(run: Any, left: bool, lower: bool, unit: bool, transpose: str, size: int) -> None:
    """The solution put back into the equation; the other triangle and a unit diagonal hold what must not be read."""
    random = np.random.default_rng(0)
    a = (random.standard_normal((2, size, size)) + 1j * random.standard_normal((2, size, size))) / size
    a += 2 * np.eye(size)
    b = random.standard_normal((2, size, 3) if left else (2, 3, size)) + 0j
    triangle = np.tril(a) if lower else np.triu(a)
    effective = triangle - triangle * np.eye(size) + np.eye(size) if unit else triangle
    garbage = np.where(np.tril(np.ones((size, size)), 0 if lower else -1) == lower, a, np.nan)
    if unit:
        garbage = np.where(np.eye(size) == 1, np.nan, garbage)
    types = tensor(a.shape, T.C128), tensor(b.shape, T.C128)
    flags = [str(flag).lower() for flag in (left, lower, unit)]
    text = f"""func.func @main(%a: {types[0]}, %b: {types[1]}) -> {types[1]} {{
      %0 = "stablehlo.triangular_solve"(%a, %b) {{left_side = {flags[0]}, lower = {flags[1]},
        unit_diagonal = {flags[2]}, transpose_a = #stablehlo<transpose {transpose}>}}
        : ({types[0]}, {types[1]}) -> {types[1]}
      return %0 : {types[1]} }}"""
    (found,) = run(text, garbage, b)
    turned = {"NO_TRANSPOSE": effective, "TRANSPOSE": np.swapaxes(effective, -1, -2)}.get(
        transpose, np.conj(np.swapaxes(effective, -1, -2))
    )
    again = turned @ found if left else found @ turned
    assert np.abs(again - b).max() <= 1e-12


@pytest.mark.parametrize("t", [*FLOATS, T.C64], ids=lambda t: t.mlir)
def test_triangular_solve_of_every_type(run: Any, t: ElementType) -> None:
    a = np.array([[2, 0], [1, 4]]).astype(t.dtype)
    b = np.array([[2], [9]]).astype(t.dtype)
    types = tensor((2, 2), t), tensor((2, 1), t)
    text = f"""func.func @main(%a: {types[0]}, %b: {types[1]}) -> {types[1]} {{
      %0 = "stablehlo.triangular_solve"(%a, %b) {{left_side = true, lower = true, unit_diagonal = false,
        transpose_a = #stablehlo<transpose NO_TRANSPOSE>}} : ({types[0]}, {types[1]}) -> {types[1]}
      return %0 : {types[1]} }}"""
    (found,) = run(text, a, b)
    assert found.dtype == t.dtype
    assert wide(found).ravel().tolist() == [1, 2]


FORWARD = {"FFT": -1, "IFFT": 1}


def transform(x: Any, lengths: list[int], sign: int) -> Any:
    """The definition, by matrices, one axis after the other."""
    for axis, n in zip(range(-len(lengths), 0), lengths, strict=True):
        k = np.arange(n)
        turns = np.outer(k, k) % n / np.longdouble(n)
        matrix = np.exp(sign * 2j * (4 * np.arctan(np.longdouble(1))) * turns) / (n if sign > 0 else 1)
        x = np.moveaxis(np.moveaxis(x, axis, -1).astype(np.clongdouble) @ matrix, -1, axis)
    return x


def fft_text(kind: str, lengths: list[int], given_: str, made: str) -> str:
    return f"""func.func @main(%a: {given_}) -> {made} {{
      %0 = "stablehlo.fft"(%a) {{fft_type = #stablehlo<fft_type {kind}>, fft_length = array<i64: {str(lengths)[1:-1]}>}}
        : ({given_}) -> {made}
      return %0 : {made} }}"""


@pytest.mark.parametrize(("real", "whole"), [(T.F32, T.C64), (T.F64, T.C128)])
@pytest.mark.parametrize("lengths", [[8], [7], [4, 6], [3, 4, 5], [1]])
def test_fourier_transforms(run: Any, lengths: list[int], real: ElementType, whole: ElementType) -> None:
    random = np.random.default_rng(0)
    shape = (2, *lengths)
    half = (*shape[:-1], shape[-1] // 2 + 1)
    x = (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(whole.dtype)
    allowed = math.prod(lengths) * float(np.finfo(real.dtype).eps)
    for kind, sign in FORWARD.items():
        (found,) = run(fft_text(kind, lengths, tensor(shape, whole), tensor(shape, whole)), x)
        assert found.dtype == whole.dtype
        assert np.abs(found - transform(x, lengths, sign)).max() <= allowed * np.abs(x).max()
    reals = np.ascontiguousarray(x.real)
    (found,) = run(fft_text("RFFT", lengths, tensor(shape, real), tensor(half, whole)), reals)
    spectrum = transform(reals, lengths, -1)[..., : half[-1]]
    assert np.abs(found - spectrum).max() <= allowed * np.abs(x).max()
    (back,) = run(fft_text("IRFFT", lengths, tensor(half, whole), tensor(shape, real)), found)
    assert back.dtype == real.dtype
    assert np.abs(back - reals).max() <= allowed * np.abs(x).max()


@pytest.mark.parametrize("t", [T.C64, T.C128], ids=lambda t: t.mlir)
def test_parts_of_complex_products_may_cancel(run: Any, t: ElementType) -> None:
    """The real part of each product is tiny: adding up the products of the parts first would leave rounding errors."""
    random = np.random.default_rng(1)
    size, eps = 2000, float(np.finfo(np.float32 if t is T.C64 else np.float64).eps)
    real, imaginary = random.uniform(0.5, 1, (2, size))
    x = (real + 1j * imaginary).astype(t.dtype)
    y = (np.conjugate(x) * 1j + random.standard_normal(size) * eps**0.5).astype(t.dtype)
    types = f"tensor<1x{size}x{t.mlir}>", f"tensor<{size}x1x{t.mlir}>", f"tensor<1x1x{t.mlir}>"
    text = f"""func.func @main(%x: {types[0]}, %y: {types[1]}) -> {types[2]} {{
      %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : ({types[0]}, {types[1]}) -> {types[2]}
      return %0 : {types[2]} }}"""
    (found,) = run(text, x[None], y[:, None])
    terms = [
        (Fraction(a.real) * Fraction(b.real), Fraction(a.imag) * Fraction(b.imag))
        for a, b in zip(x.tolist(), y.tolist(), strict=True)
    ]
    error = abs(Fraction(float(found.real[0, 0])) - sum(plus - minus for plus, minus in terms))
    assert error <= 4 * math.sqrt(sum((eps * plus) ** 2 for plus, _ in terms))


def xla_call(target: str, operand: str, results: list[str], config: str = "") -> str:
    """A custom call as XLA's builders make it: its results are one tuple."""
    lines = [
        f"%r{i} = stablehlo.get_tuple_element %t[{i}] : (tuple<{', '.join(results)}>) -> {type_}"
        for i, type_ in enumerate(results)
    ]
    names, whole = ", ".join(f"%r{i}" for i in range(len(results))), f"tuple<{', '.join(results)}>"
    return f"""func.func @main(%a: {operand}) -> ({", ".join(results)}) {{
      %t = stablehlo.custom_call @{target}(%a) {{backend_config = "{config}"}} : ({operand}) -> {whole}
      {chr(10).join(lines)}
      return {names} : {", ".join(results)} }}"""


@pytest.mark.parametrize("config", ["1,1,100,0.000010", "0,1,100,0.000010", ""])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
def test_eigh_of_xla(run: Any, dtype: Any, config: str) -> None:
    a = np.random.default_rng(0).normal(size=(2, 4, 4)).astype(dtype)
    if dtype is np.complex64:
        a = a + 1j * a.swapaxes(-1, -2).astype(dtype)
    triangle = np.triu(a) if config.startswith("0") else np.tril(a)
    off = triangle - np.einsum("...ii->...i", triangle)[..., None] * np.eye(4, dtype=dtype)
    full = off + np.conjugate(off.swapaxes(-1, -2)) + np.einsum("...ii->...i", a).real[..., None] * np.eye(4)
    kind, real = {np.float32: ("f32", "f32"), np.float64: ("f64", "f64"), np.complex64: ("complex<f32>", "f32")}[dtype]
    text = xla_call("Eigh", f"tensor<2x4x4x{kind}>", [f"tensor<2x4x4x{kind}>", f"tensor<2x4x{real}>"], config)
    vectors, values = run(text, a)
    assert (vectors.dtype, values.dtype) == (a.dtype, a.real.dtype)
    assert (np.diff(values) >= 0).all()
    np.testing.assert_allclose(full @ vectors, vectors * values[:, None, :], atol=1e-4)


def test_eigh_that_finds_nothing_gives_nan(run: Any) -> None:
    a = np.stack([np.full((2, 2), np.nan, np.float32), np.eye(2, dtype=np.float32)])
    vectors, values = run(xla_call("Eigh", "tensor<2x2x2xf32>", ["tensor<2x2x2xf32>", "tensor<2x2xf32>"]), a)
    assert np.isnan(values[0]).all()
    np.testing.assert_array_equal(values[1], [1, 1])
    np.testing.assert_array_equal(np.abs(vectors[1]), np.eye(2))


@pytest.mark.parametrize("shape", [(3, 3), (2, 4, 3), (3, 5), (0, 0)])
def test_lu_decomposition_of_xla(run: Any, shape: tuple[int, ...]) -> None:
    a = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    *stack, rows, columns = shape
    least = min(rows, columns)

    def tensor(sizes: list[int], kind: str) -> str:
        return f"tensor<{'x'.join([*map(str, sizes), kind])}>"

    results = [tensor([*shape], "f32"), tensor([*stack, least], "i32"), tensor([*stack, rows], "i32")]
    lu, pivots, order = run(xla_call("LuDecomposition", results[0], results), a)
    lower = np.tril(lu, -1)[..., :least] + np.eye(rows, least, dtype=np.float32)
    upper = np.triu(lu)[..., :least, :]
    np.testing.assert_allclose(lower @ upper, np.take_along_axis(a, order[..., None], -2), atol=1e-5)
    assert pivots.shape == (*stack, least)
    assert (pivots >= np.arange(least)).all()


@pytest.mark.parametrize("lower", [True, False])
def test_cholesky_as_a_call(run: Any, lower: bool) -> None:
    x = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    a = x @ x.T + np.eye(3, dtype=np.float32)
    config = "" if lower else ", mhlo.backend_config = {lower = false}"
    text = f"""func.func @main(%a: tensor<3x3xf32>) -> tensor<3x3xf32> {{
      %0 = stablehlo.custom_call @Cholesky(%a) {{api_version = 4 : i32{config}}} : (tensor<3x3xf32>) -> tensor<3x3xf32>
      return %0 : tensor<3x3xf32> }}"""
    (found,) = run(text, a)
    np.testing.assert_allclose(found @ found.T if lower else found.T @ found, a, atol=1e-5)
    np.testing.assert_array_equal(found, np.tril(found) if lower else np.triu(found))
