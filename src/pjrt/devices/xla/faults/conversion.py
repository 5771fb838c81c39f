"""Bits of elements, their precision, and conversions."""

from __future__ import annotations

from typing import Any

from pjrt.devices.xla.faults.place import FORMATS, WIDTHS, Place, Value, comparison, format_of, hide, is_float, width_of
from pjrt.devices.xla.faults.table import is_there

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
