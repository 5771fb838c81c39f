"""Structs of the C API that a plugin has written, read into values as a recording has them."""

from __future__ import annotations

from dataclasses import dataclass

from pjrt.capi.raw.struct_reader import StructReader
from pjrt.layers.recording.recorded_value import Pointer


@dataclass(frozen=True, slots=True)
class Raw:
    """A handle that the plugin returned: its kind and its address."""

    kind: str
    address: int


class RecordedStructReader(StructReader):
    """A reader of structs in which handles are ``Raw``, and functions and pointers are ``Pointer``."""

    def handle(self, kind: str, address: int) -> Raw:
        """Return a handle with its kind."""
        return Raw(kind, address)

    def pointer(self, address: int) -> Pointer:
        """Return an address as a recording has it."""
        return Pointer(address)
