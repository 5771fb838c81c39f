"""The entry function's arguments and results: shapes, layouts and donation."""

from __future__ import annotations

import pytest

import pjrt
from pjrt.stablehlo.facts.signatures import donations, memory_kinds, shape_spec, with_asked_layouts
from pjrt.stablehlo.ir.types import TensorType, TokenType, TupleType

SPEC = pjrt.ShapeSpec((2, 3), pjrt.ElementType.F32)


@pytest.mark.parametrize(
    ("mode", "layout"),
    [
        ("{0,1}", pjrt.TiledLayout((0, 1))),
        ("{1,0:T(8,128)}", pjrt.TiledLayout((1, 0), ((8, 128),))),
        ("default", None),
        ("auto", None),
        (None, None),
    ],
)
def test_a_layout_is_what_the_attribute_says(mode: str | None, layout: pjrt.TiledLayout | None) -> None:
    attributes = {} if mode is None else {"mhlo.layout_mode": mode}
    (found,) = with_asked_layouts([SPEC], [attributes])
    assert found == pjrt.ShapeSpec((2, 3), pjrt.ElementType.F32, layout)


def test_tokens_and_tuples_have_none() -> None:
    token = pjrt.ShapeSpec((), pjrt.ElementType.TOKEN)
    asked = {"mhlo.layout_mode": "{0,1}"}
    assert with_asked_layouts([token], [asked]) == [token]
    assert with_asked_layouts([SPEC, SPEC], [asked]) == [SPEC, SPEC]


def test_what_is_no_layout_is_refused() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="expected a layout"):
        with_asked_layouts([SPEC], [{"mhlo.layout_mode": "sideways"}])


def test_shapes() -> None:
    f32 = pjrt.ElementType.F32
    assert shape_spec(TensorType((2, 3), f32)) == SPEC
    assert shape_spec(TokenType()) == pjrt.ShapeSpec((), pjrt.ElementType.TOKEN)
    assert shape_spec(TensorType((None, 3), f32)) is None
    assert shape_spec(TupleType((TensorType((2, 3), f32),))) is None


def test_donations() -> None:
    stated = [{}, {"tf.aliasing_output": 3}, {"jax.buffer_donor": True}, {"jax.buffer_donor": False}]
    assert donations(stated) == ({1: 3}, [2])


def test_memory_kinds() -> None:
    stated = [{}, {"mhlo.memory_kind": "device"}, {"mhlo.memory_kind": "pinned_host"}, {"mhlo.memory_kind": 3}]
    assert memory_kinds(stated) == [None, None, "pinned_host", None]
    assert memory_kinds(stated[:2]) is None
    assert memory_kinds([]) is None
