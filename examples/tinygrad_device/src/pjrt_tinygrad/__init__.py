"""The device tinygrad: StableHLO on AMD, NVIDIA, Metal and WebGPU, and what else tinygrad drives without a toolkit.

tinygrad compiles runs of operations, each run as one program of fused kernels. The reference interpreter of pjrt runs
what tinygrad has no form for, such as sorts and loops. Arrays stay in tinygrad's buffers between programs.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from functools import reduce as fold
from importlib.metadata import version
from typing import Any

import numpy as np
from tinygrad import Device, Tensor, dtypes
from tinygrad.device import ALL_DEVICES, Buffer
from tinygrad.dtype import DType
from tinygrad.engine.jit import jit_lower
from tinygrad.engine.realize import run_linear
from tinygrad.helpers import DEV
from tinygrad.uop.ops import Ops, UOp

import pjrt
from pjrt.host import Compiled, Memory, RunContext
from pjrt.stablehlo import Operation, ParsedProgram, lowering

_log = logging.getLogger("pjrt")

DEVICES = (*ALL_DEVICES, "PYTHON")
"""tinygrad's names of its devices. ``PYTHON`` computes in Python: it is slow, and needs no hardware and no compiler."""

TYPES = {
    pjrt.ElementType.PRED: dtypes.bool,
    pjrt.ElementType.S8: dtypes.int8,
    pjrt.ElementType.S16: dtypes.int16,
    pjrt.ElementType.S32: dtypes.int32,
    pjrt.ElementType.S64: dtypes.int64,
    pjrt.ElementType.U8: dtypes.uint8,
    pjrt.ElementType.U16: dtypes.uint16,
    pjrt.ElementType.U32: dtypes.uint32,
    pjrt.ElementType.U64: dtypes.uint64,
    pjrt.ElementType.F16: dtypes.float16,
    pjrt.ElementType.BF16: dtypes.bfloat16,
    pjrt.ElementType.F32: dtypes.float32,
    pjrt.ElementType.F64: dtypes.float64,
}
"""The types that tinygrad computes with; a device may lack some. Arrays of other types are bytes to it."""


# One thread.


class TinygradThread:
    """The one thread that uses tinygrad, which is not made for several: its graphs, caches and drivers have no locks.

    It is a daemon, so that a kernel that hangs does not keep the process from ending.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="tinygrad", daemon=True).start()

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a function that runs on the thread."""
        future: Future[Any] = Future()
        self._calls.put((future, function, arguments))
        return future.result()

    def _work(self) -> None:
        while True:
            future, function, arguments = self._calls.get()
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)
            del future, function, arguments  # or the arrays of the last call would live until the next one


_thread: TinygradThread | None = None


def on_tinygrad_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function that uses tinygrad."""
    global _thread
    if _thread is None:
        _thread = TinygradThread()
    return _thread(function, *arguments)


def _forget_thread() -> None:
    global _thread
    _thread = None


os.register_at_fork(after_in_child=_forget_thread)


# Memory.


class Array:
    """A handle: an array in a buffer of tinygrad."""

    __slots__ = ("buffer", "spec", "uop")

    def __init__(self, spec: pjrt.ShapeSpec, device: str) -> None:
        dtype = TYPES.get(spec.element_type, dtypes.uint8)
        size = spec.size * spec.element_type.dtype.itemsize // dtype.itemsize
        self.spec = spec
        self.buffer = Buffer(device, max(size, 1), dtype, preallocate=True)
        self.uop = UOp.from_buffer(self.buffer)


class TinygradMemory(Memory):
    """The memory of tinygrad's devices.

    Args:
        devices: tinygrad's names of the devices, by the index of the client's device.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = devices
        # Where the processor sees the memory, as on the backends CPU and PYTHON, nothing need be copied to the host.
        self._is_visible = hasattr(Device[devices[0]].allocator, "_as_buffer")

    def allocate(self, spec: pjrt.ShapeSpec, space: pjrt.MemorySpace) -> Array:
        device = self._devices[space.devices[0].local_hardware_id]
        return on_tinygrad_thread(Array, spec, device)

    def copy_in(self, handle: Array, array: Any) -> None:
        if array.size:
            on_tinygrad_thread(handle.buffer.copy_from, _host_buffer(handle, array))

    def copy_out(self, handle: Array, array: Any) -> None:
        if array.size:
            on_tinygrad_thread(_host_buffer(handle, array).copy_from, handle.buffer)

    def copy(self, source: Array, target: Array, spec: pjrt.ShapeSpec) -> None:
        on_tinygrad_thread(target.buffer.copy_from, source.buffer)

    def host_view(self, handle: Array) -> Any:
        if not self._is_visible or not handle.spec.size:
            return None
        return np.frombuffer(on_tinygrad_thread(handle.buffer.as_memoryview, True), np.uint8)

    def spec_of(self, handle: Array) -> pjrt.ShapeSpec:
        return handle.spec


def _host_buffer(handle: Array, array: Any) -> Buffer:
    """Return a numpy array as a buffer of the host, without a copy."""
    data = memoryview(array.reshape(-1).view(np.uint8))
    return Buffer("PYTHON", handle.buffer.size, handle.buffer.dtype, opaque=data)


# Operations: each function makes tinygrad's graph of one.


def dtype_of(operation: Operation) -> DType:
    """Return the type of an operation's first result."""
    return TYPES[operation.results[0].type.element]


def wide(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function that computes narrow floats as f32: tinygrad rounds after each operation of its graph."""

    def widened(operation: Operation, *tensors: Tensor) -> Tensor:
        return function(*(t.cast(summing_type(t.dtype)) for t in tensors))

    return widened


def plain(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a function of an operation that needs no attributes."""
    return lambda operation, *tensors: function(*tensors)


def is_nan(x: Tensor) -> Tensor:
    return x != x


def with_sign_of(magnitude: Tensor, x: Tensor) -> Tensor:
    """Return a magnitude with the sign of another number, that of a zero too."""
    bits = UNSIGNED[x.dtype.itemsize]
    sign = x.bitcast(bits) & (1 << (8 * x.dtype.itemsize - 1))
    return (magnitude.bitcast(bits) | sign).bitcast(x.dtype)


def magnitude(x: Tensor) -> Tensor:
    """Return the absolute value of a float, also of -0.0."""
    bits = UNSIGNED[x.dtype.itemsize]
    return (x.bitcast(bits) & ((1 << (8 * x.dtype.itemsize - 1)) - 1)).bitcast(x.dtype)


def add(x: Tensor, y: Tensor) -> Tensor:
    return x | y if x.dtype is dtypes.bool else x + y


def multiply(x: Tensor, y: Tensor) -> Tensor:
    return x & y if x.dtype is dtypes.bool else x * y


def maximum(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype is dtypes.bool:
        return x | y
    return ((y < x) | is_nan(x)).where(x, y) if dtypes.is_float(x.dtype) else x.maximum(y)


def minimum(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype is dtypes.bool:
        return x & y
    return ((x < y) | is_nan(x)).where(x, y) if dtypes.is_float(x.dtype) else x.minimum(y)


def divide(x: Tensor, y: Tensor) -> Tensor:
    if not dtypes.is_float(x.dtype):
        return x.div(y, rounding_mode="trunc")
    # Some backends multiply by the reciprocal, which is infinite for a denormal number.
    tiny, factor = (2.0**-1000, 2.0**64) if x.dtype is dtypes.float64 else (2.0**-120, 2.0**32)
    scale = (magnitude(y) < tiny).where(y.const_like(factor), y.const_like(1))
    return x * scale / (y * scale)


def absolute(x: Tensor) -> Tensor:
    return magnitude(x) if dtypes.is_float(x.dtype) else (x < 0).where(0 - x, x)


def sign(x: Tensor) -> Tensor:
    one = (x < 0).where(x.const_like(-1), x.const_like(1))
    return ((x == x) & (x != 0)).where(one, x) if dtypes.is_float(x.dtype) else (x != 0).where(one, x)


def exponential(x: Tensor) -> Tensor:
    return (x * math.log2(math.e)).exp2()


def logarithm(x: Tensor) -> Tensor:
    return x.log2() * math.log(2)


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Return the value of a polynomial; the coefficients begin with that of the highest power."""
    return fold(lambda value, c: value * x + c, coefficients[1:], x.const_like(coefficients[0]))


def exponential_minus_one(x: Tensor) -> Tensor:
    """Return exp(x) - 1: near 0 by Taylor's series, because the difference would lose digits."""
    terms = 18 if x.dtype is dtypes.float64 else 10
    near = x * polynomial(x, [1 / math.factorial(n) for n in range(terms, 0, -1)])
    return ((x < 0.5) & (x > -0.5)).where(near, exponential(x) - 1)


def log_plus_one(x: Tensor) -> Tensor:
    """Return log(1 + x): near 0 by the series of atanh, because the sum would lose digits."""
    terms = 10 if x.dtype is dtypes.float64 else 5
    s = x / (x + 2)
    near = 2 * s * polynomial(s * s, [1 / (2 * n + 1) for n in range(terms, -1, -1)])
    return ((x < 0.25) & (x > -0.25)).where(near, logarithm(x + 1))


def hyperbolic_tangent(x: Tensor) -> Tensor:
    t = exponential_minus_one(-2 * magnitude(x))
    return with_sign_of(-t / (t + 2), x)


def cosine(x: Tensor) -> Tensor:
    return (math.pi / 2 - x).sin()


def floor(x: Tensor) -> Tensor:
    return with_sign_of_zero(x.floor(), x)


def ceil(x: Tensor) -> Tensor:
    return with_sign_of_zero(x.ceil(), x)


def with_sign_of_zero(result: Tensor, x: Tensor) -> Tensor:
    """Return a rounded number with the sign of the original one where it is zero."""
    return (result == 0).where(with_sign_of(magnitude(result), x), result)


def round_half_even(x: Tensor) -> Tensor:
    size = magnitude(x)
    low = size.floor()
    up = (size - low > 0.5) | ((size - low == 0.5) & ((low * 0.5).floor() * 2 != low))
    return with_sign_of(up.where(low + 1, low), x)


def round_half_away(x: Tensor) -> Tensor:
    size = magnitude(x)
    low = size.floor()
    return with_sign_of((size - low >= 0.5).where(low + 1, low), x)


SIGNED = {1: dtypes.int8, 2: dtypes.int16, 4: dtypes.int32, 8: dtypes.int64}
UNSIGNED = {1: dtypes.uint8, 2: dtypes.uint16, 4: dtypes.uint32, 8: dtypes.uint64}
"""Types of integers by the number of bytes."""


def shift_right(types: dict[int, DType], x: Tensor, y: Tensor) -> Tensor:
    """Return integers that are shifted as those of the types: signed ones get bits of their sign."""
    dtype = types[x.dtype.itemsize]
    return (x.bitcast(dtype) >> y.bitcast(dtype)).bitcast(x.dtype)


COMPARISONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "EQ": lambda x, y: x.eq(y),
    "NE": lambda x, y: x != y,
    "LT": lambda x, y: x < y,
    "GT": lambda x, y: x > y,
    # Not x <= y, which is the opposite of x > y, and so true for NaN.
    "LE": lambda x, y: (x < y) | x.eq(y),
    "GE": lambda x, y: (x > y) | x.eq(y),
}


def compare(operation: Operation, x: Tensor, y: Tensor) -> Tensor:
    return COMPARISONS[operation.attribute("comparison_direction")](x, y)


def convert(operation: Operation, x: Tensor) -> Tensor:
    return x != 0 if dtype_of(operation) is dtypes.bool else x.cast(dtype_of(operation))


def broadcast(operation: Operation, x: Tensor) -> Tensor:
    steps = lowering.broadcast(operation)
    return x.permute(steps.permutation).reshape(steps.shape).expand(steps.result_shape)


def constant(operation: Operation) -> Any:
    return np.broadcast_to(operation.attribute("value"), operation.results[0].type.shape)


def bitcast(operation: Operation, x: Tensor) -> Tensor:
    return x.bitcast(dtype_of(operation))


def power(operation: Operation, base: Tensor, exponent: Tensor) -> Tensor:
    """Return a power, computed as f64: a product with a logarithm has fewer right digits than f32 has."""
    x, y = base.cast(dtypes.float64), exponent.cast(dtypes.float64)
    half = y * 0.5
    is_whole = y.floor().eq(y)
    is_odd = is_whole & half.floor().ne(half)
    size = (y * magnitude(x).log2()).exp2()
    size = (y.eq(0) | x.eq(1) | (x.eq(-1) & (y == y))).where(1, size)
    signed = is_odd.where(with_sign_of(size, x), size)
    # The NaN of 0 / 0 of data: tinygrad takes NaN != NaN of constants for false.
    return ((x < 0) & (x > -math.inf) & ~is_whole & (y == y)).where((x - x) / (x - x), signed)


def iota(operation: Operation) -> Tensor:
    shape, dimension = operation.results[0].type.shape, operation.attribute("iota_dimension")
    row = Tensor.arange(shape[dimension], dtype=dtypes.int32)
    return row.reshape([-1 if d == dimension else 1 for d in range(len(shape))]).expand(shape)


def slices(operation: Operation, x: Tensor) -> Tensor:
    names = ("start_indices", "limit_indices", "strides")
    return x[tuple(map(slice, *(map(int, operation.attribute(name)) for name in names)))]


def spread(x: Tensor, gaps: Sequence[int], value: Tensor | float) -> Tensor:
    """Return a tensor with gaps between neighbouring elements, filled with a value."""
    for dimension, gap in enumerate(gaps):
        if gap and x.shape[dimension] > 1:
            size = x.shape[dimension]
            column = x.reshape(*x.shape[: dimension + 1], 1, *x.shape[dimension + 1 :])
            filled = padded(column, [(0, gap if d == dimension + 1 else 0) for d in range(column.ndim)], value)
            flat = filled.reshape(*x.shape[:dimension], size * (gap + 1), *x.shape[dimension + 1 :])
            x = flat.shrink(tuple((0, s - gap if d == dimension else s) for d, s in enumerate(flat.shape)))
    return x


def padded(x: Tensor, padding: Sequence[tuple[int, int]], value: Tensor | float) -> Tensor:
    """Return a tensor with a value before and after each dimension; negative amounts cut off."""
    if not isinstance(value, Tensor):
        return x.pad(tuple(padding), value=value)
    inside = x.const_like(True, dtypes.bool).pad(tuple(padding))
    return inside.where(x.pad(tuple(padding)), value)


def pad(operation: Operation, x: Tensor, value: Tensor) -> Tensor:
    steps = lowering.pad(operation)
    amounts = [
        (after - before, after_high - before_high)
        for (before, before_high), (after, after_high) in zip(steps.cut, steps.padding, strict=True)
    ]
    return padded(spread(x, steps.interior, value), amounts, value)


def computed(x: Tensor) -> Tensor:
    """Return an operand of a product as values: fused into it, its operations would run once for each product."""
    return x if x.uop.base.op in (Ops.BUFFER, Ops.CONST) else x.contiguous()


def dot_general(operation: Operation, x: Tensor, y: Tensor) -> Tensor:
    x, y = computed(x), computed(y)
    product, dtype = lowering.matrix_product(operation), dtype_of(operation)
    if not dtypes.is_float(dtype):
        x, y = x.cast(dtype), y.cast(dtype)
    left = x.permute(product.lhs_permutation).reshape(product.lhs_shape)
    right = y.permute(product.rhs_permutation).reshape(product.rhs_shape)
    return left.matmul(right, dtype=summing_type(dtype)).reshape(product.result_shape)


def summing_type(dtype: DType) -> DType:
    """Return the type to sum in: f32 for narrower floats."""
    return dtypes.float32 if dtypes.is_float(dtype) and dtype.itemsize < 4 else dtype


def convolution(operation: Operation, x: Tensor, kernel: Tensor) -> Tensor:
    form, dtype = lowering.convolution(operation), dtype_of(operation)
    x, kernel = x.permute(form.input_permutation), kernel.permute(form.kernel_permutation)
    if not dtypes.is_float(dtype):
        x, kernel = x.cast(dtype), kernel.cast(dtype)
    kernel = kernel.flip(tuple(d + 2 for d in form.flipped)) if form.flipped else kernel
    x = spread(x, [0, 0, *(d - 1 for d in form.input_dilation)], 0)
    x = padded(x, [(0, 0), (0, 0), *form.padding], 0)
    groups = form.feature_groups
    if form.batch_groups > 1:  # the groups of the batch become groups of features
        groups, (batch, features, *space) = form.batch_groups, x.shape
        x = x.reshape(groups, batch // groups, features, *space).transpose(0, 1)
        x = x.reshape(batch // groups, groups * features, *space)
    if x.ndim == 2:  # no spatial dimensions: tinygrad expects one
        x, kernel = x.unsqueeze(-1), kernel.unsqueeze(-1)
    result = x.conv2d(
        kernel, groups=groups, stride=form.strides or 1, dilation=form.kernel_dilation or 1, dtype=summing_type(dtype)
    )
    return result.reshape(result.shape[: len(form.strides) + 2]).permute(form.result_permutation)


REDUCERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": add,
    "multiply": multiply,
    "maximum": maximum,
    "minimum": minimum,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
}


def reduced(name: str, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Return the reduction of a tensor by a function, in the type of the tensor."""
    if not axes:
        return x
    dtype = x.dtype
    if dtype is dtypes.bool:
        return x.any(axes) if name in ("add", "or", "maximum") else x.all(axes)
    if name == "add":
        return x.sum(axes, dtype=summing_type(dtype)).cast(dtype)
    if name == "multiply":
        return x.prod(axes, dtype=summing_type(dtype)).cast(dtype)
    if name == "minimum":
        return reduced("maximum", x._inverse(), axes)._inverse()
    if not dtypes.is_float(dtype):
        return x.max(axes)
    # tinygrad's maximum of a NaN and a number is the one or the other. The sum is 0, or the NaN of the data; a constant
    # would not do, because tinygrad takes NaN != NaN of constants for false.
    nan = is_nan(x).where(x, 0).sum(axes)
    return nan.eq(0).where(x.max(axes), nan)


def reduce(operation: Operation, *tensors: Tensor) -> Any:
    name, axes = lowering.reducer(operation), tuple(map(int, operation.attribute("dimensions")))
    if len(tensors) == 4:
        return best(name == "argmax", *tensors, axes)
    x, start = tensors
    return REDUCERS[name](reduced(name, x, axes), start)


def best(largest: bool, x: Tensor, places: Tensor, start: Tensor, first: Tensor, axes: tuple[int, ...]) -> Any:
    """Return the largest or smallest element and the lowest place of it; NaN counts as the best."""
    name = "maximum" if largest else "minimum"
    value = REDUCERS[name](reduced(name, x, axes), start)
    kept = value.reshape([1 if d in axes else size for d, size in enumerate(x.shape)]).expand(x.shape)
    none = places.dtype.max
    found = (x.eq(kept) | (is_nan(x) & is_nan(kept))).where(places, none)
    place = reduced("minimum", found, axes)
    place = minimum(place, (start.eq(value) | (is_nan(start) & is_nan(value))).where(first, none))
    return value, place


def area(x: Tensor, offset: Sequence[int], shape: Sequence[int], strides: Sequence[int]) -> Tensor:
    """Return the elements of a tensor that are at one offset of each window."""
    return x[tuple(slice(o, o + (n - 1) * step + 1, step) for o, n, step in zip(offset, shape, strides, strict=True))]


def reduce_window(operation: Operation, x: Tensor, start: Tensor) -> Tensor:
    function, window = REDUCERS[lowering.reducer(operation)], lowering.window(operation)
    shape = operation.results[0].type.shape
    x = padded(spread(x, [d - 1 for d in window.base_dilation], start), window.padding, start)
    x = x.cast(summing_type(x.dtype))
    parts = [
        area(x, [o * d for o, d in zip(offset, window.window_dilation, strict=True)], shape, window.strides)
        for offset in np.ndindex(*window.sizes)
    ]
    return fold(function, parts, start.cast(x.dtype).expand(shape))


def select_and_scatter(operation: Operation, x: Tensor, source: Tensor, start: Tensor) -> Tensor:
    """Return the sum of the source's elements at the places that their windows select: the gradient of a pooling."""
    window, shape = lowering.window(operation), source.shape
    keeps = COMPARISONS["GE" if lowering.selector(operation) == "maximum" else "LE"]
    inside = padded(x.const_like(True, dtypes.bool), window.padding, 0)
    full = padded(x, window.padding, 0)
    chosen = Tensor.full(shape, -1, dtype=dtypes.int32, buffer=False)
    best = area(full, [0] * x.ndim, shape, window.strides)
    for number, offset in enumerate(np.ndindex(*window.sizes)):
        value = area(full, offset, shape, window.strides)
        taken = area(inside, offset, shape, window.strides) & ((chosen < 0) | ~keeps(best, value))
        best, chosen = taken.where(value, best), taken.where(number, chosen)
    chosen = chosen.contiguous()  # or each offset would find it again
    total = Tensor.full(full.shape, 0, dtype=summing_type(x.dtype), buffer=False)
    for number, offset in enumerate(np.ndindex(*window.sizes)):
        part = spread(chosen.eq(number).where(source, 0).cast(total.dtype), [step - 1 for step in window.strides], 0)
        after = [size - o - n for size, o, n in zip(full.shape, offset, part.shape, strict=True)]
        total = total + padded(part, list(zip(offset, after, strict=True)), 0)
    return add(padded(total, [(-low, -high) for low, high in window.padding], 0), start)


def clamped(index: Tensor, limit: int) -> Tensor:
    """Return an index between 0 and a limit, as i32: tinygrad's own type of indices."""
    if dtypes.is_unsigned(index.dtype):
        return (index < limit).where(index, limit).cast(dtypes.int32)
    return (index < 0).where(0, (index < limit).where(index, limit)).cast(dtypes.int32)


def starts(indices: Sequence[Tensor], shape: Sequence[int], sizes: Sequence[int]) -> list[Tensor]:
    return [clamped(i, full - size) for i, full, size in zip(indices, shape, sizes, strict=True)]


def dynamic_slice(operation: Operation, x: Tensor, *indices: Tensor) -> Tensor:
    sizes = list(map(int, operation.attribute("slice_sizes")))
    for dimension, (start, size) in enumerate(zip(starts(indices, x.shape, sizes), sizes, strict=True)):
        if size != x.shape[dimension]:
            x = taken(x, dimension, start + Tensor.arange(size, dtype=dtypes.int32))
    return x


def taken(x: Tensor, dimension: int, places: Tensor) -> Tensor:
    return x[(*[slice(None)] * dimension, places)]


def dynamic_update_slice(operation: Operation, x: Tensor, update: Tensor, *indices: Tensor) -> Tensor:
    inside: Tensor | None = None
    for dimension, start in enumerate(starts(indices, x.shape, update.shape)):
        size, full = update.shape[dimension], x.shape[dimension]
        if size != full:
            place = Tensor.arange(full, dtype=dtypes.int32) - start
            update = taken(update, dimension, clamped(place, size - 1))
            here = ((place >= 0) & (place < size)).reshape([full if d == dimension else 1 for d in range(x.ndim)])
            inside = here if inside is None else inside & here
    return update if inside is None else inside.where(update, x)


def index_arrays(indexed: Any, indices: Tensor) -> list[Tensor]:
    """Return the index of each indexed dimension at each place of the batch shape."""
    vector = indexed.index_vector_dim
    arrays = []
    for component, dimension in zip(indexed.components, indexed.batch_dimensions, strict=True):
        if component is None:
            size = indexed.batch_shape[dimension]
            row = Tensor.arange(size, dtype=dtypes.int32)
            array = row.reshape([size if d == dimension else 1 for d in range(len(indexed.batch_shape))])
        elif vector is None:
            array = indices
        else:
            array = indices.shrink(
                tuple((component, component + 1) if d == vector else (0, s) for d, s in enumerate(indices.shape))
            )
        arrays.append(
            array.reshape(indexed.batch_shape) if component is not None else array.expand(indexed.batch_shape)
        )
    return arrays


def gather(operation: Operation, x: Tensor, indices: Tensor) -> Tensor:
    form = lowering.nd_gather(operation)
    indexed = form.indexed
    cut = [(0, x.shape[d] if d in indexed.axes else size) for d, size in enumerate(form.slice_sizes)]
    places = [clamped(a, limit) for a, limit in zip(index_arrays(indexed, indices), indexed.limits, strict=True)]
    elements = x.shrink(tuple(cut)).permute(form.operand_permutation)[tuple(places)]
    return elements.permute(form.result_permutation).reshape(form.result_shape)


def scatter(operation: Operation, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Return the result of a scatter: each element looks for its updates."""
    form = lowering.nd_scatter(operation)
    indexed, rank = form.indexed, len(form.indexed.axes)
    moved = x.permute(form.operand_permutation)
    count, rows = math.prod(indexed.batch_shape), math.prod(moved.shape[:rank])
    place, inside = Tensor.full(indexed.batch_shape, 0, dtype=dtypes.int32, buffer=False), None
    for array, limit in zip(index_arrays(indexed, indices), indexed.limits, strict=True):
        place = place * (limit + 1) + clamped(array, limit)
        fits = (array >= 0) & (array <= limit) if not dtypes.is_unsigned(array.dtype) else array <= limit
        inside = fits if inside is None else inside & fits
    place = inside.where(place, rows).reshape(1, count)
    values = updates.permute(form.update_permutation).reshape(1, count, -1)
    flat = moved.reshape(rows, -1)
    hits = Tensor.arange(rows, dtype=dtypes.int32).reshape(rows, 1).eq(place)
    if form.reducer == "second":  # the last update counts
        number = hits.where(Tensor.arange(1, count + 1, dtype=dtypes.int32), 0).max(1)
        chosen = values.reshape(count, -1)[clamped(number - 1, count - 1)]
        result = (number > 0).reshape(rows, 1).where(chosen, flat)
    else:
        neutral = lowering.identity_of(form.reducer, operation.results[0].type.element).item()
        matches = hits.reshape(rows, count, 1).where(values, values.const_like(neutral))
        result = REDUCERS[form.reducer](flat, reduced(form.reducer, matches, (1,)))
    inverse = np.argsort(form.operand_permutation).tolist()
    return result.reshape(moved.shape).permute(inverse)


OPERATIONS: dict[str, Callable[..., Any]] = {
    f"stablehlo.{name}": function
    for name, function in {
        "abs": wide(absolute),
        "add": plain(add),
        "and": plain(lambda x, y: x & y),
        "bitcast_convert": bitcast,
        "broadcast_in_dim": broadcast,
        "ceil": wide(ceil),
        "clamp": plain(lambda low, x, high: minimum(maximum(x, low), high)),
        "compare": compare,
        "concatenate": lambda op, x, *others: x.cat(*others, dim=int(op.attribute("dimension"))),
        "constant": constant,
        "convert": convert,
        "convolution": convolution,
        "cosine": wide(cosine),
        "divide": wide(divide),
        "dot": dot_general,
        "dot_general": dot_general,
        "dynamic_slice": dynamic_slice,
        "dynamic_update_slice": dynamic_update_slice,
        "exponential": wide(exponential),
        "exponential_minus_one": wide(exponential_minus_one),
        "floor": wide(floor),
        "gather": gather,
        "iota": iota,
        "is_finite": plain(lambda x: (x < math.inf) & (x > -math.inf)),
        "log": wide(logarithm),
        "log_plus_one": wide(log_plus_one),
        "logistic": wide(lambda x: (exponential(-x) + 1).reciprocal()),
        "maximum": plain(maximum),
        "minimum": plain(minimum),
        "multiply": plain(multiply),
        "negate": plain(lambda x: -x),
        "not": plain(lambda x: x.bitwise_not()),
        "or": plain(lambda x, y: x | y),
        "pad": pad,
        "power": power,
        "reduce": reduce,
        "reduce_window": reduce_window,
        "remainder": plain(lambda x, y: x.fmod(y)),
        "reshape": lambda op, x: x.reshape(op.results[0].type.shape),
        "reverse": lambda op, x: x.flip(tuple(map(int, op.attribute("dimensions")))),
        "round_nearest_afz": wide(round_half_away),
        "round_nearest_even": wide(round_half_even),
        "rsqrt": wide(lambda x: x.sqrt().reciprocal()),
        "scatter": scatter,
        "select_and_scatter": select_and_scatter,
        "select": plain(lambda which, x, y: which.where(x, y)),
        "shift_left": plain(lambda x, y: x << y),
        "shift_right_arithmetic": plain(partial(shift_right, SIGNED)),
        "shift_right_logical": plain(partial(shift_right, UNSIGNED)),
        "sign": wide(sign),
        "sine": wide(lambda x: x.sin()),
        "slice": slices,
        "sqrt": wide(lambda x: x.sqrt()),
        "subtract": plain(lambda x, y: x - y),
        "tanh": wide(hyperbolic_tangent),
        "transpose": lambda op, x: x.permute(op.attribute("permutation")),
        "xor": plain(lambda x, y: x ^ y),
    }.items()
} | {"chlo.square": plain(lambda x: x * x)}
"""The operations, each with the function that makes its graph of those of its operands."""


# Which operations tinygrad takes.


def reduces(operation: Operation) -> bool:
    """Whether tinygrad has a reduction: its reductions of integers are sums, products and maxima."""
    name, element = lowering.reducer(operation), operation.results[0].type.element
    if len(operation.operands) == 4:
        return name in ("argmax", "argmin")
    return name in REDUCERS and (name not in ("and", "or") or element is pjrt.ElementType.PRED)


LARGEST_WINDOW = 64
"""Elements of a window of reduce_window: each is an operand of the fused kernel."""


def pools(operation: Operation) -> bool:
    """Whether tinygrad has the function of a window, and the window is small."""
    return (
        lowering.reducer(operation) in REDUCERS
        and len(operation.results) == 1
        and math.prod(lowering.window(operation).sizes) <= LARGEST_WINDOW
    )


def scatters(operation: Operation) -> bool:
    form = lowering.nd_scatter(operation)
    return form is not None and (form.reducer == "second" or reduces(operation))


def selects(operation: Operation) -> bool:
    return (
        pools(operation)
        and lowering.selector(operation) is not None
        and lowering.reducer(operation) == "add"
        and dtype_of(operation) is not dtypes.bool
    )


FORMS: dict[str, Callable[[Operation], bool]] = {
    "stablehlo.bitcast_convert": lambda op: op.operands[0].type.sizes == op.results[0].type.sizes,
    "stablehlo.compare": lambda op: op.attribute("compare_type", None) != "TOTALORDER",
    "stablehlo.divide": lambda op: dtype_of(op) is not dtypes.bool,
    "stablehlo.gather": lambda op: lowering.nd_gather(op) is not None,
    "stablehlo.power": lambda op: op.results[0].type.element.is_floating and dtype_of(op) is not dtypes.float64,
    "stablehlo.reduce": reduces,
    "stablehlo.reduce_window": pools,
    "stablehlo.remainder": lambda op: op.results[0].type.element.is_integer,
    "stablehlo.scatter": scatters,
    "stablehlo.select_and_scatter": selects,
}
"""For operations that tinygrad has in some forms only: whether it has this one."""


def supported(operation: Operation, types: frozenset[DType]) -> bool:
    """Whether tinygrad computes an operation on a device with these types."""
    values = (*operation.operands, *operation.results)
    return (
        operation.name in OPERATIONS
        and all(TYPES.get(value.type.element) in types and value.type.size > 0 for value in values)
        and FORMS.get(operation.name, lambda operation: True)(operation)
        and (operation.name != "stablehlo.power" or dtypes.float64 in types)
    )


# Programs.


def traced(program: ParsedProgram, arguments: Sequence[Tensor], device: str) -> list[Tensor]:
    """Return the results of a program as tinygrad's graph of its arguments."""
    values = dict(zip(program.entry.arguments, arguments, strict=True))
    for operation in program.entry.body.operations[:-1]:
        try:
            results = OPERATIONS[operation.name](operation, *(values[operand] for operand in operation.operands))
        except Exception as error:
            raise pjrt.InternalError(
                f"tinygrad has no graph for {operation.name} ({operation.location}): {error}"
            ) from error
        if isinstance(results, np.ndarray):
            results = uploaded(results, operation.results[0].type.element, device)
        results = results if isinstance(results, tuple) else (results,)
        for value, result in zip(operation.results, results, strict=True):
            values[value] = result.cast(TYPES[value.type.element])
    return [values[value] for value in program.entry.body.outputs]


def uploaded(array: Any, element: pjrt.ElementType, device: str) -> Tensor:
    """Return a constant: a number if all its elements are the same, otherwise an array in a buffer."""
    first = array.reshape(-1)[0]
    if (array == first).all() and first == first and first != 0:
        return Tensor.full(array.shape, first.item(), dtype=TYPES[element], buffer=False)
    spec = pjrt.ShapeSpec(array.shape, element)
    handle = Array(spec, device)
    handle.buffer.copy_from(_host_buffer(handle, np.ascontiguousarray(array)))
    return Tensor(handle.uop).reshape(array.shape)


class Kernels:
    """A program as tinygrad's kernels for one device.

    Args:
        program: the program.
        device: tinygrad's name of the device.
    """

    def __init__(self, program: ParsedProgram, device: str) -> None:
        types = program.entry.type
        inputs = [UOp.new_buffer(device, t.size, TYPES[t.element]) for t in types.arguments]
        outputs = [UOp.new_buffer(device, t.size, TYPES[t.element]) for t in types.results]
        arguments = [Tensor(uop).reshape(t.sizes) for uop, t in zip(inputs, types.arguments, strict=True)]
        results = traced(program, arguments, device)
        targets = [Tensor(uop).assign(r.reshape(-1)) for uop, r in zip(outputs, results, strict=True)]
        schedule = targets[0].schedule_linear(*targets[1:])
        # As in tinygrad's TinyJit, the buffers of inputs become parameters of the kernels. TinyJit runs a program in
        # order to see its kernels, and writes the results of all calls to the same buffers. Here the buffers of the
        # results are parameters too, so that each call has its own.
        held = {uop for uop in schedule.toposort() if uop.op is Ops.BUFFER}
        self._kernels = jit_lower(schedule, held, [*outputs, *inputs])
        self._device = device
        self._results = [pjrt.ShapeSpec(t.sizes, t.element) for t in types.results]

    def run(self, arguments: Sequence[Array]) -> list[Array]:
        """Return the results of a call when they are computed."""
        results = [Array(spec, self._device) for spec in self._results]
        run_linear(self._kernels, {}, input_uops=[array.uop for array in (*results, *arguments)], jit=True)
        Device[self._device].synchronize()
        return results


@contextlib.contextmanager
def diagnostics() -> Iterator[None]:
    """Put what tinygrad's compilers print, to the process's standard error, into the message of an exception."""
    with tempfile.TemporaryFile() as file:
        terminal = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        except Exception as error:
            file.seek(0)
            printed = file.read().decode(errors="replace").strip()
            causes = error.exceptions if isinstance(error, ExceptionGroup) else [error]
            message = "; ".join(f"{type(cause).__name__}: {cause}" for cause in causes)
            raise pjrt.UnimplementedError(f"{message}\n{printed}".strip()) from error
        else:
            file.seek(0)
            os.write(terminal, file.read())  # another thread may have written it
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


def open_devices(name: str | None, count: int) -> tuple[list[str], frozenset[DType]]:
    """Return tinygrad's names of devices, and the types that they compute with.

    Raises:
        pjrt.InvalidArgumentError: tinygrad has no such device.
        pjrt.UnavailableError: a device cannot be used on this machine.
    """
    try:
        kind, _, first = (name or Device.DEFAULT).upper().partition(":")
    except RuntimeError as error:
        raise pjrt.UnavailableError(f"tinygrad found no device on this machine: {error}") from error
    if kind not in DEVICES or not (first or "0").isdigit():
        raise pjrt.InvalidArgumentError(f"expected a device of tinygrad such as AMD or AMD:1, found {name!r}; "
                                        f"tinygrad has {', '.join(DEVICES)}")  # fmt: skip
    devices = [f"{kind}:{index}" if index else kind for index in range(int(first or 0), int(first or 0) + count)]
    if not has_default():  # tinygrad asks for it also where a device is named
        DEV.value = kind
    for device in devices:
        try:
            with diagnostics():
                Tensor.full((2,), 1, dtype=dtypes.int32, device=device).add(1).tolist()
        except pjrt.UnimplementedError as error:
            raise pjrt.UnavailableError(f"tinygrad cannot use its device {device} here: {error.message}") from error
    declared = Device[devices[0]].renderer.supported_dtypes()
    return devices, frozenset(dtype for dtype in TYPES.values() if dtype in declared and can_compile(dtype, devices[0]))


def has_default() -> bool:
    """Whether tinygrad can use a device by default: a processor alone is one only where clang is installed."""
    try:
        return bool(Device.DEFAULT)
    except RuntimeError:
        return False


def can_compile(dtype: DType, device: str) -> bool:
    """Whether the compiler of a device has a type; tinygrad's declarations do not depend on the compiler's version."""
    try:
        with diagnostics():
            Tensor.full((2,), 1, dtype=dtypes.int32, device=device).cast(dtype).contiguous().realize()
    except pjrt.UnimplementedError:
        return False
    return True


def make_client(device: str | None = None, num_devices: int = 1, **options: Any) -> pjrt.Client:
    """Make a client of tinygrad's devices; frameworks call it.

    Args:
        device: tinygrad's name of the device: ``AMD``, ``NV``, ``METAL``, ``WEBGPU``, ``CL``, ``CPU``, ``PYTHON``, …;
            ``AMD:1`` is the second one. Default: the device that tinygrad chooses.
        num_devices: how many of them.
        options: what ``pjrt.StableHloClient`` takes, such as ``profile``.

    Raises:
        pjrt.InvalidArgumentError: tinygrad has no such device.
        pjrt.UnavailableError: the device cannot be used on this machine.
    """
    devices, types = on_tinygrad_thread(open_devices, device, num_devices)

    def compile(program: ParsedProgram, options: pjrt.CompileOptions) -> Compiled:
        kernels: dict[int, Kernels] = {}

        def kernels_of(index: int) -> Kernels:
            if index not in kernels:
                with diagnostics():
                    kernels[index] = Kernels(program, devices[index])
            return kernels[index]

        def run(context: RunContext, *arguments: Array) -> list[Array]:
            index = context.device.local_hardware_id
            return on_tinygrad_thread(lambda: kernels_of(index).run(arguments))

        try:
            on_tinygrad_thread(kernels_of, 0)
        except pjrt.UnimplementedError as error:
            first, *_, last = program.entry.body.operations
            _log.warning(
                "the fallback runs %d operations, from %s to %s, because tinygrad cannot compile them: %s",
                len(program.entry.body.operations) - 1, first.location, last.location, error.message,
            )  # fmt: skip
            raise
        return Compiled(run=run, takes_context=True)

    return pjrt.StableHloClient(
        "tinygrad",
        compile=compile,
        operations=OPERATIONS,
        fuse=lambda operation: supported(operation, types),
        fallback="reference",
        memory=TinygradMemory(devices),
        num_devices=num_devices,
        **{
            "device_kind": f"tinygrad {devices[0].partition(':')[0]}",
            "platform_version": version("tinygrad"),
            **options,
        },
    )
