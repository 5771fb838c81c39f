"""Element types: every member, every way."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import pjrt

VALUELESS = (pjrt.ElementType.INVALID, pjrt.ElementType.TOKEN)
# Older versions of ml_dtypes have no integers of one bit.
WITHOUT_DTYPE = [] if hasattr(ml_dtypes, "int1") else [pjrt.ElementType.S1, pjrt.ElementType.U1]
TYPES = [t for t in pjrt.ElementType if t not in VALUELESS and t not in WITHOUT_DTYPE]


def test_the_numbers_are_those_of_the_c_api() -> None:
    assert [t.value for t in pjrt.ElementType] == list(range(34))
    expected = {"PRED": 1, "S32": 4, "U64": 9, "F32": 11, "BF16": 13, "C128": 15, "TOKEN": 23, "F4E2M1FN": 29}
    assert {name: pjrt.ElementType[name].value for name in expected} == expected


@pytest.mark.parametrize("element_type", TYPES)
def test_dtypes_go_round(element_type: pjrt.ElementType) -> None:
    dtype = element_type.dtype
    assert pjrt.ElementType.of(dtype) is element_type
    assert pjrt.ElementType.of(dtype.type) is element_type
    assert pjrt.ElementType.of(np.zeros(2, dtype).dtype) is element_type
    assert pjrt.ElementType.of(element_type) is element_type
    assert dtype.itemsize * 8 == max(element_type.bits, 8)


@pytest.mark.parametrize("element_type", [t for t in pjrt.ElementType if t is not pjrt.ElementType.INVALID])
def test_spellings_go_round(element_type: pjrt.ElementType) -> None:
    assert pjrt.ElementType.from_mlir(element_type.mlir) is element_type


def test_spellings_are_those_of_stablehlo() -> None:
    spelled = {"PRED": "i1", "U8": "ui8", "S4": "i4", "C64": "complex<f32>", "BF16": "bf16", "F8E4M3FN": "f8E4M3FN"}
    assert {name: pjrt.ElementType[name].mlir for name in spelled} == spelled
    with pytest.raises(pjrt.InvalidArgumentError, match="'u8'"):
        pjrt.ElementType.from_mlir("u8")


def test_jaxlib_agrees_on_the_spellings() -> None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with ir.Context() as context:
        stablehlo.register_dialect(context)
        for element_type in pjrt.ElementType:
            if element_type in (pjrt.ElementType.INVALID, pjrt.ElementType.S1):
                continue
            assert str(ir.Type.parse(element_type.mlir)) == element_type.mlir


def test_kinds() -> None:
    def those(flag: str) -> set[str]:
        return {t.name for t in pjrt.ElementType if getattr(t, flag)}

    assert those("is_complex") == {"C64", "C128"}
    assert those("is_integer") == {f"{sign}{bits}" for sign in "SU" for bits in (1, 2, 4, 8, 16, 32, 64)}
    assert those("is_floating") == {t.name for t in pjrt.ElementType if t.name[0] in "BF"}


@pytest.mark.parametrize("element_type", [*VALUELESS, *WITHOUT_DTYPE])
def test_types_without_values_have_no_dtype(element_type: pjrt.ElementType) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=element_type.name):
        _ = element_type.dtype


def test_other_byte_orders_are_the_same_type() -> None:
    assert pjrt.ElementType.of(">f4") is pjrt.ElementType.F32
    assert pjrt.ElementType.of("<i8") is pjrt.ElementType.S64


@pytest.mark.parametrize("wrong", ["U5", "S3", "V4", object, np.longdouble, "datetime64[s]", [("a", "i4")], "no", 3.5])
def test_what_is_no_element_type_is_refused(wrong: object) -> None:
    with pytest.raises(pjrt.InvalidArgumentError):
        pjrt.ElementType.of(wrong)
