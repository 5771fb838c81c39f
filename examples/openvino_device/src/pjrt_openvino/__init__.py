"""OpenVINO as a PJRT device: its compiler, and Intel's CPUs, GPUs and NPUs, for JAX and PyTorch/XLA.

The largest runs of operations that OpenVINO computes right become OpenVINO models. The reference interpreter runs the
rest: other operations, 64-bit types, control flow between the models, collectives.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import openvino
from openvino import Type
from openvino import opset15 as ov

import pjrt
from pjrt import ElementType
from pjrt.stablehlo import Operation, ParsedProgram, lowering

Node = Any
"""A value in an OpenVINO model."""

TYPES = {
    ElementType.PRED: Type.boolean,
    ElementType.S8: Type.i8,
    ElementType.S16: Type.i16,
    ElementType.S32: Type.i32,
    ElementType.U8: Type.u8,
    ElementType.U16: Type.u16,
    ElementType.U32: Type.i32,  # the same bits
    ElementType.F16: Type.f16,
    ElementType.BF16: Type.bf16,
    ElementType.F32: Type.f32,
}
"""The types of arguments and results. OpenVINO's CPU computes 64-bit types in 32 bits: they are the fallback's."""
FLOATS = {ElementType.F16, ElementType.BF16, ElementType.F32}
UNSIGNED = {ElementType.U8, ElementType.U16, ElementType.U32}
INTEGERS = {ElementType.S8, ElementType.S16, ElementType.S32} | UNSIGNED
LOGICAL = {ElementType.PRED}
ALL = set(TYPES)


class Unsupported(Exception):  # noqa: N818
    """An operation in a form that has no translation."""


OPERATIONS: dict[str, tuple[Callable[..., Any], set[ElementType]]] = {}
"""For each operation that OpenVINO runs: its translator, and the element types of its operands and results."""


def translates(*names: str, types: set[ElementType]) -> Callable[[Any], Any]:
    """Register ``translator(operation, *nodes)``, which returns a node, or a list of nodes, for the results."""

    def register(translator: Callable[..., Any]) -> Callable[..., Any]:
        OPERATIONS.update(dict.fromkeys(names, (translator, types)))
        return translator

    return register


def translate(operation: Operation, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes of the results of an operation.

    Raises:
        Unsupported: OpenVINO has no such operation, or computes another result.
    """
    translator, types = OPERATIONS.get(operation.name, (None, set()))
    for value in (*operation.operands, *operation.results):
        if element_of(value) not in types or 0 in value.type.shape:
            raise Unsupported(f"{operation.name} with {value.type}")
    results = translator(operation, *nodes)
    return results if isinstance(results, list) else [results]


def is_translated(operation: Operation) -> bool:
    """Whether OpenVINO runs an operation. OpenVINO itself checks types and attributes while the node is made."""
    try:
        translate(operation, [parameter(value)[1] for value in operation.operands])
    except (Unsupported, KeyError, RuntimeError):
        return False
    return True


# Values. Inside a model all integers have 32 bits, because OpenVINO saturates narrower ones in places.


def element_of(value: Any) -> ElementType:
    element: ElementType = value.type.element
    return element


def inner(element: ElementType) -> Type:
    return Type.i32 if element in INTEGERS else TYPES[element]


def parameter(value: Any) -> tuple[Node, Node]:
    """Return a parameter of a model, and its value inside the model."""
    element = element_of(value)
    node = ov.parameter(list(value.type.shape), TYPES[element])
    return node, node if TYPES[element] == inner(element) else ov.convert(node, inner(element))


def ints(values: Sequence[int]) -> Node:
    """Return axes, sizes or a permutation."""
    return ov.constant(np.array(values, np.int64))


def number(value: Any, element: ElementType) -> Node:
    """Return a constant."""
    array = np.asarray(value)
    if element in FLOATS:
        return ov.convert(ov.constant(np.array(array, np.float32, order="C")), inner(element))
    if element in INTEGERS:
        return ov.constant(np.array(array.astype(np.int64).astype(np.int32), order="C"))
    return ov.constant(np.array(array, np.bool_, order="C"))


def reshape(x: Node, shape: Sequence[int]) -> Node:
    # OpenVINO crashes where it reshapes a product of two vectors to no dimensions.
    return ov.reshape(x, ints(shape), False) if shape else ov.squeeze(ov.reshape(x, ints([1]), False), ints([0]))


def transpose(x: Node, permutation: Sequence[int]) -> Node:
    """Return a transposed node; two transpositions become one, or none."""
    earlier = permutation_of(x)
    if earlier is not None:
        x, permutation = x.input_value(0).get_node(), [earlier[d] for d in permutation]
    return x if list(permutation) == sorted(permutation) else ov.transpose(x, ints(permutation))


def permutation_of(x: Node) -> list[int] | None:
    """Return the permutation of a transposed node; None for others."""
    return x.input_value(1).get_node().data.tolist() if x.get_type_name() == "Transpose" else None


def behind(function: Callable[..., Node], nodes: Sequence[Node]) -> Node:
    """Return an elementwise function of nodes; if operands are transposed, transpose its result in their place.

    OpenVINO's images are (batch, feature, spatial…). Those of JAX are often in another order, so translators transpose
    before and after each convolution. This brings the two next to each other, where they vanish. Operands are not
    broadcast where the function does that: OpenVINO would fold a constant to an array.
    """
    small = [node.get_type_name() == "Broadcast" or not node.get_output_shape(0) for node in nodes]
    if all(small):
        return function(*nodes)
    nodes = [x.input_value(0).get_node() if x.get_type_name() == "Broadcast" else x for x in nodes]
    permutations = [permutation_of(node) for node, is_small in zip(nodes, small, strict=True) if not is_small]
    permutation = permutations[0]
    if permutation is None or any(each != permutation for each in permutations):
        return function(*nodes)
    back = np.argsort(permutation).tolist()
    return transpose(function(*(transpose(x, back) if x.get_output_shape(0) else x for x in nodes)), permutation)


def cut(x: Node, start: int, stop: int, axis: int) -> Node:
    return ov.slice(x, ints([start]), ints([stop]), ints([1]), ints([axis]))


def wrapped(x: Node, element: ElementType) -> Node:
    """Return 32-bit integers with the value that they have in a narrower type."""
    spare = number(32 - element.bits, ElementType.S32)
    if element in (ElementType.S8, ElementType.S16):
        return ov.bitwise_right_shift(ov.bitwise_left_shift(x, spare), spare)
    if element in (ElementType.U8, ElementType.U16):
        return ov.bitwise_and(x, number((1 << element.bits) - 1, ElementType.S32))
    return x


def ordered(x: Node, element: ElementType) -> Node:
    """Return integers whose order as signed ones is that of the type; the inverse is the same function."""
    return ov.bitwise_xor(x, number(-(1 << 31), ElementType.S32)) if element is ElementType.U32 else x


# Elementwise operations.


def keeping_nan(result: Node, x: Node) -> Node:
    """Return a result, and x where it is NaN. OpenVINO's exponential function is infinite there."""
    return ov.select(ov.not_equal(x, x), x, result)


def divide(x: Node, y: Node) -> Node:
    node = ov.divide(x, y)
    node.get_rt_info()["nonconvertable_divide_0"] = True  # not by the inverse of y, which may be infinite
    return node


def keeping_zero(function: Callable[[Node], Node]) -> Callable[[Node], Node]:
    """Return a function with the sign of zero, which OpenVINO drops."""
    return lambda x: ov.select(ov.equal(x, ov.subtract(x, x)), x, function(x))


def functions(dialect: str, names: str) -> dict[str, Callable[..., Node]]:
    """Return OpenVINO's functions by the names of operations, from names such as ``sine=sin``."""
    pairs = (name.partition("=") for name in names.split())
    return {f"{dialect}.{operation}": getattr(ov, own or operation) for operation, _, own in pairs}


FLOAT_FUNCTIONS = {
    **functions("stablehlo", "abs=absolute add ceil=ceiling cosine=cos floor log logistic=sigmoid multiply"),
    **functions("stablehlo", "negate=negative power sine=sin sqrt subtract tan tanh"),
    **functions("chlo", "acos acosh asin asinh atan atanh cosh sinh"),
    "stablehlo.divide": divide,
    "stablehlo.exponential": lambda x: keeping_nan(ov.exp(x), x),
    "stablehlo.round_nearest_afz": keeping_zero(lambda x: ov.round(x, "half_away_from_zero")),
    "stablehlo.round_nearest_even": lambda x: ov.round(x, "half_to_even"),
    "stablehlo.sign": keeping_zero(ov.sign),
    "chlo.square": lambda x: ov.multiply(x, x),
}
INTEGER_FUNCTIONS = {
    **functions("stablehlo", "abs=absolute add multiply negate=negative sign subtract"),
    **functions("stablehlo", "and=bitwise_and or=bitwise_or xor=bitwise_xor not=bitwise_not"),
    **functions("stablehlo", "shift_left=bitwise_left_shift"),
}
LOGICAL_FUNCTIONS = {
    **functions("stablehlo", "and=logical_and minimum=logical_and multiply=logical_and not=logical_not"),
    **functions("stablehlo", "or=logical_or maximum=logical_or add=logical_or xor=logical_xor"),
}


def functions_of(element: ElementType) -> dict[str, Callable[..., Node]]:
    return FLOAT_FUNCTIONS if element in FLOATS else INTEGER_FUNCTIONS if element in INTEGERS else LOGICAL_FUNCTIONS


def combined(name: str, element: ElementType, *nodes: Node) -> Node:
    """Return an elementwise function of nodes, by its name."""
    return behind(lambda *nodes: combined_in_order(name, element, *nodes), nodes)


def combined_in_order(name: str, element: ElementType, *nodes: Node) -> Node:
    if name in ("stablehlo.maximum", "stablehlo.minimum") and element not in LOGICAL:
        return extreme(name, element, *nodes)
    return wrapped(functions_of(element)[name](*nodes), element)


@translates(*FLOAT_FUNCTIONS, *INTEGER_FUNCTIONS, *LOGICAL_FUNCTIONS, types=ALL)
def elementwise(operation: Operation, *nodes: Node) -> Node:
    return combined(operation.name, element_of(operation.results[0]), *nodes)


def extreme(name: str, element: ElementType, x: Node, y: Node) -> Node:
    """Return the larger or the smaller value; a NaN comes through."""
    function = ov.maximum if name == "stablehlo.maximum" else ov.minimum
    if element in INTEGERS:
        return ordered(function(ordered(x, element), ordered(y, element)), element)
    # If one of them is NaN, OpenVINO's result is the second.
    if is_fixed(y):
        x, y = y, x
    if not is_fixed(x):
        return keeping_nan(function(x, y), x)
    # OpenVINO makes one function of a maximum and a minimum, which loses NaN.
    return keeping_nan(function(x, y), y) if y.get_type_name() in ("Maximum", "Minimum") else function(x, y)


def is_fixed(x: Node) -> bool:
    """Whether a node is a constant, perhaps converted or broadcast."""
    while x.get_type_name() in ("Convert", "Broadcast", "Reshape"):
        x = x.input_value(0).get_node()
    return bool(x.get_type_name() == "Constant")


def in_f32(function: Callable[[Node], Node]) -> Callable[..., Node]:
    """Return a translator that computes a function of one float in 32 bits."""

    def translator(operation: Operation, x: Node) -> Node:
        return ov.convert(function(ov.convert(x, Type.f32)), inner(element_of(operation.results[0])))

    return translator


def f32(value: float) -> Node:
    return number(value, ElementType.F32)


@translates("chlo.erf", types=FLOATS)
@in_f32
def erf(x: Node) -> Node:
    """OpenVINO's is off by some 1e-7, which is much for small numbers: there it is the Taylor series."""
    square, series = ov.multiply(x, x), f32(-1 / 42)
    for coefficient in (1 / 10, -1 / 3, 1):
        series = ov.add(ov.multiply(series, square), f32(coefficient))
    series = ov.multiply(ov.multiply(series, f32(2 / math.sqrt(math.pi))), x)
    return ov.select(ov.less(ov.absolute(x), f32(0.25)), series, ov.erf(x))


@translates("stablehlo.log_plus_one", types=FLOATS)
@in_f32
def log_plus_one(x: Node) -> Node:
    """Correct log(1 + x) for the rounding error of 1 + x."""
    one = f32(1)
    above = ov.add(x, one)
    small = ov.multiply(ov.log(above), ov.divide(x, ov.subtract(above, one)))
    return ov.select(ov.equal(above, one), x, ov.select(ov.less(one, x), ov.log(above), small))


@translates("stablehlo.exponential_minus_one", types=FLOATS)
@in_f32
def exponential_minus_one(x: Node) -> Node:
    return keeping_nan(ov.multiply(ov.tanh(ov.multiply(x, f32(0.5))), ov.add(ov.exp(x), f32(1))), x)


@translates("stablehlo.rsqrt", types=FLOATS)
@in_f32
def rsqrt(x: Node) -> Node:
    return divide(f32(1), ov.sqrt(x))


@translates("stablehlo.cbrt", types=FLOATS)
@in_f32
def cbrt(x: Node) -> Node:
    return ov.multiply(keeping_zero(ov.sign)(x), ov.power(ov.absolute(x), f32(1 / 3)))


@translates("stablehlo.is_finite", types=FLOATS | LOGICAL)
def is_finite(operation: Operation, x: Node) -> Node:
    return ov.less(ov.absolute(x), number(np.inf, element_of(operation.operands[0])))


@translates("stablehlo.shift_right_arithmetic", "stablehlo.shift_right_logical", types=INTEGERS)
def shift_right(operation: Operation, x: Node, by: Node) -> Node:
    element = element_of(operation.results[0])
    if operation.name == "stablehlo.shift_right_arithmetic":
        if element in (ElementType.U8, ElementType.U16):
            raise Unsupported("an arithmetic shift of narrow unsigned integers")
        return ov.bitwise_right_shift(x, by)
    if element.bits < 32:
        return wrapped(ov.bitwise_right_shift(ov.bitwise_and(x, number((1 << element.bits) - 1, element)), by), element)
    # OpenVINO's shift repeats the sign: clear those bits.
    rest = ov.subtract(number(31, ElementType.S32), by)
    signs = ov.bitwise_left_shift(ov.bitwise_left_shift(number(-1, ElementType.S32), rest), number(1, ElementType.S32))
    return ov.bitwise_and(ov.bitwise_right_shift(x, by), ov.bitwise_not(signs))


COMPARISONS = {"EQ": ov.equal, "NE": ov.not_equal, "LT": ov.less, "LE": ov.less_equal}


@translates("stablehlo.compare", types=ALL)
def compare(operation: Operation, *nodes: Node) -> Node:
    direction, element = operation.attribute("comparison_direction"), element_of(operation.operands[0])
    if operation.attribute("compare_type", None) == "TOTALORDER":
        raise Unsupported("a comparison in total order")
    return behind(lambda x, y: compared(direction, element, x, y), nodes)


def compared(direction: str, element: ElementType, x: Node, y: Node) -> Node:
    if direction in ("GT", "GE"):  # OpenVINO's are true for NaN
        direction, x, y = direction.replace("G", "L"), y, x
    if element in FLOATS:
        return COMPARISONS[direction](x, y)
    if element in LOGICAL:
        x, y = ov.convert(x, Type.i32), ov.convert(y, Type.i32)
    x, y = ordered(x, element), ordered(y, element)
    if direction in ("LT", "LE"):
        return equal(ov.minimum(x, y), x) if direction == "LE" else ov.logical_not(equal(ov.minimum(x, y), y))
    return equal(x, y) if direction == "EQ" else ov.logical_not(equal(x, y))


def equal(x: Node, y: Node) -> Node:
    """Compare integers. OpenVINO does it as floats, which is exact only for the difference from zero."""
    return ov.equal(ov.bitwise_xor(x, y), number(0, ElementType.S32))


@translates("stablehlo.select", types=ALL)
def select_operation(operation: Operation, *nodes: Node) -> Node:
    return behind(select, nodes)


def select(condition: Node, x: Node, y: Node) -> Node:
    """Choose by a condition. Behind a comparison, OpenVINO's own function rounds integers as floats."""
    if x.get_element_type() != Type.i32:
        return ov.select(condition, x, y)
    mask = ov.negative(ov.convert(condition, Type.i32))
    return ov.bitwise_or(ov.bitwise_and(x, mask), ov.bitwise_and(y, ov.bitwise_not(mask)))


@translates("stablehlo.clamp", types=FLOATS | INTEGERS)
def clamp(operation: Operation, low: Node, x: Node, high: Node) -> Node:
    element = element_of(operation.results[0])
    above = combined("stablehlo.maximum", element, low, x)
    return combined("stablehlo.minimum", element, high, above)


@translates("stablehlo.convert", types=ALL)
def convert(operation: Operation, x: Node) -> Node:
    source, target = element_of(operation.operands[0]), element_of(operation.results[0])
    if target in LOGICAL:
        return x if source in LOGICAL else ov.not_equal(x, number(0, source))
    if source is ElementType.U32 and target in FLOATS:  # two halves, which are exact
        low = ov.convert(ov.bitwise_and(x, number(0xFFFF, ElementType.S32)), Type.f32)
        high = ov.bitwise_and(ov.bitwise_right_shift(x, number(16, ElementType.S32)), number(0xFFFF, ElementType.S32))
        high = ov.multiply(ov.convert(high, Type.f32), number(1 << 16, ElementType.F32))
        return ov.convert(ov.add(high, low), inner(target))
    if target is ElementType.U32 and source in FLOATS:
        x, half = ov.convert(x, Type.f32), number(1 << 31, ElementType.F32)
        above = ordered(ov.convert(ov.subtract(x, half), Type.i32), target)
        return select(ov.less_equal(half, x), above, ov.convert(x, Type.i32))
    node = ov.convert(x, inner(target))
    return node if target in FLOATS else wrapped(node, target)


# Creation and movement.


@translates("stablehlo.constant", types=ALL)
def constant(operation: Operation) -> Node:
    value, result = np.asarray(operation.attribute("value")), operation.results[0]
    words = value.reshape(-1).view(f"u{value.dtype.itemsize}")
    if (words == words[0]).all():  # then functions of it need no array
        return ov.broadcast(number(value.reshape(-1)[0], element_of(result)), ints(result.type.shape))
    return number(value, element_of(result))


@translates("stablehlo.iota", types=FLOATS | INTEGERS)
def iota(operation: Operation) -> Node:
    shape, dimension = operation.results[0].type.shape, operation.attribute("iota_dimension")
    steps = [-1 if d == dimension else 1 for d in range(len(shape))]
    counter = number(np.arange(shape[dimension]).reshape(steps), element_of(operation.results[0]))
    return ov.broadcast(counter, ints(shape))


@translates("stablehlo.reshape", types=ALL)
def reshape_operation(operation: Operation, x: Node) -> Node:
    return reshape(x, operation.results[0].type.shape)


@translates("stablehlo.transpose", types=ALL)
def transpose_operation(operation: Operation, x: Node) -> Node:
    return transpose(x, operation.attribute("permutation"))


@translates("stablehlo.broadcast_in_dim", types=ALL)
def broadcast_in_dim(operation: Operation, x: Node) -> Node:
    steps = lowering.broadcast(operation)
    return ov.broadcast(reshape(transpose(x, steps.permutation), steps.shape), ints(steps.result_shape))


@translates("stablehlo.concatenate", types=ALL)
def concatenate(operation: Operation, *parts: Node) -> Node:
    return ov.concat(list(parts), operation.attribute("dimension"))


@translates("stablehlo.slice", types=ALL)
def slice_operation(operation: Operation, x: Node) -> Node:
    return ov.slice(x, *(ints(operation.attribute(name)) for name in ("start_indices", "limit_indices", "strides")))


@translates("stablehlo.reverse", types=ALL)
def reverse(operation: Operation, x: Node) -> Node:
    return reversed_along(x, operation.attribute("dimensions"))


def reversed_along(x: Node, dimensions: Sequence[int]) -> Node:
    count = len(dimensions)
    return ov.slice(x, ints([-1] * count), ints([-(1 << 31)] * count), ints([-1] * count), ints(dimensions))


def padded(x: Node, before: Sequence[int], after: Sequence[int], value: Node) -> Node:
    if is_fixed(value) and value.get_element_type() != Type.i32:
        return ov.pad(x, ints(before), ints(after), "constant", value)
    # OpenVINO pads with zeros if a run computes the value, and rounds integers.
    inside = ov.pad(number(np.ones(x.get_output_shape(0)), ElementType.F32), ints(before), ints(after), "constant")
    is_inside = ov.equal(inside, number(1, ElementType.F32))
    return select(is_inside, ov.pad(x, ints(before), ints(after), "constant"), value)


def spread(x: Node, shape: Sequence[int], interior: Sequence[int], value: Node) -> tuple[Node, list[int]]:
    """Return a node with further elements between its neighbours along each dimension, and its shape."""
    sizes = list(shape)
    for d, gap in enumerate(interior):
        if gap and sizes[d] > 1:
            apart = reshape(x, [*sizes[: d + 1], 1, *sizes[d + 1 :]])
            zeros = [0] * (len(sizes) + 1)
            apart = padded(apart, zeros, [*zeros[: d + 1], gap, *zeros[d + 2 :]], value)
            x = reshape(apart, [*sizes[:d], sizes[d] * (gap + 1), *sizes[d + 1 :]])
            sizes[d] = (sizes[d] - 1) * (gap + 1) + 1
            x = cut(x, 0, sizes[d], d)
    return x, sizes


@translates("stablehlo.pad", types=ALL - LOGICAL)
def pad(operation: Operation, x: Node, value: Node) -> Node:
    steps = lowering.pad(operation)
    x, sizes = spread(x, operation.operands[0].type.shape, steps.interior, value)
    for d, (before, after) in enumerate(steps.cut):
        if before or after:
            x = cut(x, before, sizes[d] - after, d)
    before, after = zip(*steps.padding, strict=True)
    return padded(x, before, after, value)


def moved_inside(index: Node, limit: int, element: ElementType) -> Node:
    """Return indices of which none is below 0 or above a limit."""
    above = extreme("stablehlo.maximum", element, number(0, element), index)
    return extreme("stablehlo.minimum", element, number(limit, element), above)


def start_indices(operation: Operation, nodes: Sequence[Node], sizes: Sequence[int]) -> Iterator[tuple[int, Node]]:
    """Yield the dimensions along which a part is smaller than the whole, and the index where the part begins."""
    shape = operation.operands[0].type.shape
    for d, (start, size) in enumerate(zip(nodes, sizes, strict=True)):
        if size < shape[d]:
            yield d, moved_inside(start, shape[d] - size, element_of(operation.operands[-1]))


@translates("stablehlo.dynamic_slice", types=ALL)
def dynamic_slice(operation: Operation, x: Node, *starts: Node) -> Node:
    sizes = operation.attribute("slice_sizes")
    for d, start in start_indices(operation, starts, sizes):
        places = ov.add(start, number(np.arange(sizes[d]), ElementType.S32))
        x = ov.gather(x, places, ints([d]))
    return reshape(x, sizes)


@translates("stablehlo.dynamic_update_slice", types=ALL)
def dynamic_update_slice(operation: Operation, x: Node, update: Node, *starts: Node) -> Node:
    """Take each element from the update where it covers the operand."""
    shape, sizes = operation.operands[0].type.shape, operation.operands[1].type.shape
    covered = number(True, ElementType.PRED)
    for d, start in start_indices(operation, starts, sizes):
        places = ov.subtract(number(np.arange(shape[d]), ElementType.S32), start)
        inside = moved_inside(places, sizes[d] - 1, ElementType.S32)
        update = ov.gather(update, inside, ints([d]))
        along = [-1 if e == d else 1 for e in range(len(shape))]
        covered = ov.logical_and(covered, reshape(equal(places, inside), along))
    return select(covered, update, x)


def linear_index(operation: Operation, indices: Node, indexed: Any) -> tuple[Node, Node, int]:
    """Return one index for all indexed dimensions, moved inside; whether it was inside; and the number of places."""
    element = element_of(operation.operands[1])
    shape = list(operation.operands[1].type.shape)
    if indexed.index_vector_dim is None:
        shape.append(1)
        indices = reshape(indices, shape)
    else:
        order = [d for d in range(len(shape)) if d != indexed.index_vector_dim]
        indices = transpose(indices, [*order, indexed.index_vector_dim])
    batch = list(indexed.batch_shape)
    index, inside = number(np.zeros(batch, np.int32), ElementType.S32), number(True, ElementType.PRED)
    columns = zip(indexed.components, indexed.batch_dimensions, indexed.limits, strict=True)
    for component, dimension, limit in columns:
        if component is None:
            along = [-1 if d == dimension else 1 for d in range(len(batch))]
            column: Node = number(np.arange(batch[dimension]).reshape(along), ElementType.S32)
        else:
            column = reshape(cut(indices, component, component + 1, len(batch)), batch)
            moved = moved_inside(column, limit, element)
            column, inside = moved, ov.logical_and(inside, equal(moved, column))
        index = ov.add(ov.multiply(index, number(limit + 1, ElementType.S32)), column)
    return index, ov.broadcast(inside, ints(batch)), math.prod(limit + 1 for limit in indexed.limits)


@translates("stablehlo.gather", types=ALL)
def gather(operation: Operation, x: Node, indices: Node) -> Node:
    form = lowering.nd_gather(operation)
    if form is None or element_of(operation.operands[1]) not in INTEGERS:
        raise Unsupported("a gather of slices that move by parts")
    index, _, places = linear_index(operation, indices, form.indexed)
    sizes = [form.slice_sizes[d] for d in form.operand_permutation[len(form.indexed.axes) :]]
    for d, size in enumerate(form.slice_sizes):
        if d not in form.indexed.axes:
            x = cut(x, 0, size, d)
    rows = reshape(transpose(x, form.operand_permutation), [places, *sizes])
    return reshape(transpose(ov.gather(rows, index, ints([0])), form.result_permutation), form.result_shape)


@translates("stablehlo.scatter", types=FLOATS | INTEGERS)
def scatter(operation: Operation, x: Node, indices: Node, updates: Node) -> Node:
    form = lowering.nd_scatter(operation)
    element = element_of(operation.results[0])
    if form is None or form.reducer not in ("add", "second") or element_of(operation.operands[1]) not in INTEGERS:
        raise Unsupported("a scatter of slices that move by parts, or that combines otherwise")
    if form.reducer == "second" and not form.unique_indices:
        raise Unsupported("a scatter that may overwrite a place twice: OpenVINO has no order")
    shape = operation.results[0].type.shape
    index, inside, places = linear_index(operation, indices, form.indexed)
    rest = [shape[d] for d in form.operand_permutation[len(form.indexed.axes) :]]
    rows = reshape(transpose(x, form.operand_permutation), [places, *rest])
    # Updates outside go to a further row, which is cut off again.
    zeros = [0] * (len(rest) + 1)
    rows = padded(rows, zeros, [1, *zeros[1:]], number(0, element))
    index = select(inside, index, number(places, ElementType.S32))
    batch = list(form.indexed.batch_shape)
    updates = reshape(transpose(updates, form.update_permutation), form.update_shape)
    reduction = "sum" if form.reducer == "add" else "none"
    rows = ov.scatter_nd_update(rows, reshape(index, [*batch, 1]), updates, reduction)
    permuted = [shape[d] for d in form.operand_permutation]
    rows = reshape(cut(rows, 0, places, 0), permuted)
    return wrapped(transpose(rows, np.argsort(form.operand_permutation).tolist()), element)


# Products and convolutions.


@translates("stablehlo.dot_general", "stablehlo.dot", types=FLOATS)
def dot_general(operation: Operation, x: Node, y: Node) -> Node:
    product, type_ = lowering.matrix_product(operation), inner(element_of(operation.results[0]))
    x = reshape(transpose(ov.convert(x, type_), product.lhs_permutation), product.lhs_shape)
    y = reshape(transpose(ov.convert(y, type_), product.rhs_permutation), product.rhs_shape)
    return reshape(ov.matmul(x, y, False, False), product.result_shape)


@translates("stablehlo.convolution", types=FLOATS)
def convolution(operation: Operation, x: Node, kernel: Node) -> Node:
    form = lowering.convolution(operation)
    type_ = inner(element_of(operation.results[0]))
    shape = [operation.operands[0].type.shape[d] for d in form.input_permutation]
    kernel_shape = [operation.operands[1].type.shape[d] for d in form.kernel_permutation]
    rank = len(form.strides)
    if not 1 <= rank <= 3:
        raise Unsupported(f"a convolution of {rank} spatial dimensions")
    x = transpose(ov.convert(x, type_), form.input_permutation)
    result_shape = [operation.results[0].type.shape[d] for d in np.argsort(form.result_permutation)]
    if is_pointwise(form, kernel_shape) and not is_fixed(kernel):
        # OpenVINO rearranges a kernel that is an argument in each run, but multiplies by a matrix of any order.
        x = ov.slice(x, ints([0] * rank), ints(shape[2:]), ints(form.strides), ints(range(2, rank + 2)))
        x = reshape(x, [*shape[:2], math.prod(result_shape[2:])])
        inputs_first = form.kernel_permutation[1] < form.kernel_permutation[0]
        matrix = reshape(ov.convert(kernel, type_), kernel_shape[1::-1] if inputs_first else kernel_shape[:2])
        return transpose(reshape(ov.matmul(matrix, x, inputs_first, False), result_shape), form.result_permutation)
    kernel = transpose(ov.convert(kernel, type_), form.kernel_permutation)
    if form.flipped:
        kernel = reversed_along(kernel, [d + 2 for d in form.flipped])
    groups = form.feature_groups
    if form.batch_groups > 1:  # the groups of the batch become groups of features
        groups = form.batch_groups
        shape[0] //= groups
        x = transpose(reshape(x, [groups, *shape]), [1, 0, *range(2, rank + 3)])
        shape[1] *= groups
        x = reshape(x, shape)
    x, sizes = spread(
        x, shape, [0, 0, *(step - 1 for step in form.input_dilation)], number(0, element_of(operation.results[0]))
    )
    before, after = zip(*form.padding, strict=True)
    for d, (low, high) in enumerate(form.padding):
        if low < 0 or high < 0:
            x = cut(x, max(-low, 0), sizes[d + 2] - max(-high, 0), d + 2)
    settings = (
        list(form.strides),
        [max(each, 0) for each in before],
        [max(each, 0) for each in after],
        list(form.kernel_dilation),
    )
    if groups == 1:
        result = ov.convolution(x, kernel, *settings)
    else:
        kernel = reshape(kernel, [groups, kernel_shape[0] // groups, *kernel_shape[1:]])
        result = ov.group_convolution(x, kernel, *settings)
    return transpose(result, form.result_permutation)


def is_pointwise(form: lowering.Convolution, kernel_shape: Sequence[int]) -> bool:
    """Whether a convolution is a product of matrices at each place of the image."""
    plain = set(form.input_dilation) == {1} and not any(map(any, form.padding))
    return plain and form.feature_groups == form.batch_groups == 1 and math.prod(kernel_shape[2:]) == 1


# Reductions.


@translates("stablehlo.reduce", types=ALL)
def reduce(operation: Operation, *nodes: Node) -> Any:
    name = lowering.reducer(operation)
    dimensions = sorted(operation.attribute("dimensions"))
    shape, element = operation.operands[0].type.shape, element_of(operation.operands[0])
    if name in ("argmax", "argmin"):
        return reduce_to_place(operation, nodes, name, dimensions)
    if len(nodes) != 2 or name is None or not dimensions:
        raise Unsupported("a reduction by another function")
    x, start = nodes
    reduced = folded(f"stablehlo.{name}", element, x, shape, dimensions)
    if lowering.constant_value(operation.operands[1]) == lowering.identity_of(name, element):
        return reduced
    return combined(f"stablehlo.{name}", element, start, reduced)


def folded(name: str, element: ElementType, x: Node, shape: Sequence[int], dimensions: Sequence[int]) -> Node:
    """Return all elements along some dimensions combined."""
    axes = ints(dimensions)
    if element in FLOATS and name == "stablehlo.add":
        return ov.reduce_sum(x, axes, False)
    if element in FLOATS and name == "stablehlo.multiply":
        return ov.reduce_prod(x, axes, False)
    if element in FLOATS:
        # OpenVINO's skips NaN, and starts from the largest or smallest finite number.
        over, first = (ov.reduce_max, -np.inf) if name == "stablehlo.maximum" else (ov.reduce_min, np.inf)
        kind = ov.convert(ov.not_equal(x, number(first, element)), inner(element))
        kind = ov.select(ov.not_equal(x, x), number(2, element), kind)
        kind = ov.reduce_max(kind, axes, False)
        result = ov.select(ov.less(number(0, element), kind), over(x, axes, False), number(first, element))
        return ov.select(ov.less(number(1, element), kind), number(np.nan, element), result)
    # OpenVINO reduces integers as floats. Combining one half with the other, again and again, is exact.
    kept = [d for d in range(len(shape)) if d not in dimensions]
    size = math.prod(shape[d] for d in dimensions)
    x = reshape(transpose(x, [*kept, *dimensions]), [math.prod(shape[d] for d in kept), size])
    while size > 1:
        half = size // 2
        pairs = combined(name, element, cut(x, 0, half, 1), cut(x, half, 2 * half, 1))
        x = ov.concat([pairs, cut(x, 2 * half, size, 1)], 1) if size % 2 else pairs
        size = half + size % 2
    return reshape(x, [shape[d] for d in kept])


def reduce_to_place(operation: Operation, nodes: Sequence[Node], name: str, dimensions: Sequence[int]) -> list[Node]:
    """Return the extreme values and their indices, as JAX's argmax: the first NaN, or the first one of equals."""
    x, places, *_ = nodes
    shape, element = operation.operands[0].type.shape, element_of(operation.operands[0])
    index = element_of(operation.operands[1])
    function = "maximum" if name == "argmax" else "minimum"
    counter = lowering.constant_array(operation.operands[1])
    start = lowering.constant_value(operation.operands[2])
    if start != lowering.identity_of(function, element) or counter is None or counter.min(tuple(dimensions)).any():
        raise Unsupported("an argmax of other places, or with a further value")
    best = folded(f"stablehlo.{function}", element, x, shape, dimensions)
    wide = reshape(best, [1 if d in dimensions else size for d, size in enumerate(shape)])
    if element in FLOATS:
        is_best = ov.logical_or(ov.equal(x, wide), ov.not_equal(x, x))
        is_best = ov.logical_and(is_best, ov.equal(ov.not_equal(wide, wide), ov.not_equal(x, x)))
    else:
        is_best = equal(x, wide)
    candidates = select(is_best, places, number(lowering.identity_of("minimum", index), index))
    return [best, folded("stablehlo.minimum", index, candidates, shape, dimensions)]


def image(operation: Operation, form: lowering.Pooling | None, x: Node, fill: Node) -> Node:
    """Return the operand of a pooling as an image, padded."""
    if form is None or len(form.sizes) > 3 or min(map(min, form.padding)) < 0:
        raise Unsupported("a window over spread elements, over a part, or along more than three dimensions")
    before, after = zip((0, 0), (0, 0), *form.padding, strict=True)
    return padded(reshape(transpose(x, form.permutation), form.shape), before, after, fill)


def max_pool(x: Node, form: lowering.Pooling, output: int = 0) -> Node:
    zeros = [0] * len(form.sizes)
    pooled = ov.max_pool(
        x, list(form.strides), list(form.dilation), zeros, zeros, list(form.sizes), "floor", "explicit", "i32", 0
    )
    return ov.convert(pooled.output(output), Type.i32 if output else x.get_element_type())


@translates("stablehlo.reduce_window", types=FLOATS)
def reduce_window(operation: Operation, x: Node, start: Node) -> Node:
    form, name, element = lowering.pooling(operation), lowering.reducer(operation), element_of(operation.results[0])
    if name not in ("add", "maximum", "minimum"):
        raise Unsupported("a window that combines by another function")
    if lowering.constant_value(operation.operands[1]) != lowering.identity_of(name, element):
        raise Unsupported("a window that starts from another value")
    if name == "add" and form is not None and form.running:
        return ov.cum_sum(x, ov.constant(np.int64(form.permutation[-1])), False, form.running == "backward")
    x = image(operation, form, x, number(lowering.identity_of(name, element), element))
    if name == "add":
        zeros, channels = [0] * len(form.sizes), form.shape[1]
        ones = number(np.ones((channels, 1, 1, *form.sizes), np.float32), element)
        result = ov.group_convolution(x, ones, list(form.strides), zeros, zeros, list(form.dilation))
    else:
        nan = max_pool(ov.convert(ov.not_equal(x, x), inner(element)), form)  # OpenVINO's skips NaN
        value = max_pool(x, form) if name == "maximum" else ov.negative(max_pool(ov.negative(x), form))
        result = ov.select(ov.less(number(0, element), nan), number(np.nan, element), value)
    return transpose(reshape(result, form.result_shape), form.result_permutation)


@translates("stablehlo.select_and_scatter", types=FLOATS)
def select_and_scatter(operation: Operation, x: Node, source: Node, start: Node) -> Node:
    """Add each element of the source to the place of the maximum in its window: the gradient of max pooling."""
    form, element = lowering.pooling(operation), element_of(operation.results[0])
    if lowering.reducer(operation) != "add" or lowering.selector(operation) != "maximum":
        raise Unsupported("a choice of other values than the maximum")
    x = image(operation, form, x, number(lowering.identity_of("maximum", element), element))
    places = reshape(max_pool(x, form, output=1), [-1])
    values = reshape(transpose(source, form.permutation), [-1])
    shape = list(x.get_output_shape(0))
    total = ov.broadcast(number(0, element), ints([math.prod(shape)]))
    total = reshape(ov.scatter_elements_update(total, places, values, ints([0]), "sum"), shape)
    for d, (low, _) in enumerate(form.padding):
        total = cut(total, low, low + form.shape[d + 2], d + 2)
    sizes = [operation.operands[0].type.shape[d] for d in form.permutation]
    return ov.add(transpose(reshape(total, sizes), form.result_permutation), start)


@translates("stablehlo.batch_norm_inference", types=FLOATS)
def batch_norm_inference(operation: Operation, x: Node, scale: Node, offset: Node, mean: Node, variance: Node) -> Node:
    feature, element = operation.attribute("feature_index"), element_of(operation.results[0])
    along = [-1 if d == feature else 1 for d in range(len(operation.operands[0].type.shape))]
    deviation = ov.sqrt(ov.add(variance, number(operation.attribute("epsilon"), element)))
    centered = ov.divide(ov.subtract(x, reshape(mean, along)), reshape(deviation, along))
    return ov.add(ov.multiply(centered, reshape(scale, along)), reshape(offset, along))


@translates("stablehlo.optimization_barrier", types=ALL)
def optimization_barrier(operation: Operation, *nodes: Node) -> list[Node]:
    return list(nodes)


# The device.


class Layout:
    """The memory of arrays of one type, as OpenVINO takes it."""

    def __init__(self, value: Any) -> None:
        self.shape, self.dtype = value.type.shape, value.type.dtype
        self.type, self.sizes = TYPES[element_of(value)], openvino.Shape(list(self.shape))
        self.words = np.dtype(f"u{self.dtype.itemsize}")
        self.memory = ctypes.c_char * (math.prod(self.shape) * self.dtype.itemsize)

    def tensor(self, array: np.ndarray[Any, Any]) -> openvino.Tensor:
        """Return the array as a tensor. OpenVINO refuses read-only arrays, so it gets a view of their address."""
        view = np.frombuffer(self.memory.from_address(array.__array_interface__["data"][0]), self.words)
        return openvino.Tensor(view, self.sizes, self.type)


class Model:
    """A compiled model as a function of numpy arrays. It reads and writes their memory; nothing is copied.

    The device's thread waits in ``infer``, without the GIL. OpenVINO's requests do not wait for one another's results,
    so it is the work queue of the runtime that keeps their order.
    """

    def __init__(self, compiled: openvino.CompiledModel, program: ParsedProgram) -> None:
        self.compiled = compiled
        self.requests: list[openvino.InferRequest] = []  # one for each run that is under way
        self.parameters = [Layout(value) for value in program.entry.body.arguments]
        self.results = [Layout(value) for value in program.entry.body.outputs]

    def __call__(self, *arrays: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        try:
            request = self.requests.pop()
        except IndexError:
            request = self.compiled.create_infer_request()
        # OpenVINO does not keep the arrays alive; these lists do.
        arguments = [array if array.flags.c_contiguous else array.copy(order="C") for array in arrays]
        results = [np.empty(layout.shape, layout.dtype) for layout in self.results]
        for index, (layout, array) in enumerate(zip(self.parameters, arguments, strict=True)):
            request.set_input_tensor(index, layout.tensor(array))
        for index, (layout, array) in enumerate(zip(self.results, results, strict=True)):
            request.set_output_tensor(index, layout.tensor(array))
        request.infer(share_outputs=True)
        self.requests.append(request)
        return results


def model_of(program: ParsedProgram) -> openvino.Model:
    """Return a run of operations as a model.

    Raises:
        Unsupported: an operation has no translation.
    """
    main = program.entry
    inputs = [parameter(value) for value in main.body.arguments]
    nodes = {value: node for value, (_, node) in zip(main.body.arguments, inputs, strict=True)}
    for operation in main.body.operations[:-1]:
        results = translate(operation, [nodes[operand] for operand in operation.operands])
        nodes.update(zip(operation.results, results, strict=True))
    outputs = [ov.result(ov.convert(nodes[value], TYPES[element_of(value)])) for value in main.body.outputs]
    return openvino.Model(outputs, [each for each, _ in inputs], main.name)


def make_client(device: str = "CPU", precision: str = "f32", cache: str = "", **options: Any) -> pjrt.Client:
    """Make a client of OpenVINO's devices; frameworks call it.

    Args:
        device: the device of OpenVINO: CPU, GPU, GPU.1, NPU, AUTO, …
        precision: the type in which the device may compute floats: ``f32``, ``f16`` or ``bf16``.
        cache: a folder for compiled models, which later processes load from it; none by default.
        options: those of ``pjrt.StableHloClient``, such as ``num_devices``.

    Raises:
        InvalidArgumentError: OpenVINO has no such device here, or no such precision.
    """
    core = openvino.Core()
    available = core.available_devices
    kinds = {"AUTO", "HETERO", "MULTI", *(each.partition(".")[0] for each in available)}
    if re.split("[.:]", device)[0] not in kinds:
        raise pjrt.InvalidArgumentError(
            f"expected one of OpenVINO's devices here, {', '.join([*available, 'AUTO'])}, found device={device!r}; "
            "a GPU or NPU needs its driver"
        )
    if precision not in ("f32", "f16", "bf16"):
        raise pjrt.InvalidArgumentError(f"expected precision='f32', 'f16' or 'bf16', found {precision!r}")
    config = {"INFERENCE_PRECISION_HINT": precision} | ({"CACHE_DIR": cache} if cache else {})

    def compiled(model: openvino.CompiledModel, program: ParsedProgram) -> pjrt.host.Compiled:
        return pjrt.host.Compiled(run=Model(model, program), serialize=lambda: model.export_model().getvalue())

    def compile(program: ParsedProgram, _: pjrt.CompileOptions) -> pjrt.host.Compiled:
        try:
            return compiled(core.compile_model(model_of(program), device, config), program)
        except (Unsupported, RuntimeError) as error:
            raise pjrt.UnimplementedError(f"OpenVINO does not compile {program.entry.name}: {error}") from error

    def deserialize(payload: bytes, program: ParsedProgram, _: pjrt.CompileOptions) -> pjrt.host.Compiled:
        return compiled(core.import_model(payload, device, config), program)

    return pjrt.StableHloClient(
        "openvino",
        compile=compile,
        deserialize=deserialize,
        operations=OPERATIONS,
        fuse=is_translated,
        fallback="reference",
        platform_version=f"OpenVINO {openvino.get_version()}",
        device_kind=core.get_property(device, "FULL_DEVICE_NAME") if device in available else device,
        **options,
    )
