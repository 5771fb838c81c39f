"""Element types: the types of the elements of buffers (``PJRT_Buffer_Type``, ``xla::PrimitiveType``)."""

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
