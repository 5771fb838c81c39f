"""The types of a program's values, as plain Python values."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pjrt.api.element_type import AnyDType, ElementType
from pjrt.api.errors import UnimplementedError


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
        return tuple(size for size in self.shape if size is not None)

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
