"""An operation that XLA computes wrongly, and the means to write others in its place."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from pjrt.api.errors import UnimplementedError
from pjrt.stablehlo.location import Location

Value = Any


class Place:
    """An operation of a module, and the means to write others in its place."""

    def __init__(self, ir: Any, operation: Any, num_partitions: int) -> None:
        self.ir, self.operation, self.num_partitions = ir, operation, num_partitions
        self._point, self.after = ir.InsertionPoint(operation), ir.InsertionPoint.after(operation)

    def refused(self, reason: str, what: str = "computes {} wrongly") -> UnimplementedError:
        """Return the error for an operation that has no replacement; ``what`` XLA does with it."""
        return UnimplementedError(
            f"the device 'cpu' does not run this program: XLA {what.format(self.operation.name)} {reason} "
            f"({Location(str(self.operation.location))}); use the device 'reference'"
        )

    def element(self, text: str) -> Any:
        """Return an element type by MLIR's name of it."""
        return self.ir.Type.parse(text, self.operation.context)

    def tensor(self, shape: Sequence[int], element: Any) -> Any:
        """Return the type of a tensor."""
        return self.ir.RankedTensorType.get(shape, element, loc=self.operation.location)

    def like(self, value: Value, element: Any) -> Any:
        """Return the type of a value with another element type."""
        return self.ir.RankedTensorType.get(value.type.shape, element, value.type.encoding, loc=self.operation.location)

    def add(self, name: str, operands: Sequence[Value], type_: Any, point: Any = None, **attributes: str) -> Value:
        """Write an operation, and return its result. Attributes are as MLIR spells them."""
        created = self.ir.Operation.create(
            f"stablehlo.{name}",
            [type_],
            list(operands),
            {key: self.ir.Attribute.parse(text, self.operation.context) for key, text in attributes.items()},
            loc=self.operation.location,
            ip=point or self._point,
        )
        return created.results[0]

    def cast(self, value: Value, element: Any, how: str = "bitcast_convert", point: Any = None) -> Value:
        """Write a conversion to another element type of the same shape, if the value is not of it."""
        if value.type.element_type == element:
            return value
        return self.add(how, [value], self.like(value, element), point)

    def held(self, value: Value, element: Any, point: Any = None) -> Value:
        """Write the bits of a value as another type, which holds them, or which they came from."""
        have, want = width_of(value.type.element_type), width_of(element)
        if have == want:
            return self.cast(value, element, point=point)
        if have < want and have > 1:
            value = self.cast(value, self.element(f"ui{have}"), point=point)
        if have < want or want == 1:
            return self.cast(value, element, "convert", point)
        return self.cast(self.cast(value, self.element(f"ui{want}"), "convert", point), element, point=point)

    def constant(self, numbers: str, like: Value, dimension: int | None = None, point: Any = None) -> Value:
        """Write a constant in the shape of a value: one number, or one for each index of a dimension."""
        if not like.type.has_static_shape:
            raise self.refused("where shapes are not static")
        type_ = self.tensor([] if dimension is None else [like.type.shape[dimension]], like.type.element_type)
        value = self.add("constant", [], type_, point, value=f"dense<{numbers}> : {type_}")
        dimensions = "" if dimension is None else f": {dimension}"
        return self.add("broadcast_in_dim", [value], like.type, point, broadcast_dimensions=f"array<i64{dimensions}>")

    def replace(self, value: Value) -> None:
        """Put a value in the place of the operation's only result."""
        self.operation.results[0].replace_all_uses_with(value)
        self.operation.erase()

    def carry(
        self, element: Any, operands: Sequence[int], arguments: Sequence[int], result: int, returned: bool = False
    ) -> None:
        """Let a type that holds their bits take the place of that of some operands, arguments of the region, and a
        result. With ``returned`` the region returns the result.
        """
        operation, block = self.operation, self.operation.regions[0].blocks[0]
        for index in operands:
            operation.operands[index] = self.held(operation.operands[index], element)
        begin = self.ir.InsertionPoint.at_block_begin(block)
        for index in arguments:
            self.retype(block.arguments[index], element, lambda value, own: self.held(value, own, begin))
        if returned:
            end = block.operations[len(block.operations) - 1].operation
            end.operands[result] = self.held(end.operands[result], element, self.ir.InsertionPoint(end))
        self.retype(operation.results[result], element, lambda value, own: self.held(value, own, self.after))

    def retype(self, value: Value, element: Any, back: Callable[[Value, Any], Value]) -> None:
        """Give a value another element type. Its uses get what ``back`` makes of it, for its own type."""
        own, uses = value.type.element_type, list(value.uses)
        value.set_type(self.like(value, element))
        replacement = back(value, own)
        for use in uses:
            use.owner.operands[use.operand_number] = replacement


def width_of(element: Any) -> int:
    """Return the bits of a real element type, by the specification: 1 for booleans. 0 for others."""
    return getattr(element, "width", 0)


def is_float(element: Any) -> bool:
    """Return whether an element type is a float."""
    return str(element).startswith(("f", "bf"))


def in_total_order(place: Place, bits: Value, point: Any = None) -> Value:
    """Return the place of floats in their total order, by their bits, or the bits by their place."""
    width = width_of(bits.type.element_type)
    most, below = (place.constant(str(n), bits, point=point) for n in (width - 1, (1 << (width - 1)) - 1))
    sign = place.add("shift_right_arithmetic", [bits, most], bits.type, point)
    mask = place.add("and", [sign, below], bits.type, point)
    return place.add("xor", [bits, mask], bits.type, point)


WIDTHS = (1, 2, 4, 8, 16, 32, 64)


TWO_BITS = ("i2", "ui2")


WHOLE = {"i2": "i8", "i4": "i8", "ui2": "ui8", "ui4": "ui8", "f4E2M1FN": "f32"}


def format_of(element: Any) -> tuple[int, ...]:
    """Return the bits of the exponent and of the mantissa."""
    return FORMATS.get(str(element)) or tuple(map(int, re.findall("[EM]([0-9]+)", str(element))))


FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}


def comparison(direction: str) -> dict[str, str]:
    """Return the attributes of a comparison."""
    return {"comparison_direction": f"#stablehlo<comparison_direction {direction}>"}


def wrap(place: Place) -> None:
    """Cut a result to four bits: XLA keeps it in a byte, and later operations of a program take all of that."""
    operation = place.operation
    result = operation.results[0]
    element = result.type.element_type
    if str(element) not in ("i4", "ui4") or operation.parent.name.partition(".")[2] in _COMBINING:
        return

    place.retype(result, element, lambda value, own: cut(place, value, own))


def cut(place: Place, value: Value, own: Any) -> Value:
    """Return the lowest bits of integers, as narrow ones, after the operation."""
    wide = place.cast(value, place.element(WHOLE[str(own)]), "convert", place.after)
    rest = place.constant(str(8 - width_of(own)), wide, point=place.after)
    high = place.add("shift_left", [wide, rest], wide.type, place.after)
    how = "shift_right_logical" if str(own).startswith("u") else "shift_right_arithmetic"
    return place.cast(place.add(how, [high, rest], wide.type, place.after), own, "convert", place.after)


_COMBINING = frozenset(
    ("all_reduce", "map", "reduce", "reduce_scatter", "reduce_window", "scatter", "select_and_scatter", "sort")
)
"""Operations whose regions XLA knows by what they compute. It cuts their results itself."""


def hide(place: Place) -> None:
    """Put a barrier before the operand if XLA may find out what numbers it has."""
    (operand,) = place.operation.operands
    if not varies(operand):
        place.operation.operands[0] = place.add("optimization_barrier", [operand], operand.type)


def hide_constant(place: Place) -> None:
    """Put a barrier before constants that are combined: XLA takes either zero for the extreme of both, or their sum."""
    operand = place.operation.operands[0]
    if is_float(operand.type.element_type) and is_constant(operand):
        place.operation.operands[0] = place.add("optimization_barrier", [operand], operand.type)


def is_constant(value: Value) -> bool:
    """Whether a value is computed from constants alone, as far as can be seen within its block."""
    pending, seen = [value], {value}
    while pending:
        owner = pending.pop().owner
        if not hasattr(owner, "operation"):
            return False
        more = set(owner.operation.operands) - seen
        pending += more
        seen |= more
    return True


def varies(value: Value) -> bool:
    """Whether a value is known to be computed from an argument of the program, which no simplification changes."""
    pending, seen = [value], {value}
    while pending:
        owner = pending.pop().owner
        if hasattr(owner, "operation"):
            if owner.operation.name.partition(".")[2] in _COMPUTING:
                more = set(owner.operation.operands) - seen
                pending += more
                seen |= more
            continue
        outer = owner.owner.operation  # of the block whose argument it is
        if outer.name == "func.func" and outer.attributes["sym_name"].value == "main":
            return True
    return False


_COMPUTING = frozenset(
    (
        *("abs", "add", "broadcast_in_dim", "complex", "convert", "convolution", "cosine", "divide", "dot_general"),
        *("exponential", "fft", "log", "multiply", "negate", "power", "reshape", "reverse", "sine", "slice", "sqrt"),
        *("subtract", "tanh", "transpose"),
    )
)
