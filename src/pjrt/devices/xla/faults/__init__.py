"""Known faults of XLA's CPU compiler: operations that it computes wrongly, without a word.

Before XLA sees a program, others that mean the same take the place of such operations, or the program is refused. The
page of the device has the table of them, and a test asks XLA itself whether each of them is still there. Programs
without suspect operations, which are most, are told here, and import nothing else of this package.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pjrt.stablehlo.ir.types import TensorType

if TYPE_CHECKING:
    from pjrt.stablehlo.facts.outline import Outline


def mend(module: Any, num_partitions: int = 1, outline: Outline | None = None) -> None:
    """Replace the operations of an MLIR module that XLA would compute wrongly.

    Args:
        module: the module, which is changed.
        num_partitions: the partitions that XLA will cut the program into.
        outline: the outline of the module. With it, only programs with suspect operations are looked through.

    Raises:
        UnimplementedError: there is no replacement for one of them.
    """
    if outline is None or _is_suspect(outline, num_partitions):
        from pjrt.devices.xla.faults.mending import mend_operations  # here: few programs are looked through

        mend_operations(module, num_partitions)


def _is_suspect(outline: Outline, num_partitions: int) -> bool:
    names = {name.partition(".")[2].removeprefix("broadcast_") for name in outline.operations} & SUSPECT.keys()
    elements = {type_.element.name for type_ in outline.types if isinstance(type_, TensorType)}
    narrow = SUSPECT if num_partitions == 1 else SUSPECT | {"reduce": ""}
    return any(element.startswith(("F6", "F8E8M0")) for element in elements) or any(
        re.match(narrow[name], element) for name in names for element in elements
    )


FUNCTIONS = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "bessel_i1e", "cosh", "digamma", "erf", "erf_inv", "erfc"),
    *("lgamma", "polygamma", "sinh", "zeta"),
)
"""CHLO's functions of floats, which XLA writes out as many operations of the element type."""

SUSPECT = {
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
    **dict.fromkeys(FUNCTIONS, "F4|F8"),
    **dict.fromkeys(("is_inf", "is_neg_inf", "is_pos_inf"), "F4"),
    **dict.fromkeys(("mulhi", "popcnt"), "[SU][24]$"),
    **dict.fromkeys(("dynamic_slice", "dynamic_update_slice", "gather", "dynamic_gather"), "U[0-9]"),
    **dict.fromkeys(("divide", "round_nearest_afz", "round_nearest_even"), "F4|F8E3M4"),
    **dict.fromkeys(("reduce", "reduce_window"), "[SU]2$|B?F"),
    "select_and_scatter": "B?F",
    **dict.fromkeys(("all_reduce", "bitcast_convert", "convolution", "reduce_precision", "reduce_scatter"), ""),
    **dict.fromkeys(("composite", "custom_call"), ""),
    **dict.fromkeys(("rng_bit_generator", "scatter", "sign", "sort"), ""),
}
"""The operations that may be computed wrongly, and the element types of programs in which they are; empty for all."""
