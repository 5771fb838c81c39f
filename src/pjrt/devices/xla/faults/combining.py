"""Operations that combine, sort and find elements: reductions, scatters, products, sorts and indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pjrt.devices.xla.faults.place import (
    FORMATS,
    TWO_BITS,
    WHOLE,
    WIDTHS,
    Place,
    Value,
    comparison,
    cut,
    hide_constant,
    in_total_order,
    is_float,
    width_of,
    wrap,
)
from pjrt.devices.xla.faults.table import is_there

# Maximum and minimum between devices.


def _reduction(place: Place) -> None:
    """Compare integers in the order of the numbers, in which NaN is the last one, where devices combine numbers.

    XLA's own maximum and minimum between devices compare by ``<``, so that NaN gets lost, and either zero is taken.
    """
    operation = place.operation
    block = operation.regions[0].blocks[0]
    body = [each.operation for each in block.operations]
    kind = body[0].name.partition(".")[2]
    element = block.arguments[0].type.element_type
    if kind not in ("maximum", "minimum") or len(body) != 2 or not is_float(element) or _leaves_terms(operation):
        return
    if any(operand not in block.arguments for operand in body[0].operands):
        return
    if str(element) == "f8E8M0FNU":
        raise place.refused(f"for {element} between devices")
    compared = place.element(str(element) if str(element) in FORMATS else "f16")  # f16 holds all smaller ones
    width = width_of(compared)
    integer = place.element(f"i{width}")
    last = (1 << (width - 1)) - 1 if kind == "maximum" else -(1 << (width - 1))

    def ranks(value: Value) -> Value:
        value = place.cast(value, compared, "convert")
        nan = place.add("compare", [value, value], place.like(value, place.element("i1")), **comparison("NE"))
        rank = in_total_order(place, place.cast(value, integer))
        return place.add("select", [nan, place.constant(str(last), rank), rank], rank.type)

    def numbers(value: Value, own: Any) -> Value:
        value = place.cast(in_total_order(place, value, place.after), compared, point=place.after)
        return place.cast(value, own, "convert", place.after)

    for index, operand in enumerate(operation.operands):
        if operand.type.element_type == element:  # the others are the indices of a scatter
            operation.operands[index] = ranks(operand)
    for value in (*block.arguments, body[0].results[0]):
        value.set_type(place.like(value, integer))
    for result in operation.results:
        place.retype(result, integer, numbers)


def _leaves_terms(operation: Any) -> bool:
    """Return whether each device keeps its term of a result. XLA wants no other operation before such a sharding."""
    stated = [operation.attributes["sdy.sharding"]] if "sdy.sharding" in operation.attributes else []
    for owner in (use.owner.operation for result in operation.results for use in result.uses):
        if owner.name == "sdy.sharding_constraint":
            stated.append(owner.attributes["sharding"])
        elif owner.name == "func.return" and "res_attrs" in owner.parent.attributes:
            stated.append(owner.parent.attributes["res_attrs"])
    return any("unreduced" in str(sharding) for sharding in stated)


# Scatters.


def mend_scatter(place: Place) -> None:
    """Give the operands different types: of two that are the same value, XLA updates one with the updates of both.

    Values are the same for XLA where it finds that out, so two of one type may always be.
    """
    operation = place.operation
    count = len(operation.results)
    _sign_indices(place, [count])
    hide_constant(place)
    if count == 1:
        if place.num_partitions > 1:
            _reduction(place)
        return
    taken: list[str] = []
    for number in range(count):
        own = operation.operands[number].type.element_type
        element = next((each for each in (str(own), *_holders(width_of(own))) if each not in taken), "")
        if not element:
            raise place.refused(f"with so many operands of the type {own}, two of which may be the same value")
        taken.append(element)
        if element != str(own):
            pairs = (number, count + 1 + number), (number, count + number)
            place.carry(place.element(element), *pairs, number, returned=True)


def _holders(width: int) -> list[str]:
    """Return the integer types that hold the bits of a type of some width."""
    widths = [each for each in WIDTHS if each == width or each >= max(width, 8)] if width in WIDTHS else []
    return [f"{sign}{each}" for each in widths if each > 1 for sign in ("ui", "i")]


def mend_reduce(place: Place) -> None:
    """Reduce integers of two bits beside other types as bytes: XLA wants one layout, which has the bits, for all.

    And have maxima and minima of floats keep NaN: XLA leaves those of large arrays to YNNPACK, which loses it.
    """
    results = place.operation.results
    hide_constant(place)
    if place.num_partitions > 1 and len(results) == 1:
        _reduction(place)
    elif place.num_partitions == 1 and is_there("large maximum"):
        body = [each.operation for each in place.operation.regions[0].blocks[0].operations]
        if len(body) == 2 and body[0].name in _EXTREMES and len(results) == 1:
            _shorten(place, body[0].name.removeprefix("stablehlo."))
        for inner in body:
            if inner.name in _EXTREMES:
                (one, other), there = inner.operands, Place(place.ir, inner, 1)
                if is_float(one.type.element_type):
                    extreme = there.add(inner.name.removeprefix("stablehlo."), [one, other], one.type)
                    nan = there.add("compare", [one, one], there.like(one, place.element("i1")), **comparison("NE"))
                    there.replace(there.add("select", [nan, one, extreme], one.type))
    for number, element in enumerate(str(result.type.element_type) for result in results):
        if element in TWO_BITS and len(results) > 1:
            pair = number, len(results) + number
            place.carry(place.element("ui8"), pair, pair, number, returned=True)


# Integers of two bits: XLA has no code for many operations, or moves other elements.

_EXTREMES = ("stablehlo.maximum", "stablehlo.minimum")


def _shorten(place: Place, extreme: str) -> None:
    """Take the extremes of large parts of each dimension, until one is left of it, and reduce that.

    LLVM makes vectors of this, and of few reductions that look for NaN. A part may begin within the one before.
    """
    operation = place.operation
    value, element = operation.operands[0], operation.operands[0].type.element_type
    if not (value.type.has_static_shape and is_float(element) and math.prod(value.type.shape) >= _LARGE):
        return
    for dimension in operation.attributes["dimensions"]:
        shape = list(value.type.shape)
        while (whole := shape[dimension]) > 1:
            shape[dimension] = -(-whole // _PARTS)
            begins = (min(part * shape[dimension], whole - shape[dimension]) for part in range(_PARTS))
            parts = [_part(place, value, dimension, begin, shape) for begin in dict.fromkeys(begins)]
            while len(parts) > 1:
                pairs = zip(parts[::2], parts[1::2], strict=False)
                parts = [place.add(extreme, pair, pair[0].type) for pair in pairs] + parts[len(parts) // 2 * 2 :]
            value = place.add("optimization_barrier", parts, parts[0].type)
    operation.operands[0] = value


def _part(place: Place, value: Value, dimension: int, begin: int, shape: Sequence[int]) -> Value:
    begins = [begin if number == dimension else 0 for number in range(len(shape))]
    ends = [begin + size for begin, size in zip(begins, shape, strict=True)]
    bounds = {"start_indices": begins, "limit_indices": ends, "strides": [1] * len(shape)}
    written = {name: f"array<i64: {', '.join(map(str, numbers))}>" for name, numbers in bounds.items()}
    return place.add("slice", [value], place.tensor(shape, value.type.element_type), **written)


_LARGE, _PARTS = 4096, 8
"""XLA leaves reductions of so many elements to YNNPACK; into so many parts a dimension is cut."""


def mend_combination(place: Place) -> None:
    """Combine numbers of devices as bytes, or in the order of floats."""
    in_bytes(place)
    _reduction(place)


def in_bytes(place: Place) -> None:
    """Let bytes take the place of integers of two bits, also in the region, which XLA knows by its one operation."""
    operation = place.operation
    for block in [region.blocks[0] for region in operation.regions]:
        for value in (*block.arguments, *(value for each in block.operations for value in each.operation.results)):
            if (own := str(value.type.element_type)) in TWO_BITS:
                value.set_type(place.like(value, place.element(WHOLE[own])))
    for number, operand in enumerate(operation.operands):
        if (own := str(operand.type.element_type)) in TWO_BITS:
            operation.operands[number] = place.cast(operand, place.element(WHOLE[own]), "convert")
    for result in operation.results:
        if (own := str(result.type.element_type)) in TWO_BITS:
            place.retype(result, place.element(WHOLE[own]), lambda value, own: cut(place, value, own))


def mend_product(place: Place) -> None:
    """Multiply numbers in types that XLA has products of, and cut the results."""
    widen(place)
    in_bytes(place)
    wrap(place)


def widen(place: Place) -> None:
    """Convert operands of less than a byte to the type of a wider result, and those of two floats of the same bits.

    XLA looks for the wider one of two floats by their bits, and knows no answer for a pair that has the same.
    """
    kinds = {str(operand.type.element_type) for operand in place.operation.operands}
    if kinds in ({"f8E5M2", "f8E5M2FNUZ"}, {"f8E4M3", "f8E4M3FNUZ"}):
        for number, operand in enumerate(place.operation.operands):
            place.operation.operands[number] = place.cast(operand, place.element("f16"), "convert")
    wide = place.operation.results[0].type.element_type
    for number, operand in enumerate(place.operation.operands):
        if str(operand.type.element_type) in WHOLE and width_of(wide) > width_of(operand.type.element_type):
            place.operation.operands[number] = place.cast(operand, wide, "convert")


# Indices.


def mend_slice(place: Place) -> None:
    """Give signed indices."""
    first = 2 if place.operation.name.endswith("dynamic_update_slice") else 1
    _sign_indices(place, range(first, len(place.operation.operands)))


def mend_gather(place: Place) -> None:
    """Give signed indices."""
    _sign_indices(place, [1])


def _sign_indices(place: Place, numbers: Sequence[int]) -> None:
    """Give signed indices: XLA takes the bits of constant ones for signed integers of the same width."""
    for number in numbers:
        index = place.operation.operands[number]
        element = str(index.type.element_type)
        if not element.startswith("ui"):
            continue
        if element == "ui64":  # no array has as many elements
            index = place.add("minimum", [index, place.constant(str((1 << 63) - 1), index)], index.type)
        place.operation.operands[number] = place.cast(index, place.element("i64"), "convert")


# Sorts.


def mend_sort(place: Place) -> None:
    """Sort integers of two bits as bytes: XLA moves other ones than those that it compares."""
    for number, operand in enumerate(place.operation.operands):
        own = str(operand.type.element_type)
        if own in TWO_BITS:
            place.carry(place.element("ui8"), (number,), (2 * number, 2 * number + 1), number)


def mend_top_k(place: Place) -> None:
    """Take the largest of bytes, or of f32: XLA has no indices beside elements of fewer bits."""
    operation = place.operation
    (operand,), wide = operation.operands, WHOLE.get(str(operation.operands[0].type.element_type))
    if wide is not None:
        element = place.element(wide)
        operation.operands[0] = place.cast(operand, element, "convert")
        place.retype(operation.results[0], element, lambda value, own: place.cast(value, own, "convert", place.after))
