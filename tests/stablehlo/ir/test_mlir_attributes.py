"""From MLIR's objects to plain Python, one at a time: what ``test_parser`` does not see in whole programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pjrt import ElementType, InvalidArgumentError
from pjrt.stablehlo import OpaqueType, Quantization, TensorType, TupleType, read, to_module
from pjrt.stablehlo.ir.attributes import Opaque
from pjrt.stablehlo.ir.mlir_attributes import decode_attribute, decode_attribute_of
from pjrt.stablehlo.ir.types import decode_type, parse_quantization

T = ElementType


def type_of(spelled: str) -> Any:
    with to_module(read(f"func.func @main(%x: {spelled}) {{ return }}")) as module:
        return decode_type(module.body.operations[0].regions[0].blocks[0].arguments[0].type)


def attribute_of(spelled: str) -> Any:
    with to_module(read(f"module attributes {{a.b = {spelled}}} {{}}")) as module:
        return decode_attribute_of(module.operation, "a.b")


@pytest.mark.parametrize(
    ("spelled", "element"),
    [("si32", T.S32), ("ui32", T.U32), ("i32", T.S32), ("index", T.S64), ("i1", T.PRED), ("si1", T.S1), ("ui1", T.U1)],
)
def test_integers(spelled: str, element: ElementType) -> None:
    assert type_of(f"tensor<2x{spelled}>") == TensorType((2,), element)


@pytest.mark.parametrize("encoding", ["#stablehlo.bounds<8, ?>", "#stablehlo.type_extensions<bounds = [8, ?]>"])
def test_bounds_have_two_spellings(encoding: str) -> None:
    assert type_of(f"tensor<?x4xf32, {encoding}>") == TensorType((None, 4), T.F32, None, (8, None))


def test_a_type_without_a_form_keeps_its_spelling() -> None:
    spelled = "tensor<2x!quant.uniform<i8:f32:{0:1}, {5.000000e-01, 2.500000e-01}>>"
    assert type_of(spelled) == OpaqueType(spelled)
    assert type_of(f"tuple<{spelled}>") == TupleType((OpaqueType(spelled),))
    assert type_of("tensor<2xi5>") == OpaqueType("tensor<2xi5>")


def test_quantizations() -> None:
    per_tensor = parse_quantization("!quant.uniform<i8:f32, 5.000000e-01:10>")
    assert per_tensor == Quantization(T.S8, T.F32, (0.5,), (10,), None, -128, 127)
    per_axis = parse_quantization("!quant.uniform<u8<0:15>:f32:1, {1.0:3,2.500000e-01}>")
    assert per_axis == Quantization(T.U8, T.F32, (1.0, 0.25), (3, 0), 1, 0, 15)
    with pytest.raises(InvalidArgumentError, match="expected a per-tensor or per-axis"):
        parse_quantization("!quant.calibrated<f32<-1.0:1.0>>")


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        ("dense<[1, -2]> : tensor<2xsi8>", np.array([1, -2], np.int8)),
        ("dense<[1, -2]> : tensor<2xindex>", np.array([1, -2], np.int64)),
        ("dense<3> : tensor<2x1xsi64>", np.array([[3], [3]], np.int64)),
    ],
)
def test_constants_of_other_integers(spelled: str, expected: Any) -> None:
    found = attribute_of(spelled)
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()


def test_attributes_without_a_form_keep_their_spelling() -> None:
    assert attribute_of("#sdy<manual_axes{}>") == Opaque("#sdy<manual_axes{}>")
    assert attribute_of("[affine_map<(d0) -> (d0)>]") == (Opaque("affine_map<(d0) -> (d0)>"),)


def test_a_complex_constant_is_read_from_the_operation_that_has_it() -> None:
    assert attribute_of("dense<(1.0, -2.0)> : tensor<complex<f32>>") == np.complex64(1 - 2j)


def test_no_such_attribute() -> None:
    with to_module(read("module {}")) as module, pytest.raises(KeyError):
        decode_attribute_of(module.operation, "a.b")


def test_one_attribute_at_a_time() -> None:
    with to_module(read("module attributes {a.b = [1 : i64, tensor<2xf32>]} {}")) as module:
        assert decode_attribute(module.operation.attributes["a.b"]) == (1, TensorType((2,), T.F32))
