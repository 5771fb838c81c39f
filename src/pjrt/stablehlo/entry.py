"""The entry function's arguments and results as a device needs them: shapes, layouts and donation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pjrt.api.element_type import ElementType
from pjrt.api.shape_spec import ShapeSpec, TiledLayout
from pjrt.stablehlo.types import TensorType, TokenType, ValueType

_ATTRIBUTE = "mhlo.layout_mode"
_MEMORY_KIND = "mhlo.memory_kind"
_DEFAULT_KIND = "device"
_UNSPECIFIC = ("default", "auto")


def shape_spec(type_: ValueType) -> ShapeSpec | None:
    """Return the shape and element type of an argument or result; ``None`` if it is unknown before the program runs."""
    if isinstance(type_, TokenType):
        return ShapeSpec((), ElementType.TOKEN)
    if isinstance(type_, TensorType) and type_.is_static:
        return ShapeSpec(type_.sizes, type_.element)
    return None


def donations(attributes: Sequence[Mapping[str, Any]]) -> tuple[dict[int, int], list[int]]:
    """Return the arguments that a program donates.

    Args:
        attributes: the attributes of each argument.

    Returns:
        The result whose memory an argument becomes (``tf.aliasing_output``), by the argument's number; and the numbers
        of arguments whose memory any result may use (``jax.buffer_donor``).
    """
    aliases, donors = {}, []
    for number, stated in enumerate(attributes):
        if "tf.aliasing_output" in stated:
            aliases[number] = int(stated["tf.aliasing_output"])
        elif stated.get("jax.buffer_donor"):
            donors.append(number)
    return aliases, donors


def memory_kinds(attributes: Sequence[Mapping[str, Any]]) -> list[str | None] | None:
    """Return the kinds of memory that a program asks for, for its arguments or results (``mhlo.memory_kind``).

    Args:
        attributes: the attributes of each argument, or of each result.

    Returns:
        The kind of each, ``None`` for the device's default, which frameworks call ``device``; or ``None`` if all are in
        the default memory.
    """
    kinds = [stated.get(_MEMORY_KIND) for stated in attributes]
    asked = [kind if isinstance(kind, str) and kind != _DEFAULT_KIND else None for kind in kinds]
    return asked if any(asked) else None


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
