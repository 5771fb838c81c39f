"""Operations that IREE does not run, or computes wrongly: left to the fallback, or written as others.

All is true of IREE 3.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.iree.runtime import SUPPORTED
from pjrt.stablehlo import parse, plain, unparse
from pjrt.stablehlo.facts.signatures import shape_spec
from pjrt.stablehlo.ir.location import Location
from pjrt.stablehlo.ir.operation import Block, Operation, ParsedProgram, Value
from pjrt.stablehlo.ir.types import TensorType, ValueType


def rewrite(program: ParsedProgram) -> ParsedProgram:
    """Return a program that means the same, which IREE computes rightly.

    Args:
        program: the program; the operations of ``OF_STATIC_SHAPE`` have static shapes.
    """
    if not any(operation.name in _REWRITES for operation in program.walk()):
        return program
    functions = {
        name: replace(function, body=None if function.body is None else _block(function.body))
        for name, function in program.functions.items()
    }
    return replace(program, functions=functions)


def _block(block: Block) -> Block:
    operations: list[Operation] = []
    for operation in block.operations:
        if operation.regions:
            operation = replace(operation, regions=tuple(map(_block, operation.regions)))
        operations += _REWRITES[operation.name](operation) if operation.name in _REWRITES else [operation]
    return Block(block.arguments, tuple(operations))


# Scatters.


def _scatter(scatter: Operation) -> list[Operation]:
    """Return the operations in place of a scatter; the last ones have its results.

    An update that does not lie inside of the operand is skipped. IREE writes it, to memory that belongs to others. So
    the operand grows by one window in each dimension that indices select, indices out of bounds become indices of that
    part, and a slice of the result leaves it out.
    """
    count = len(scatter.results)
    operands, indices, updates = scatter.operands[:count], scatter.operands[count], scatter.operands[count + 1 :]
    numbers = scatter.attribute("scatter_dimension_numbers")
    selected = numbers.scattered_dims_to_operand_dims
    sizes, windows = _sizes(operands[0]), _windows(operands[0], updates[0], numbers)
    padding = tuple(windows[d] if d in selected else 0 for d in range(len(sizes)))

    new = _Operations(scatter.location)
    indices = _indices_in_bounds(new, indices, numbers, [(sizes[d], sizes[d] - windows[d]) for d in selected])
    padded = tuple(new.pad(each, padding) for each in operands)
    results = new.add(
        scatter.name,
        (*padded, indices, *updates),
        [each.type for each in padded],
        regions=scatter.regions,
        **scatter.attributes,
    )
    for result, wide in zip(scatter.results, results, strict=True):
        bounds = {"start_indices": (0,) * len(sizes), "limit_indices": sizes, "strides": (1,) * len(sizes)}
        new.operations.append(Operation("stablehlo.slice", (wide,), bounds, scatter.location, (result,)))
    return new.operations


def _indices_in_bounds(new: _Operations, indices: Value, numbers: Any, limits: Sequence[tuple[int, int]]) -> Value:
    """Return indices of which each that is out of bounds is the size of its dimension, where the padding begins.

    Args:
        new: the list to add operations to.
        indices: the indices.
        numbers: the dimension numbers of the scatter.
        limits: the size of the dimension, and the greatest index, of each component of an index.
    """
    shape = _sizes(indices)
    # Small types may not hold the size of the dimension; numbers that are too large become negative ones.
    element = ElementType.S64 if _tensor(indices).element.bits == 64 else ElementType.S32
    type_ = TensorType(shape, element)
    (indices,) = new.add("stablehlo.convert", (indices,), [type_])
    components = (numbers.index_vector_dim,) if numbers.index_vector_dim < len(shape) else ()

    def constant(values: Sequence[int]) -> Value:
        return new.constant(values, type_, components)

    def compare(direction: str, other: Value) -> Value:
        flags = [TensorType(shape, ElementType.PRED)]
        (value,) = new.add("stablehlo.compare", (indices, other), flags, comparison_direction=direction)
        return value

    least, most = compare("GE", constant([0] * len(limits))), compare("LE", constant([last for _, last in limits]))
    (inside,) = new.add("stablehlo.and", (least, most), [least.type])
    (value,) = new.add("stablehlo.select", (inside, indices, constant([size for size, _ in limits])), [type_])
    return value


# Other indices.


def _gather(gather: Operation) -> list[Operation]:
    """Limit the indices to the operand: IREE reads memory of others for some that are out of bounds."""
    operand, indices = gather.operands
    numbers, windows = gather.attribute("dimension_numbers"), gather.attribute("slice_sizes")
    type_, sizes = _tensor(indices), _sizes(operand)
    components = (numbers.index_vector_dim,) if numbers.index_vector_dim < len(type_.shape) else ()
    new = _Operations(gather.location)
    indices = new.limited(indices, [sizes[d] - windows[d] for d in numbers.start_index_map], components)
    return [*new.operations, replace(gather, operands=(operand, indices))]


def _dynamic_slice(operation: Operation) -> list[Operation]:
    """Limit indices of ui64, of which IREE takes those from 2**63 on for negative ones."""
    sizes, first = _sizes(operation.operands[0]), _FIRST_INDEX[operation.name]
    before, indices = operation.operands[:first], operation.operands[first:]
    if not indices or _tensor(indices[0]).element is not ElementType.U64:
        return [operation]
    windows = operation.attribute("slice_sizes", None) or _sizes(operation.operands[1])
    new = _Operations(operation.location)
    limits = [size - window for size, window in zip(sizes, windows, strict=True)]
    limited = [new.limited(index, [limit], ()) for index, limit in zip(indices, limits, strict=True)]
    return [*new.operations, replace(operation, operands=(*before, *limited))]


_FIRST_INDEX = {"stablehlo.dynamic_slice": 1, "stablehlo.dynamic_update_slice": 2}
"""The number of the first operand that is an index."""


# Convolutions.


def _convolution(convolution: Operation) -> list[Operation]:
    """Reverse the kernel in place of the window: IREE does not do that where each feature has a kernel of its own."""
    reversal = convolution.attribute("window_reversal", None)
    if reversal is None or not any(reversal):
        return [convolution]
    image, kernel = convolution.operands
    spatial = convolution.attribute("dimension_numbers").kernel_spatial_dimensions
    dimensions = tuple(place for place, is_reversed in zip(spatial, reversal, strict=True) if is_reversed)
    new = _Operations(convolution.location)
    (kernel,) = new.add("stablehlo.reverse", (kernel,), [kernel.type], dimensions=dimensions)
    attributes = {name: value for name, value in convolution.attributes.items() if name != "window_reversal"}
    return [*new.operations, replace(convolution, operands=(image, kernel), attributes=attributes)]


# Sorts.


def _sort(sort: Operation) -> list[Operation]:
    """Return a sort in which no two elements are equal, because their places decide: IREE's is never stable."""
    if not sort.attribute("is_stable", False):
        return [sort]
    (order,) = sort.regions
    type_, scalar = replace(_tensor(sort.operands[0]), element=ElementType.S32), TensorType((), ElementType.S32)
    flag = TensorType((), ElementType.PRED)
    before = _Operations(sort.location)
    (places,) = before.add("stablehlo.iota", (), [type_], iota_dimension=sort.attribute("dimension"))

    # An element comes first if the order says so, or if it does not say so of the other one and the place is lower.
    body, inside = Block(), _Operations(sort.location)
    arguments = [Value(each.type, "", body, number) for number, each in enumerate(order.arguments)]
    here, there = (Value(scalar, "", body, len(arguments) + number) for number in range(2))
    body.arguments = (*arguments, here, there)
    swapped = [arguments[number ^ 1] for number in range(len(arguments))]
    answers: list[Value] = []
    for values in (arguments, swapped):
        copy = order.renamed(dict(zip(map(id, order.arguments), values, strict=True)))
        inside.operations += copy.operations[:-1]
        answers += copy.outputs
    (is_lower,) = inside.add("stablehlo.compare", (here, there), [flag], comparison_direction="LT")
    (not_after,) = inside.add("stablehlo.not", (answers[1],), [flag])
    (decides,) = inside.add("stablehlo.and", (not_after, is_lower), [flag])
    (first,) = inside.add("stablehlo.or", (answers[0], decides), [flag])
    inside.add("stablehlo.return", (first,), [])
    body.operations = tuple(inside.operations)
    stable = replace(sort, operands=(*sort.operands, places), regions=(body,))
    stable.results = (*sort.results, Value(type_, "", stable, len(sort.results)))
    return [*before.operations, stable]


class _Operations:
    """A list of operations that grows."""

    def __init__(self, location: Location) -> None:
        self.operations: list[Operation] = []
        self._location = location

    def add(
        self,
        name: str,
        operands: tuple[Value, ...],
        types: Sequence[ValueType],
        regions: tuple[Block, ...] = (),
        **attributes: Any,
    ) -> tuple[Value, ...]:
        """Add an operation, and return its results."""
        operation = Operation(name, operands, attributes, self._location, regions=regions)
        operation.results = tuple(Value(each, "", operation, number) for number, each in enumerate(types))
        self.operations.append(operation)
        return operation.results

    def constant(self, values: Sequence[int], type_: TensorType, components: tuple[int, ...]) -> Value:
        """Add a constant of a type: a number for each index of the dimension that has components, or one for all."""
        array = np.array(values if components else values[0], type_.element.dtype)
        (value,) = self.add("stablehlo.constant", (), [replace(type_, shape=array.shape)], value=array)
        (value,) = self.add("stablehlo.broadcast_in_dim", (value,), [type_], broadcast_dimensions=components)
        return value

    def limited(self, indices: Value, limits: Sequence[int], components: tuple[int, ...]) -> Value:
        """Add operations that bring each component of an index between zero and its limit, and return the result."""
        type_ = _tensor(indices)
        greatest = int(np.iinfo(type_.element.dtype).max)  # a small type may not hold the limit: none is beyond it
        most = self.constant([min(limit, greatest) for limit in limits], type_, components)
        least = self.constant([0] * len(limits), type_, components)
        (value,) = self.add("stablehlo.maximum", (indices, least), [type_])
        (value,) = self.add("stablehlo.minimum", (value, most), [type_])
        return value

    def pad(self, value: Value, amounts: tuple[int, ...]) -> Value:
        """Add zeros behind the end of each dimension, and return the result."""
        type_, none = _tensor(value), (0,) * len(amounts)
        zero = np.zeros((), type_.element.dtype)
        (filling,) = self.add("stablehlo.constant", (), [replace(type_, shape=())], value=zero)
        wide = replace(type_, shape=tuple(size + more for size, more in zip(type_.sizes, amounts, strict=True)))
        places: dict[str, Any] = {"edge_padding_low": none, "edge_padding_high": amounts, "interior_padding": none}
        (result,) = self.add("stablehlo.pad", (value, filling), [wide], **places)
        return result


def _windows(operand: Value, update: Value, numbers: Any) -> list[int]:
    """Return the size of an update in each dimension of the operand."""
    shape = _sizes(update)
    window = iter(shape[d] for d in numbers.update_window_dims)
    outside = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    return [1 if d in outside else next(window) for d in range(len(_sizes(operand)))]


def _sizes(value: Value) -> tuple[int, ...]:
    return _tensor(value).sizes


def _tensor(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)  # as the specification has it
    return value.type


_REWRITES: Mapping[str, Callable[[Operation], list[Operation]]] = {
    "stablehlo.convolution": _convolution,
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
    "stablehlo.sort": _sort,
    **dict.fromkeys(_FIRST_INDEX, _dynamic_slice),
}

OF_STATIC_SHAPE = frozenset(_REWRITES) - {"stablehlo.convolution"}
"""The names of operations whose replacements have their sizes as constants."""


# The tables come from a comparison of each operation and element type with the reference interpreter, with IREE 3.13.

_MISSING = frozenset(
    {
        # IREE has no such operation.
        "stablehlo.batch_norm_grad",
        "stablehlo.cholesky",
        "stablehlo.custom_call",
        "stablehlo.dynamic_gather",
        "stablehlo.dynamic_pad",
        "stablehlo.triangular_solve",
        # Equal elements change places, unsigned ones are compared as signed ones, and NaN is left out.
        "chlo.top_k",
        # Of equal elements in a window, none is selected.
        "stablehlo.select_and_scatter",
        # They need the other devices of a launch, or the host. IREE's drivers of processors have no channels.
        "stablehlo.after_all",
        "stablehlo.all_gather",
        "stablehlo.all_reduce",
        "stablehlo.all_to_all",
        "stablehlo.async_done",
        "stablehlo.async_start",
        "stablehlo.collective_broadcast",
        "stablehlo.collective_permute",
        "stablehlo.create_token",
        "stablehlo.cross-replica-sum",
        "stablehlo.infeed",
        "stablehlo.outfeed",
        "stablehlo.partition_id",
        "stablehlo.recv",
        "stablehlo.reduce_scatter",
        "stablehlo.replica_id",
        "stablehlo.send",
    }
)

_F8 = frozenset(element for element in ElementType if element.name.startswith("F8"))

_MOVES = frozenset(
    {
        "stablehlo.bitcast_convert",
        "stablehlo.broadcast",
        "stablehlo.broadcast_in_dim",
        "stablehlo.case",
        "stablehlo.composite",
        "stablehlo.concatenate",
        "stablehlo.constant",
        "stablehlo.dynamic_slice",
        "stablehlo.dynamic_update_slice",
        "stablehlo.gather",
        "stablehlo.if",
        "stablehlo.optimization_barrier",
        "stablehlo.pad",
        "stablehlo.reshape",
        "stablehlo.reverse",
        "stablehlo.select",
        "stablehlo.slice",
        "stablehlo.transpose",
        "stablehlo.while",
    }
)
"""Operations that move elements and compute none. IREE computes no others of 8-bit floats rightly, not even
conversions: it gives numbers for NaN, and zero for what rounds to the smallest normal number."""

_REAL = frozenset(element for element in ElementType if element.is_floating)
_C64 = frozenset({ElementType.C64})
_C128 = frozenset({ElementType.C128})

_WRONG: dict[str, frozenset[ElementType]] = {
    # A sum of booleans wraps around.
    "chlo.broadcast_add": frozenset({ElementType.PRED}),
    "stablehlo.add": frozenset({ElementType.PRED}),
    # Zero, infinity or equal arguments give NaN where they have a value, or the other way round.
    "chlo.broadcast_atan2": _REAL,
    "chlo.broadcast_divide": _C64,
    "chlo.broadcast_power": _REAL,
    "chlo.digamma": _REAL,
    "stablehlo.atan2": _REAL,
    "stablehlo.cbrt": _REAL,
    "stablehlo.divide": _C64,
    "stablehlo.log": _C64,
    "stablehlo.log_plus_one": _C64,
    "stablehlo.exponential_minus_one": frozenset({ElementType.C64}),
    "stablehlo.power": _REAL,
    # The compiler crashes.
    "stablehlo.bitcast_convert": _C64,
}
"""Element types for which the results of an operation are wrong."""

_NOT_LINKED = frozenset(
    {
        "chlo.acos",
        "chlo.asin",
        "chlo.atan",
        "chlo.broadcast_remainder",
        "chlo.erfc",
        "chlo.lgamma",
        "chlo.polygamma",
        "chlo.tan",
        "stablehlo.cosine",
        "stablehlo.remainder",
        "stablehlo.sine",
        "stablehlo.tan",
        "stablehlo.tanh",
    }
)
"""Operations that IREE computes in f64 by functions of a mathematical library, and it links none."""


def refusal(operation: Operation) -> str:
    """Return why IREE does not run an operation, with those in its regions; empty if it may run it."""
    return next(filter(None, map(_refusal, (operation, *operation.walk()))), "")


def _refusal(operation: Operation) -> str:
    name = operation.name
    if name in _MISSING:
        what = operation.attributes.get("call_target_name", "") if name == "stablehlo.custom_call" else ""
        return f"IREE does not run {name}{f' @{what}' if what else ''} ({operation.location})"
    if name in OF_STATIC_SHAPE and not all(_is_static(value.type) for value in operation.operands):
        return f"IREE does not run {name} of a dynamic shape ({operation.location})"
    elements = frozenset(_elements((*operation.operands, *operation.results)))
    wrong = elements & (_WRONG.get(name, frozenset()) | _C128)
    if name in _NOT_LINKED:
        wrong |= elements & {ElementType.F64}
    if name not in _MOVES and not name.startswith("func.") and name != "stablehlo.return":
        wrong |= elements & _F8
    if wrong:
        return f"IREE does not run {name} of {', '.join(sorted(each.mlir for each in wrong))} ({operation.location})"
    return ""


def _elements(values: Iterable[object]) -> Iterable[ElementType]:
    for value in values:
        type_ = value.type  # type: ignore[attr-defined]
        if isinstance(type_, TensorType):
            yield type_.element


def _is_static(type_: ValueType) -> bool:
    return isinstance(type_, TensorType) and type_.is_static


_IN_PLACE = frozenset({"stablehlo.dynamic_update_slice", "stablehlo.fft", "stablehlo.sort"})
"""Operations that IREE may compute in the memory of an operand, even where it is an argument of the program."""


def overwritten(program: ParsedProgram) -> frozenset[int]:
    """Return the numbers of the arguments whose memory a run may overwrite.

    IREE 3.13 takes the memory of arguments for its own. Values that go through other operations first, such as a
    reshape or a loop, may have the memory of an argument too, so its size is what counts.
    """
    sizes = {
        value.type.nbytes
        for operation in program.walk()
        if operation.name in _IN_PLACE
        for value in operation.operands
        if isinstance(value.type, TensorType) and value.type.is_static
    }
    arguments = enumerate(program.entry.type.arguments)
    return frozenset(n for n, each in arguments if isinstance(each, TensorType) and each.nbytes in sizes)


def boundary(program: ParsedProgram) -> tuple[list[ShapeSpec], str]:
    """Return the types of the results of a program, and why IREE does not take its arguments and results; empty if it
    does.
    """
    type_ = program.entry.type
    specs = []
    for each in (*type_.arguments, *type_.results):
        spec = shape_spec(each)
        if spec is None or spec.element_type not in SUPPORTED or _is_quantized(each):
            return [], f"IREE has no arguments and results of type {each}"
        specs.append(spec)
    return specs[len(type_.arguments) :], ""


def _is_quantized(type_: ValueType) -> bool:
    return isinstance(type_, TensorType) and type_.quantization is not None


def source_text(program: ParsedProgram) -> bytes:
    """Return a program as StableHLO text, with source locations, without shardings, as IREE computes it rightly.

    Raises:
        UnimplementedError: an attribute of an operation has no form in text.
    """
    hints = any(
        operation.name.startswith("sdy.") or operation.attributes.get("call_target_name") == "Sharding"
        for operation in program.walk()
    )
    if hints and program.source is not None and program.num_replicas * program.num_partitions == 1:
        program = parse(plain(program.source, trusted=True), trusted=True)
    return unparse(rewrite(program)).encode()
