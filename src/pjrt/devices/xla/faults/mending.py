"""Mends of programs: each operation that XLA computes wrongly, with what is done about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pjrt.devices.xla.faults import FUNCTIONS
from pjrt.devices.xla.faults.arithmetic import (
    in_f32,
    mend_abs,
    mend_add,
    mend_atan2,
    mend_clamp,
    mend_compare,
    mend_convolution,
    mend_mulhi,
    mend_next_after,
    mend_popcnt,
    mend_rng_bit_generator,
    mend_sign,
    no_infinity,
)
from pjrt.devices.xla.faults.combining import (
    in_bytes,
    mend_combination,
    mend_gather,
    mend_product,
    mend_reduce,
    mend_scatter,
    mend_slice,
    mend_sort,
    mend_top_k,
)
from pjrt.devices.xla.faults.conversion import mend_bitcast_convert, mend_convert, mend_reduce_precision
from pjrt.devices.xla.faults.place import Place, hide_constant, is_constant, wrap
from pjrt.stablehlo.jaxlib import load
from pjrt.stablehlo.mlir_module import walk


def mend_operations(module: Any, num_partitions: int) -> None:
    """Replace the operations of an MLIR module that XLA would compute wrongly.

    Raises:
        UnimplementedError: there is no replacement for one of them.
    """
    ir = load("mlir.ir", "change programs for XLA's CPU compiler")
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
    "concatenate": in_bytes,
    "convert": mend_convert,
    "convolution": mend_convolution,
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
