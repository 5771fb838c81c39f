"""A device that runs the elementwise part of StableHLO on PyTorch tensors.

pip install torch && python examples/torch_device/device.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import pjrt
from pjrt.stablehlo import Operation, ParsedProgram

UNARY = {
    "abs": torch.abs,
    "cosine": torch.cos,
    "exponential": torch.exp,
    "exponential_minus_one": torch.expm1,
    "floor": torch.floor,
    "log": torch.log,
    "logistic": torch.sigmoid,
    "negate": torch.neg,
    "rsqrt": torch.rsqrt,
    "sine": torch.sin,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
}
BINARY = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "power": torch.pow,
}
COMPARISONS = {"EQ": torch.eq, "NE": torch.ne, "LT": torch.lt, "LE": torch.le, "GT": torch.gt, "GE": torch.ge}
OTHERS = ("constant", "broadcast_in_dim", "reshape", "compare", "select", "convert")
OPERATIONS = {f"stablehlo.{name}" for name in (*UNARY, *BINARY, *OTHERS)}


def to_torch(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def evaluate(operation: Operation, *operands: torch.Tensor) -> torch.Tensor:
    """Run one operation on tensors."""
    name, result = operation.name.removeprefix("stablehlo."), operation.results[0].type
    if name in UNARY:
        return UNARY[name](*operands)
    if name in BINARY:
        return BINARY[name](*operands)
    if name == "constant":
        return to_torch(operation.attribute("value")).expand(result.shape)
    if name == "compare":
        return COMPARISONS[operation.attribute("comparison_direction")](*operands)
    if name == "select":
        return torch.where(*operands)
    if name == "convert":
        return operands[0].to(to_torch(np.empty(0, result.dtype)).dtype)
    if name == "reshape":
        return operands[0].reshape(result.shape)
    # broadcast_in_dim: each dimension of the operand has its place in the result, all others are new.
    places = operation.attribute("broadcast_dimensions")
    sizes = [1] * result.rank
    for place, extent in zip(places, operands[0].shape, strict=True):
        sizes[place] = extent
    return operands[0].reshape(sizes).expand(result.shape)


def compile(program: ParsedProgram, options: pjrt.CompileOptions) -> Any:
    functions = program.functions

    def call(name: str, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        body = functions[name].body
        assert body is not None
        values = dict(zip(body.arguments, arguments, strict=True))
        for operation in body.operations[:-1]:
            operands = [values[v] for v in operation.operands]
            if operation.name == "func.call":
                values.update(zip(operation.results, call(operation.attribute("callee"), operands), strict=True))
            else:
                values[operation.results[0]] = evaluate(operation, *operands)
        return [values[v] for v in body.outputs]

    def run(*arrays: Any) -> list[Any]:
        return [result.numpy() for result in call(program.entry.name, [to_torch(a) for a in arrays])]

    return run


def make_client(**options: Any) -> pjrt.Client:
    """Make a client of the device; frameworks call it."""
    return pjrt.StableHloClient("torch_device", compile=compile, operations=OPERATIONS, **options)


def main() -> None:
    with make_client() as client:
        executable = client.compile("""
        func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
          %0 = stablehlo.logistic %x : tensor<4xf32>
          %1 = stablehlo.multiply %x, %0 : tensor<4xf32>
          return %1 : tensor<4xf32>
        }""")
        x = np.linspace(-2, 2, 4, dtype=np.float32)
        (y,) = executable(x)
        print("silu", np.asarray(y))
        np.testing.assert_allclose(np.asarray(y), x / (1 + np.exp(-x)), rtol=1e-6)


if __name__ == "__main__":
    main()
