"""A device whose memory is PyTorch tensors and whose kernels are PyTorch functions; others run on the fallback.

pip install torch && python examples/torch_device/device.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import pjrt
from pjrt.stablehlo import Operation, lowering

TYPES = {
    pjrt.ElementType.PRED: torch.bool,
    pjrt.ElementType.S8: torch.int8,
    pjrt.ElementType.S16: torch.int16,
    pjrt.ElementType.S32: torch.int32,
    pjrt.ElementType.S64: torch.int64,
    pjrt.ElementType.U8: torch.uint8,
    pjrt.ElementType.U16: torch.uint16,
    pjrt.ElementType.U32: torch.uint32,
    pjrt.ElementType.U64: torch.uint64,
    pjrt.ElementType.F16: torch.float16,
    pjrt.ElementType.BF16: torch.bfloat16,
    pjrt.ElementType.F32: torch.float32,
    pjrt.ElementType.F64: torch.float64,
    pjrt.ElementType.C64: torch.complex64,
    pjrt.ElementType.C128: torch.complex128,
}
ELEMENTS = {dtype: element for element, dtype in TYPES.items()}
SCARCE = {torch.uint16, torch.uint32, torch.uint64}
"""Types that PyTorch stores and moves, but hardly computes with."""


class TorchMemory(pjrt.host.Memory):
    """Memory whose handles are tensors."""

    kinds = pjrt.host.MEMORY_KINDS

    def allocate(self, spec: pjrt.ShapeSpec, space: pjrt.MemorySpace) -> torch.Tensor:
        if spec.element_type not in TYPES:
            raise pjrt.UnimplementedError(f"PyTorch has no tensors of {spec.element_type.name}")
        return torch.empty(spec.shape, dtype=TYPES[spec.element_type])

    def copy_in(self, handle: torch.Tensor, array: Any) -> None:
        np.copyto(self.host_view(handle), array.reshape(-1).view(np.uint8))

    def copy_out(self, handle: torch.Tensor, array: Any) -> None:
        np.copyto(array.reshape(-1).view(np.uint8), self.host_view(handle))

    def copy(self, source: torch.Tensor, target: torch.Tensor, spec: pjrt.ShapeSpec) -> None:
        target.copy_(source)

    def host_view(self, handle: torch.Tensor) -> Any:
        return handle.reshape(-1).view(torch.uint8).numpy()  # bytes: numpy lacks some of the types

    def pointer(self, handle: torch.Tensor) -> int:
        return handle.data_ptr()

    def to_dlpack(self, handle: torch.Tensor) -> torch.Tensor:
        return handle

    def from_dlpack(self, source: Any, space: pjrt.MemorySpace) -> torch.Tensor:
        tensor = torch.from_dlpack(source)
        if not tensor.is_contiguous():
            raise pjrt.UnimplementedError("expected a row-major array; make it one with tensor.contiguous()")
        return tensor

    def spec_of(self, handle: torch.Tensor) -> pjrt.ShapeSpec:
        return pjrt.ShapeSpec(tuple(handle.shape), ELEMENTS[handle.dtype])


def result_dtype(operation: Operation) -> torch.dtype:
    return TYPES[operation.results[0].type.element]


def kernel(function: Callable[..., Any], *, moves: bool = False, floats: bool = False) -> Callable[..., Any]:
    """Make a kernel of a function of an operation and tensors. What PyTorch lacks is left to the fallback.

    Args:
        function: the function; its result may be a view and may have another type.
        moves: whether it only moves elements, of any type.
        floats: whether it takes floating-point numbers only.
    """

    def run(operation: Operation, *tensors: torch.Tensor) -> Any:
        if any(result.type.element not in TYPES for result in operation.results):
            return NotImplemented
        if not moves and any(tensor.dtype in SCARCE for tensor in tensors):
            return NotImplemented
        if floats and not all(tensor.is_floating_point() for tensor in tensors):
            return NotImplemented
        result = function(operation, *tensors)
        if result is NotImplemented:
            return result
        return result.to(result_dtype(operation)).contiguous()

    return run


def elementwise(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    return lambda operation, *tensors: function(*tensors)


COMPARISONS = {"EQ": torch.eq, "NE": torch.ne, "LT": torch.lt, "LE": torch.le, "GT": torch.gt, "GE": torch.ge}
REDUCTIONS: dict[str, tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]] = {
    "add": (torch.sum, torch.add),
    "maximum": (torch.amax, torch.maximum),
    "minimum": (torch.amin, torch.minimum),
}
"""By the name of the function that combines two values: the reduction, and that function."""


def compare(operation: Operation, x: torch.Tensor, y: torch.Tensor) -> Any:
    if operation.attribute("compare_type", None) == "TOTALORDER":
        return NotImplemented
    return COMPARISONS[operation.attribute("comparison_direction")](x, y)


def convert(operation: Operation, x: torch.Tensor) -> Any:
    target = result_dtype(operation)
    if {x.dtype, target} & SCARCE or (x.is_floating_point() and not target.is_floating_point):
        return NotImplemented  # PyTorch has no result for numbers that do not fit
    return x.to(target)


def broadcast(operation: Operation, x: torch.Tensor) -> torch.Tensor:
    steps = lowering.broadcast(operation)
    return x.permute(steps.permutation).reshape(steps.shape).expand(steps.result_shape)


def dot_general(operation: Operation, x: torch.Tensor, y: torch.Tensor) -> Any:
    product, dtype = lowering.matrix_product(operation), result_dtype(operation)
    if dtype is torch.bool:
        return NotImplemented
    x = x.to(dtype).permute(product.lhs_permutation).reshape(product.lhs_shape)
    y = y.to(dtype).permute(product.rhs_permutation).reshape(product.rhs_shape)
    return torch.bmm(x, y).reshape(product.result_shape)


def reduce(operation: Operation, x: torch.Tensor, *others: torch.Tensor) -> Any:
    functions = REDUCTIONS.get(lowering.reducer(operation) or "")
    dimensions = tuple(operation.attribute("dimensions"))
    if functions is None or len(others) != 1 or not dimensions or x.numel() == 0 or x.dtype is torch.bool:
        return NotImplemented
    over, combine = functions
    return combine(over(x, dimensions), others[0])


FLOATS = {
    "ceil": torch.ceil,
    "cosine": torch.cos,
    "divide": torch.div,
    "exponential": torch.exp,
    "exponential_minus_one": torch.expm1,
    "floor": torch.floor,
    "log": torch.log,
    "log_plus_one": torch.log1p,
    "logistic": torch.sigmoid,
    "power": torch.pow,
    "rsqrt": torch.rsqrt,
    "sine": torch.sin,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
}
NUMBERS = {
    "abs": torch.abs,
    "add": torch.add,
    "and": torch.bitwise_and,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "multiply": torch.mul,
    "negate": torch.neg,
    "not": torch.bitwise_not,
    "or": torch.bitwise_or,
    "select": torch.where,
    "subtract": torch.sub,
    "xor": torch.bitwise_xor,
}
KERNELS = {
    **{f"stablehlo.{name}": kernel(elementwise(function), floats=True) for name, function in FLOATS.items()},
    **{f"stablehlo.{name}": kernel(elementwise(function)) for name, function in NUMBERS.items()},
    "stablehlo.broadcast_in_dim": kernel(broadcast, moves=True),
    "stablehlo.reshape": kernel(lambda operation, x: x.reshape(operation.results[0].type.shape), moves=True),
    "stablehlo.transpose": kernel(lambda operation, x: x.permute(operation.attribute("permutation")), moves=True),
    "stablehlo.compare": kernel(compare),
    "stablehlo.convert": kernel(convert),
    "stablehlo.dot_general": kernel(dot_general),
    "stablehlo.reduce": kernel(reduce),
}


def make_client(**options: Any) -> pjrt.Client:
    """Make a client of the device; frameworks call it."""
    return pjrt.StableHloClient(
        "torch_device",
        kernels=KERNELS,
        fallback="reference",
        memory=TorchMemory(),
        capabilities=pjrt.Capabilities(element_types=frozenset(TYPES)),
        **options,
    )


def main() -> None:
    with make_client() as client:
        executable = client.compile("""
        func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
          %0 = stablehlo.logistic %x : tensor<4xf32>
          %1 = stablehlo.multiply %x, %0 : tensor<4xf32>
          return %1 : tensor<4xf32>
        }""")
        x = torch.linspace(-2, 2, 4)
        (y,) = executable(client.buffer_from_dlpack(x))  # the tensor itself
        result = torch.from_dlpack(y)  # no copy either
        print("silu", result)
        torch.testing.assert_close(result, torch.nn.functional.silu(x))


if __name__ == "__main__":
    main()
