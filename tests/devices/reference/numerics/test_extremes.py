"""Maximum and minimum: +0 is larger than -0 and NaN wins, in every operation that chooses one of two numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import FLOATS, binary_body, program, tensor

import pjrt
from pjrt.api.element_type import ElementType
from pjrt.conformance import values

T = ElementType
WITH_ZERO = [t for t in FLOATS if t is not T.F8E8M0FNU]
OPS = ("maximum", "minimum")
Pairs = tuple[Any, Any]


@pytest.fixture(params=WITH_ZERO, ids=lambda t: t.mlir)
def element(request: pytest.FixtureRequest) -> ElementType:
    """A floating-point type."""
    return request.param  # type: ignore[no-any-return]


def special(t: ElementType) -> Any:
    return np.concatenate([values.edges(t), np.array([0.0, -0.0]).astype(t.dtype)])


def pairs(t: ElementType) -> Pairs:
    """Each special value with each other one."""
    one = special(t)
    return np.repeat(one, one.size), np.tile(one, one.size)


def chosen(op: str, x: Any, y: Any) -> Any:
    """The definition, in f64."""
    a, b = x.astype(np.float64), y.astype(np.float64)
    found = np.maximum(a, b) if op == "maximum" else np.minimum(a, b)
    signs = np.signbit(a) & np.signbit(b) if op == "maximum" else np.signbit(a) | np.signbit(b)
    zeros = (a == 0) & (b == 0)
    return np.where(zeros, np.where(signs, -0.0, 0.0), found).astype(x.dtype)


def same(found: Any, expected: Any) -> bool:
    """Whether all numbers are equal, zeros with their signs, and NaN is where NaN is."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    a, b = found.astype(np.float64), expected.astype(np.float64)
    nan = np.isnan(a)
    return bool(
        np.array_equal(nan, np.isnan(b))
        and np.array_equal(a[~nan], b[~nan])
        and np.array_equal(np.signbit(a[~nan]), np.signbit(b[~nan]))
    )


def worst(op: str, t: ElementType) -> Any:
    """The number that loses against every other one."""
    return np.array(-np.inf if op == "maximum" else np.inf).astype(t.dtype)


@pytest.mark.parametrize("op", OPS)
def test_two_numbers(run: Any, element: ElementType, op: str) -> None:
    x, y = pairs(element)
    type_ = tensor(x.shape, element)
    assert same(run(program(op, [type_, type_], type_), x, y)[0], chosen(op, x, y))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", [1, 7, 33, 4099, 1 << 17])
def test_zeros_at_any_place_of_a_vector(run: Any, op: str, size: int) -> None:
    """numpy's functions do one thing to whole registers, and another to the rest."""
    x, y = np.zeros(size, np.float32), np.full(size, -0.0, np.float32)
    type_ = tensor(x.shape, T.F32)
    for a, b in ((x, y), (y, x), (x, x), (y, y)):
        assert same(run(program(op, [type_, type_], type_), a, b)[0], chosen(op, a, b))


def test_a_number_and_a_constant(run: Any) -> None:
    text = """func.func @main(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
      %z = stablehlo.constant dense<0.0> : tensor<2xf32>
      %m = stablehlo.maximum %z, %x : tensor<2xf32>
      %n = stablehlo.negate %z : tensor<2xf32>
      %s = stablehlo.minimum %n, %x : tensor<2xf32>
      return %m, %s : tensor<2xf32>, tensor<2xf32> }"""
    large, small = run(text, np.array([-0.0, 0.0], np.float32))
    assert (np.signbit(large).tolist(), np.signbit(small).tolist()) == ([False, False], [True, True])


def test_clamp(run: Any, element: ElementType) -> None:
    low, x, high = (np.ravel(a) for a in np.meshgrid(special(element), special(element), special(element)))
    type_ = tensor(x.shape, element)
    expected = chosen("minimum", chosen("maximum", x, low), high)
    assert same(run(program("clamp", [type_] * 3, type_), low, x, high)[0], expected)


@pytest.mark.parametrize("op", OPS)
def test_broadcasting_of_chlo(run: Any, op: str) -> None:
    text = f"""func.func @main(%a: tensor<2xf32>, %b: tensor<f32>) -> tensor<2xf32> {{
      %0 = chlo.broadcast_{op} %a, %b : (tensor<2xf32>, tensor<f32>) -> tensor<2xf32>
      return %0 : tensor<2xf32> }}"""
    x = np.array([-0.0, 0.0], np.float32)
    for y in (np.float32(0.0), np.float32(-0.0)):
        assert same(run(text, x, y)[0], chosen(op, x, np.full(2, y)))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [0, 1])
def test_reduce(run: Any, element: ElementType, op: str, axis: int) -> None:
    x, y = pairs(element)
    rows = np.stack([x, y], axis).copy()
    types = [tensor(rows.shape, element), tensor((), element)]
    text = program(
        "reduce", types, tensor(x.shape, element), f"dimensions = array<i64: {axis}>", binary_body(op, element)
    )
    for initial in (worst(op, element), *np.array([0.0, -0.0]).astype(element.dtype)):
        expected = chosen(op, chosen(op, x, y), np.full(x.shape, initial))
        assert same(run(text, rows, np.asarray(initial))[0], expected)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("shape", [(3, 5000), (5000, 3), (20, 30, 40)])
def test_reduce_of_many(run: Any, op: str, shape: tuple[int, ...]) -> None:
    zeros = np.random.default_rng(0).choice(np.array([0.0, -0.0], np.float32), shape)
    sign = -1.0 if op == "maximum" else 1.0
    others = np.where(np.random.default_rng(1).random(shape) < 0.5, sign, 0).astype(np.float32)
    for x in (zeros, np.where(others == 0, zeros, others), np.full(shape, -0.0 * -sign, np.float32)):
        for axes in ((0,), (1,), tuple(range(len(shape)))):
            kept = tuple(size for d, size in enumerate(shape) if d not in axes)
            types = [tensor(shape, T.F32), tensor((), T.F32)]
            attributes = f"dimensions = array<i64: {', '.join(map(str, axes))}>"
            text = program("reduce", types, tensor(kept, T.F32), attributes, binary_body(op, T.F32))
            plus = ((x == 0) & ~np.signbit(x)).any(axes) if op == "maximum" else ~((x == 0) & np.signbit(x)).any(axes)
            expected = np.maximum.reduce(x, axes) if op == "maximum" else np.minimum.reduce(x, axes)
            expected = np.where(expected == 0, np.where(plus, 0.0, -0.0), expected).astype(np.float32)
            assert same(run(text, x, np.asarray(worst(op, T.F32)))[0], expected)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("window", [1, 2, 5, 40])
def test_reduce_window(run: Any, element: ElementType, op: str, window: int) -> None:
    x = np.random.default_rng(window).permutation(np.tile(special(element), 4))
    x = x[~np.isnan(x.astype(np.float64))] if window == 40 else x
    count = x.size - window + 1
    expected = x[:count]
    for shift in range(1, window):
        expected = chosen(op, expected, x[shift : shift + count])
    types = [tensor(x.shape, element), tensor((), element)]
    attributes = f"window_dimensions = array<i64: {window}>"
    text = program("reduce_window", types, tensor((count,), element), attributes, binary_body(op, element))
    assert same(run(text, x, worst(op, element))[0], chosen(op, expected, np.full(count, worst(op, element))))


POINTS = (
    "scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
    "index_vector_dim = 1>, unique_indices = "
)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("unique", [False, True])
def test_scatter(run: Any, element: ElementType, op: str, unique: bool) -> None:
    x, y = pairs(element)
    places = np.random.default_rng(0).permutation(x.size).astype(np.int32)
    again = x.size if not unique else 0  # a second update of each place
    updates = np.concatenate([y, y[::-1][:again]])
    indices = np.concatenate([places, places[:again]])[:, None]
    expected = x.copy()
    expected[places] = chosen(op, x[places], y)
    if again:
        expected[places] = chosen(op, expected[places], y[::-1])
    types = [tensor(x.shape, element), tensor(indices.shape, T.S32), tensor(updates.shape, element)]
    text = program("scatter", types, types[0], POINTS + str(unique).lower(), binary_body(op, element))
    assert same(run(text, x, indices, updates)[0], expected)


@pytest.mark.parametrize("op", OPS)
def test_scatter_of_rows(run: Any, op: str) -> None:
    x, y = pairs(T.F32)
    operand = np.stack([x, x])
    indices = np.array([[1], [0], [1]], np.int32)
    updates = np.stack([y, y, x])
    expected = np.stack([chosen(op, x, y), chosen(op, chosen(op, x, y), x)])
    types = [tensor(operand.shape, T.F32), tensor(indices.shape, T.S32), tensor(updates.shape, T.F32)]
    numbers = (
        "scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], "
        "scatter_dims_to_operand_dims = [0], index_vector_dim = 1>"
    )
    assert same(
        run(program("scatter", types, types[0], numbers, binary_body(op, T.F32)), operand, indices, updates)[0],
        expected,
    )


@pytest.mark.parametrize("op", OPS)
def test_select_and_scatter(run: Any, element: ElementType, op: str) -> None:
    """Each window has one element, and each element two windows: so two sources meet at each place."""
    x, y = pairs(element)
    source = np.stack([x, y], 1).reshape(-1)
    operand = np.zeros(x.size, element.dtype)
    scalar = tensor((), element)
    select = (
        f"^bb0(%x: {scalar}, %y: {scalar}): %c = stablehlo.compare GE, %x, %y : ({scalar}, {scalar}) -> tensor<i1> "
        '"stablehlo.return"(%c) : (tensor<i1>) -> ()'
    )
    # Windows of the same place: a dimension of size 1 with padding, of which each window sees the one element.
    operand, source = operand.reshape(-1, 1), source.reshape(-1, 2)
    types = [tensor(operand.shape, element), tensor(source.shape, element), scalar]
    attributes = (
        "window_dimensions = array<i64: 1, 2>, window_strides = array<i64: 1, 1>, "
        "padding = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>"
    )
    text = program("select_and_scatter", types, types[0], attributes, [select, binary_body(op, element)])
    expected = chosen(op, chosen(op, np.full(x.size, worst(op, element)), x), y)
    assert same(run(text, operand, source, np.asarray(worst(op, element)))[0].reshape(-1), expected)


@pytest.mark.parametrize("op", OPS)
def test_between_devices(op: str) -> None:
    x, y = pairs(T.F32)
    type_ = tensor(x.shape, T.F32)
    text = program(
        "all_reduce", [type_], type_, "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>", binary_body(op, T.F32)
    )
    with pjrt.client("reference", num_devices=2) as client:
        executable = client.compile(text, pjrt.CompileOptions(num_replicas=2))
        rows = [[client.buffer_from_host(v, device=d)] for v, d in zip((x, y), client.devices, strict=True)]
        for (found,) in executable.execute(rows):
            assert same(np.asarray(found), chosen(op, x, y))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("t", [T.C64, T.C128], ids=lambda t: t.mlir)
def test_complex_numbers(run: Any, t: ElementType, op: str) -> None:
    """They are in the order of their real, then of their imaginary parts; which zero it is does not count."""
    parts = [0.0, -0.0, 1.0, -1.0]
    numbers = np.array([complex(a, b) for a in parts for b in parts], t.dtype)
    x, y = np.repeat(numbers, numbers.size), np.tile(numbers, numbers.size)
    type_ = tensor(x.shape, t)
    text = program(op, [type_, type_], type_)
    (found,), (turned,) = run(text, x, y), run(text, y, x)
    assert found.tobytes() == turned.tobytes()
    best = max if op == "maximum" else min
    expected = [best(a, b, key=lambda z: (z.real, z.imag)) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert np.array_equal(found, np.array(expected, t.dtype))
    tie = x == y
    for found_part, a, b in ((found.real, x.real, y.real), (found.imag, x.imag, y.imag)):
        assert same(found_part[tie], chosen(op, a[tie], b[tie]))


def test_the_judges_results_are_those_of_the_other_interpreter(run: Any, interpret: Any) -> None:
    x, y = pairs(T.F32)
    type_ = tensor(x.shape, T.F32)
    for op in OPS:
        text = program(op, [type_, type_], type_)
        assert same(run(text, x, y)[0], interpret(text, x, y)[0])
