"""The types of a program's values, as plain Python values, and their reading from MLIR.

A type of MLIR without a form here is no error: it becomes an ``OpaqueType`` with MLIR's spelling, which the caller may
refuse.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from typing import Any, cast

from pjrt.api.element_type import AnyDType, ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.stablehlo.encodings import jaxlib


@dataclass(frozen=True, slots=True)
class Quantization:
    """The real numbers that the integers of a uniform-quantized tensor stand for: ``(stored - zero_point) * scale``.

    Attributes:
        storage: the integer type that is stored.
        expressed: the floating-point type that is meant.
        scales: one scale for a per-tensor type, one for each slice for a per-axis type.
        zero_points: as many zero points as scales.
        axis: the quantized dimension of a per-axis type; None for a per-tensor type.
        storage_min: the least value that is stored.
        storage_max: the greatest value that is stored.
    """

    storage: ElementType
    expressed: ElementType
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int | None
    storage_min: int
    storage_max: int


@dataclass(frozen=True, slots=True)
class TensorType:
    """A ranked tensor.

    Attributes:
        shape: the size of each dimension; None where it is known only when the program runs.
        element: the element type; of a quantized tensor the type that is stored. MLIR's ``index`` is ``S64``.
        quantization: what the stored integers mean; None for a tensor that is not quantized.
        bounds: upper bounds of the dimensions without a size, None for the others; None if the type states no bounds.
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
        """The numpy dtype of arrays that hold such a tensor."""
        return self.element.dtype

    @property
    def is_static(self) -> bool:
        """Whether every size is known."""
        return None not in self.shape

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, where it is static.

        Raises:
            UnimplementedError: a size is known only when the program runs.
        """
        if not self.is_static:
            raise UnimplementedError(f"expected a static shape, found {self}: its sizes are needed beforehand")
        return cast("tuple[int, ...]", self.shape)

    @property
    def size(self) -> int:
        """The number of elements, where the shape is static."""
        return math.prod(self.sizes)

    @property
    def nbytes(self) -> int:
        """The bytes that a numpy array of such a tensor takes, where the shape is static."""
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        dims = "".join("?x" if size is None else f"{size}x" for size in self.shape)
        quantization = self.quantization
        if quantization is None:
            return f"tensor<{dims}{self.element.mlir}>"
        return f"tensor<{dims}!quant.uniform<{quantization.storage.mlir}:{quantization.expressed.mlir}>>"


@dataclass(frozen=True, slots=True)
class TokenType:
    """A token: orders side effects and holds no data."""

    def __str__(self) -> str:
        return "!stablehlo.token"


@dataclass(frozen=True, slots=True)
class TupleType:
    """A tuple of values.

    Attributes:
        elements: the types of the values.
    """

    elements: tuple[ValueType, ...]

    def __str__(self) -> str:
        return f"tuple<{', '.join(map(str, self.elements))}>"


@dataclass(frozen=True, slots=True)
class FutureType:
    """The result of ``stablehlo.async_start``, which ``stablehlo.async_done`` takes.

    Attributes:
        elements: the types of the values that will be there when it is done.
    """

    elements: tuple[ValueType, ...]

    def __str__(self) -> str:
        return f"!stablehlo.future<{', '.join(map(str, self.elements))}>"


@dataclass(frozen=True, slots=True)
class OpaqueType:
    """A type without a class here, such as an unranked tensor or one of another dialect.

    Attributes:
        text: MLIR's spelling of it.
    """

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class FunctionType:
    """The type of a function.

    Attributes:
        arguments: the types of the arguments.
        results: the types of the results.
    """

    arguments: tuple[ValueType, ...]
    results: tuple[ValueType, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.arguments))}) -> ({', '.join(map(str, self.results))})"


ValueType = TensorType | TokenType | TupleType | FutureType | OpaqueType
"""The type of a value of a program."""


def decode_type(type_: Any) -> ValueType:
    """Return the type of a value; a scalar type, which appears in attributes only, is a tensor of rank 0."""
    name = type(type_).__name__
    if name == "RankedTensorType":
        return _decode_tensor(type_)
    if name == "TupleType":
        return TupleType(tuple(decode_type(type_.get_type(i)) for i in range(type_.num_types)))
    text = str(type_)
    if text == "!stablehlo.token":
        return TokenType()
    if text.startswith("!stablehlo.future"):
        return FutureType(tuple(map(decode_type, binding("stablehlo", "FutureType")(type_).types)))
    try:
        return TensorType((), *_decode_element(text))
    except InvalidArgumentError:
        return OpaqueType(text)


def decode_function_type(type_: Any) -> FunctionType:
    """Return the type of a function."""
    return FunctionType(tuple(map(decode_type, type_.inputs)), tuple(map(decode_type, type_.results)))


def element_named(spelling: str) -> ElementType:
    """Return the element type of MLIR's spelling; MLIR's ``index`` is ``S64``, and ``si8`` is ``S8``.

    Raises:
        InvalidArgumentError: the spelling names no element type.
    """
    if spelling == "index":
        return ElementType.S64
    if spelling.startswith("si") and spelling != ElementType.S1.mlir:  # without a sign, one bit is a truth value
        spelling = spelling[1:]
    return ElementType.from_mlir(spelling)


def _decode_tensor(type_: Any) -> ValueType:
    try:
        element, quantization = _decode_element(str(type_.element_type))
    except InvalidArgumentError:
        return OpaqueType(str(type_))
    if type_.has_static_shape:
        return TensorType(tuple(type_.shape), element, quantization)
    shape = tuple(None if type_.is_dynamic_dim(i) else type_.get_dim_size(i) for i in range(type_.rank))
    return TensorType(shape, element, quantization, _decode_bounds(type_.encoding))


_BOUNDS = r"#(?:stablehlo|mhlo)\.(?:bounds|type_extensions<bounds =)\s*<?\[?(?P<bounds>[\d?, ]+)\]?>"


def _decode_bounds(encoding: Any) -> tuple[int | None, ...] | None:
    match = None if encoding is None else re.search(_BOUNDS, str(encoding))
    if match is None:
        return None
    return tuple(None if word.strip() == "?" else int(word) for word in match["bounds"].split(","))


@functools.lru_cache(maxsize=64)
def _decode_element(text: str) -> tuple[ElementType, Quantization | None]:
    if text.startswith("!quant."):
        quantization = parse_quantization(text)
        return quantization.storage, quantization
    return element_named(text), None


_QUANTIZED = (
    r"!quant\.uniform<(?P<storage>(?:i|u|si|ui)\d+)(?:<(?P<low>-?\d+):(?P<high>-?\d+)>)?"
    r":(?P<expressed>\w+)(?::(?P<axis>\d+))?,\s*(?P<scales>[^<>]*)>"
)


def parse_quantization(text: str) -> Quantization:
    """Return the quantization that ``!quant.uniform<storage<min:max>:expressed:axis, {scale:zero_point, …}>`` spells.

    Raises:
        InvalidArgumentError: the text spells another kind of quantized type.
    """
    match = re.fullmatch(_QUANTIZED, text)
    if match is None or "{{" in text:
        raise InvalidArgumentError(f"expected a per-tensor or per-axis uniform quantized type, found {text}")
    storage = element_named(re.sub(r"^u(?=\d)", "ui", match["storage"]))
    signed = storage.name.startswith("S")
    low = -(1 << (storage.bits - 1)) if signed else 0
    high = (1 << (storage.bits - 1)) - 1 if signed else (1 << storage.bits) - 1
    pairs = [pair.strip().partition(":") for pair in match["scales"].strip("{} ").split(",")]
    return Quantization(
        storage=storage,
        expressed=ElementType.from_mlir(match["expressed"]),
        scales=tuple(float(scale) for scale, _, _ in pairs),
        zero_points=tuple(int(zero or 0) for _, _, zero in pairs),
        axis=None if match["axis"] is None else int(match["axis"]),
        storage_min=low if match["low"] is None else int(match["low"]),
        storage_max=high if match["high"] is None else int(match["high"]),
    )


@functools.cache
def binding(dialect: str, name: str) -> Any:
    """Return the class of the bindings that reads an attribute or type of a dialect."""
    return getattr(jaxlib.dialect(dialect), name)
