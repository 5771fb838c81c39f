"""Arithmetic of narrow types and of constants, and random bits."""

from __future__ import annotations

from typing import Any

from pjrt.devices.xla.faults.combining import widen
from pjrt.devices.xla.faults.conversion import limited, mend_convert
from pjrt.devices.xla.faults.place import (
    Place,
    Value,
    comparison,
    hide,
    in_total_order,
    is_constant,
    varies,
    width_of,
    wrap,
)
from pjrt.stablehlo.jaxlib import load

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
