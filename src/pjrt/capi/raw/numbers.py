"""Numbers of the C API in memory: how many bytes each kind of field has, and how they are read and written."""

from __future__ import annotations

import ctypes

FLOATS = {4: ctypes.c_float, 8: ctypes.c_double}
"""The types of floating-point fields, by size."""

SIGNED = {1: ctypes.c_int8, 2: ctypes.c_int16, 4: ctypes.c_int32, 8: ctypes.c_int64}
"""The types of signed fields, by size."""

UNSIGNED = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}
"""The types of unsigned fields, by size."""

NUMBERS = frozenset({"STRUCT_SIZE", "COUNT", "SIGNED", "UNSIGNED", "ENUM"})
"""The kinds of fields that are numbers without a point."""


def load(at: int) -> int:
    """Return the address, or the unsigned number of eight bytes, at an address."""
    return int(ctypes.c_uint64.from_address(at).value)


def store(at: int, value: int) -> None:
    """Write an address, or an unsigned number of eight bytes, to an address."""
    ctypes.c_uint64.from_address(at).value = value


def store_number(at: int, size: int, value: int) -> None:
    """Write a number of some bytes to an address. A number that does not fit loses its higher bits, as in C."""
    UNSIGNED[size].from_address(at).value = value


def load_number(at: int, size: int, *, signed: bool) -> int:
    """Return the number of some bytes at an address."""
    return int((SIGNED if signed else UNSIGNED)[size].from_address(at).value)
