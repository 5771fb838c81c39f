"""Layouts that programs ask for, for what goes into them and what comes out of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pjrt.api.element_type import ElementType
from pjrt.api.layout import TiledLayout
from pjrt.api.shape_spec import ShapeSpec

_ATTRIBUTE = "mhlo.layout_mode"
_UNSPECIFIC = ("default", "auto")


def with_asked_layouts(specs: Sequence[ShapeSpec], attributes: Sequence[Mapping[str, Any]]) -> list[ShapeSpec]:
    """Return the specs of a program's arguments or results with the layouts that the program asks for.

    Frameworks state them in an attribute of the argument or result. Where that is ``auto`` or missing, the spec stays
    as it is, and the device chooses.

    Args:
        specs: the arguments or results.
        attributes: the attributes of each; where tuples were taken apart their number differs, and they are ignored.

    Raises:
        InvalidArgumentError: an attribute spells no layout.
    """
    if len(specs) != len(attributes):
        return list(specs)
    return [_asked(spec, given.get(_ATTRIBUTE)) for spec, given in zip(specs, attributes, strict=True)]


def _asked(spec: ShapeSpec, mode: object) -> ShapeSpec:
    if not isinstance(mode, str) or mode in _UNSPECIFIC or spec.element_type is ElementType.TOKEN:
        return spec
    return dataclasses.replace(spec, layout=TiledLayout.parse(mode))
