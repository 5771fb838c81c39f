"""Known faults of XLA's CPU compiler, as the page of the device has them in its table."""

from __future__ import annotations

from typing import NamedTuple

from pjrt.stablehlo.jaxlib import version


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


def is_there(fault: str) -> bool:
    """Return whether this version of jaxlib has a fault."""
    return FAULTS[fault].affects(version())
