"""Structs of the C API as Python values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Struct:
    """A struct of the C API: its name in C, and the values of some of its fields.

    ``Struct("PJRT_Program", code=text, format="mlir")``. A field that is not stated is zero, but for ``struct_size``
    and for the numbers of elements or bytes of other fields, which follow from those.

    Two structs have a short form, in which structs that a plugin returns come, too:

    * ``PJRT_NamedValue`` has ``name``, ``type`` and ``value``; without ``type`` it follows from the value.
    * ``PJRT_Buffer_MemoryLayout`` has ``type``, and either ``minor_to_major``, ``tile_dims`` and ``tile_dim_sizes``
      (type 0) or ``byte_strides`` (type 1).

    Attributes:
        kind: its name in C.
        fields: the values by the names of the fields, in their order.
    """

    __slots__ = ("fields", "kind")

    def __init__(self, kind: str, fields: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        self.kind = kind
        self.fields: Mapping[str, Any] = {**(fields or {}), **named}

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "fields")[name]
        except (AttributeError, KeyError):
            raise AttributeError(f"the struct has no field {name!r}") from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct):
            return NotImplemented
        return self.kind == other.kind and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.kind)

    def __reduce__(self) -> tuple[Any, ...]:
        return Struct, (self.kind, dict(self.fields))

    def __repr__(self) -> str:
        fields = "".join(f", {name}={value!r}" for name, value in self.fields.items())
        return f"Struct({self.kind!r}{fields})"


def named_value(name: str, value: Any) -> Struct:
    """Return an option as a ``PJRT_NamedValue``; the type follows from the value."""
    return Struct("PJRT_NamedValue", name=name.encode(), type=named_value_type(value), value=value)


def named_value_type(value: Any) -> int:
    """Return the number of ``PJRT_NamedValue_Type`` for a value: text, a boolean, a number, or a list of integers."""
    if isinstance(value, (str, bytes)):
        return 0
    if isinstance(value, bool):
        return 4
    return 1 if isinstance(value, int) else 3 if isinstance(value, float) else 2
