"""A workaround for random bits of signed types, which XLA's CPU compiler makes unsigned.

The compiler replaces the operation by others that give unsigned integers, and does not look at the uses of its result.
So the program is changed before it is compiled: the operation gives unsigned integers, and a bitcast makes them signed.
"""

from __future__ import annotations

import io
from typing import Any

from pjrt.api.program import Program

_OPERATION = b"rng_bit_generator"


def with_unsigned_random_bits(code: bytes) -> bytes:
    """Return the program with unsigned random bits only; the same object if it has no others.

    Raises:
        InvalidArgumentError: the program cannot be read.
    """
    if _OPERATION not in code:
        return code
    from pjrt.stablehlo import to_module  # here and below: few programs need them, and start-up would be slower
    from pjrt.stablehlo.jaxlib import load
    from pjrt.stablehlo.mlir_walk import walk

    ir = load("mlir.ir", "change programs for XLA's CPU compiler")
    with to_module(Program(code), trusted=True) as module:
        operations = [operation for operation in walk(module.operation) if _is_signed(ir, operation)]
        if not operations:
            return code
        for operation in operations:
            _make_unsigned(ir, operation)
        bytecode = io.BytesIO()
        module.operation.write_bytecode(bytecode)
    return bytecode.getvalue()


def _is_signed(ir: Any, operation: Any) -> bool:
    """Whether an operation makes random bits of a signed type, which MLIR calls signless."""
    if operation.name != "stablehlo.rng_bit_generator":
        return False
    element = operation.results[1].type.element_type
    return isinstance(element, ir.IntegerType) and element.is_signless and element.width > 1


def _make_unsigned(ir: Any, operation: Any) -> None:
    bits = operation.results[1]
    signed = bits.type
    unsigned = ir.IntegerType.get_unsigned(signed.element_type.width)
    bits.set_type(ir.RankedTensorType.get(signed.shape, unsigned, signed.encoding, loc=operation.location))
    cast = ir.Operation.create(
        "stablehlo.bitcast_convert", [signed], [bits], loc=operation.location, ip=ir.InsertionPoint(operation)
    )
    cast.move_after(operation)
    bits.replace_all_uses_with(cast.results[0])
    cast.operands[0] = bits
