"""Element types: those of arguments and results of IREE's modules."""

from __future__ import annotations

from pjrt.api.element_type import ElementType

_NAMES = {
    ElementType.PRED: "BOOL_8",
    ElementType.S8: "SINT_8",
    ElementType.S16: "SINT_16",
    ElementType.S32: "SINT_32",
    ElementType.S64: "SINT_64",
    ElementType.U8: "UINT_8",
    ElementType.U16: "UINT_16",
    ElementType.U32: "UINT_32",
    ElementType.U64: "UINT_64",
    ElementType.F16: "FLOAT_16",
    ElementType.F32: "FLOAT_32",
    ElementType.F64: "FLOAT_64",
    ElementType.BF16: "BFLOAT_16",
    ElementType.C64: "COMPLEX_64",
    ElementType.C128: "COMPLEX_128",
    ElementType.F8E5M2: "FLOAT_8_E5M2",
    ElementType.F8E4M3FN: "FLOAT_8_E4M3_FN",
    ElementType.F8E5M2FNUZ: "FLOAT_8_E5M2_FNUZ",
    ElementType.F8E4M3FNUZ: "FLOAT_8_E4M3_FNUZ",
    ElementType.F8E8M0FNU: "FLOAT_8_E8M0_FNU",
}
"""The name of each type in ``iree.runtime.HalElementType``. Types of less than a byte are packed there, and take a byte
each here, so they are none of them.
"""

SUPPORTED = frozenset(_NAMES)
"""The types that arguments and results of modules may have."""


def codes(enumeration: type) -> dict[ElementType, int]:
    """Return IREE's number of each type.

    Args:
        enumeration: ``iree.runtime.HalElementType``.
    """
    return {element: int(getattr(enumeration, name)) for element, name in _NAMES.items()}
