"""Known faults of XLA's CPU compiler: operations that it computes wrongly, without a word.

Before XLA sees a program, others that mean the same take the place of such operations, or the program is refused. The
page of the device has the table of them, and a test asks XLA itself whether each of them is still there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pjrt.api.errors import UnimplementedError
from pjrt.stablehlo.jaxlib import load, version
from pjrt.stablehlo.location import Location
from pjrt.stablehlo.types import TensorType

if TYPE_CHECKING:
    from pjrt.stablehlo.analysis.outline import Outline

Value = Any

_FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "bessel_i1e", "cosh", "digamma", "erf", "erf_inv", "erfc"),
    *("lgamma", "polygamma", "sinh", "zeta"),
)
"""CHLO's functions of floats, which XLA writes out as many operations of the element type."""

_SUSPECT = {
    "convert": "F4|F8E8M0|PRED",
    "add": "PRED|[SU]4$",
    "clamp": "PRED",
    "abs": "C|[SU]4$",
    "atan2": "F32|F64",
    **dict.fromkeys(("multiply", "negate", "not", "power", "shift_left", "subtract"), "[SU]4$"),
    **dict.fromkeys(("dot", "dot_general"), "F4|[SU][24]$|F8E(5M2|4M3)FNUZ"),
    **dict.fromkeys(("all_gather", "all_to_all", "concatenate"), "[SU]2$"),
    "compare": "B?F",
    "next_after": "F8E8M0",
    "top_k": "F4|[SU][24]$",
    **dict.fromkeys(_FUNCTIONS, "F4|F8"),
    **dict.fromkeys(("is_inf", "is_neg_inf", "is_pos_inf"), "F4"),
    **dict.fromkeys(("mulhi", "popcnt"), "[SU][24]$"),
    **dict.fromkeys(("dynamic_slice", "dynamic_update_slice", "gather", "dynamic_gather"), "U[0-9]"),
    **dict.fromkeys(("divide", "round_nearest_afz", "round_nearest_even"), "F4|F8E3M4"),
    **dict.fromkeys(("reduce", "reduce_window"), "[SU]2$|B?F"),
    "select_and_scatter": "B?F",
}
"""The element types of programs in which operations are suspect that otherwise are not."""


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
    "counting": Fault(
        "a constant of floats or complex numbers, or a value computed from constants, that is [-0, 1, 2, …]",
        "0 for -0",
        "gives 0 too",
    ),
}
"""The faults that a program is protected from, in the order of the table. Only the last one is left as it is: it needs
a constant that nobody writes, and values that XLA computes from constants cannot be told before."""


def mend(module: Any, num_partitions: int = 1, outline: Outline | None = None) -> None:
    """Replace the operations of an MLIR module that XLA would compute wrongly.

    Args:
        module: the module, which is changed.
        num_partitions: the partitions that XLA will cut the program into.
        outline: the outline of the module. With it, only programs with suspect operations are looked through.

    Raises:
        UnimplementedError: there is no replacement for one of them.
    """
    if outline is not None and not _is_suspect(outline, num_partitions):
        return
    from pjrt.stablehlo.mlir_module import walk  # here: few programs are looked through

    ir = load("mlir.ir", "change programs for XLA's CPU compiler")
    operations = list(walk(module.operation))
    for operation in operations:
        name = operation.name.partition(".")[2]
        if name not in _MOVING:
            _refuse_six_bits(Place(ir, operation, num_partitions))
        if name in _OF_UNSIGNED_FLOATS:
            _leave_unsigned(Place(ir, operation, num_partitions))
    for operation in operations:  # which may erase others of them
        dialect, _, name = operation.name.partition(".")
        mender = _MENDERS.get(name.removeprefix("broadcast_"))
        if mender is not None and dialect in ("stablehlo", "mhlo", "chlo"):
            mender(Place(ir, operation, num_partitions))


def _is_suspect(outline: Outline, num_partitions: int) -> bool:
    names = {name.partition(".")[2].removeprefix("broadcast_") for name in outline.operations} & _MENDERS.keys()
    elements = {type_.element.name for type_ in outline.types if isinstance(type_, TensorType)}
    narrow = _SUSPECT if num_partitions == 1 else _SUSPECT | {"reduce": ""}
    return any(element.startswith(("F6", "F8E8M0")) for element in elements) or any(
        name not in narrow or any(re.match(narrow[name], element) for element in elements) for name in names
    )


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


_OF_UNSIGNED_FLOATS = frozenset(
    (
        *("cosine", "exponential_minus_one", "floor", "log", "log_plus_one", "negate", "remainder", "sine", "subtract"),
        *("round_nearest_afz", "round_nearest_even", "tan"),
    )
)


def _leave_unsigned(place: Place) -> None:
    """Hide constants of floats that have no sign: XLA's own arithmetic of them gives numbers for what they lack."""
    operation = place.operation
    for number, operand in enumerate(operation.operands):
        if str(operand.type.element_type) == "f8E8M0FNU" and _is_constant(operand):
            operation.operands[number] = place.add("optimization_barrier", [operand], operand.type)


def _is_there(fault: str) -> bool:
    return FAULTS[fault].affects(version())


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
        have, want = _width(value.type.element_type), _width(element)
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


def _width(element: Any) -> int:
    """Return the bits of a real element type, by the specification: 1 for booleans. 0 for others."""
    return getattr(element, "width", 0)


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
    if kind not in ("maximum", "minimum") or len(body) != 2 or not _is_float(element) or _leaves_terms(operation):
        return
    if any(operand not in block.arguments for operand in body[0].operands):
        return
    if str(element) == "f8E8M0FNU":
        raise place.refused(f"for {element} between devices")
    compared = place.element(str(element) if str(element) in _FORMATS else "f16")  # f16 holds all smaller ones
    width = _width(compared)
    integer = place.element(f"i{width}")
    last = (1 << (width - 1)) - 1 if kind == "maximum" else -(1 << (width - 1))

    def ranks(value: Value) -> Value:
        value = place.cast(value, compared, "convert")
        nan = place.add("compare", [value, value], place.like(value, place.element("i1")), **_compared("NE"))
        rank = _flipped(place, place.cast(value, integer))
        return place.add("select", [nan, place.constant(str(last), rank), rank], rank.type)

    def numbers(value: Value, own: Any) -> Value:
        value = place.cast(_flipped(place, value, place.after), compared, point=place.after)
        return place.cast(value, own, "convert", place.after)

    for index, operand in enumerate(operation.operands):
        if operand.type.element_type == element:  # the others are the indices of a scatter
            operation.operands[index] = ranks(operand)
    for value in (*block.arguments, body[0].results[0]):
        value.set_type(place.like(value, integer))
    for result in operation.results:
        place.retype(result, integer, numbers)


def _is_float(element: Any) -> bool:
    return str(element).startswith(("f", "bf"))


def _leaves_terms(operation: Any) -> bool:
    """Return whether each device keeps its term of a result. XLA wants no other operation before such a sharding."""
    stated = [operation.attributes["sdy.sharding"]] if "sdy.sharding" in operation.attributes else []
    for owner in (use.owner.operation for result in operation.results for use in result.uses):
        if owner.name == "sdy.sharding_constraint":
            stated.append(owner.attributes["sharding"])
        elif owner.name == "func.return" and "res_attrs" in owner.parent.attributes:
            stated.append(owner.parent.attributes["res_attrs"])
    return any("unreduced" in str(sharding) for sharding in stated)


def _flipped(place: Place, bits: Value, point: Any = None) -> Value:
    """Return the place of floats in their total order, by their bits, or the bits by their place."""
    width = _width(bits.type.element_type)
    most, below = (place.constant(str(n), bits, point=point) for n in (width - 1, (1 << (width - 1)) - 1))
    sign = place.add("shift_right_arithmetic", [bits, most], bits.type, point)
    mask = place.add("and", [sign, below], bits.type, point)
    return place.add("xor", [bits, mask], bits.type, point)


# Scatters.


def _scatter(place: Place) -> None:
    """Give the operands different types: of two that are the same value, XLA updates one with the updates of both.

    Values are the same for XLA where it finds that out, so two of one type may always be.
    """
    operation = place.operation
    count = len(operation.results)
    _sign_indices(place, [count])
    _hide_constant(place)
    if count == 1:
        if place.num_partitions > 1:
            _reduction(place)
        return
    taken: list[str] = []
    for number in range(count):
        own = operation.operands[number].type.element_type
        element = next((each for each in (str(own), *_holders(_width(own))) if each not in taken), "")
        if not element:
            raise place.refused(f"with so many operands of the type {own}, two of which may be the same value")
        taken.append(element)
        if element != str(own):
            pairs = (number, count + 1 + number), (number, count + number)
            place.carry(place.element(element), *pairs, number, returned=True)


def _holders(width: int) -> list[str]:
    """Return the integer types that hold the bits of a type of some width."""
    widths = [each for each in _WIDTHS if each == width or each >= max(width, 8)] if width in _WIDTHS else []
    return [f"{sign}{each}" for each in widths if each > 1 for sign in ("ui", "i")]


_WIDTHS = (1, 2, 4, 8, 16, 32, 64)


def _reduce(place: Place) -> None:
    """Reduce integers of two bits beside other types as bytes: XLA wants one layout, which has the bits, for all.

    And have maxima and minima of floats keep NaN: XLA leaves those of large arrays to YNNPACK, which loses it.
    """
    results = place.operation.results
    _hide_constant(place)
    if place.num_partitions > 1 and len(results) == 1:
        _reduction(place)
    elif place.num_partitions == 1 and _is_there("large maximum"):
        body = [each.operation for each in place.operation.regions[0].blocks[0].operations]
        if len(body) == 2 and body[0].name in _EXTREMES and len(results) == 1:
            _shorten(place, body[0].name.removeprefix("stablehlo."))
        for inner in body:
            if inner.name in _EXTREMES:
                (one, other), there = inner.operands, Place(place.ir, inner, 1)
                if _is_float(one.type.element_type):
                    extreme = there.add(inner.name.removeprefix("stablehlo."), [one, other], one.type)
                    nan = there.add("compare", [one, one], there.like(one, place.element("i1")), **_compared("NE"))
                    there.replace(there.add("select", [nan, one, extreme], one.type))
    for number, element in enumerate(str(result.type.element_type) for result in results):
        if element in _TWO_BITS and len(results) > 1:
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
    if not (value.type.has_static_shape and _is_float(element) and math.prod(value.type.shape) >= _LARGE):
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


_TWO_BITS = ("i2", "ui2")


def _combine(place: Place) -> None:
    _in_bytes(place)
    _reduction(place)


def _in_bytes(place: Place) -> None:
    """Let bytes take the place of integers of two bits, also in the region, which XLA knows by its one operation."""
    operation = place.operation
    for block in [region.blocks[0] for region in operation.regions]:
        for value in (*block.arguments, *(value for each in block.operations for value in each.operation.results)):
            if (own := str(value.type.element_type)) in _TWO_BITS:
                value.set_type(place.like(value, place.element(_WHOLE[own])))
    for number, operand in enumerate(operation.operands):
        if (own := str(operand.type.element_type)) in _TWO_BITS:
            operation.operands[number] = place.cast(operand, place.element(_WHOLE[own]), "convert")
    for result in operation.results:
        if (own := str(result.type.element_type)) in _TWO_BITS:
            place.retype(result, place.element(_WHOLE[own]), lambda value, own: _cut(place, value, own))


def _product(place: Place) -> None:
    _widen(place)
    _in_bytes(place)
    _wrap(place)


def _widen(place: Place) -> None:
    """Convert operands of less than a byte to the type of a wider result, and those of two floats of the same bits.

    XLA looks for the wider one of two floats by their bits, and knows no answer for a pair that has the same.
    """
    kinds = {str(operand.type.element_type) for operand in place.operation.operands}
    if kinds in ({"f8E5M2", "f8E5M2FNUZ"}, {"f8E4M3", "f8E4M3FNUZ"}):
        for number, operand in enumerate(place.operation.operands):
            place.operation.operands[number] = place.cast(operand, place.element("f16"), "convert")
    wide = place.operation.results[0].type.element_type
    for number, operand in enumerate(place.operation.operands):
        if str(operand.type.element_type) in _WHOLE and _width(wide) > _width(operand.type.element_type):
            place.operation.operands[number] = place.cast(operand, wide, "convert")


# Indices.


def _slice(place: Place) -> None:
    first = 2 if place.operation.name.endswith("dynamic_update_slice") else 1
    _sign_indices(place, range(first, len(place.operation.operands)))


def _gather(place: Place) -> None:
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


def _sort(place: Place) -> None:
    """Sort integers of two bits as bytes: XLA moves other ones than those that it compares."""
    for number, operand in enumerate(place.operation.operands):
        own = str(operand.type.element_type)
        if own in _TWO_BITS:
            place.carry(place.element("ui8"), (number,), (2 * number, 2 * number + 1), number)


def _top_k(place: Place) -> None:
    """Take the largest of bytes, or of f32: XLA has no indices beside elements of fewer bits."""
    operation = place.operation
    (operand,), wide = operation.operands, _WHOLE.get(str(operation.operands[0].type.element_type))
    if wide is not None:
        element = place.element(wide)
        operation.operands[0] = place.cast(operand, element, "convert")
        place.retype(operation.results[0], element, lambda value, own: place.cast(value, own, "convert", place.after))


_WHOLE = {"i2": "i8", "i4": "i8", "ui2": "ui8", "ui4": "ui8", "f4E2M1FN": "f32"}


# Bits.


def _bitcast_convert(place: Place) -> None:
    """Take elements apart, and put them together, by shifts.

    XLA's booleans have eight bits, the specification's have one. And some versions take constants apart wrongly where
    the parts are smaller than a byte.
    """
    (operand,), (result,) = place.operation.operands, place.operation.results
    source, target = operand.type.element_type, result.type.element_type
    have, want = _width(source), _width(target)
    are_complex = isinstance(source, place.ir.ComplexType)
    if (are_complex and source != target) or (1 in (have, want) and not {have, want} <= {*_WIDTHS}):
        raise place.refused(f"from {source} to {target}")
    if not have or not want:  # XLA itself refuses quantized types
        return
    if have == want:
        if "constant" not in getattr(operand.owner, "name", ""):
            _hide(place)
        return
    if want == 1 or (want < 8 <= have and _is_there("narrow bitcast")):
        place.replace(_apart(place, operand, have, want, result.type))
    elif have == 1:
        place.replace(_together(place, operand, want, result.type))
    elif _changed_width(operand):
        place.operation.operands[0] = place.add("optimization_barrier", [operand], operand.type)
    else:
        _hide(place)


def _changed_width(value: Value) -> bool:
    """Whether a value is another bitcast to a type of another width: XLA would join both to one of a wrong shape."""
    while hasattr(value.owner, "operation") and value.owner.operation.name.endswith(".bitcast_convert"):
        (operand,) = value.owner.operation.operands
        if _width(operand.type.element_type) != _width(value.type.element_type):
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


def _reduce_precision(place: Place) -> None:
    """Give infinity for NaN where the format has no mantissa bits, which XLA does for constants only.

    Floats of eight bits and fewer are numbers of f16 for XLA: it makes zeros of the subnormal numbers of a format that
    has them, and rounds them otherwise.
    """
    operation = place.operation
    exponent, mantissa = (operation.attributes[name].value for name in ("exponent_bits", "mantissa_bits"))
    (operand,) = operation.operands
    element = operand.type.element_type
    name, own = str(element), _format(element)
    if _width(element) <= 8 and exponent >= own[0] and name != "f8E5M2":
        if mantissa < own[1]:
            raise place.refused(f"for {element} to e{exponent}m{mantissa}")
        place.replace(operand)
    elif not mantissa and name in _WITH_INFINITY:
        nan = place.add("compare", [operand, operand], place.like(operand, place.element("i1")), **_compared("NE"))
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
    exponent, mantissa = _format(element)
    bits = (((1 << exponent) - 1) << mantissa) | (nan << (mantissa - 1))
    return f"0x{bits:0{_width(element) // 4}X}"


def _format(element: Any) -> tuple[int, ...]:
    """Return the bits of the exponent and of the mantissa."""
    return _FORMATS.get(str(element)) or tuple(map(int, re.findall("[EM]([0-9]+)", str(element))))


_FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}

_WITH_INFINITY = frozenset({*_FORMATS, "f8E5M2", "f8E4M3", "f8E3M4"})


def _compared(direction: str) -> dict[str, str]:
    return {"comparison_direction": f"#stablehlo<comparison_direction {direction}>"}


def _convert(place: Place) -> None:
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
        place.operation.operands[0] = _limited(place, operand)
    elif target == "f8E8M0FNU" and _width(element):
        # The bits of floats: XLA takes numbers below the smallest normal one for zero when it compares.
        bits = place.cast(operand, place.element(f"i{_width(element)}")) if _is_float(element) else operand
        zero = place.constant("false" if source == "i1" else "0", bits)
        without = place.add("compare", [bits, zero], place.like(bits, place.element("i1")), **_compared("LE"))
        _except_where(place, without, "0xFF")
    elif source == "f8E8M0FNU" and target in _WITH_INFINITY and _is_there("e8m0 nan"):
        byte = place.cast(operand, place.element("ui8"))
        last = place.constant("255", byte)
        nan = place.add("compare", [byte, last], place.like(byte, place.element("i1")), **_compared("EQ"))
        _except_where(place, nan, _infinity(result.type.element_type, nan=True))
    elif source == "i1" and not isinstance(result.type.element_type, place.ir.IntegerType):
        place.operation.operands[0] = place.cast(operand, place.element("ui8"), "convert")


def _limited(place: Place, value: Value, point: Any = None) -> Value:
    """Return numbers within the range of f4E2M1FN."""
    scalar = place.tensor([], value.type.element_type)
    ends = [place.add("constant", [], scalar, point, value=f"dense<{end}> : {scalar}") for end in (-6.0, 6.0)]
    return place.add("clamp", [ends[0], value, ends[1]], value.type, point)


# Arithmetic of narrow types, and of constants.


def _add(place: Place) -> None:
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
        _wrap(place)


def _wrap(place: Place) -> None:
    """Cut a result to four bits: XLA keeps it in a byte, and later operations of a program take all of that."""
    operation = place.operation
    result = operation.results[0]
    element = result.type.element_type
    if str(element) not in ("i4", "ui4") or operation.parent.name.partition(".")[2] in _COMBINING:
        return

    place.retype(result, element, lambda value, own: _cut(place, value, own))


def _cut(place: Place, value: Value, own: Any) -> Value:
    """Return the lowest bits of integers, as narrow ones, after the operation."""
    wide = place.cast(value, place.element(_WHOLE[str(own)]), "convert", place.after)
    rest = place.constant(str(8 - _width(own)), wide, point=place.after)
    high = place.add("shift_left", [wide, rest], wide.type, place.after)
    how = "shift_right_logical" if str(own).startswith("u") else "shift_right_arithmetic"
    return place.cast(place.add(how, [high, rest], wide.type, place.after), own, "convert", place.after)


_COMBINING = frozenset(
    ("all_reduce", "map", "reduce", "reduce_scatter", "reduce_window", "scatter", "select_and_scatter", "sort")
)
"""Operations whose regions XLA knows by what they compute. It cuts their results itself."""


def _clamp(place: Place) -> None:
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


def _compare(place: Place) -> None:
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
        bits = place.cast(value, place.element(f"i{_width(element)}"))
        if _width(element) < 8:
            bits = place.cast(bits, place.element("i8"), "convert")
        if not has_low_nan:
            return _flipped(place, bits)
        nan = place.constant("-128", bits)
        is_nan = place.add("compare", [bits, nan], place.like(bits, place.element("i1")), **_compared("EQ"))
        flipped = place.cast(_flipped(place, bits), place.element("i16"), "convert")
        return place.add("select", [is_nan, place.constant("-129", flipped), flipped], flipped.type)

    for number, operand in enumerate(operation.operands):
        operation.operands[number] = rank(operand)
    del operation.attributes["compare_type"]


def _may_be_computed(operation: Any) -> bool:
    """Whether XLA may find out the result of a comparison. It sorts constants by the order that is asked for."""
    return operation.parent.name != "stablehlo.sort" and not any(map(_varies, operation.operands))


def _mulhi(place: Place) -> None:
    """Multiply bytes, and take the upper half of the bits that the product of the narrow integers has."""
    x, y = place.operation.operands
    own = x.type.element_type
    width = _width(own)
    if width >= 8:
        return
    is_unsigned = str(own).startswith("u")
    byte = place.element("ui8" if is_unsigned else "i8")
    both = [place.cast(each, byte, "convert") for each in (x, y)]
    product = place.add("multiply", both, both[0].type)
    shift = "shift_right_logical" if is_unsigned else "shift_right_arithmetic"
    high = place.add(shift, [product, place.constant(str(width), product)], product.type)
    place.replace(place.cast(high, own, "convert"))


def _popcnt(place: Place) -> None:
    (operand,) = place.operation.operands
    own = operand.type.element_type
    if str(own) in ("i2", "i4"):
        bits = place.cast(operand, place.element(f"u{own}"))
        place.replace(place.cast(place.add("popcnt", [bits], bits.type), own))


def _convolution(place: Place) -> None:
    """Hide a constant operand of integers: where XLA computes with constants, it keeps the result in the range.

    And reverse the kernel, not its window: where a window is as large as the array, XLA makes a product of both.
    """
    _widen(place)
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
    _wrap(place)


def _in_f32(place: Place) -> None:
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
        if is_function and _is_constant(operand):
            operand = place.add("optimization_barrier", [operand], operand.type)
        operation.operands[number] = place.cast(operand, wide, "convert")

    def narrow(value: Value, own: Any) -> Value:
        result = _limited(place, value, place.after) if str(own) == "f4E2M1FN" else value
        result = place.cast(result, own, "convert", place.after)
        if str(own) == "f8E8M0FNU":
            _convert(Place(place.ir, result.owner, place.num_partitions))
        if not operation.name.endswith("sign"):
            return result
        zero = place.constant("0.0", value, point=place.after)
        is_zero = place.add(
            "compare", [value, zero], place.like(value, place.element("i1")), place.after, **_compared("EQ")
        )
        return place.add("select", [is_zero, given, result], result.type, place.after)  # a zero keeps its sign

    place.retype(operation.results[0], wide, narrow)


# Counting numbers: XLA makes an iota of constants that count from zero, too.


def _abs(place: Place) -> None:
    """Hide numbers that may be complex and count: XLA knows that they are not negative, and leaves out the ``abs``."""
    if isinstance(place.operation.operands[0].type.element_type, place.ir.ComplexType):
        _hide(place)
    _wrap(place)


def _hide(place: Place) -> None:
    """Put a barrier before the operand if XLA may find out what numbers it has."""
    (operand,) = place.operation.operands
    if not _varies(operand):
        place.operation.operands[0] = place.add("optimization_barrier", [operand], operand.type)


def _hide_constant(place: Place) -> None:
    """Put a barrier before constants that are combined: XLA takes either zero for the extreme of both, or their sum."""
    operand = place.operation.operands[0]
    if _is_float(operand.type.element_type) and _is_constant(operand):
        place.operation.operands[0] = place.add("optimization_barrier", [operand], operand.type)


def _is_constant(value: Value) -> bool:
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


def _atan2(place: Place) -> None:
    """Let 1 or -1 stand for a zero beside a zero, which has the same angle: LLVM divides such constants.

    A barrier would do with jaxlib 0.12, but not with 0.10.
    """
    y, x = place.operation.operands
    if _varies(y) or _varies(x):
        return
    flag, signed = place.like(x, place.element("i1")), place.like(x, place.element(f"i{_width(x.type.element_type)}"))

    def compare(value: Value, direction: str) -> Value:
        zero = place.constant("0" if value.type == signed else "0.0", value)
        return place.add("compare", [value, zero], flag, **_compared(direction))

    both = place.add("and", [compare(y, "EQ"), compare(x, "EQ")], flag)
    negative = compare(place.add("bitcast_convert", [x], signed), "LT")
    one = place.add("select", [negative, place.constant("-1.0", x), place.constant("1.0", x)], x.type)
    place.operation.operands[1] = place.add("select", [both, one, x], x.type)


def _sign(place: Place) -> None:
    _hide(place)
    _in_f32(place)


def _varies(value: Value) -> bool:
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


def _next_after(place: Place) -> None:
    """Count the bits of floats without a sign: XLA takes the highest bit of the exponent for one."""
    x, y = place.operation.operands
    if str(x.type.element_type) != "f8E8M0FNU":
        return
    if list(x.type.shape) != list(y.type.shape):
        raise place.refused("for f8E8M0FNU of two shapes")
    one, other = (place.cast(each, place.element("ui8")) for each in (x, y))
    flag, step, nan = place.like(x, place.element("i1")), place.constant("1", one), place.constant("255", one)

    def chosen(direction: str, left: Value, right: Value, then: Value, otherwise: Value) -> Value:
        where = place.add("compare", [left, right], flag, **_compared(direction))
        return place.add("select", [where, then, otherwise], one.type)

    lower = chosen("LT", other, one, place.add("subtract", [one, step], one.type), one)
    found = chosen("GT", other, one, place.add("add", [one, step], one.type), lower)
    found = chosen("EQ", one, nan, nan, chosen("EQ", other, nan, nan, found))
    place.replace(place.cast(found, x.type.element_type))


def _no_infinity(place: Place) -> None:
    """Say that f4E2M1FN has no infinity: XLA converts infinity to it, which gives 0, and compares."""
    (operand,), (result,) = place.operation.operands, place.operation.results
    if str(operand.type.element_type) == "f4E2M1FN":
        place.replace(place.add("compare", [operand, operand], result.type, **_compared("NE")))


# Random bits.


def _rng_bit_generator(place: Place) -> None:
    """Make unsigned random bits, and read them as signed ones.

    XLA replaces the operation by others that give unsigned integers, and does not look at the uses of its result.
    """
    bits = place.operation.results[1]
    element = bits.type.element_type
    if isinstance(element, place.ir.IntegerType) and element.is_signless and element.width > 1:
        unsigned = place.element(f"ui{element.width}")
        place.retype(bits, unsigned, lambda value, own: place.cast(value, own, point=place.after))


_MENDERS: dict[str, Callable[[Place], None]] = {
    "abs": _abs,
    "add": _add,
    "all_gather": _in_bytes,
    "all_reduce": _combine,
    "all_to_all": _in_bytes,
    "atan2": _atan2,
    "bitcast_convert": _bitcast_convert,
    "clamp": _clamp,
    "compare": _compare,
    "concatenate": _in_bytes,
    "convert": _convert,
    "convolution": _convolution,
    "divide": _in_f32,
    "dot": _product,
    "dot_general": _product,
    "dynamic_gather": _gather,
    "dynamic_slice": _slice,
    "dynamic_update_slice": _slice,
    **dict.fromkeys(_FUNCTIONS, _in_f32),
    "gather": _gather,
    **dict.fromkeys(("is_inf", "is_neg_inf", "is_pos_inf"), _no_infinity),
    "mulhi": _mulhi,
    "next_after": _next_after,
    "multiply": _wrap,
    "negate": _wrap,
    "not": _wrap,
    "popcnt": _popcnt,
    "power": _wrap,
    "reduce": _reduce,
    "reduce_precision": _reduce_precision,
    "reduce_scatter": _combine,
    "reduce_window": _hide_constant,
    "rng_bit_generator": _rng_bit_generator,
    "round_nearest_afz": _in_f32,
    "round_nearest_even": _in_f32,
    "scatter": _scatter,
    "select_and_scatter": _hide_constant,
    "shift_left": _wrap,
    "sign": _sign,
    "sort": _sort,
    "subtract": _wrap,
    "top_k": _top_k,
}
