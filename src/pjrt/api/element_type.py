"""Element types: the types of the elements of buffers (``PJRT_Buffer_Type``, ``xla::PrimitiveType``).

Python's numbers, such as ``3.0`` or ``[1, 2]``, have no element type of their own. They become the type that the
program takes if that type can hold their value: an ``f32`` takes every finite number up to its largest, rounded, and an
``s32`` takes whole numbers only.
"""

from __future__ import annotations

import enum
from typing import Any

import ml_dtypes
import numpy as np

from pjrt.api.errors import InvalidArgumentError

AnyDType = np.dtype[Any]
"""A numpy dtype whose scalar type is not of interest."""


class ElementType(enum.IntEnum):
    """The type of a buffer's elements; the values are those of ``PJRT_Buffer_Type``.

    ``dtype`` gives the numpy type (``ml_dtypes`` for the ones numpy lacks), ``mlir`` the spelling in StableHLO.
    """

    INVALID = 0
    PRED = 1
    S8 = 2
    S16 = 3
    S32 = 4
    S64 = 5
    U8 = 6
    U16 = 7
    U32 = 8
    U64 = 9
    F16 = 10
    F32 = 11
    F64 = 12
    BF16 = 13
    C64 = 14
    C128 = 15
    F8E5M2 = 16
    F8E4M3FN = 17
    F8E4M3B11FNUZ = 18
    F8E5M2FNUZ = 19
    F8E4M3FNUZ = 20
    S4 = 21
    U4 = 22
    TOKEN = 23
    S2 = 24
    U2 = 25
    F8E4M3 = 26
    F8E3M4 = 27
    F8E8M0FNU = 28
    F4E2M1FN = 29
    S1 = 30
    U1 = 31
    F6E2M3FN = 32
    F6E3M2FN = 33

    @property
    def dtype(self) -> AnyDType:
        """The numpy dtype of arrays of such elements; elements of less than a byte take a byte each.

        Raises:
            InvalidArgumentError: ``INVALID`` and ``TOKEN`` have no value, so no dtype.
        """
        dtype = _DTYPE_OF.get(self)
        if dtype is None:
            raise InvalidArgumentError(f"the element type {self.name} has no numpy dtype: expected a type with values")
        return dtype

    @property
    def bits(self) -> int:
        """The number of bits that one element needs when packed; 0 for ``TOKEN``."""
        return _BITS[self]

    @property
    def mlir(self) -> str:
        """The spelling of the type in StableHLO text, such as ``f32``, ``ui8`` or ``complex<f32>``."""
        return _MLIR[self]

    @property
    def is_floating(self) -> bool:
        """Whether this is a real floating-point type."""
        return self.name[0] == "F" or self is ElementType.BF16

    @property
    def is_complex(self) -> bool:
        """Whether this is a complex type."""
        return self in (ElementType.C64, ElementType.C128)

    @property
    def is_integer(self) -> bool:
        """Whether this is a signed or unsigned integer type; ``PRED`` is not one."""
        return self.name[0] in "SU"

    @staticmethod
    def of(dtype: Any) -> ElementType:
        """Return the element type of a numpy dtype, or of anything that ``numpy.dtype`` accepts, or of itself.

        Raises:
            InvalidArgumentError: no element type corresponds to the dtype (strings, objects, records, long doubles).
        """
        if isinstance(dtype, ElementType):
            return dtype
        try:
            numpy_dtype = np.dtype(dtype)
        except TypeError as error:
            raise InvalidArgumentError(
                f"{dtype!r} is not an element type: expected a numpy or ml_dtypes dtype"
            ) from error
        element_type = _BY_DTYPE.get(numpy_dtype)
        if element_type is None:
            element_type = _BY_DTYPE.get(numpy_dtype.newbyteorder("="))
        if element_type is None:
            raise InvalidArgumentError(
                f"the dtype {numpy_dtype} is not an element type of PJRT: expected one of "
                f"{', '.join(map(str, _BY_DTYPE))}"
            )
        return element_type

    @staticmethod
    def from_mlir(spelling: str) -> ElementType:
        """Return the element type with a StableHLO spelling such as ``f32``, ``i1``, ``ui4`` or ``complex<f64>``.

        Raises:
            InvalidArgumentError: no element type has this spelling.
        """
        element_type = _BY_MLIR.get(spelling) if isinstance(spelling, str) else None
        if element_type is None:
            raise InvalidArgumentError(f"{spelling!r} is not an element type: expected one of {', '.join(_BY_MLIR)}")
        return element_type


# One row a type: numpy's dtype, packed bits, MLIR's spelling.
_FACTS: dict[ElementType, tuple[Any, int, str]] = {
    ElementType.PRED: (np.bool_, 8, "i1"),
    ElementType.S8: (np.int8, 8, "i8"),
    ElementType.S16: (np.int16, 16, "i16"),
    ElementType.S32: (np.int32, 32, "i32"),
    ElementType.S64: (np.int64, 64, "i64"),
    ElementType.U8: (np.uint8, 8, "ui8"),
    ElementType.U16: (np.uint16, 16, "ui16"),
    ElementType.U32: (np.uint32, 32, "ui32"),
    ElementType.U64: (np.uint64, 64, "ui64"),
    ElementType.F16: (np.float16, 16, "f16"),
    ElementType.F32: (np.float32, 32, "f32"),
    ElementType.F64: (np.float64, 64, "f64"),
    ElementType.BF16: (ml_dtypes.bfloat16, 16, "bf16"),
    ElementType.C64: (np.complex64, 64, "complex<f32>"),
    ElementType.C128: (np.complex128, 128, "complex<f64>"),
    ElementType.F8E5M2: (ml_dtypes.float8_e5m2, 8, "f8E5M2"),
    ElementType.F8E4M3FN: (ml_dtypes.float8_e4m3fn, 8, "f8E4M3FN"),
    ElementType.F8E4M3B11FNUZ: (ml_dtypes.float8_e4m3b11fnuz, 8, "f8E4M3B11FNUZ"),
    ElementType.F8E5M2FNUZ: (ml_dtypes.float8_e5m2fnuz, 8, "f8E5M2FNUZ"),
    ElementType.F8E4M3FNUZ: (ml_dtypes.float8_e4m3fnuz, 8, "f8E4M3FNUZ"),
    ElementType.S4: (ml_dtypes.int4, 4, "i4"),
    ElementType.U4: (ml_dtypes.uint4, 4, "ui4"),
    ElementType.S2: (ml_dtypes.int2, 2, "i2"),
    ElementType.U2: (ml_dtypes.uint2, 2, "ui2"),
    ElementType.F8E4M3: (ml_dtypes.float8_e4m3, 8, "f8E4M3"),
    ElementType.F8E3M4: (ml_dtypes.float8_e3m4, 8, "f8E3M4"),
    ElementType.F8E8M0FNU: (ml_dtypes.float8_e8m0fnu, 8, "f8E8M0FNU"),
    ElementType.F4E2M1FN: (ml_dtypes.float4_e2m1fn, 4, "f4E2M1FN"),
    ElementType.F6E2M3FN: (ml_dtypes.float6_e2m3fn, 6, "f6E2M3FN"),
    ElementType.F6E3M2FN: (ml_dtypes.float6_e3m2fn, 6, "f6E3M2FN"),
    # No Python library has one-bit integers of its own; only the name tells them from PRED.
    ElementType.S1: (getattr(ml_dtypes, "int1", None), 1, "si1"),
    ElementType.U1: (getattr(ml_dtypes, "uint1", None), 1, "ui1"),
}

_DTYPE_OF: dict[ElementType, AnyDType] = {t: np.dtype(facts[0]) for t, facts in _FACTS.items() if facts[0] is not None}
_BY_DTYPE: dict[AnyDType, ElementType] = {dtype: t for t, dtype in _DTYPE_OF.items()}
_BITS: dict[ElementType, int] = {t: facts[1] for t, facts in _FACTS.items()} | {
    ElementType.TOKEN: 0,
    ElementType.INVALID: 0,
}
_MLIR: dict[ElementType, str] = {t: facts[2] for t, facts in _FACTS.items()} | {
    ElementType.TOKEN: "!stablehlo.token",
    ElementType.INVALID: "<invalid>",
}
_BY_MLIR: dict[str, ElementType] = {spelling: t for t, spelling in _MLIR.items() if t is not ElementType.INVALID}


_Array = np.ndarray[Any, Any]
_NUMBERS = frozenset({bool, int, float, complex})


def are_python_numbers(value: object) -> bool:
    """Whether a value is a Python number, or nested lists and tuples of nothing else; numpy's scalars are not."""
    if isinstance(value, list | tuple):
        return _NUMBERS.issuperset(map(type, value)) or all(map(are_python_numbers, value))
    return type(value) in _NUMBERS


def number_array(value: Any, element_type: ElementType) -> _Array:
    """Return Python numbers, or nested lists and tuples of them, as an array of an element type.

    Raises:
        InvalidArgumentError: the type cannot hold one of the numbers, or the lists are of different lengths.
    """
    dtype = element_type.dtype
    numbers = _natural(value)
    if numbers.dtype == object:
        numbers = _of_large_integers(numbers, element_type)
    if numbers.dtype.kind == "c" and not element_type.is_complex:
        _check(numbers, numbers.imag == 0, element_type)
        numbers = numbers.real
    if element_type is ElementType.PRED or element_type.is_integer:
        low, high = _range(element_type)
        with np.errstate(invalid="ignore"):
            whole = np.isfinite(numbers) & (numbers == np.floor(numbers)) if numbers.dtype.kind == "f" else True
        _check(numbers, whole & (numbers >= low) & (numbers <= high), element_type)
        return numbers.astype(dtype)
    with np.errstate(all="ignore"):
        elements = numbers.astype(dtype)
        wide = elements.astype(np.complex128 if element_type.is_complex else np.float64)
        # A number that is too large becomes infinite or, in types without infinities, not a number or the largest one.
        same_kind = (np.isfinite(wide) == np.isfinite(numbers)) & (np.isnan(wide) == np.isnan(numbers))
    _check(numbers, same_kind, element_type)
    return elements


def _natural(value: Any) -> _Array:
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError(f"expected lists of equal lengths, found {_shortened(value)}: {error}") from error


def _of_large_integers(numbers: _Array, element_type: ElementType) -> _Array:
    """Return numbers, of which one at least is an integer of more than 64 bits, as an array that can be compared."""
    if element_type is ElementType.PRED or element_type.is_integer:
        raise _misfit(next(n for n in numbers.flat if type(n) is int and n.bit_length() > 63), element_type)
    try:
        return numbers.astype(np.complex128 if any(type(n) is complex for n in numbers.flat) else np.float64)
    except OverflowError:
        raise _misfit(max((n for n in numbers.flat if type(n) is int), key=abs), element_type) from None


def _check(numbers: _Array, fitting: Any, element_type: ElementType) -> None:
    fitting = np.broadcast_to(fitting, numbers.shape)
    if not fitting.all():
        raise _misfit(numbers[~fitting].flat[0].item(), element_type)


def _misfit(number: complex, element_type: ElementType) -> InvalidArgumentError:
    return InvalidArgumentError(f"expected {_values_of(element_type)}, found {_shortened(number)}")


def _values_of(element_type: ElementType) -> str:
    name = element_type.name.lower()
    if element_type is ElementType.PRED:
        return f"True or False for the element type {name}"
    if element_type.is_integer:
        low, high = _range(element_type)
        return f"whole numbers from {low} to {high} for the element type {name}"
    kind = "numbers" if element_type.is_complex else "real numbers"
    return f"{kind} that the element type {name} can hold"


def _range(element_type: ElementType) -> tuple[int, int]:
    if element_type is ElementType.PRED:
        return 0, 1
    if element_type.name[0] == "U":
        return 0, 2**element_type.bits - 1
    half = 2 ** (element_type.bits - 1)
    return -half, half - 1


def _shortened(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        return "an integer of thousands of digits"
    return text if len(text) <= 40 else f"{text[:37]}..."
