"""Mends of programs: each operation that XLA computes wrongly, with what is done about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pjrt.devices.xla.faults import FUNCTIONS
from pjrt.devices.xla.faults.place import (
    FORMATS,
    TWO_BITS,
    WHOLE,
    WIDTHS,
    Place,
    Value,
    comparison,
    cut,
    format_of,
    hide,
    hide_constant,
    in_total_order,
    is_constant,
    is_float,
    is_there,
    varies,
    width_of,
    wrap,
)
from pjrt.stablehlo.encodings.jaxlib import load
from pjrt.stablehlo.ir.mlir_module import walk

# Bits.


def mend_bitcast_convert(place: Place) -> None:
    """Take elements apart, and put them together, by shifts.

    XLA's booleans have eight bits, the specification's have one. And some versions take constants apart wrongly where
    the parts are smaller than a byte.
    """
    (operand,), (result,) = place.operation.operands, place.operation.results
    source, target = operand.type.element_type, result.type.element_type
    have, want = width_of(source), width_of(target)
    are_complex = isinstance(source, place.ir.ComplexType)
    if (are_complex and source != target) or (1 in (have, want) and not {have, want} <= {*WIDTHS}):
        raise place.refused(f"from {source} to {target}")
    if not have or not want:  # XLA itself refuses quantized types
        return
    if have == want:
        if "constant" not in getattr(operand.owner, "name", ""):
            hide(place)
        return
    if want == 1 or (want < 8 <= have and is_there("narrow bitcast")):
        place.replace(_apart(place, operand, have, want, result.type))
    elif have == 1:
        place.replace(_together(place, operand, want, result.type))
    elif _changed_width(operand):
        place.operation.operands[0] = place.add("optimization_barrier", [operand], operand.type)
    else:
        hide(place)


def _changed_width(value: Value) -> bool:
    """Whether a value is another bitcast to a type of another width: XLA would join both to one of a wrong shape."""
    while hasattr(value.owner, "operation") and value.owner.operation.name.endswith(".bitcast_convert"):
        (operand,) = value.owner.operation.operands
        if width_of(operand.type.element_type) != width_of(value.type.element_type):
            return True
        value = operand
    return False


def _apart(place: Place, operand: Value, have: int, want: int, type_: Any) -> Value:
    """Return the parts of an element along a new last dimension, the lowest first."""
    whole = place.cast(operand, place.element(f"ui{have}"))
    if have < 8:
        whole = place.cast(whole, place.element("ui8"), "convert")
    element, rank = whole.type.element_type, len(type_.shape) - 1
    dimensions = f"array<i64{': ' if rank else ''}{', '.join(map(str, range(rank)))}>"
    wide = place.add("broadcast_in_dim", [whole], place.tensor(type_.shape, element), broadcast_dimensions=dimensions)
    shifts = place.constant(str(list(range(0, have, want))), wide, rank)
    shifted = place.add("shift_right_logical", [wide, shifts], wide.type)
    parts = place.add("and", [shifted, place.constant(str((1 << want) - 1), wide)], wide.type)
    if want == 1:
        return place.cast(parts, type_.element_type, "convert")
    return place.cast(place.cast(parts, place.element(f"ui{want}"), "convert"), type_.element_type)


def _together(place: Place, operand: Value, want: int, type_: Any) -> Value:
    """Return elements whose bits are the booleans along the last dimension of an operand, the lowest first."""
    rank = len(operand.type.shape) - 1
    bits = place.cast(operand, place.element(f"ui{max(want, 8)}"), "convert")
    shifted = place.add("shift_left", [bits, place.constant(str(list(range(want))), bits, rank)], bits.type)
    element = bits.type.element_type
    scalar = place.tensor([], element)
    zero = place.add("constant", [], scalar, value=f"dense<0> : {scalar}")
    ir, location = place.ir, place.operation.location
    reduction = ir.Operation.create(
        "stablehlo.reduce",
        [place.tensor(type_.shape, element)],
        [shifted, zero],
        {"dimensions": ir.Attribute.parse(f"array<i64: {rank}>", place.operation.context)},
        regions=1,
        loc=location,
        ip=ir.InsertionPoint(place.operation),
    )
    block = ir.Block.create_at_start(reduction.regions[0], [scalar, scalar], [location, location])
    end = ir.InsertionPoint(block)
    both = place.add("or", block.arguments, scalar, end)
    ir.Operation.create("stablehlo.return", [], [both], loc=location, ip=end)
    whole = reduction.results[0]
    if want < 8:
        whole = place.cast(whole, place.element(f"ui{want}"), "convert")
    return place.cast(whole, type_.element_type)


# Precision and conversion.


def mend_reduce_precision(place: Place) -> None:
    """Give infinity for NaN where the format has no mantissa bits, which XLA does for constants only.

    Floats of eight bits and fewer are numbers of f16 for XLA: it makes zeros of the subnormal numbers of a format that
    has them, and rounds them otherwise.
    """
    operation = place.operation
    exponent, mantissa = (operation.attributes[name].value for name in ("exponent_bits", "mantissa_bits"))
    (operand,) = operation.operands
    element = operand.type.element_type
    name, own = str(element), format_of(element)
    if width_of(element) <= 8 and exponent >= own[0] and name != "f8E5M2":
        if mantissa < own[1]:
            raise place.refused(f"for {element} to e{exponent}m{mantissa}")
        place.replace(operand)
    elif not mantissa and name in _WITH_INFINITY:
        nan = place.add("compare", [operand, operand], place.like(operand, place.element("i1")), **comparison("NE"))
        _except_where(place, nan, _infinity(element))


def _except_where(place: Place, where: Value, number: str) -> None:
    """Let the result be another number where a condition holds."""
    result = place.operation.results[0]
    other = place.constant(number, result)
    place.retype(
        result,
        result.type.element_type,
        lambda value, _: place.add("select", [where, other, value], value.type, place.after),
    )


def _infinity(element: Any, nan: bool = False) -> str:
    """Return infinity as MLIR spells it, or NaN."""
    exponent, mantissa = format_of(element)
    bits = (((1 << exponent) - 1) << mantissa) | (nan << (mantissa - 1))
    return f"0x{bits:0{width_of(element) // 4}X}"


_WITH_INFINITY = frozenset({*FORMATS, "f8E5M2", "f8E4M3", "f8E3M4"})


def mend_convert(place: Place) -> None:
    """Convert from and to floats of few bits, of which XLA's constants differ from its other values.

    And hide from XLA what numbers come from booleans: it takes their products for choices between a number and 0.
    """
    (operand,), (result,) = place.operation.operands, place.operation.results
    element = operand.type.element_type
    source, target = str(element), str(result.type.element_type)
    if source == target:
        return
    if source == "f4E2M1FN" and isinstance(result.type.element_type, place.ir.IntegerType):
        place.operation.operands[0] = place.cast(operand, place.element("f32"), "convert")
    elif target == "f4E2M1FN" and source in _WITH_INFINITY:
        place.operation.operands[0] = limited(place, operand)
    elif target == "f8E8M0FNU" and width_of(element):
        # The bits of floats: XLA takes numbers below the smallest normal one for zero when it compares.
        bits = place.cast(operand, place.element(f"i{width_of(element)}")) if is_float(element) else operand
        zero = place.constant("false" if source == "i1" else "0", bits)
        without = place.add("compare", [bits, zero], place.like(bits, place.element("i1")), **comparison("LE"))
        _except_where(place, without, "0xFF")
    elif source == "f8E8M0FNU" and target in _WITH_INFINITY and is_there("e8m0 nan"):
        byte = place.cast(operand, place.element("ui8"))
        last = place.constant("255", byte)
        nan = place.add("compare", [byte, last], place.like(byte, place.element("i1")), **comparison("EQ"))
        _except_where(place, nan, _infinity(result.type.element_type, nan=True))
    elif source == "i1" and not isinstance(result.type.element_type, place.ir.IntegerType):
        place.operation.operands[0] = place.cast(operand, place.element("ui8"), "convert")


def limited(place: Place, value: Value, point: Any = None) -> Value:
    """Return numbers within the range of f4E2M1FN."""
    scalar = place.tensor([], value.type.element_type)
    ends = [place.add("constant", [], scalar, point, value=f"dense<{end}> : {scalar}") for end in (-6.0, 6.0)]
    return place.add("clamp", [ends[0], value, ends[1]], value.type, point)


# Operations that combine, sort and find elements: reductions, scatters, products, sorts and indices.

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


# Arithmetic of narrow types and of constants, and random bits.

# Arithmetic of narrow types, and of constants.


def mend_add(place: Place) -> None:
    """Join booleans: XLA adds those of constants as integers of one bit."""
    operation = place.operation
    if str(operation.results[0].type.element_type) == "i1":
        created = place.ir.Operation.create(
            operation.name.replace("add", "or"),
            [operation.results[0].type],
            list(operation.operands),
            {name: operation.attributes[name] for name in operation.attributes},
            loc=operation.location,
            ip=place.ir.InsertionPoint(operation),
        )
        place.replace(created.results[0])
    else:
        wrap(place)


def mend_clamp(place: Place) -> None:
    """Choose bounds of booleans by ``and`` and ``or``."""
    operation = place.operation
    low, value, high = operation.operands
    if operation.name.startswith("chlo") or str(value.type.element_type) != "i1":
        return

    def whole(bound: Value) -> Value:
        if list(bound.type.shape) == list(value.type.shape):
            return bound
        return place.add("broadcast_in_dim", [bound], place.like(value, value.type.element_type), **_NO_DIMENSIONS)

    place.replace(place.add("and", [place.add("or", [value, whole(low)], value.type), whole(high)], value.type))


_NO_DIMENSIONS = {"broadcast_dimensions": "array<i64>"}


def mend_compare(place: Place) -> None:
    """Compare integers in the order of floats, where XLA may compute the result: it has no total order of constants.

    The only NaN of some types has the bits of -0 in others, and is the least.
    """
    operation = place.operation
    element = operation.operands[0].type.element_type
    kind = str(operation.attributes["compare_type"]) if "compare_type" in operation.attributes else ""
    has_low_nan = str(element).endswith("FNUZ")
    if "TOTALORDER" not in kind or not (has_low_nan or _may_be_computed(operation)):
        return

    def rank(value: Value) -> Value:
        if str(element) == "f8E8M0FNU":
            return place.cast(value, place.element("ui8"))
        bits = place.cast(value, place.element(f"i{width_of(element)}"))
        if width_of(element) < 8:
            bits = place.cast(bits, place.element("i8"), "convert")
        if not has_low_nan:
            return in_total_order(place, bits)
        nan = place.constant("-128", bits)
        is_nan = place.add("compare", [bits, nan], place.like(bits, place.element("i1")), **comparison("EQ"))
        flipped = place.cast(in_total_order(place, bits), place.element("i16"), "convert")
        return place.add("select", [is_nan, place.constant("-129", flipped), flipped], flipped.type)

    for number, operand in enumerate(operation.operands):
        operation.operands[number] = rank(operand)
    del operation.attributes["compare_type"]


def _may_be_computed(operation: Any) -> bool:
    """Whether XLA may find out the result of a comparison. It sorts constants by the order that is asked for."""
    return operation.parent.name != "stablehlo.sort" and not any(map(varies, operation.operands))


def mend_mulhi(place: Place) -> None:
    """Multiply bytes, and take the upper half of the bits that the product of the narrow integers has."""
    x, y = place.operation.operands
    own = x.type.element_type
    width = width_of(own)
    if width >= 8:
        return
    is_unsigned = str(own).startswith("u")
    byte = place.element("ui8" if is_unsigned else "i8")
    both = [place.cast(each, byte, "convert") for each in (x, y)]
    product = place.add("multiply", both, both[0].type)
    shift = "shift_right_logical" if is_unsigned else "shift_right_arithmetic"
    high = place.add(shift, [product, place.constant(str(width), product)], product.type)
    place.replace(place.cast(high, own, "convert"))


def mend_popcnt(place: Place) -> None:
    """Count the bits of negative narrow integers as those of unsigned ones."""
    (operand,) = place.operation.operands
    own = operand.type.element_type
    if str(own) in ("i2", "i4"):
        bits = place.cast(operand, place.element(f"u{own}"))
        place.replace(place.cast(place.add("popcnt", [bits], bits.type), own))


def mend_convolution(place: Place) -> None:
    """Hide a constant operand of integers: where XLA computes with constants, it keeps the result in the range.

    And reverse the kernel, not its window: where a window is as large as the array, XLA makes a product of both.
    """
    widen(place)
    attributes, kernel = place.operation.attributes, place.operation.operands[1]
    reversed_ = list(attributes["window_reversal"]) if "window_reversal" in attributes else []
    if any(reversed_):
        spatial = load("mlir.dialects.stablehlo", "read convolutions").ConvDimensionNumbers(
            attributes["dimension_numbers"]
        )
        dimensions = [at for at, is_ in zip(spatial.kernel_spatial_dimensions, reversed_, strict=True) if is_]
        listed = f"array<i64: {', '.join(map(str, dimensions))}>"
        kernel = place.operation.operands[1] = place.add("reverse", [kernel], kernel.type, dimensions=listed)
        del attributes["window_reversal"]
    if isinstance(kernel.type.element_type, place.ir.IntegerType):
        place.operation.operands[1] = place.add("optimization_barrier", [kernel], kernel.type)
    wrap(place)


def in_f32(place: Place) -> None:
    """Compute with f32 in the place of the narrowest floats: of constants, XLA does so in a type that lacks numbers.

    CHLO's functions of such floats have an end for LLVM only after minutes or more, if XLA has them.
    """
    operation = place.operation
    given = operation.operands[0]
    own, is_function = str(given.type.element_type), operation.name.startswith("chlo.")
    if own not in ("f8E3M4", "f4E2M1FN") and not (is_function and own.startswith(("f4", "f8"))):
        return
    wide = place.element("f32")
    for number, operand in enumerate(operation.operands):
        if is_function and is_constant(operand):
            operand = place.add("optimization_barrier", [operand], operand.type)
        operation.operands[number] = place.cast(operand, wide, "convert")

    def narrow(value: Value, own: Any) -> Value:
        result = limited(place, value, place.after) if str(own) == "f4E2M1FN" else value
        result = place.cast(result, own, "convert", place.after)
        if str(own) == "f8E8M0FNU":
            mend_convert(Place(place.ir, result.owner, place.num_partitions))
        if not operation.name.endswith("sign"):
            return result
        zero = place.constant("0.0", value, point=place.after)
        is_zero = place.add(
            "compare", [value, zero], place.like(value, place.element("i1")), place.after, **comparison("EQ")
        )
        return place.add("select", [is_zero, given, result], result.type, place.after)  # a zero keeps its sign

    place.retype(operation.results[0], wide, narrow)


# Counting numbers: XLA makes an iota of constants that count from zero, too.


def mend_abs(place: Place) -> None:
    """Hide numbers that may be complex and count: XLA knows that they are not negative, and leaves out the ``abs``."""
    if isinstance(place.operation.operands[0].type.element_type, place.ir.ComplexType):
        hide(place)
    wrap(place)


def mend_atan2(place: Place) -> None:
    """Let 1 or -1 stand for a zero beside a zero, which has the same angle: LLVM divides such constants.

    A barrier would do with jaxlib 0.12, but not with 0.10.
    """
    y, x = place.operation.operands
    if varies(y) or varies(x):
        return
    flag, signed = place.like(x, place.element("i1")), place.like(x, place.element(f"i{width_of(x.type.element_type)}"))

    def compare(value: Value, direction: str) -> Value:
        zero = place.constant("0" if value.type == signed else "0.0", value)
        return place.add("compare", [value, zero], flag, **comparison(direction))

    both = place.add("and", [compare(y, "EQ"), compare(x, "EQ")], flag)
    negative = compare(place.add("bitcast_convert", [x], signed), "LT")
    one = place.add("select", [negative, place.constant("-1.0", x), place.constant("1.0", x)], x.type)
    place.operation.operands[1] = place.add("select", [both, one, x], x.type)


def mend_sign(place: Place) -> None:
    """Take the sign of hidden numbers, in f32 where the type is narrow."""
    hide(place)
    in_f32(place)


def mend_next_after(place: Place) -> None:
    """Count the bits of floats without a sign: XLA takes the highest bit of the exponent for one."""
    x, y = place.operation.operands
    if str(x.type.element_type) != "f8E8M0FNU":
        return
    if list(x.type.shape) != list(y.type.shape):
        raise place.refused("for f8E8M0FNU of two shapes")
    one, other = (place.cast(each, place.element("ui8")) for each in (x, y))
    flag, step, nan = place.like(x, place.element("i1")), place.constant("1", one), place.constant("255", one)

    def chosen(direction: str, left: Value, right: Value, then: Value, otherwise: Value) -> Value:
        where = place.add("compare", [left, right], flag, **comparison(direction))
        return place.add("select", [where, then, otherwise], one.type)

    lower = chosen("LT", other, one, place.add("subtract", [one, step], one.type), one)
    found = chosen("GT", other, one, place.add("add", [one, step], one.type), lower)
    found = chosen("EQ", one, nan, nan, chosen("EQ", other, nan, nan, found))
    place.replace(place.cast(found, x.type.element_type))


def no_infinity(place: Place) -> None:
    """Say that f4E2M1FN has no infinity: XLA converts infinity to it, which gives 0, and compares."""
    (operand,), (result,) = place.operation.operands, place.operation.results
    if str(operand.type.element_type) == "f4E2M1FN":
        place.replace(place.add("compare", [operand, operand], result.type, **comparison("NE")))


# Random bits.


def mend_rng_bit_generator(place: Place) -> None:
    """Make unsigned random bits, and read them as signed ones.

    XLA replaces the operation by others that give unsigned integers, and does not look at the uses of its result.
    """
    bits = place.operation.results[1]
    element = bits.type.element_type
    if isinstance(element, place.ir.IntegerType) and element.is_signless and element.width > 1:
        unsigned = place.element(f"ui{element.width}")
        place.retype(bits, unsigned, lambda value, own: place.cast(value, own, point=place.after))


# What XLA knows on other devices than the CPU.


def mend_composite(place: Place) -> None:
    """Call the decomposition of a composite with a region, such as a scan, as XLA does with composites without one."""
    if any(region.blocks for region in place.operation.regions):
        place.call(place.operation.attributes["decomposition"].value)


def mend_custom_call(place: Place) -> None:
    """Call a function with LAPACK's factorization, which counts row exchanges from 0 up, for ``LuDecomposition``."""
    operation = place.operation
    if operation.attributes["call_target_name"].value != "LuDecomposition":
        return
    (operand,) = operation.operands
    letter = _LETTERS.get(str(operand.type.element_type))
    if letter is None or not operand.type.has_static_shape:
        raise place.refused(f"LuDecomposition of {operand.type}", "has no code for {}")
    name = f"pjrt.lu_decomposition.{'x'.join(map(str, operand.type.shape))}.{letter}"
    whole = operation.parent
    while whole.parent is not None:
        whole = whole.parent
    body = whole.regions[0].blocks[0]
    names = [each.attributes["sym_name"].value for each in body.operations if "sym_name" in each.attributes]
    if name not in names:
        text = _lu_decomposition(name, letter, [each.type for each in operation.results], operand.type.shape)
        made = place.ir.Module.parse(text, operation.context)
        function = made.body.operations[0]
        function.detach_from_parent()
        body.append(function)
    place.call(name)


_LETTERS = {"f32": "s", "f64": "d", "complex<f32>": "c", "complex<f64>": "z"}
"""LAPACK's letters for element types."""


def _lu_decomposition(name: str, letter: str, types: Sequence[Any], shape: Sequence[int]) -> str:
    """Return a module with a function that factorizes matrices by LAPACK, and exchanges the numbers of their rows."""
    *stack, rows, columns = shape
    least, last, numbers = min(rows, columns), len(stack), list(range(len(stack)))

    def tensor(*sizes: int, element: str = "i32") -> str:
        return f"tensor<{'x'.join([*map(str, sizes), element])}>"

    def layout(*order: int) -> str:
        return f"dense<[{', '.join(map(str, order))}]> : tensor<{len(order)}xindex>"

    whole, exchanges, order = map(str, types)
    status, row, truth = tensor(*stack), tensor(*stack, 1), tensor(*stack, rows, element="i1")
    if not min(rows, columns, *stack, 1):
        count = "stablehlo.constant dense<0>" if not min(rows, *stack, 1) else f"stablehlo.iota dim = {last}"
        return f"""module {{ func.func private @{name}(%a: {whole}) -> ({whole}, {exchanges}, {order}) {{
          %p = stablehlo.constant dense<0> : {exchanges}
          %o = {count} : {order}
          return %a, %p, %o : {whole}, {exchanges}, {order} }} }}"""
    columnwise, plain = layout(last, last + 1, *reversed(numbers)), [*reversed(numbers)]
    of_status = layout(*plain) if plain else "dense<> : tensor<0xindex>"
    at_front, everywhere = f"dims = {numbers}", f"dims = {[*numbers, last]}"
    return f"""module {{ func.func private @{name}(%a: {whole}) -> ({whole}, {exchanges}, {order}) {{
      %0:3 = stablehlo.custom_call @lapack_{letter}getrf_ffi(%a) {{api_version = 4 : i32, mhlo.backend_config = {{}},
        operand_layouts = [{columnwise}], result_layouts = [{columnwise}, {layout(last, *plain)}, {of_status}]}}
        : ({whole}) -> ({whole}, {exchanges}, {status})
      %ones = stablehlo.constant dense<1> : {exchanges}
      %exchanges = stablehlo.subtract %0#1, %ones : {exchanges}
      %none = stablehlo.constant dense<0> : {order}
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %one = stablehlo.constant dense<1> : tensor<i32>
      %count = stablehlo.constant dense<{least}> : tensor<i32>
      %rows = stablehlo.iota dim = {last} : {order}
      %1:2 = stablehlo.while(%step = %zero, %order = %rows) : tensor<i32>, {order}
      cond {{
        %more = stablehlo.compare LT, %step, %count : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      }} do {{
        %other = stablehlo.dynamic_slice %exchanges, {"%zero, " * last}%step, sizes = {[*stack, 1]}
          : ({exchanges}, {", ".join(["tensor<i32>"] * (last + 1))}) -> {row}
        %first = stablehlo.broadcast_in_dim %step, dims = [] : (tensor<i32>) -> {order}
        %second = stablehlo.broadcast_in_dim %other, {everywhere} : ({row}) -> {order}
        %is_first = stablehlo.compare EQ, %rows, %first : ({order}, {order}) -> {truth}
        %is_second = stablehlo.compare EQ, %rows, %second : ({order}, {order}) -> {truth}
        %masked = stablehlo.select %is_first, %order, %none : {truth}, {order}
        %masked_too = stablehlo.select %is_second, %order, %none : {truth}, {order}
        %a_first = stablehlo.reduce(%masked init: %zero) applies stablehlo.add across dimensions = [{last}]
          : ({order}, tensor<i32>) -> {status}
        %a_second = stablehlo.reduce(%masked_too init: %zero) applies stablehlo.add across dimensions = [{last}]
          : ({order}, tensor<i32>) -> {status}
        %of_first = stablehlo.broadcast_in_dim %a_first, {at_front} : ({status}) -> {order}
        %of_second = stablehlo.broadcast_in_dim %a_second, {at_front} : ({status}) -> {order}
        %half = stablehlo.select %is_second, %of_first, %order : {truth}, {order}
        %exchanged = stablehlo.select %is_first, %of_second, %half : {truth}, {order}
        %next = stablehlo.add %step, %one : tensor<i32>
        stablehlo.return %next, %exchanged : tensor<i32>, {order}
      }}
      return %0#0, %exchanges, %1#1 : {whole}, {exchanges}, {order} }} }}"""


# Mends of programs: each operation that XLA computes wrongly, with what is done about it.


def mend_operations(module: Any, num_partitions: int) -> None:
    """Replace the operations of an MLIR module that XLA would compute wrongly.

    Raises:
        UnimplementedError: there is no replacement for one of them.
    """
    ir = load("mlir.ir", "change programs for XLA's CPU compiler")
    for operation in reversed(list(walk(module.operation))):  # with their regions: inner ones first
        if operation.name == "stablehlo.composite":
            mend_composite(Place(ir, operation, num_partitions))
    operations = list(walk(module.operation))
    for operation in operations:
        name = operation.name.partition(".")[2]
        if name not in _MOVING:
            _refuse_six_bits(Place(ir, operation, num_partitions))
        if name in OF_UNSIGNED_FLOATS:
            _leave_unsigned(Place(ir, operation, num_partitions))
    for operation in operations:  # which may erase others of them
        dialect, _, name = operation.name.partition(".")
        mender = MENDERS.get(name.removeprefix("broadcast_"))
        if mender is not None and dialect in ("stablehlo", "mhlo", "chlo"):
            mender(Place(ir, operation, num_partitions))


_MOVING = frozenset(
    (
        *(
            "bitcast_convert",
            "broadcast_in_dim",
            "call",
            "case",
            "dynamic_slice",
            "dynamic_update_slice",
            "gather",
            "if",
        ),
        *("get_tuple_element", "optimization_barrier", "reduce_precision", "reshape", "return", "reverse", "scatter"),
        *("select", "slice", "sort", "transpose", "tuple"),
    )
)
"""Operations that XLA does with floats of six bits. It has no code for others, their constants, and loops of them."""


def _refuse_six_bits(place: Place) -> None:
    for value in (*place.operation.operands, *place.operation.results):
        element = str(getattr(value.type, "element_type", ""))
        if element.startswith("f6E"):
            raise place.refused(f"of {element}, which it can only move", "has no code for {}")


OF_UNSIGNED_FLOATS = frozenset(
    (
        *("cosine", "exponential_minus_one", "floor", "log", "log_plus_one", "negate", "remainder", "sine", "subtract"),
        *("round_nearest_afz", "round_nearest_even", "tan"),
    )
)


def _leave_unsigned(place: Place) -> None:
    """Hide constants of floats that have no sign: XLA's own arithmetic of them gives numbers for what they lack."""
    operation = place.operation
    for number, operand in enumerate(operation.operands):
        if str(operand.type.element_type) == "f8E8M0FNU" and is_constant(operand):
            operation.operands[number] = place.add("optimization_barrier", [operand], operand.type)


MENDERS: dict[str, Callable[[Place], None]] = {
    "abs": mend_abs,
    "add": mend_add,
    "all_gather": in_bytes,
    "all_reduce": mend_combination,
    "all_to_all": in_bytes,
    "atan2": mend_atan2,
    "bitcast_convert": mend_bitcast_convert,
    "clamp": mend_clamp,
    "compare": mend_compare,
    "composite": mend_composite,
    "concatenate": in_bytes,
    "convert": mend_convert,
    "convolution": mend_convolution,
    "custom_call": mend_custom_call,
    "divide": in_f32,
    "dot": mend_product,
    "dot_general": mend_product,
    "dynamic_gather": mend_gather,
    "dynamic_slice": mend_slice,
    "dynamic_update_slice": mend_slice,
    **dict.fromkeys(FUNCTIONS, in_f32),
    "gather": mend_gather,
    **dict.fromkeys(("is_inf", "is_neg_inf", "is_pos_inf"), no_infinity),
    "mulhi": mend_mulhi,
    "next_after": mend_next_after,
    "multiply": wrap,
    "negate": wrap,
    "not": wrap,
    "popcnt": mend_popcnt,
    "power": wrap,
    "reduce": mend_reduce,
    "reduce_precision": mend_reduce_precision,
    "reduce_scatter": mend_combination,
    "reduce_window": hide_constant,
    "rng_bit_generator": mend_rng_bit_generator,
    "round_nearest_afz": in_f32,
    "round_nearest_even": in_f32,
    "scatter": mend_scatter,
    "select_and_scatter": hide_constant,
    "shift_left": wrap,
    "sign": mend_sign,
    "sort": mend_sort,
    "subtract": wrap,
    "top_k": mend_top_k,
}
