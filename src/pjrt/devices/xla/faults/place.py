"""Known faults of XLA's CPU compiler: their table, and the means to write other operations in the place of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pjrt.api.errors import UnimplementedError
from pjrt.stablehlo.encodings.jaxlib import version
from pjrt.stablehlo.ir.location import Location


class Fault(NamedTuple):
    """Something that XLA computes wrongly.

    Attributes:
        where: the operations, and the values that it is wrong for.
        wrong: what XLA gives.
        answer: what the device does about it.
        repaired: the first version of jaxlib that is right, if there is one.
        since: the first version of jaxlib that is wrong, if not all are.
    """

    where: str
    wrong: str
    answer: str
    repaired: tuple[int, ...] | None = None
    since: tuple[int, ...] | None = None

    def affects(self, version: tuple[int, ...]) -> bool:
        """Whether a version of jaxlib has the fault."""
        return (self.since is None or version >= self.since) and (self.repaired is None or version < self.repaired)

    def row(self) -> str:
        """Return the row of the table in the page of the device."""
        versions = [
            f"{word} {'.'.join(map(str, end))}" for word, end in (("from", self.since), ("below", self.repaired)) if end
        ]
        return f"| {self.where} | {self.wrong} | {' '.join(versions) or 'all'} | {self.answer} |"


HEADING = "| operation | XLA gives | in jaxlib | the device |"
"""The head of the table in the page of the device."""


FAULTS = {
    "narrow bitcast": Fault(
        "`bitcast_convert` of constants to parts of less than a byte",
        "other parts",
        "takes the parts by shifts",
        (0, 11),
    ),
    "boolean bitcast": Fault(
        "`bitcast_convert` from or to `i1`",
        "booleans of eight bits",
        "takes the bits by shifts",
    ),
    "complex bitcast": Fault(
        "`bitcast_convert` between complex types of different widths", "an end of the process", "refuses it"
    ),
    "bitcast of a bitcast": Fault(
        "`bitcast_convert` to a type of another width, of the result of such an operation",
        "an error",
        "keeps XLA from joining them",
    ),
    "folded bitcast": Fault(
        "`bitcast_convert` of a value that is computed from constants, such as a `gather`",
        "elements in the order of the value's layout",
        "hides the operand from XLA's simplifier",
    ),
    "scatter": Fault(
        "`scatter` of several operands, two of which are the same value",
        "one result twice",
        "gives the operands different types; more operands of one width than there are types, and complex ones, are "
        "refused",
    ),
    "maximum": Fault(
        "`maximum` and `minimum` of floats between devices: in `all_reduce`, `reduce_scatter`, and `reduce` and "
        "`scatter` of several partitions",
        "numbers for NaN, and either zero",
        "compares integers in the order of the floats, which takes longer; `f8E8M0FNU` is refused",
    ),
    "sort": Fault("`sort` of `i2` and `ui2`", "other elements", "sorts bytes"),
    "large maximum": Fault(
        "`maximum` and `minimum` of floats in a `reduce` of 4,096 elements or more",
        "numbers for NaN",
        "looks for NaN itself",
        since=(0, 10),
    ),
    "narrow reduce": Fault("`reduce` of `i2` and `ui2` beside other types", "an error", "reduces bytes"),
    "narrow parts": Fault(
        "`concatenate`, `all_gather` and `all_to_all` of `i2` and `ui2`",
        "an end of the process, or other elements",
        "moves bytes",
    ),
    "narrow all_reduce": Fault("`all_reduce` and `reduce_scatter` of `i2` and `ui2`", "an error", "combines bytes"),
    "narrow product": Fault("`dot` and `dot_general` of `i2` and `ui2`", "an error", "multiplies bytes"),
    "wide product": Fault(
        "`dot_general` and `convolution` of elements of four bits and fewer to a wider type",
        "an error",
        "converts the operands first",
    ),
    "mixed product": Fault(
        "`dot`, `dot_general` and `convolution` of `f8E5M2` with `f8E5M2FNUZ`, and of `f8E4M3` with `f8E4M3FNUZ`",
        "an end of the process",
        "converts both to `f16`",
    ),
    "six bits": Fault(
        "floats of six bits, except where they are only moved",
        "an error, an end of the process, or other numbers",
        "refuses it",
        since=(0, 11),
    ),
    "random bits": Fault("`rng_bit_generator` of signed integers", "unsigned ones", "makes unsigned ones signed"),
    "no mantissa": Fault(
        "`reduce_precision` of NaN to a format without mantissa", "NaN", "gives infinity, as for constants"
    ),
    "narrow precision": Fault(
        "`reduce_precision` of floats of eight bits and fewer, except `f8E5M2`",
        "zero for subnormal numbers",
        "leaves out what changes nothing; the others are refused",
    ),
    "boolean factor": Fault(
        "`multiply` by booleans that were converted to floats or complex numbers",
        "0 for products of NaN, infinity and negative numbers with 0",
        "converts them to integers first",
    ),
    "f4 to integers": Fault(
        "`convert` of 6 and -6 from `f4E2M1FN` to integers", "the ends of their range", "converts to `f32` first"
    ),
    "f4 constants": Fault("`convert` of constant infinities to `f4E2M1FN`", "0", "limits the numbers first"),
    "e8m0 constants": Fault("`convert` of constants that are zero or negative to `f8E8M0FNU`", "numbers", "gives NaN"),
    "e8m0 results": Fault(
        "arithmetic of constants of `f8E8M0FNU` whose result is zero or negative",
        "numbers for NaN",
        "leaves it to the processor",
    ),
    "e8m0 neighbours": Fault("`chlo.next_after` of `f8E8M0FNU`", "the other neighbour", "counts the bits"),
    "e8m0 nan": Fault("`convert` of the constant NaN from `f8E8M0FNU`", "infinity", "gives NaN", (0, 11)),
    "unsigned indices": Fault(
        "`dynamic_slice`, `dynamic_update_slice`, `gather` and `scatter` with constant indices that are unsigned and "
        "in the upper half of their range",
        "the elements at negative indices",
        "converts indices to signed ones",
    ),
    "f4 infinity": Fault(
        "`chlo.is_inf`, `chlo.is_pos_inf` and `chlo.is_neg_inf` of `f4E2M1FN`", "true for 0", "gives false"
    ),
    "narrow top_k": Fault(
        "`chlo.top_k` of integers of four bits and fewer, and of `f4E2M1FN`", "an error", "takes bytes, or `f32`"
    ),
    "narrow functions": Fault(
        "CHLO's functions of floats of eight bits and fewer, such as `erfc`",
        "an error, or less accurate numbers, after minutes",
        "computes with `f32`",
    ),
    "four bits": Fault(
        "arithmetic of `i4` and `ui4`, for a later operation of the program",
        "numbers beyond the range",
        "cuts them to four bits",
    ),
    "boolean sums": Fault("`add` of constant booleans that are both true", "false", "takes `or`"),
    "boolean clamp": Fault("`clamp` of constant booleans", "others", "takes `and` and `or`"),
    "high product": Fault("`chlo.mulhi` of integers of four bits and fewer", "0 or -1", "multiplies bytes"),
    "population": Fault(
        "`popcnt` of negative numbers of `i2` and `i4`", "the bits of a byte", "counts those of unsigned numbers"
    ),
    "reversed window": Fault(
        "`convolution` with a reversed window that is as large as the array",
        "the window not reversed",
        "reverses the kernel",
    ),
    "integer convolution": Fault(
        "`convolution` of constant integers",
        "the ends of the range for numbers beyond it",
        "leaves it to the processor",
    ),
    "narrow division": Fault("`divide` of constants of `f4E2M1FN` by zero", "0", "divides numbers of `f32`"),
    "narrow rounding": Fault(
        "`round_nearest_afz`, `round_nearest_even` and `sign` of constants of `f8E3M4` and `f4E2M1FN`",
        "NaN, and 0 for -0",
        "computes with `f32`",
    ),
    "sign of zero": Fault("`sign` of constants that are -0", "0", "leaves it to the processor"),
    "order of NaN": Fault(
        "`compare` of constants of floats by `TOTALORDER`, also in sorts of types without -0",
        "false for NaN, and the same for both zeros",
        "compares integers in the order of the floats",
    ),
    "combined zeros": Fault(
        "`reduce`, `reduce_window`, `scatter` and `select_and_scatter` of constants that are -0 and 0",
        "either of them for an extreme, or for the sum of -0",
        "leaves it to the processor",
    ),
    "complex abs": Fault(
        "`abs` of a complex `iota`, and of complex constants that are [0, 1, 2, …]",
        "an end of the process",
        "hides the operand from XLA's simplifier",
    ),
    "zeros of atan2": Fault(
        "`atan2` of two zeros in an `iota`, and in constants that are [0, 1, 2, …]",
        "NaN",
        "takes the sign of the second zero",
    ),
    "scan": Fault(
        "a composite with a region, such as `chlo.scan`",
        "an end of the process, or an error",
        "calls its decomposition",
    ),
    "factorization": Fault("a custom call of `LuDecomposition`", "an error", "calls LAPACK"),
    "counting": Fault(
        "a constant of floats or complex numbers, or a value computed from constants, that is [-0, 1, 2, …]",
        "0 for -0",
        "gives 0 too",
    ),
}
"""The faults that a program is protected from, in the order of the table. Only the last one is left as it is: it needs
a constant that nobody writes, and values that XLA computes from constants cannot be told before."""


def is_there(fault: str) -> bool:
    """Return whether this version of jaxlib has a fault."""
    return FAULTS[fault].affects(version())


# An operation that XLA computes wrongly, and the means to write others in its place.

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

    def call(self, callee: str) -> None:
        """Put a call of a function of the module, with the same operands and results, in the place of the operation."""
        called = self.ir.Operation.create(
            "func.call",
            [each.type for each in self.operation.results],
            list(self.operation.operands),
            {"callee": self.ir.FlatSymbolRefAttr.get(callee, context=self.operation.context)},
            loc=self.operation.location,
            ip=self._point,
        )
        for old, new in zip(self.operation.results, called.results, strict=True):
            old.replace_all_uses_with(new)
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
