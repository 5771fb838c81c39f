"""Helpers for translators of StableHLO: operations in the simpler forms that other libraries have.

Each takes a ``pjrt.stablehlo.Operation`` with static shapes and returns plain values: permutations, shapes, names.
Where an operation has no simple form, the result is ``None``, and the operation is better left to a fallback.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError
from pjrt.stablehlo.ir.operation import Block, Operation, Value
from pjrt.stablehlo.ir.types import TensorType

__all__ = [
    "Broadcast",
    "Convolution",
    "MatrixProduct",
    "NdGather",
    "NdScatter",
    "Pad",
    "Pooling",
    "SortKey",
    "Window",
    "broadcast",
    "constant_array",
    "constant_value",
    "convolution",
    "identity_of",
    "matrix_product",
    "nd_gather",
    "nd_scatter",
    "pad",
    "pooling",
    "reducer",
    "selector",
    "sort_keys",
    "window",
]

Shape = tuple[int, ...]


def expect_operation(operation: Operation, *names: str) -> None:
    """Check the name of an operation.

    Raises:
        InvalidArgumentError: the operation is another one.
    """
    if operation.name not in names:
        raise InvalidArgumentError(f"expected {' or '.join(names)}, found {operation.name}")


def sizes(value: Value) -> Shape:
    """Return the static shape of a value.

    Raises:
        InvalidArgumentError: the value is no tensor.
        UnimplementedError: a size is known only when the program runs.
    """
    if not isinstance(value.type, TensorType):
        raise InvalidArgumentError(f"expected a tensor, found {value}")
    return value.type.sizes


def inverse(permutation: Shape) -> Shape:
    """Return the permutation that undoes another one."""
    undone = [0] * len(permutation)
    for position, dimension in enumerate(permutation):
        undone[dimension] = position
    return tuple(undone)


_SPREADING = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape"})


def constant_value(value: Value) -> Any:
    """Return the one number of a constant value, as a numpy scalar of its type, or ``None`` for other values.

    Frameworks write the initial value of a reduction as such a constant, sometimes reshaped or broadcast.
    """
    owner = value.owner
    while isinstance(owner, Operation) and owner.name in _SPREADING:
        owner = owner.operands[0].owner
    if not isinstance(owner, Operation) or owner.name != "stablehlo.constant":
        return None
    array = np.asarray(owner.attribute("value"))
    return array.reshape(-1)[0] if array.size == 1 else None


def constant_array(value: Value) -> Any:
    """Return a constant value as a numpy array of its shape, that of ``stablehlo.iota`` too, or ``None`` for others."""
    owner = value.owner
    if not isinstance(owner, Operation):
        return None
    shape = sizes(value)
    if owner.name == "stablehlo.constant":
        return np.broadcast_to(owner.attribute("value"), shape)
    if owner.name == "stablehlo.iota":
        dimension = owner.attribute("iota_dimension")
        steps = [-1 if d == dimension else 1 for d in range(len(shape))]
        counter = np.arange(shape[dimension]).astype(value.type.dtype)  # type: ignore[union-attr]
        return np.broadcast_to(counter.reshape(steps), shape)
    return None


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A product of stacks of matrices.

    The result is ``matmul(x', y')`` reshaped to ``result_shape``, where ``x'`` is ``x`` transposed by
    ``lhs_permutation`` and reshaped to ``(batch, m, k)``, and ``y'`` is ``y`` transposed by ``rhs_permutation`` and
    reshaped to ``(batch, k, n)``.

    Attributes:
        batch: the number of matrices in each stack; 1 without batching dimensions.
        m, k, n: the sizes of the matrices.
        lhs_permutation: the dimensions of the left operand: batching, free, contracting.
        rhs_permutation: the dimensions of the right operand: batching, contracting, free.
        result_shape: the shape of the result.
    """

    batch: int
    m: int
    k: int
    n: int
    lhs_permutation: Shape
    rhs_permutation: Shape
    result_shape: Shape

    @property
    def lhs_shape(self) -> Shape:
        """The shape of the left stack."""
        return self.batch, self.m, self.k

    @property
    def rhs_shape(self) -> Shape:
        """The shape of the right stack."""
        return self.batch, self.k, self.n


def matrix_product(operation: Operation) -> MatrixProduct:
    """Return ``stablehlo.dot_general`` or ``stablehlo.dot`` as a product of stacks of matrices."""
    expect_operation(operation, "stablehlo.dot_general", "stablehlo.dot")
    left, right = (sizes(value) for value in operation.operands)
    lhs_batch, rhs_batch, lhs_sum, rhs_sum = _dimensions(operation, len(left))
    lhs_free = tuple(d for d in range(len(left)) if d not in (*lhs_batch, *lhs_sum))
    rhs_free = tuple(d for d in range(len(right)) if d not in (*rhs_batch, *rhs_sum))
    return MatrixProduct(
        batch=math.prod(left[d] for d in lhs_batch),
        m=math.prod(left[d] for d in lhs_free),
        k=math.prod(left[d] for d in lhs_sum),
        n=math.prod(right[d] for d in rhs_free),
        lhs_permutation=(*lhs_batch, *lhs_free, *lhs_sum),
        rhs_permutation=(*rhs_batch, *rhs_sum, *rhs_free),
        result_shape=sizes(operation.results[0]),
    )


def _dimensions(operation: Operation, left_rank: int) -> tuple[Shape, Shape, Shape, Shape]:
    if operation.name == "stablehlo.dot":
        return (), (), (left_rank - 1,), (0,)
    numbers = operation.attribute("dot_dimension_numbers")
    return (
        tuple(numbers.lhs_batching_dimensions),
        tuple(numbers.rhs_batching_dimensions),
        tuple(numbers.lhs_contracting_dimensions),
        tuple(numbers.rhs_contracting_dimensions),
    )


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of inputs (batch, feature, spatial…) with kernels (output feature, input feature, spatial…).

    Transpose the input by ``input_permutation`` and the kernel by ``kernel_permutation``, flip the kernel along
    ``flipped``, convolve, and transpose the result, which is (batch, output feature, spatial…), by
    ``result_permutation``. As everywhere in machine learning, "convolve" does not flip the kernel itself.

    Attributes:
        input_permutation: the dimensions of the input: batch, feature, spatial.
        kernel_permutation: the dimensions of the kernel: output feature, input feature, spatial.
        result_permutation: where the dimensions batch, output feature, spatial go in the result.
        strides: the step of the window along each spatial dimension.
        padding: the zeros before and after each spatial dimension; negative ones cut off.
        input_dilation: the distance of neighbouring elements of the input; zeros lie between them. Above 1 it is a
            transposed convolution.
        kernel_dilation: the distance of neighbouring elements of the kernel.
        flipped: the spatial dimensions, counted from 0, along which the kernel is flipped.
        feature_groups: the number of groups of features; each is convolved with its part of the kernels.
        batch_groups: the number of groups of the batch; each is convolved with its part of the kernels.
    """

    input_permutation: Shape
    kernel_permutation: Shape
    result_permutation: Shape
    strides: Shape
    padding: tuple[tuple[int, int], ...]
    input_dilation: Shape
    kernel_dilation: Shape
    flipped: Shape
    feature_groups: int
    batch_groups: int


def convolution(operation: Operation) -> Convolution:
    """Return ``stablehlo.convolution`` in the usual order of dimensions."""
    expect_operation(operation, "stablehlo.convolution")
    numbers = operation.attribute("dimension_numbers")
    rank = len(numbers.input_spatial_dimensions)
    ones = (1,) * rank
    padding = np.reshape(operation.attribute("padding", np.zeros((rank, 2), np.int64)), (rank, 2)).tolist()
    result = (numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions)
    turned = operation.attribute("window_reversal", None) or ()
    return Convolution(
        input_permutation=(
            numbers.input_batch_dimension,
            numbers.input_feature_dimension,
            *numbers.input_spatial_dimensions,
        ),
        kernel_permutation=(
            numbers.kernel_output_feature_dimension,
            numbers.kernel_input_feature_dimension,
            *numbers.kernel_spatial_dimensions,
        ),
        result_permutation=inverse(result),
        strides=tuple(operation.attribute("window_strides", None) or ones),
        padding=tuple((low, high) for low, high in padding),
        input_dilation=tuple(operation.attribute("lhs_dilation", None) or ones),
        kernel_dilation=tuple(operation.attribute("rhs_dilation", None) or ones),
        flipped=tuple(dimension for dimension, turn in enumerate(turned) if turn),
        feature_groups=operation.attribute("feature_group_count", 1),
        batch_groups=operation.attribute("batch_group_count", 1),
    )


_COMMUTATIVE = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})
_REDUCING = "reduce reduce_window reduce_scatter all_reduce scatter select_and_scatter"
_BODY = {f"stablehlo.{name}": 0 for name in _REDUCING.split()} | {"stablehlo.select_and_scatter": 1}
"""The region of each operation that combines two values."""

_EXTREMES = {("GT", "LT"): "argmax", ("GE", "LT"): "argmax", ("LT", "LT"): "argmin", ("LE", "LT"): "argmin"}


def reducer(operation: Operation) -> str | None:
    """Return the common function that combines two values in a reduction, or ``None`` if it is another one.

    Args:
        operation: ``reduce``, ``reduce_window``, ``reduce_scatter``, ``all_reduce``, ``scatter`` or
            ``select_and_scatter`` (its scatter function).

    Returns:
        ``"add"``, ``"multiply"``, ``"maximum"``, ``"minimum"``, ``"and"``, ``"or"``, ``"xor"``; ``"first"`` or
        ``"second"`` for a body that returns one of its arguments (``"second"`` in a scatter is an overwriting one);
        ``"argmax"`` or ``"argmin"`` for a ``reduce`` of values and their indices, as JAX writes it: the first one of
        equals, and the first NaN before all.
    """
    position = _BODY.get(operation.name)
    if position is None or position >= len(operation.regions):
        return None
    block = operation.regions[position]
    if len(block.arguments) == 2 and len(block.outputs) == 1:
        return _of_one(block)
    if len(block.arguments) == 4 and len(block.outputs) == 2:
        return _of_pair(block)
    return None


def selector(operation: Operation) -> str | None:
    """Return the value that ``stablehlo.select_and_scatter`` selects in a window: ``"maximum"`` or ``"minimum"``, the
    first of equals, or ``None`` if it selects otherwise.
    """
    block = operation.regions[0]
    comparison = _comparison(block.outputs[0])
    if comparison is None or comparison[1:] != block.arguments:
        return None
    return {"GE": "maximum", "LE": "minimum"}.get(comparison[0])


def identity_of(name: str, element: ElementType) -> Any:
    """Return the value that changes nothing when it is combined with another, as a numpy scalar of the type.

    Args:
        name: ``"add"``, ``"multiply"``, ``"maximum"``, ``"minimum"``, ``"and"``, ``"or"`` or ``"xor"``.
        element: the element type.

    Raises:
        KeyError: the function has no such value in this type.
    """
    dtype = element.dtype
    lowest, highest = _limits(element)
    ones = True if element is ElementType.PRED else -1 if not element.name.startswith("U") else highest
    value = {
        "add": 0,
        "or": 0,
        "xor": 0,
        "multiply": 1,
        "and": ones,
        "maximum": lowest,
        "minimum": highest,
    }[name]
    identity = np.asarray(value).astype(dtype)[()]
    if identity != identity:
        raise KeyError(f"{element} has no value that {name} leaves unchanged")
    return identity


def _limits(element: ElementType) -> tuple[Any, Any]:
    if element is ElementType.PRED:
        return False, True
    if element.is_integer:
        signed = not element.name.startswith("U")
        return (-(2 ** (element.bits - 1)), 2 ** (element.bits - 1) - 1) if signed else (0, 2**element.bits - 1)
    if np.isinf(np.asarray(np.inf).astype(element.dtype)):
        return -np.inf, np.inf
    # Many types of 8 bits and less have no infinities: they would become NaN.
    limits = ml_dtypes.finfo(element.dtype)  # type: ignore[no-untyped-call]
    return limits.min, limits.max


def _of_one(block: Block) -> str | None:
    first, second = block.arguments
    (output,) = block.outputs
    if len(block.operations) == 1:
        return "first" if output is first else "second" if output is second else None
    if len(block.operations) != 2 or output.owner is not block.operations[0]:
        return None
    name = block.operations[0].name.removeprefix("stablehlo.")
    uses_both = set(block.operations[0].operands) == {first, second}
    return name if uses_both and name in _COMMUTATIVE else None


def _of_pair(block: Block) -> str | None:
    """Return ``argmax`` or ``argmin`` for the body that chooses a value and its index."""
    value, index, other, other_index = block.arguments
    chosen, chosen_index = block.outputs
    first, second = _owner_named(chosen, "select"), _owner_named(chosen_index, "select")
    if first is None or second is None:
        return None
    if tuple(first.operands[1:]) != (value, other) or tuple(second.operands[1:]) != (index, other_index):
        return None
    better = _direction_or_nan(first.operands[0], value, other)
    tie = _owner_named(second.operands[0], "or")
    if better is None or tie is None:
        return None
    wins, equal = tie.operands
    if wins is not first.operands[0]:
        wins, equal = equal, wins
    both = _owner_named(equal, "and")
    if wins is not first.operands[0] or both is None:
        return None
    compared = {_comparison(operand) for operand in both.operands}
    if compared != {("EQ", value, other), ("LT", index, other_index)}:
        return None
    return _EXTREMES.get((better, "LT"))


def _direction_or_nan(condition: Value, value: Value, other: Value) -> str | None:
    """Return the direction of ``value ? other``, perhaps or-ed with "value is NaN"."""
    either = _owner_named(condition, "or")
    if either is None:
        comparison = _comparison(condition)
        return comparison[0] if comparison is not None and comparison[1:] == (value, other) else None
    comparisons = {_comparison(operand) for operand in either.operands}
    if ("NE", value, value) not in comparisons:
        return None
    rest = [each for each in comparisons if each is not None and each[1:] == (value, other)]
    return rest[0][0] if len(rest) == 1 else None


def _comparison(value: Value) -> tuple[str, Value, Value] | None:
    operation = _owner_named(value, "compare")
    if operation is None:
        return None
    return operation.attribute("comparison_direction"), operation.operands[0], operation.operands[1]


def _owner_named(value: Value, name: str) -> Operation | None:
    owner = value.owner
    return owner if isinstance(owner, Operation) and owner.name == f"stablehlo.{name}" else None


@dataclass(frozen=True, slots=True)
class Window:
    """A window that moves over all dimensions of an operand.

    Attributes:
        sizes: its size along each dimension.
        strides: its step.
        padding: the elements of the initial value before and after each dimension; negative ones cut off.
        base_dilation: the distance of neighbouring elements of the operand.
        window_dilation: the distance of neighbouring elements of the window.
    """

    sizes: Shape
    strides: Shape
    padding: tuple[tuple[int, int], ...]
    base_dilation: Shape
    window_dilation: Shape

    @property
    def moving(self) -> Shape:
        """The dimensions of a pooling: those along which the window is not simply each element by itself."""
        return tuple(
            d
            for d in range(len(self.sizes))
            if (self.sizes[d], self.strides[d], self.padding[d], self.base_dilation[d]) != (1, 1, (0, 0), 1)
        )


def window(operation: Operation) -> Window:
    """Return the window of ``stablehlo.reduce_window`` or ``stablehlo.select_and_scatter``."""
    expect_operation(operation, "stablehlo.reduce_window", "stablehlo.select_and_scatter")
    rank = operation.operands[0].type.rank  # type: ignore[union-attr]
    ones = (1,) * rank
    padding = np.reshape(operation.attribute("padding", np.zeros((rank, 2), np.int64)), (rank, 2)).tolist()
    return Window(
        sizes=tuple(operation.attribute("window_dimensions", None) or ones),
        strides=tuple(operation.attribute("window_strides", None) or ones),
        padding=tuple((low, high) for low, high in padding),
        base_dilation=tuple(operation.attribute("base_dilations", None) or ones),
        window_dilation=tuple(operation.attribute("window_dilations", None) or ones),
    )


@dataclass(frozen=True, slots=True)
class Pooling:
    """A pooling of one image: (1, channels, spatial…).

    Transpose the operand by ``permutation``, reshape it to ``shape``, and pool it. Reshape the result to
    ``result_shape`` and transpose it by ``result_permutation``. The dimensions along which the window does not move
    are the channels.

    Attributes:
        permutation: the dimensions of the operand, those along which the window moves last.
        shape: the shape of the image.
        sizes: the size of the window along each spatial dimension.
        strides: its step.
        padding: the elements of the initial value before and after each spatial dimension; negative ones cut off.
        dilation: the distance of neighbouring elements of the window.
        result_shape: the shape of the result, before it is transposed.
        result_permutation: where the dimensions of the result go.
    """

    permutation: Shape
    shape: Shape
    sizes: Shape
    strides: Shape
    padding: tuple[tuple[int, int], ...]
    dilation: Shape
    result_shape: Shape
    result_permutation: Shape

    @property
    def running(self) -> str | None:
        """``"forward"`` or ``"backward"`` for the running sums of JAX's ``cumsum`` and their like: one dimension, and
        each result is made of all elements up to its own, or from its own on. None for other windows.
        """
        if len(self.sizes) != 1 or self.sizes[0] != self.shape[2] or self.strides[0] != 1 or self.dilation[0] != 1:
            return None
        rest = self.sizes[0] - 1
        return {(rest, 0): "forward", (0, rest): "backward"}.get(self.padding[0])


def pooling(operation: Operation) -> Pooling | None:
    """Return ``stablehlo.reduce_window`` or ``stablehlo.select_and_scatter`` as a pooling.

    The result's shape is that of ``reduce_window``, or of the source of ``select_and_scatter``. The result is ``None``
    for a window over spread elements (``base_dilations``), and for one over a scalar.
    """
    form = window(operation)
    operand = sizes(operation.operands[0])
    result = sizes(operation.results[0] if operation.name == "stablehlo.reduce_window" else operation.operands[1])
    if not operand or any(step != 1 for step in form.base_dilation):
        return None
    moving = form.moving or (len(operand) - 1,)
    others = tuple(d for d in range(len(operand)) if d not in moving)
    permutation = (*others, *moving)
    return Pooling(
        permutation=permutation,
        shape=(1, math.prod(operand[d] for d in others), *(operand[d] for d in moving)),
        sizes=tuple(form.sizes[d] for d in moving),
        strides=tuple(form.strides[d] for d in moving),
        padding=tuple(form.padding[d] for d in moving),
        dilation=tuple(form.window_dilation[d] for d in moving),
        result_shape=tuple(result[d] for d in permutation),
        result_permutation=inverse(permutation),
    )


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A broadcast in three steps: transpose by ``permutation``, reshape to ``shape``, expand to ``result_shape``.

    Attributes:
        permutation: the dimensions of the operand in the order in which the result has them.
        shape: as many dimensions as the result; 1 where the operand is expanded.
        result_shape: the shape of the result.
    """

    permutation: Shape
    shape: Shape
    result_shape: Shape


def broadcast(operation: Operation) -> Broadcast:
    """Return ``stablehlo.broadcast_in_dim`` in three steps."""
    expect_operation(operation, "stablehlo.broadcast_in_dim")
    operand, result = sizes(operation.operands[0]), sizes(operation.results[0])
    places = tuple(operation.attribute("broadcast_dimensions"))
    shape = [1] * len(result)
    for dimension, place in enumerate(places):
        shape[place] = operand[dimension]
    permutation = tuple(sorted(range(len(places)), key=lambda dimension: places[dimension]))
    return Broadcast(permutation, tuple(shape), result)


@dataclass(frozen=True, slots=True)
class Pad:
    """A padding in three steps: spread the elements, cut, and pad with the value.

    Attributes:
        interior: the elements of the padding value between neighbouring elements, for each dimension.
        cut: the elements to cut off before and after each dimension, after they were spread.
        padding: the elements of the padding value before and after each dimension, after the cut.
    """

    interior: Shape
    cut: tuple[tuple[int, int], ...]
    padding: tuple[tuple[int, int], ...]


def pad(operation: Operation) -> Pad:
    """Return ``stablehlo.pad`` with its negative amounts as cuts."""
    expect_operation(operation, "stablehlo.pad")
    low, high = operation.attribute("edge_padding_low"), operation.attribute("edge_padding_high")
    edges = [(int(before), int(after)) for before, after in zip(low, high, strict=True)]
    return Pad(
        interior=tuple(map(int, operation.attribute("interior_padding"))),
        cut=tuple((max(-before, 0), max(-after, 0)) for before, after in edges),
        padding=tuple((max(before, 0), max(after, 0)) for before, after in edges),
    )


Array = Any


@dataclass(frozen=True, slots=True)
class IndexedDimensions:
    """Dimensions of an operand that are indexed, each by an array of the *batch shape*.

    The batch shape is that of the indices without the dimension of index vectors.

    Attributes:
        axes: the indexed dimensions of the operand.
        components: for each of them the position in the index vectors, or ``None`` where the index is the number of
            the place along a dimension of the batch shape.
        batch_dimensions: for each of them that dimension of the batch shape; -1 where an index vector has the index.
        index_vector_dim: the dimension of the indices that holds the index vectors; ``None`` if indices are numbers.
        batch_shape: the shape.
        limits: for each axis the largest index.
    """

    axes: Shape
    components: tuple[int | None, ...]
    batch_dimensions: Shape
    index_vector_dim: int | None
    batch_shape: Shape
    limits: Shape

    def arrays(self, indices: Array) -> list[Array]:
        """Return the index of each axis at each place, as numpy arrays that broadcast to the batch shape.

        They are not moved into the operand. This is what a translator writes in its own library.
        """
        indices = np.asarray(indices)
        table = indices[..., None] if self.index_vector_dim is None else np.moveaxis(indices, self.index_vector_dim, -1)
        arrays = []
        for component, dimension in zip(self.components, self.batch_dimensions, strict=True):
            if component is not None:
                arrays.append(table[..., component])
                continue
            shape = [1] * len(self.batch_shape)
            shape[dimension] = self.batch_shape[dimension]
            arrays.append(np.arange(shape[dimension]).reshape(shape))
        return arrays


def indexed_dimensions(
    operand: Shape,
    indices: Shape,
    index_map: Shape,
    operand_batching: Shape,
    indices_batching: Shape,
    index_vector_dim: int,
) -> IndexedDimensions:
    """Return the indexed dimensions of an operand: first the batching ones, then those of the index vectors."""
    vector = None if index_vector_dim == len(indices) else index_vector_dim
    batch_shape = tuple(size for d, size in enumerate(indices) if d != vector)
    places = [d - (vector is not None and d > vector) for d in indices_batching]
    axes = (*operand_batching, *index_map)
    return IndexedDimensions(
        axes=axes,
        components=(*(None for _ in places), *range(len(index_map))),
        batch_dimensions=(*places, *(-1 for _ in index_map)),
        index_vector_dim=vector,
        batch_shape=batch_shape,
        limits=tuple(operand[axis] - 1 for axis in axes),
    )


@dataclass(frozen=True, slots=True)
class NdGather:
    """Elements, or whole slices, of an operand at places given by arrays.

    Cut each dimension of the operand to ``slice_sizes`` where it is not indexed, transpose by ``operand_permutation``,
    so that the indexed dimensions come first, index these with arrays, and transpose the result, whose dimensions are
    those of the batch shape and then the others, by ``result_permutation``. Reshape it to ``result_shape``. Indices
    outside of the operand are moved inside: clamp each to 0 and ``indexed.limits``.

    Attributes:
        indexed: the indexed dimensions, and their indices.
        slice_sizes: the size of a slice along each dimension of the operand.
        operand_permutation: the indexed dimensions of the operand, then the others.
        result_permutation: where the dimensions of the batch shape and of the slices go in the result.
        result_shape: the shape of the result.
    """

    indexed: IndexedDimensions
    slice_sizes: Shape
    operand_permutation: Shape
    result_permutation: Shape
    result_shape: Shape

    @property
    def take_axis(self) -> int | None:
        """The one dimension that is indexed, by numbers or by vectors of one: the axis of ``take``. None otherwise."""
        return self.indexed.axes[0] if self.indexed.components == (0,) else None

    def apply(self, operand: Array, indices: Array) -> Array:
        """Return the result as numpy computes it: an example for translators."""
        indexed = self.indexed
        cut = operand[
            tuple(slice(0, size if d not in indexed.axes else None) for d, size in enumerate(self.slice_sizes))
        ]
        places = tuple(
            np.broadcast_to(np.clip(_signed(array, limit), 0, limit), indexed.batch_shape)
            for array, limit in zip(indexed.arrays(indices), indexed.limits, strict=True)
        )
        elements = cut.transpose(self.operand_permutation)[places]
        return elements.transpose(self.result_permutation).reshape(self.result_shape)


def _signed(array: Array, limit: int) -> Array:
    """Return indices as int64; unsigned ones that do not fit are beyond any limit."""
    return (np.minimum(array, np.uint64(limit)) if array.dtype.kind == "u" else array).astype(np.int64)


def nd_gather(operation: Operation) -> NdGather | None:
    """Return ``stablehlo.gather`` as an index with arrays, or ``None`` if it takes slices that move by parts.

    A slice that is indexed along a dimension, and has more than one element there but not all, has no such form.
    """
    expect_operation(operation, "stablehlo.gather")
    operand, indices = (sizes(value) for value in operation.operands)
    numbers = operation.attribute("dimension_numbers")
    slice_sizes = tuple(map(int, operation.attribute("slice_sizes")))
    batching = tuple(numbers.operand_batching_dims)
    index_map = tuple(numbers.start_index_map)
    if any(slice_sizes[d] != 1 for d in (*index_map, *batching)):
        return None
    indexed = indexed_dimensions(
        operand,
        indices,
        index_map,
        batching,
        tuple(numbers.start_indices_batching_dims),
        int(numbers.index_vector_dim),
    )
    if not indexed.axes:
        return None
    others = tuple(d for d in range(len(operand)) if d not in indexed.axes)
    # Dimensions of one element that stay in the result, although they are indexed.
    dropped = {*numbers.collapsed_slice_dims, *batching}
    offset_dims = tuple(numbers.offset_dims)
    result = sizes(operation.results[0])
    kept = [d for d in range(len(operand)) if d not in dropped]
    places = [offset_dims[kept.index(d)] for d in others if d in kept]
    if len(places) != len(others):
        # A dimension that is collapsed but not indexed: its slice is the first element.
        return None
    batch_places = [d for d in range(len(result)) if d not in offset_dims]
    alone = [offset_dims[kept.index(d)] for d in kept if d in indexed.axes]
    order = [*batch_places, *places]
    squeezed = [d for d in range(len(result)) if d not in alone]
    return NdGather(
        indexed=indexed,
        slice_sizes=slice_sizes,
        operand_permutation=(*indexed.axes, *others),
        result_permutation=inverse(tuple(squeezed.index(d) for d in order)),
        result_shape=result,
    )


@dataclass(frozen=True, slots=True)
class NdScatter:
    """Updates of elements, or of whole slices, of an operand at places given by arrays.

    Transpose the operand by ``operand_permutation``, so that the indexed dimensions come first, and the updates by
    ``update_permutation``, so that the dimensions of the batch shape come first, and reshape these to
    ``update_shape``. Combine the operand at the indexed places with the updates, leave out those with an index below 0
    or above ``indexed.limits``, and transpose back. Several updates of one place are all combined.

    Attributes:
        indexed: the indexed dimensions, and their indices.
        operand_permutation: the indexed dimensions of the operand, then the others.
        update_permutation: the dimensions of the updates: batch shape, then slices.
        update_shape: the batch shape, and the sizes of the operand's other dimensions.
        reducer: the function that combines an element with its update, by its name; ``"second"`` overwrites.
        unique_indices: whether the program promises that no place is updated twice.
    """

    indexed: IndexedDimensions
    operand_permutation: Shape
    update_permutation: Shape
    update_shape: Shape
    reducer: str
    unique_indices: bool


def nd_scatter(operation: Operation) -> NdScatter | None:
    """Return ``stablehlo.scatter`` of one operand as an update at places, or ``None`` if it has no such form.

    It has none if it scatters slices that move by parts, has several operands, or combines by an unknown function.
    """
    expect_operation(operation, "stablehlo.scatter")
    name = reducer(operation)
    if len(operation.operands) != 3 or name is None:
        return None
    operand, indices, updates = (sizes(value) for value in operation.operands)
    numbers = operation.attribute("scatter_dimension_numbers")
    window_dims = tuple(numbers.update_window_dims)
    batching = tuple(numbers.input_batching_dims)
    inserted = {*numbers.inserted_window_dims, *batching}
    indexed = indexed_dimensions(
        operand,
        indices,
        tuple(numbers.scattered_dims_to_operand_dims),
        batching,
        tuple(numbers.scatter_indices_batching_dims),
        int(numbers.index_vector_dim),
    )
    kept = [d for d in range(len(operand)) if d not in inserted]
    window = {d: updates[window_dims[kept.index(d)]] for d in kept}
    others = tuple(d for d in range(len(operand)) if d not in indexed.axes)
    if not indexed.axes or any(d in inserted for d in others):
        return None
    if any(window.get(d, 1) != 1 for d in indexed.axes) or any(window[d] != operand[d] for d in others):
        return None
    batch = tuple(d for d in range(len(updates)) if d not in window_dims)
    of_slices = [window_dims[kept.index(d)] for d in others]
    alone = [window_dims[kept.index(d)] for d in kept if d in indexed.axes]
    return NdScatter(
        indexed=indexed,
        operand_permutation=(*indexed.axes, *others),
        update_permutation=(*batch, *alone, *of_slices),
        update_shape=(*indexed.batch_shape, *(operand[d] for d in others)),
        reducer=name,
        unique_indices=bool(operation.attribute("unique_indices", False)),
    )


@dataclass(frozen=True, slots=True)
class SortKey:
    """One key of a sort.

    Attributes:
        operand: the number of the operand that is the key.
        descending: whether larger values come first.
        total: whether floats are compared in total order: -NaN < -inf < … < -0 < +0 < … < NaN.
    """

    operand: int
    descending: bool
    total: bool


def sort_keys(operation: Operation) -> tuple[SortKey, ...] | None:
    """Return the keys of ``stablehlo.sort``, the most significant first, or ``None`` if it compares otherwise.

    Operands are keys as they are, or as JAX makes them so that -0 equals 0 and all NaN are equal; such a sort orders
    as numpy's does. The other operands are moved along with the keys. The attribute ``is_stable`` says whether equal
    ones keep their order, and ``dimension`` along which dimension the operands are sorted.
    """
    expect_operation(operation, "stablehlo.sort")
    block = operation.regions[0]
    keys = _lexicographic(block.outputs[0], block)
    return None if keys is None else tuple(keys)


def _lexicographic(value: Value, block: Block) -> list[SortKey] | None:
    """Return the keys of ``a < b``, or of ``a < b or (a == b and rest)``, or of a choice that says the same."""
    operation = _owner(value)
    if operation is None:
        return None
    if operation.name == "stablehlo.compare":
        key = _key(operation, block)
        return None if key is None else [key]
    if operation.name == "stablehlo.or":
        return _first_and_rest(operation.operands, block)
    if operation.name == "stablehlo.select":
        equal, rest, first = (_owner(each) for each in operation.operands)
        if equal is None or first is None or rest is None:
            return None
        return _joined(first, equal, operation.operands[1], block)
    return None


def _first_and_rest(operands: tuple[Value, ...], block: Block) -> list[SortKey] | None:
    for first, second in (operands, operands[::-1]):
        less, both = _owner(first), _owner(second)
        if less is None or both is None or less.name != "stablehlo.compare" or both.name != "stablehlo.and":
            continue
        for equal, rest in (both.operands, both.operands[::-1]):
            same = _owner(equal)
            if same is not None and same.name == "stablehlo.compare":
                keys = _joined(less, same, rest, block)
                if keys is not None:
                    return keys
    return None


def _joined(less: Operation, equal: Operation, rest: Value, block: Block) -> list[SortKey] | None:
    """Return the keys of a comparison, an equality of the same values, and a comparator for equal ones."""
    if less.name != "stablehlo.compare" or equal.name != "stablehlo.compare":
        return None
    if equal.attribute("comparison_direction") != "EQ" or set(less.operands) != set(equal.operands):
        return None
    first, others = _key(less, block), _lexicographic(rest, block)
    return None if first is None or others is None else [first, *others]


def _key(comparison: Operation, block: Block) -> SortKey | None:
    """Return the key of a comparison of one operand's two elements."""
    direction = comparison.attribute("comparison_direction")
    if direction not in ("LT", "GT"):
        return None
    left, right = (_argument(each, block) for each in comparison.operands)
    if left is None or right is None or left.number // 2 != right.number // 2 or left.number == right.number:
        return None
    if left.is_canonical != right.is_canonical:
        return None
    swapped = left.number > right.number
    total = comparison.attribute("compare_type", "NOTYPE") == "TOTALORDER" and not left.is_canonical
    return SortKey(left.number // 2, (direction == "GT") != swapped, total)


class _Argument(NamedTuple):
    """An argument of a comparator, perhaps with its zeros and NaN made alike."""

    number: int
    is_canonical: bool


def _argument(value: Value, block: Block) -> _Argument | None:
    """Return the comparator's argument that a value is."""
    changed = value
    zeros = nans = False
    while changed not in block.arguments:
        choice = _owner(changed)
        if choice is None or choice.name != "stablehlo.select":
            return None
        test, constant = _owner(choice.operands[0]), _constant(choice.operands[1])
        if test is None or test.name != "stablehlo.compare" or constant is None:
            return None
        changed = choice.operands[2]
        direction = test.attribute("comparison_direction")
        if direction == "EQ" and constant == 0 and test.operands[0] is changed and _constant(test.operands[1]) == 0:
            zeros = True
        elif direction == "NE" and constant != constant and test.operands[0] is test.operands[1]:
            nans = True
        else:
            return None
    if zeros != nans:
        return None
    return _Argument(block.arguments.index(changed), zeros)


def _constant(value: Value) -> Any:
    """Return the one value of a constant, or ``None``."""
    owner = _owner(value)
    if owner is None or owner.name != "stablehlo.constant":
        return None
    array = owner.attribute("value")
    return np.asarray(array).reshape(-1)[0] if np.size(array) else None


def _owner(value: Value) -> Operation | None:
    return value.owner if isinstance(value.owner, Operation) else None
