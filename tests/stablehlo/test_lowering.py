"""Operations in the forms of other libraries: numpy on these forms gives the results of the interpreter."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt
from pjrt import ElementType, stablehlo
from pjrt.stablehlo import Operation, lowering

Array = np.ndarray[Any, Any]

few = settings(max_examples=60, deadline=None)


@pytest.fixture(scope="module")
def reference() -> Iterator[pjrt.Client]:
    with pjrt.client("reference") as client:
        yield client


def run(client: pjrt.Client, program: str, *arguments: Array) -> Array:
    (result,) = client.compile(program)(*arguments)
    return np.asarray(result)


def operation(program: str, name: str) -> Operation:
    return next(each for each in stablehlo.parse(program).walk() if each.name == f"stablehlo.{name}")


def text(function: Callable[..., Any], *arguments: Any) -> str:
    return str(jax.jit(function, keep_unused=True).lower(*arguments).as_text())


def numbers(shape: Any, seed: int = 0) -> Array:
    """Small whole numbers as floats: their sums and products are exact in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


SIZES = st.integers(0, 3)


@few
@given(st.data())
def test_matrix_products(reference: pjrt.Client, data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from("bck"), max_size=4))  # batching, contracting, or free on the left
    shared = [(kind, data.draw(SIZES)) for kind in kinds]
    left = data.draw(st.permutations(shared))
    right = data.draw(
        st.permutations([each for each in shared if each[0] != "k"] + [("n", data.draw(SIZES))] * data.draw(SIZES))
    )
    # Pair the dimensions of each kind in the order in which both sides list them; their sizes must agree.
    sides = [{kind: [d for d, each in enumerate(side) if each[0] == kind] for kind in "bckn"} for side in (left, right)]
    for kind in "bc":
        sides[1][kind] = _matched(left, right, sides[0][kind], kind)
    x, y = numbers([size for _, size in left]), numbers([size for _, size in right], 1)
    dimensions = (((sides[0]["c"]), (sides[1]["c"])), ((sides[0]["b"]), (sides[1]["b"])))
    program = text(lambda x, y: jax.lax.dot_general(x, y, dimensions), x, y)
    form = lowering.matrix_product(operation(program, "dot_general"))
    stacks = np.matmul(
        x.transpose(form.lhs_permutation).reshape(form.lhs_shape),
        y.transpose(form.rhs_permutation).reshape(form.rhs_shape),
    )
    np.testing.assert_array_equal(stacks.reshape(form.result_shape), run(reference, program, x, y))


def _matched(left: Any, right: Any, on_the_left: list[int], kind: str) -> list[int]:
    free = [d for d, each in enumerate(right) if each[0] == kind]
    matched = []
    for d in on_the_left:
        partner = next(other for other in free if right[other][1] == left[d][1])
        free.remove(partner)
        matched.append(partner)
    return matched


def convolved(form: lowering.Convolution, x: Array, kernel: Array) -> Array:
    """Return a convolution in the usual order of dimensions, by its definition."""
    x, kernel = x.transpose(form.input_permutation), kernel.transpose(form.kernel_permutation)
    kernel = np.flip(kernel, [d + 2 for d in form.flipped])
    x, kernel = _spread(x, form.input_dilation), _spread(kernel, form.kernel_dilation)
    for d, (low, high) in enumerate(form.padding):
        x = np.moveaxis(x, d + 2, 0)
        x = x[max(-low, 0) : len(x) - max(-high, 0)]
        x = np.pad(x, [(max(low, 0), max(high, 0)), *[(0, 0)] * (x.ndim - 1)])
        x = np.moveaxis(x, 0, d + 2)
    outputs = [
        max((have - size) // step + 1, 0)
        for have, size, step in zip(x.shape[2:], kernel.shape[2:], form.strides, strict=True)
    ]
    groups, per_group = form.feature_groups, kernel.shape[0] // (form.feature_groups * form.batch_groups)
    batch = x.shape[0] // form.batch_groups
    result = np.zeros((batch, kernel.shape[0], *outputs), np.float32)
    for feature in range(kernel.shape[0]):
        group = feature // per_group
        rows = x[(group % form.batch_groups) * batch :][:batch] if form.batch_groups > 1 else x
        channels = x.shape[1] // groups
        start = (group % groups) * channels if groups > 1 else 0
        part = rows[:, start : start + channels]
        for place in itertools.product(*map(range, outputs)):
            window = tuple(
                slice(i * step, i * step + size)
                for i, step, size in zip(place, form.strides, kernel.shape[2:], strict=True)
            )
            products = part[(slice(None), slice(None), *window)] * kernel[feature]
            result[(slice(None), feature, *place)] = products.reshape(batch, -1).sum(1)
    return result.transpose(form.result_permutation)


def _spread(array: Array, dilation: Any) -> Array:
    for d, distance in enumerate(dilation):
        size = array.shape[d + 2]
        shape = list(array.shape)
        shape[d + 2] = (size - 1) * distance + 1 if size else 0
        spread = np.zeros(shape, array.dtype)
        spread[(slice(None),) * (d + 2) + (slice(None, None, distance),)] = array
        array = spread
    return array


@pytest.mark.full
@few
@given(st.data())
def test_convolutions(reference: pjrt.Client, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, 2))
    grouping = data.draw(st.sampled_from(["none", "feature", "batch"]))
    groups = 1 if grouping == "none" else data.draw(st.integers(2, 3))
    batch = data.draw(st.integers(1, 2)) * (groups if grouping == "batch" else 1)
    channels = data.draw(st.integers(1, 2))
    outputs = data.draw(st.integers(1, 2)) * groups
    spatial = [data.draw(st.integers(2, 5)) for _ in range(rank)]
    window = [data.draw(st.integers(1, 2)) for _ in range(rank)]
    specs = [data.draw(st.permutations(range(rank + 2))) for _ in range(3)]
    x_shape = [0] * (rank + 2)
    k_shape = [0] * (rank + 2)
    for place, size in zip(
        specs[0], [batch, channels * (groups if grouping == "feature" else 1), *spatial], strict=True
    ):
        x_shape[place] = size
    for place, size in zip(specs[1], [outputs, channels, *window], strict=True):
        k_shape[place] = size
    x, kernel = numbers(x_shape), numbers(k_shape, 1)
    arguments = {
        "window_strides": [data.draw(st.integers(1, 2)) for _ in range(rank)],
        "padding": [(data.draw(st.integers(-1, 2)), data.draw(st.integers(0, 2))) for _ in range(rank)],
        "lhs_dilation": [data.draw(st.integers(1, 2)) for _ in range(rank)],
        "rhs_dilation": [data.draw(st.integers(1, 2)) for _ in range(rank)],
        "dimension_numbers": jax.lax.ConvDimensionNumbers(*map(tuple, specs)),
        "feature_group_count": groups if grouping == "feature" else 1,
        "batch_group_count": groups if grouping == "batch" else 1,
    }
    program = text(lambda x, k: jax.lax.conv_general_dilated(x, k, **arguments), x, kernel)
    form = lowering.convolution(operation(program, "convolution"))
    np.testing.assert_array_equal(convolved(form, x, kernel), run(reference, program, x, kernel))


# Gather and scatter.


def indexed_program(data: st.DataObject, kind: str) -> tuple[str, list[Array]]:
    """Return a program that indexes an array, as users of JAX write it."""
    rank = data.draw(st.integers(1, 3))
    x = numbers([data.draw(st.integers(1, 4)) for _ in range(rank)])
    batch = [data.draw(st.integers(0, 3)) for _ in range(data.draw(st.integers(0, 2)))]
    axes = sorted(data.draw(st.sets(st.integers(0, rank - 1), min_size=1)))
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    indices = [generator.integers(-1, x.shape[axis] + 1, batch).astype(np.int32) for axis in axes]

    def places(arrays: Any) -> Any:
        found = iter(arrays)
        return tuple(next(found) if axis in axes else slice(None) for axis in range(rank))

    if kind == "gather":
        return text(lambda x, *i: x.at[places(i)].get(mode="clip", wrap_negative_indices=False), x, *indices), [
            x,
            *indices,
        ]
    updates = numbers(x[places(np.clip(i, 0, 0) for i in indices)].shape, 1)
    how = data.draw(st.sampled_from(["add", "multiply", "max", "min"]))

    def update(x: Any, u: Any, *i: Any) -> Any:
        return getattr(x.at[places(i)], how)(u, mode="drop", wrap_negative_indices=False)

    return text(update, x, updates, *indices), [x, updates, *indices]


def evaluated(program: str, name: str, arguments: list[Array], compute: Callable[..., Array]) -> list[Array]:
    """Run a program with a kernel of ours for one operation."""
    with pjrt.StableHloClient("numpy", kernels={f"stablehlo.{name}": compute}, fallback="reference") as client:
        return [np.asarray(result) for result in client.compile(program)(*arguments)]


@few
@given(st.data())
def test_gathers(reference: pjrt.Client, data: st.DataObject) -> None:
    program, arguments = indexed_program(data, "gather")

    def gather(operation: Operation, operand: Array, indices: Array) -> Array:
        form = lowering.nd_gather(operation)
        assert form is not None
        if form.take_axis is not None:
            assert len(form.indexed.axes) == 1
        return form.apply(operand, indices)

    (ours,) = evaluated(program, "gather", arguments, gather)
    np.testing.assert_array_equal(ours, run(reference, program, *arguments))


SCATTERING: dict[str, Any] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


def scattered(form: lowering.NdScatter, operand: Array, indices: Array, updates: Array) -> Array:
    moved = np.array(operand.transpose(form.operand_permutation))
    values = updates.transpose(form.update_permutation).reshape(form.update_shape)
    shape = form.indexed.batch_shape
    places = [np.broadcast_to(array, shape) for array in form.indexed.arrays(indices)]
    inside = np.ones(shape, bool)
    for array, limit in zip(places, form.indexed.limits, strict=True):
        inside &= (array >= 0) & (array <= limit)
    where = tuple(array[inside] for array in places)
    if form.reducer == "second":
        moved[where] = values[inside]
    else:
        SCATTERING[form.reducer].at(moved, where, values[inside])
    back = np.argsort(form.operand_permutation)
    return moved.transpose(back)


@few
@given(st.data())
def test_scatters(reference: pjrt.Client, data: st.DataObject) -> None:
    program, arguments = indexed_program(data, "scatter")

    def scatter(operation: Operation, operand: Array, indices: Array, updates: Array) -> Array:
        form = lowering.nd_scatter(operation)
        assert form is not None
        return scattered(form, operand, indices, updates)

    (ours,) = evaluated(program, "scatter", arguments, scatter)
    np.testing.assert_array_equal(ours, run(reference, program, *arguments))


def test_batched_gathers_and_scatters(reference: pjrt.Client) -> None:
    """Gathers under ``vmap`` have batching dimensions; ``take_along_axis`` is one, too."""
    x, i = numbers((3, 4, 2)), np.array([[0, 5], [3, 1], [-2, 2]], np.int32)
    program = text(jax.vmap(lambda x, i: x.at[i].get(mode="clip", wrap_negative_indices=False)), x, i)

    def gather(operation: Operation, operand: Array, indices: Array) -> Array:
        form = lowering.nd_gather(operation)
        assert form is not None
        assert form.take_axis is None
        return form.apply(operand, indices)

    (ours,) = evaluated(program, "gather", [x, i], gather)
    np.testing.assert_array_equal(ours, run(reference, program, x, i))

    u = numbers((3, 2, 2), 2)
    program = text(jax.vmap(lambda x, i, u: x.at[i].set(u, mode="drop", wrap_negative_indices=False)), x, i, u)

    def scatter(operation: Operation, operand: Array, indices: Array, updates: Array) -> Array:
        form = lowering.nd_scatter(operation)
        assert form is not None
        assert form.reducer == "second"
        return scattered(form, operand, indices, updates)

    (ours,) = evaluated(program, "scatter", [x, i, u], scatter)
    np.testing.assert_array_equal(ours, run(reference, program, x, i, u))


def test_windows_that_move_have_no_form() -> None:
    x, i = numbers((6, 2)), np.int32(1)
    program = text(lambda x, i: jax.lax.dynamic_slice_in_dim(x, i, 3), x, i).replace("dynamic_slice", "dynamic_slice")
    numbers_ = jax.lax.GatherDimensionNumbers(offset_dims=(0, 1), collapsed_slice_dims=(), start_index_map=(0,))
    program = text(lambda x, i: jax.lax.gather(x, i[None], numbers_, (3, 2)), x, i)
    assert lowering.nd_gather(operation(program, "gather")) is None


# Reducers, windows, sorts, movement.


@pytest.mark.parametrize(
    ("function", "x", "name"),
    [
        (jnp.sum, X := numbers((4,)), "add"),
        (jnp.prod, X, "multiply"),
        (jnp.max, X, "maximum"),
        (jnp.min, X, "minimum"),
        (jnp.all, X > 0, "and"),
        (jnp.any, X > 0, "or"),
        (jnp.argmax, X, "argmax"),
        (jnp.argmin, X, "argmin"),
        (jnp.argmax, X.astype(np.int32), "argmax"),
        (lambda x: jax.lax.reduce(x, np.float32(0), lambda a, b: a + b * b, (0,)), X, None),
        (lambda x: jax.lax.reduce(x, np.float32(0), lambda a, b: b, (0,)), X, "second"),
    ],
)
def test_reducers(function: Any, x: Array, name: str | None) -> None:
    assert lowering.reducer(operation(text(function, x), "reduce")) == name


@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "minimum"])
@pytest.mark.parametrize("element", [ElementType.F32, ElementType.BF16, ElementType.S8, ElementType.U32])
def test_identities(name: str, element: ElementType) -> None:
    values = np.array([0, 1, 3, 100]).astype(element.dtype)
    identity = lowering.identity_of(name, element)
    assert identity.dtype == element.dtype
    np.testing.assert_array_equal(getattr(np, name)(values, identity), values)


@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "minimum"])
@pytest.mark.parametrize(
    "element", [each for each in ElementType if each.name.startswith("F8") and each is not ElementType.F8E8M0FNU]
)
def test_identities_of_all_numbers_of_a_byte(name: str, element: ElementType) -> None:
    values = np.arange(256, dtype=np.uint8).view(element.dtype)
    values = values[np.isfinite(values)]
    identity = lowering.identity_of(name, element)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(getattr(np, name)(values, identity), values)


def test_a_type_without_zero_has_no_identity_of_add() -> None:
    with pytest.raises(KeyError, match="no value that add leaves unchanged"):
        lowering.identity_of("add", ElementType.F8E8M0FNU)


@pytest.mark.parametrize("name", ["and", "or", "xor"])
@pytest.mark.parametrize("element", [ElementType.PRED, ElementType.S8, ElementType.U8])
def test_identities_of_logic(name: str, element: ElementType) -> None:
    values = np.array([0, 1, 1]).astype(element.dtype)
    combine = getattr(np, f"bitwise_{name}")
    np.testing.assert_array_equal(combine(values, lowering.identity_of(name, element)), values)


def test_windows() -> None:
    program = text(
        lambda x: jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 2, 3), (1, 2, 1), [(0, 0), (1, 0), (0, 2)]),
        numbers((2, 6, 6)),
    )
    form = lowering.window(operation(program, "reduce_window"))
    assert form.sizes == (1, 2, 3)
    assert form.strides == (1, 2, 1)
    assert form.padding == ((0, 0), (1, 0), (0, 2))
    assert form.base_dilation == form.window_dilation == (1, 1, 1)
    assert form.moving == (1, 2)
    assert lowering.reducer(operation(program, "reduce_window")) == "maximum"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (jnp.sort, ((0, False, False),)),
        (jnp.argsort, ((0, False, False),)),
        (lambda x: jax.lax.sort((x, x + 1, x), num_keys=2), ((0, False, False), (1, False, False))),
        (
            lambda x: jax.lax.sort((x, x + 1, x, x), num_keys=3),
            ((0, False, False), (1, False, False), (2, False, False)),
        ),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_sort_keys(function: Any, expected: Any, dtype: Any) -> None:
    keys = lowering.sort_keys(operation(text(function, numbers((4,)).astype(dtype)), "sort"))
    assert keys is not None
    assert tuple((key.operand, key.descending, key.total) for key in keys) == expected


def comparator(body: str) -> Operation:
    return operation(
        f"""
    func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {{
      %0:2 = "stablehlo.sort"(%x, %y) <{{dimension = 0 : i64, is_stable = true}}> ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<f32>, %d: tensor<f32>):
        {body}
        stablehlo.return %r : tensor<i1>
      }}) : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
      return %0#0, %0#1 : tensor<4xf32>, tensor<4xf32>
    }}""",
        "sort",
    )


TYPES = ": (tensor<f32>, tensor<f32>) -> tensor<i1>"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"%r = stablehlo.compare GT, %a, %b {TYPES}", ((0, True, False),)),
        (f"%r = stablehlo.compare LT, %d, %c {TYPES}", ((1, True, False),)),
        (f"%r = stablehlo.compare LT, %c, %d, TOTALORDER {TYPES}", ((1, False, True),)),
        (f"%r = stablehlo.compare LE, %a, %b {TYPES}", None),
        (f"%r = stablehlo.compare LT, %a, %d {TYPES}", None),
        (f"%n = stablehlo.negate %a : tensor<f32>\n%r = stablehlo.compare LT, %n, %b {TYPES}", None),
    ],
)
def test_comparators(body: str, expected: Any) -> None:
    keys = lowering.sort_keys(comparator(body))
    found = None if keys is None else tuple((key.operand, key.descending, key.total) for key in keys)
    assert found == expected


@few
@given(st.data())
def test_broadcasts(reference: pjrt.Client, data: st.DataObject) -> None:
    shape = [data.draw(st.integers(1, 3)) for _ in range(data.draw(st.integers(0, 4)))]
    places = data.draw(st.permutations(range(len(shape))))[: data.draw(st.integers(0, len(shape)))]
    x = numbers([data.draw(st.sampled_from([1, shape[place]])) for place in places])
    operand = "x".join([*map(str, x.shape), "f32"])
    result = "x".join([*map(str, shape), "f32"])
    program = (
        f"func.func @main(%x: tensor<{operand}>) -> tensor<{result}> {{\n"
        f"%0 = stablehlo.broadcast_in_dim %x, dims = {list(places)} : (tensor<{operand}>) -> tensor<{result}>\n"
        f"return %0 : tensor<{result}>\n}}"
    )
    form = lowering.broadcast(operation(program, "broadcast_in_dim"))
    ours = np.broadcast_to(x.transpose(form.permutation).reshape(form.shape), form.result_shape)
    np.testing.assert_array_equal(ours, run(reference, program, x))


@few
@given(st.data())
def test_pads(reference: pjrt.Client, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, 3))
    x = numbers([data.draw(st.integers(2, 4)) for _ in range(rank)])
    amounts = [(data.draw(st.integers(-1, 2)), data.draw(st.integers(-1, 2)), data.draw(SIZES)) for _ in range(rank)]
    program = text(lambda x: jax.lax.pad(x, np.float32(7), amounts), x)
    form = lowering.pad(operation(program, "pad"))
    ours = x
    for d in range(rank):
        size = (ours.shape[d] - 1) * (form.interior[d] + 1) + 1
        spread = np.full([*ours.shape[:d], size, *ours.shape[d + 1 :]], 7, np.float32)
        spread[(slice(None),) * d + (slice(None, None, form.interior[d] + 1),)] = ours
        low, high = form.cut[d]
        ours = spread[(slice(None),) * d + (slice(low, size - high),)]
    ours = np.pad(ours, form.padding, constant_values=7) if rank else ours
    np.testing.assert_array_equal(ours, run(reference, program, x))


def test_another_operation_is_an_error() -> None:
    add = operation(text(lambda x: x + x, X), "add")
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected stablehlo\.gather, found stablehlo\.add"):
        lowering.nd_gather(add)
    assert lowering.reducer(add) is None


def numpy_pooling(form: lowering.Pooling, x: Array, fill: float, combine: Callable[..., Array]) -> Array:
    """Pool an image with numpy: every window, one after the other."""
    image = np.pad(
        x.transpose(form.permutation).reshape(form.shape), [(0, 0), (0, 0), *form.padding], constant_values=fill
    )
    spans = [(size - 1) * step + 1 for size, step in zip(form.sizes, form.dilation, strict=True)]
    counts = [(n - span) // stride + 1 for n, span, stride in zip(image.shape[2:], spans, form.strides, strict=True)]
    pooled = np.empty((1, form.shape[1], *counts), x.dtype)
    for place in itertools.product(*map(range, counts)):
        window = tuple(
            slice(at * stride, at * stride + span, step)
            for at, stride, span, step in zip(place, form.strides, spans, form.dilation, strict=True)
        )
        part = image[(slice(None), slice(None), *window)]
        pooled[(slice(None), slice(None), *place)] = combine(part, axis=tuple(range(2, part.ndim)))
    return pooled.reshape(form.result_shape).transpose(form.result_permutation)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_poolings(data: st.DataObject, reference: pjrt.Client) -> None:
    rank = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.integers(1, 4)) for _ in range(rank))
    sizes = tuple(data.draw(st.integers(1, 3)) for _ in range(rank))
    strides = tuple(data.draw(st.integers(1, 2)) for _ in range(rank))
    dilation = tuple(data.draw(st.integers(1, 2)) for _ in range(rank))
    span = [(size - 1) * step for size, step in zip(sizes, dilation, strict=True)]
    padding = [(data.draw(st.integers(0, 2)), each + data.draw(st.integers(0, 1))) for each in span]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    program = text(
        lambda x: jax.lax.reduce_window(x, -np.inf, jax.lax.max, sizes, strides, padding, window_dilation=dilation), x
    )
    window = operation(program, "reduce_window")
    form = lowering.pooling(window)
    assert form is not None
    assert lowering.constant_value(window.operands[1]) == -np.inf
    np.testing.assert_array_equal(numpy_pooling(form, x, -np.inf, np.max), run(reference, program, x))


@pytest.mark.parametrize(("backward", "running"), [(False, "forward"), (True, "backward")])
def test_running_sums_are_windows(backward: bool, running: str) -> None:
    pad = ((0, 0), (0, 4) if backward else (4, 0))
    program = text(lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 5), (1, 1), pad), np.ones((2, 5), "f"))
    form = lowering.pooling(operation(program, "reduce_window"))
    assert form is not None
    assert form.running == running


def test_a_window_over_spread_elements_is_no_pooling() -> None:
    program = text(
        lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (2,), (1,), "VALID", base_dilation=(2,)), np.ones(4, "f")
    )
    assert lowering.pooling(operation(program, "reduce_window")) is None


def test_the_gradient_of_a_pooling_selects_the_maximum() -> None:
    program = text(
        jax.grad(lambda x: jax.lax.reduce_window(x, -np.inf, jax.lax.max, (2, 2), (2, 2), "VALID").sum()),
        np.ones((4, 4), "f"),
    )
    selection = operation(program, "select_and_scatter")
    assert lowering.selector(selection) == "maximum"
    assert lowering.reducer(selection) == "add"
    form = lowering.pooling(selection)
    assert form is not None
    assert (form.shape, form.result_shape, form.running) == ((1, 1, 4, 4), (2, 2), None)
    smaller = operation(program.replace("GE,", "LE,"), "select_and_scatter")
    assert lowering.selector(smaller) == "minimum"
    assert lowering.selector(operation(program.replace("GE,", "GT,"), "select_and_scatter")) is None


def test_constants() -> None:
    program = """
    func.func @main(%x: tensor<2x3xi32>) -> tensor<2x3xi32> {
      %c = stablehlo.constant dense<7> : tensor<i32>
      %b = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<2x3xi32>
      %i = stablehlo.iota dim = 1 : tensor<2x3xi32>
      %k = stablehlo.constant dense<[[1, 2, 3], [4, 5, 6]]> : tensor<2x3xi32>
      %0 = stablehlo.add %x, %b : tensor<2x3xi32>
      %1 = stablehlo.multiply %0, %i : tensor<2x3xi32>
      %2 = stablehlo.subtract %1, %k : tensor<2x3xi32>
      return %2 : tensor<2x3xi32>
    }"""
    add, multiply, subtract = (operation(program, name) for name in ("add", "multiply", "subtract"))
    assert [lowering.constant_value(value) for value in (*add.operands, multiply.operands[1])] == [None, 7, None]
    assert lowering.constant_array(add.operands[0]) is None
    np.testing.assert_array_equal(lowering.constant_array(multiply.operands[1]), [[0, 1, 2], [0, 1, 2]])
    np.testing.assert_array_equal(lowering.constant_array(subtract.operands[1]), [[1, 2, 3], [4, 5, 6]])
