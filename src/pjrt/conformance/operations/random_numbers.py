"""Cases of random numbers, whose values an implementation may choose: only their properties are tested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.conformance.operation_case import Array, OperationCase, program_text
from pjrt.conformance.operation_table import cases

_MANY = 10_000


@cases("rng", [ElementType.F32, ElementType.F64])
def _rng(operation: str, element: ElementType) -> Iterator[OperationCase]:
    inputs = np.array(-2, element.dtype), np.array(4, element.dtype), np.array([_MANY], np.int64)
    scalar, outer = f"tensor<{element.mlir}>", f"tensor<{_MANY}x{element.mlir}>"
    types = [scalar, scalar, "tensor<1xi64>"]
    for distribution, verify in (("UNIFORM", _uniform), ("NORMAL", _normal)):
        text = f"{operation} %x, %y, %z, distribution = {distribution} : ({', '.join(types)}) -> {outer}"
        program = program_text(text, types, [outer])
        yield OperationCase(operation, element, distribution.lower(), program, inputs, verify=verify)


def _uniform(results: Sequence[Array]) -> str:
    numbers = results[0].astype(np.float64)
    if not ((numbers >= -2) & (numbers <= 4)).all():
        return f"expected numbers from -2 to 4, found {numbers.min()} to {numbers.max()}"
    return _moments(numbers, 1.0, 6 / 12**0.5)


def _normal(results: Sequence[Array]) -> str:
    return _moments(results[0].astype(np.float64), -2.0, 4.0)


def _moments(numbers: Array, mean: float, deviation: float) -> str:
    """Return the problem of numbers that are six standard errors or more from their distribution."""
    error = 6 * deviation / numbers.size**0.5
    if abs(float(numbers.mean()) - mean) > error:
        return f"expected numbers with the mean {mean}, found {numbers.mean():.4g}"
    if abs(float(numbers.std()) - deviation) > error:
        return f"expected numbers with the standard deviation {deviation:.4g}, found {numbers.std():.4g}"
    return ""


@cases("rng_bit_generator", [ElementType.U8, ElementType.U32, ElementType.U64, ElementType.S32])
def _rng_bit_generator(operation: str, element: ElementType) -> Iterator[OperationCase]:
    types = ["tensor<2xui64>", f"tensor<{_MANY}x{element.mlir}>"]
    inputs = (np.array([1, 2], np.uint64),)
    for algorithm in ("DEFAULT", "THREE_FRY"):
        text = f"{operation} %x, algorithm = {algorithm} : ({types[0]}) -> ({', '.join(types)})"
        program = program_text(text, types[:1], types)
        # The bits of a named algorithm are defined; those of the default one are the implementation's.
        verify = _bits if algorithm == "DEFAULT" else None
        yield OperationCase(operation, element, algorithm, program, inputs, verify=verify)


def _bits(results: Sequence[Array]) -> str:
    ones = float(np.unpackbits(np.ascontiguousarray(results[1]).view(np.uint8)).mean())
    if abs(ones - 0.5) > 0.01:
        return f"expected as many ones as zeros among the bits, found {ones:.1%} ones"
    return "" if (results[0] != [1, 2]).any() else "expected a new state, found that of the argument"
