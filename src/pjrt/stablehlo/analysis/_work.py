"""The work of one operation, by the conventions of XLA's cost analysis of a program before it is optimized.

Elementwise operations are one FLOP an element, or one transcendental; a multiplication with an addition is two FLOPs.
An operation reads each operand once and writes each result once, except where it reads less: slices, gathers and
scatters. Constants and transpositions move nothing. Operations that run regions of scalars (``reduce``, ``sort``,
``scatter``) are one operation with all their applications.

The FLOPs of LAPACK's routines, which are custom calls, are the leading terms in LAPACK's own working notes, for one
matrix of the stack; for eigenvalues and singular values, whose iterations depend on the values, they are the usual
estimates. A multiplication or an addition of complex numbers counts as one, as elsewhere in XLA's cost analysis.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pjrt.stablehlo.ir.operation import Block, Operation, Value
from pjrt.stablehlo.ir.types import FutureType, TensorType, TupleType, ValueType

_MARKS = (
    "AllocateBuffer CreateBuffer LayoutConstraint MoveToDevice MoveToHost PinToDevice PinToHost SPMDFullToShardShape "
    "SPMDShardToFullShape Sharding annotate_device_placement shape_assertion xla.sdy.FuncResultSharding "
    "xla.sdy.GlobalToLocalShape xla.sdy.LocalToGlobalShape xla.sdy.Mesh"
)
_FREE = frozenset(_MARKS.split())


def is_free(target: str) -> bool:
    """Whether a custom call only marks a value for the compiler."""
    return target in _FREE


def flops_of_custom_call(target: str, operation: Operation) -> int | None:
    """Return the FLOPs of a custom call; None if they are unknown.

    Raises:
        UnimplementedError: a shape in it is known only when the program runs.
    """
    match = _LAPACK.fullmatch(target)
    routine = _NAMES.get(match["name"], match["name"]) if match else _NAMES.get(target, "")
    estimate = _ROUTINES.get(routine)
    types = [value.type for value in operation.operands]
    if estimate is None or not types or not all(isinstance(type_, TensorType) for type_ in types):
        return None
    shapes = [type_.sizes for type_ in types if isinstance(type_, TensorType)]
    stack = math.prod(shapes[0][:-2])
    return stack * round(estimate([shape[-2:] for shape in shapes]))


_LAPACK = re.compile(r"(?:lapack|cusolver|hipsolver|blas)_[sdcz]?(?P<name>[a-z0-9]+?)(?:_ffi)?")
_NAMES = {
    "Cholesky": "potrf",
    "Eigh": "syevd",
    "LuDecomposition": "getrf",
    "ProductOfElementaryHouseholderReflectors": "orgqr",
    "Qr": "geqrf",
    "gesvd": "gesdd",
    "heevd": "syevd",
    "hetrd": "sytrd",
    "ungqr": "orgqr",
    "unmqr": "ormqr",
}

Shapes = Sequence[tuple[int, ...]]


def _square(factor: float) -> Callable[[Shapes], float]:
    return lambda shapes: factor * shapes[0][-1] ** 3


def _lu(shapes: Shapes) -> float:
    m, n = shapes[0]
    k = min(m, n)
    return 2 * m * n * k - (m + n) * k**2 + 2 * k**3 / 3


def _qr(shapes: Shapes) -> float:
    m, n = shapes[0]
    k = min(m, n)
    return 4 * m * n * k - 2 * (m + n) * k**2 + 4 * k**3 / 3


def _apply_reflectors(shapes: Shapes) -> float:
    (m, k), c = shapes[0], shapes[-1]
    return 2 * c[-1] * k * (2 * m - k) if c[-2] == m else 2 * c[-2] * k * (2 * c[-1] - k)


def _svd(shapes: Shapes) -> float:
    m, n = sorted(shapes[0], reverse=True)
    return 4 * m**2 * n + 8 * m * n**2 + 9 * n**3


def _triangular(shapes: Shapes) -> float:
    a, b = shapes[0], shapes[1]
    return math.prod(b) * a[-1]


_ROUTINES: dict[str, Callable[[Shapes], float]] = {
    "gees": _square(25),
    "geev": _square(25),
    "gehrd": _square(10 / 3),
    "geqp3": _qr,
    "geqrf": _qr,
    "gesdd": _svd,
    "getrf": _lu,
    "gtsv": lambda shapes: 8 * math.prod(shapes[-1]),
    "orgqr": _qr,
    "ormqr": _apply_reflectors,
    "potrf": _square(1 / 3),
    "syevd": _square(9),
    "sytrd": _square(4 / 3),
    "trsm": _triangular,
}


class Work(NamedTuple):
    """The work of a part of a program.

    Attributes:
        flops: the arithmetic operations, of any element type, transcendental functions left out.
        transcendentals: the evaluations of transcendental functions.
        bytes_accessed: the bytes that are read and written.
    """

    flops: int = 0
    transcendentals: int = 0
    bytes_accessed: int = 0

    def plus(self, other: Work) -> Work:
        """Return the work of both."""
        return Work(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, count: int) -> Work:
        """Return the work of so many of them."""
        return Work(*(amount * count for amount in self))

    def at_least(self, other: Work) -> Work:
        """Return the larger amount of each kind."""
        return Work(*map(max, self, other))


WorkOfBlock = Callable[[Block], Work]


def work_of(operation: Operation, work_of_block: WorkOfBlock) -> Work | None:
    """Return the work of an operation, or None for a custom call whose arithmetic is unknown.

    Args:
        operation: an operation that runs no other function, and no region but those applied to scalars.
        work_of_block: returns the work of a region.

    Raises:
        UnimplementedError: a shape in it is known only when the program runs.
    """
    dialect, _, name = operation.name.rpartition(".")
    if name == "custom_call":
        target = str(operation.attribute("call_target_name", ""))
        if is_free(target):
            return Work()
        dialect, _, name = target.rpartition(".")
        if dialect != "mhlo":  # the operations of chlo, as exported programs spell them
            flops = flops_of_custom_call(target, operation)
            return None if flops is None else flops_and_bytes(operation, flops)
    if dialect in ("chlo", "mhlo"):
        name = name.removeprefix("broadcast_")
    kind = _KIND_OF.get(name, "")
    if kind in ("transcendental", "special function"):
        return Work(0, _elements(operation.results[0]), moved_bytes(operation))
    if kind == "elementwise":
        return flops_and_bytes(operation, _elements(operation.results[0]))
    if kind == "free" or (kind and operation.operands[0].type == operation.results[0].type):
        return Work()
    special = _SPECIAL.get(name)
    return flops_and_bytes(operation, 0) if special is None else special(operation, work_of_block)


def is_elementwise(operation: Operation) -> bool:
    """Whether each element of the result depends on the elements of the operands at the same place alone."""
    dialect, _, name = operation.name.rpartition(".")
    if name == "custom_call":
        dialect, _, name = str(operation.attribute("call_target_name", "")).rpartition(".")
        return dialect == "mhlo" and _KIND_OF.get(name) == "special function"
    return _KIND_OF.get(name) in ("transcendental", "special function", "elementwise") and name != "all_reduce"


def moved_bytes(operation: Operation) -> int:
    """Return the bytes of an operation's operands and results."""
    return sum(nbytes(value.type) for value in (*operation.operands, *operation.results))


def nbytes(type_: ValueType) -> int:
    """Return the bytes that a value of a type takes, where its shape is static; 0 for what holds no data.

    Raises:
        UnimplementedError: a size is known only when the program runs.
    """
    if isinstance(type_, TensorType):
        return type_.nbytes
    if isinstance(type_, TupleType | FutureType):
        return sum(map(nbytes, type_.elements))
    return 0


def flops_and_bytes(operation: Operation, flops: int) -> Work:
    """Return work of this many FLOPs, with the operands read and the results written."""
    return Work(flops, 0, moved_bytes(operation))


_KINDS = {
    "transcendental": "atan2 cbrt cosine exponential exponential_minus_one log log_plus_one logistic power rsqrt sine "
    "sqrt tan tanh",
    # Compilers expand these by element type. Each is counted as one transcendental, as XLA counts erf.
    "special function": "acos acosh asin asinh atan atanh bessel_i1e cosh digamma erf erf_inv erfc lgamma next_after "
    "polygamma sinh zeta",
    "elementwise": "abs add all_reduce and bitcast_convert ceil clamp compare complex conj convert count_leading_zeros "
    "divide floor imag is_finite is_inf is_neg_inf is_pos_inf maximum minimum multiply negate not or popcnt real "
    "reduce_precision remainder round_nearest_afz round_nearest_even select shift_left shift_right_arithmetic "
    "shift_right_logical sign square subtract uniform_dequantize uniform_quantize xor",
    "free": "after_all constant constant_like create_token get_tuple_element propagation_barrier return "
    "sharding_constraint sharding_group transpose tuple",
    "free if the type stays": "broadcast_in_dim reshape slice",  # XLA has no instruction for them
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}


def _elements(value: Value) -> int:
    return value.type.size if isinstance(value.type, TensorType) else 0


def _sizes(value: Value) -> tuple[int, ...]:
    return value.type.sizes if isinstance(value.type, TensorType) else ()


def _dot(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    sizes = _sizes(operation.operands[0])
    if operation.name.endswith(".dot"):
        contracted = sizes[-1:]
    else:
        numbers = operation.attribute("dot_dimension_numbers", None) or operation.attribute(
            "ragged_dot_dimension_numbers"
        )
        contracted = tuple(sizes[dimension] for dimension in numbers.lhs_contracting_dimensions)
    return flops_and_bytes(operation, 2 * _elements(operation.results[0]) * math.prod(contracted))


def _convolution(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    numbers = operation.attribute("dimension_numbers")
    lhs, rhs = map(_sizes, operation.operands[:2])
    out = _sizes(operation.results[0])
    rank = len(numbers.input_spatial_dimensions)
    strides, base, window = (
        _per_dimension(operation, name, rank) for name in ("window_strides", "lhs_dilation", "rhs_dilation")
    )
    low = _padding(operation, rank)[:, 0]
    positions = 1
    for d in range(rank):
        positions *= _valid_positions(
            lhs[numbers.input_spatial_dimensions[d]],
            rhs[numbers.kernel_spatial_dimensions[d]],
            out[numbers.output_spatial_dimensions[d]],
            strides[d],
            int(low[d]),
            base[d],
            window[d],
        )
    features = lhs[numbers.input_feature_dimension] // int(operation.attribute("feature_group_count", 1))
    batch = lhs[numbers.input_batch_dimension] // int(operation.attribute("batch_group_count", 1))
    return flops_and_bytes(operation, 2 * features * batch * out[numbers.output_feature_dimension] * positions)


def _valid_positions(size: int, kernel: int, out: int, stride: int, low: int, base: int, window: int) -> int:
    """Return how many pairs of a result and an element of the kernel meet an element of the input along a dimension.

    The others meet padding, or the holes of a dilated input.
    """
    count = 0
    holes = base // math.gcd(stride, base)
    for k in range(kernel):
        shift = k * window - low  # result i meets the element (i * stride + shift) / base
        first = max(0, -(shift // stride))
        last = min(out - 1, ((size - 1) * base - shift) // stride)
        if size == 0 or last < first or shift % math.gcd(stride, base):
            continue
        if holes > 1:  # of each `holes` results in a row one meets an element
            wanted = next(i for i in range(holes) if (i * stride + shift) % base == 0)
            first += (wanted - first) % holes
        count += max(0, (last - first) // holes + 1)
    return count


def _per_dimension(operation: Operation, name: str, rank: int) -> Sequence[int]:
    values = operation.attribute(name, None)
    return (1,) * rank if values is None else [int(value) for value in values]


def _padding(operation: Operation, rank: int) -> Any:
    table = operation.attribute("padding", None)
    return np.zeros((rank, 2), np.int64) if table is None else np.reshape(table, (rank, 2))


def _reduce(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    count = _elements(operation.operands[0]) - _elements(operation.results[0])
    return _applied(operation, work_of_block, count)


def _applied(operation: Operation, work_of_block: WorkOfBlock, count: int) -> Work:
    """Return the work of an operation that applies its first region so many times."""
    flops, transcendentals, _ = work_of_block(operation.regions[0]).times(count)
    return Work(flops, transcendentals, moved_bytes(operation))


def _reduce_window(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    window = [int(size) for size in operation.attribute("window_dimensions")]
    padding, out = _padding(operation, len(window)), _sizes(operation.results[0])
    size, elements = math.prod(window), math.prod(out)
    count = (size - 1) * elements
    reduced = [d for d, extent in enumerate(window) if extent != 1]
    if len(reduced) == 1 and len(operation.results) == 1 and np.any(padding, axis=1).sum() == 1:
        (d,) = reduced
        low, high = map(int, padding[d])
        if 0 < low == high == out[d] - 1 and window[d] == 2 * low + 1:  # each window covers the whole dimension
            count = elements // out[d] + out[d] - 1
    return _applied(operation, work_of_block, count)


def _select_and_scatter(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    source = _elements(operation.operands[1])
    size = math.prod(_per_dimension(operation, "window_dimensions", len(_sizes(operation.operands[0]))))
    selects, scatters = map(work_of_block, operation.regions)
    flops, transcendentals, _ = selects.times(source * (size - 1)).plus(scatters.times(source))
    return Work(flops, transcendentals, moved_bytes(operation))


def _scatter(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    count = len(operation.operands) // 2
    indices, updates = operation.operands[count], operation.operands[count + 1 :]
    flops, transcendentals, _ = work_of_block(operation.regions[0]).times(_elements(updates[0]))
    return Work(flops, transcendentals, 3 * sum(nbytes(value.type) for value in updates) + nbytes(indices.type))


def _gather(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    return Work(0, 0, 2 * nbytes(operation.results[0].type) + nbytes(operation.operands[1].type))


def _slice(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    return Work(0, 0, 2 * nbytes(operation.results[0].type))


def _dynamic_slice(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    return Work(0, 0, 2 * nbytes(operation.results[0].type) + _first_index_bytes(operation, 1))


def _dynamic_update_slice(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    return Work(0, 0, 2 * nbytes(operation.operands[1].type) + _first_index_bytes(operation, 2))


def _first_index_bytes(operation: Operation, index: int) -> int:
    return nbytes(operation.operands[index].type) if index < len(operation.operands) else 0


def _map(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    return _applied(operation, work_of_block, _elements(operation.results[0]))


def _sort(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    elements = _elements(operation.operands[0])
    return flops_and_bytes(operation, elements * max(0, elements - 1).bit_length())


def _fft(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    factors = math.prod(max(0, int(size).bit_length() - 1) for size in operation.attribute("fft_length"))
    return flops_and_bytes(operation, 8 * factors * _elements(operation.operands[0]))


def _cholesky(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    matrix = operation.operands[0]
    sizes = _sizes(matrix)
    return Work(sizes[-1] * math.prod(sizes) // 3, 0, nbytes(matrix.type))


def _triangular_solve(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    a, b = operation.operands
    moved = moved_bytes(operation) - nbytes(a.type) + nbytes(a.type) // 2  # half of the matrix is read
    return Work(2 * _sizes(a)[-1] * _elements(b), 0, moved)


def _random(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    (result,), bounds = operation.results, operation.operands[:2]  # the third operand is the shape, a constant in XLA
    return Work(0, _elements(result), sum(nbytes(value.type) for value in (*bounds, result)))


def _random_bits(operation: Operation, work_of_block: WorkOfBlock) -> Work:
    return Work(0, sum(map(_elements, operation.results)), moved_bytes(operation))


_SPECIAL: dict[str, Callable[[Operation, WorkOfBlock], Work]] = {
    **dict.fromkeys(("dot", "dot_general", "ragged_dot"), _dot),
    **dict.fromkeys(("gather", "dynamic_gather"), _gather),
    "cholesky": _cholesky,
    "convolution": _convolution,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "fft": _fft,
    "map": _map,
    "reduce": _reduce,
    "reduce_window": _reduce_window,
    "rng": _random,
    "rng_bit_generator": _random_bits,
    "scatter": _scatter,
    "select_and_scatter": _select_and_scatter,
    "slice": _slice,
    "sort": _sort,
    "triangular_solve": _triangular_solve,
}
