"""Random bits of signed types, which XLA's CPU compiler takes for unsigned ones, in results and in what follows.

It replaces the operation by others that give unsigned integers and does not look who uses them. So the program is
changed before it is compiled: the operation gives unsigned integers, and their bits are taken for signed ones.
"""

from __future__ import annotations

import io
from typing import Any

from pjrt.api.program import Program

_OPERATION = b"rng_bit_generator"


def with_unsigned_random_bits(code: bytes) -> bytes:
    """The program with unsigned random bits only; the program itself if it has no others.

    Raises:
        InvalidArgumentError: it cannot be read.
    """
    if _OPERATION not in code:
        return code
    from pjrt.stablehlo import to_module
    from pjrt.stablehlo.jaxlib import load
    from pjrt.stablehlo.mlir_walk import walk

    ir = load("mlir.ir", "change programs for XLA's CPU compiler")
    with to_module(Program(code), trusted=True) as module:
        found = [operation for operation in walk(module.operation) if _is_taken_for_unsigned(ir, operation)]
        for operation in found:
            _make_unsigned(ir, operation)
        if not found:
            return code
        written = io.BytesIO()
        module.operation.write_bytecode(written)
    return written.getvalue()


def _is_taken_for_unsigned(ir: Any, operation: Any) -> bool:
    if operation.name != "stablehlo.rng_bit_generator":
        return False
    element = operation.results[1].type.element_type
    return isinstance(element, ir.IntegerType) and element.is_signless and element.width > 1


def _make_unsigned(ir: Any, operation: Any) -> None:
    bits = operation.results[1]
    signed = bits.type
    unsigned = ir.IntegerType.get_unsigned(signed.element_type.width)
    bits.set_type(ir.RankedTensorType.get(signed.shape, unsigned, signed.encoding, loc=operation.location))
    after = ir.Operation.create(
        "stablehlo.bitcast_convert", [signed], [bits], loc=operation.location, ip=ir.InsertionPoint(operation)
    )
    after.move_after(operation)
    bits.replace_all_uses_with(after.results[0])
    after.operands[0] = bits
