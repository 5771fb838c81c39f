"""Bytes that a plugin hands out with a deleter, and answers that are read a second time."""

from __future__ import annotations

import ctypes

from pjrt.capi.layer.schema import FUNCTIONS
from pjrt.capi.raw import Result, Struct
from pjrt.capi.raw.struct_reader import StructReader

_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def delete(deleter: int, holder: int) -> None:
    """Call the deleter that a plugin has returned on what it is for."""
    _Deleter(deleter)(holder)


def reread(result: Result) -> Struct:
    """Read the struct of a call again: its pointers are those of then, and what they point to is that of now."""
    memory = ctypes.create_string_buffer(result.struct_bytes)
    return StructReader().read(FUNCTIONS[result.function].args, ctypes.addressof(memory))
