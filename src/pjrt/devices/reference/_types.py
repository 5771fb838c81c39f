"""The types of a program's values, in Python: tensors, tuples, tokens, futures and quantized elements.

Read once from MLIR when a program is compiled, so that nothing of MLIR is alive (or needs a lock) while it runs.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from pjrt.api.element_type import AnyDType, ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError


@dataclass(frozen=True)
class Quantization:
    """How the integers of a uniform-quantized tensor stand for real numbers: ``(stored - zero_point) * scale``.

    Args:
        storage: the integer type that is stored.
        expressed: the floating-point type that is meant.
        scales: one scale for a per-tensor type, one a slice for a per-axis type.
        zero_points: as many zero points as scales.
        axis: the quantized dimension of a per-axis type, else None.
        storage_min, storage_max: the range that stored values are clamped to.
    """

    storage: ElementType
    expressed: ElementType
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int | None
    storage_min: int
    storage_max: int


@dataclass(frozen=True)
class TensorType:
    """A ranked tensor: ``shape`` holds None where a size is known only when the program runs.

    ``bounds`` holds the upper bounds of such sizes where the type states them. For a quantized tensor ``element`` is
    the storage type, and values are arrays of that.
    """

    shape: tuple[int | None, ...]
    element: ElementType
    quantization: Quantization | None = None
    bounds: tuple[int | None, ...] | None = None

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def dtype(self) -> AnyDType:
        """The numpy dtype of the arrays that are such a value."""
        return self.element.dtype

    @property
    def is_static(self) -> bool:
        """Whether every size is known."""
        return None not in self.shape

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, where it is static.

        Raises:
            UnimplementedError: a size is not known before the program runs.
        """
        if not self.is_static:
            raise UnimplementedError(f"expected a static shape, found {self}: this op needs its sizes at compile time")
        return tuple(size for size in self.shape if size is not None)

    @property
    def size(self) -> int:
        """The number of elements, where the shape is static."""
        return math.prod(self.sizes)

    def __str__(self) -> str:
        dims = "".join("?x" if size is None else f"{size}x" for size in self.shape)
        if self.quantization is None:
            return f"tensor<{dims}{self.element.mlir}>"
        q = self.quantization
        return f"tensor<{dims}!quant.uniform<{q.storage.mlir}:{q.expressed.mlir}>>"


@dataclass(frozen=True)
class TokenType:
    """A token: orders side effects, has no data. The value is ``TOKEN``."""

    def __str__(self) -> str:
        return "!stablehlo.token"


@dataclass(frozen=True)
class TupleType:
    """A tuple of values; the value is a Python tuple."""

    elements: tuple[ValueType, ...]

    def __str__(self) -> str:
        return f"tuple<{', '.join(map(str, self.elements))}>"


@dataclass(frozen=True)
class FutureType:
    """What ``async_start`` gives and ``async_done`` takes; the value is a Python tuple of the results."""

    elements: tuple[ValueType, ...]

    def __str__(self) -> str:
        return f"!stablehlo.future<{', '.join(map(str, self.elements))}>"


ValueType = TensorType | TokenType | TupleType | FutureType


class _Token:
    def __repr__(self) -> str:
        return "TOKEN"


TOKEN = _Token()
"""The one value of type ``TokenType``."""


def decode_type(type_: Any) -> ValueType:
    """The type of an MLIR value.

    Raises:
        UnimplementedError: the type is none that a StableHLO value can have here.
    """
    name = type(type_).__name__
    if name == "RankedTensorType":
        return _decode_tensor(type_)
    if name == "TupleType":
        return TupleType(tuple(decode_type(type_.get_type(i)) for i in range(type_.num_types)))
    text = str(type_)
    if text == "!stablehlo.token":
        return TokenType()
    if text.startswith("!stablehlo.future"):
        from pjrt.devices.reference import _mlir

        return FutureType(tuple(decode_type(t) for t in _mlir.cast(type_, "stablehlo", "FutureType").types))
    if text.startswith("tensor<*"):
        raise UnimplementedError(f"expected a ranked tensor, found {text}")
    # A scalar type on its own appears in attributes only; a tensor without dimensions means the same.
    return TensorType((), decode_element(type_)[0])


def decode_element(type_: Any) -> tuple[ElementType, Quantization | None]:
    """The element type of an MLIR tensor, with its quantization where it has one."""
    text = str(type_)
    if text.startswith("!quant."):
        quantization = parse_quantization(text)
        return quantization.storage, quantization
    if text.startswith("si") and text[2:].isdigit():
        text = text[1:]
    try:
        return ElementType.from_mlir(text), None
    except InvalidArgumentError:
        raise UnimplementedError(f"the element type {text} is not one that this device computes with") from None


def _decode_tensor(type_: Any) -> TensorType:
    element, quantization = decode_element(type_.element_type)
    if type_.has_static_shape:
        return TensorType(tuple(type_.shape), element, quantization)
    shape = tuple(None if type_.is_dynamic_dim(i) else type_.get_dim_size(i) for i in range(type_.rank))
    bounds = None
    if type_.encoding is not None and hasattr(type_.encoding, "bounds"):
        bounds = tuple(None if bound < 0 else bound for bound in type_.encoding.bounds)
    return TensorType(shape, element, quantization, bounds)


_QUANTIZED = re.compile(
    r"!quant\.uniform<(?P<storage>[iu]+\d+)(?:<(?P<low>-?\d+):(?P<high>-?\d+)>)?:(?P<expressed>\w+)(?::(?P<axis>\d+))?,\s*(?P<scales>.*)>$"
)


def parse_quantization(text: str) -> Quantization:
    """The quantization that ``!quant.uniform<storage<min:max>:expressed:axis, {scale:zero_point, …}>`` spells.

    Raises:
        UnimplementedError: it is another kind of quantized type.
    """
    match = _QUANTIZED.match(text)
    if match is None or "{{" in text:
        raise UnimplementedError(f"expected a per-tensor or per-axis uniform quantized type, found {text}")
    spelled = match["storage"]
    storage = ElementType.from_mlir("ui" + spelled[1:] if spelled.startswith("u") and spelled[1] != "i" else spelled)
    bits, signed = storage.bits, storage.name.startswith("S")
    low = -(1 << (bits - 1)) if signed else 0
    high = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1
    pairs = [pair.strip() for pair in match["scales"].strip("{} ").split(",")]
    return Quantization(
        storage=storage,
        expressed=ElementType.from_mlir(match["expressed"]),
        scales=tuple(float(pair.partition(":")[0]) for pair in pairs),
        zero_points=tuple(int(pair.partition(":")[2] or 0) for pair in pairs),
        axis=None if match["axis"] is None else int(match["axis"]),
        storage_min=low if match["low"] is None else int(match["low"]),
        storage_max=high if match["high"] is None else int(match["high"]),
    )
