"""XLA's own numbers of the element types (``xla::PrimitiveType``), which differ from those of PJRT."""

from __future__ import annotations

from pjrt.api.element_type import ElementType

_NAMES = (
    "INVALID PRED S8 S16 S32 S64 U8 U16 U32 U64 F16 F32 F64 TUPLE OPAQUE C64 BF16 TOKEN C128 F8E5M2 F8E4M3FN S4 U4 "
    "F8E4M3B11FNUZ F8E5M2FNUZ F8E4M3FNUZ S2 U2 F8E4M3 F8E3M4 S1 U1 F4E2M1FN F8E8M0FNU"
)

ELEMENT_TYPES = {
    number: ElementType[name]
    for number, name in enumerate(_NAMES.split())
    if name not in ("INVALID", "TUPLE", "OPAQUE")
}
"""The element types by their number."""

TUPLE = 13
"""The number of tuples, which PJRT has no type for."""
