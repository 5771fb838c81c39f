"""Layouts that programs ask for."""

from __future__ import annotations

import pytest

import pjrt
from pjrt.stablehlo.layouts import with_asked_layouts

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
