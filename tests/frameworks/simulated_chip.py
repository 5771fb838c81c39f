"""A simulated chip under JAX: kernels and compiled runs on memory that numpy cannot see.

The devices' checks name it ``simulated_chip``, as they name built-in devices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pjrt
from pjrt.stablehlo import Operation, ParsedProgram, lowering

for _folder in ("device_api", "plugins"):
    sys.path.append(str(Path(__file__).parents[1] / _folder))

from anydevice.simulated_memory import SimulatedMemory  # noqa: E402  # only pytest has its folder on the path

NAME = "simulated_chip"

ELEMENTWISE = {
    "stablehlo.add": np.add,
    "stablehlo.subtract": np.subtract,
    "stablehlo.multiply": np.multiply,
    "stablehlo.tanh": np.tanh,
}


class SimulatedChip(pjrt.StableHloClient):
    """The chip's client: a kernel of matrix products, and a compiler of elementwise operations.

    Args:
        more_kernels: further kernels, on addresses.
        options: the options of ``pjrt.StableHloClient``.
    """

    __slots__ = ()

    def __init__(self, more_kernels: dict[str, Callable[..., Any]] | None = None, **options: Any) -> None:
        memory = SimulatedMemory()
        super().__init__(
            NAME,
            kernels={"stablehlo.dot_general": _on_chip(memory, _product), **(more_kernels or {})},
            compile=lambda program, compile_options: _compiled(memory, program),
            operations=ELEMENTWISE,
            fallback="reference",
            memory=memory,
            **options,
        )


def register() -> None:
    """Register the chip, for ``pjrt.client`` and for JAX."""
    pjrt.plugins.register(name=NAME, factory=SimulatedChip)


def _on_chip(memory: SimulatedMemory, function: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(operation: Operation, *addresses: int) -> Any:
        if operation.results[0].type.element.is_complex:
            return NotImplemented
        return _write(memory, operation, function(operation, *map(memory.read, addresses)))

    return kernel


def _product(operation: Operation, x: Any, y: Any) -> Any:
    product = lowering.matrix_product(operation)
    stack = np.matmul(
        x.transpose(product.lhs_permutation).reshape(product.lhs_shape).astype(np.float64),
        y.transpose(product.rhs_permutation).reshape(product.rhs_shape).astype(np.float64),
    )
    return stack.reshape(product.result_shape)


def _compiled(memory: SimulatedMemory, program: ParsedProgram) -> Callable[..., Any]:
    main = program.entry
    assert main.body is not None
    operations, outputs = main.body.operations[:-1], main.body.outputs

    def run(*addresses: int) -> list[int]:
        values: dict[Any, int] = dict(zip(main.arguments, addresses, strict=True))
        between = []
        for operation in operations:
            arrays = [memory.read(values[operand]) for operand in operation.operands]
            result = _write(memory, operation, ELEMENTWISE[operation.name](*arrays))
            values[operation.results[0]] = result
            if operation.results[0] not in outputs:
                between.append(result)
        for address in between:
            memory.free(address)
        return [values[output] for output in outputs]

    return run


def _write(memory: SimulatedMemory, operation: Operation, array: Any) -> int:
    type_ = operation.results[0].type
    address = memory.allocate(pjrt.ShapeSpec(type_.shape, type_.element), None)  # type: ignore[arg-type]
    memory.copy_in(address, np.asarray(array, type_.element.dtype))
    return address
