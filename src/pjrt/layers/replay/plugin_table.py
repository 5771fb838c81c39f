"""The functions of a plugin's table, called with addresses of structs: no class of this package stands between."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pjrt.api.errors import StatusCode
from pjrt.capi.layer.schema import ENUMS, FUNCTIONS, STRUCTS, Function

Slot = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
"""A function of the table: it takes the address of its arguments, and returns that of an error, or ``None``."""

_FIRST_SLOT = 40  # struct_size, extension_start and the version come before
_FIRST_SLOT_OF_EXTENSION = 24
_NOT_CALLED = frozenset({"Profiler", "Megascale"})  # their structs have more than functions


@dataclass(frozen=True, slots=True)
class PluginError:
    """An error of the plugin: its status code and its message."""

    code: int
    message: str


class PluginTable:
    """A ``PJRT_Api`` by its address."""

    def __init__(self, address: int) -> None:
        self._address = address
        self._size = ctypes.c_size_t.from_address(address).value
        self._extensions = self._find_extensions()
        self._slots: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        """Return a function, or ``None`` if the plugin lacks it or its extension."""
        if name not in self._slots:
            self._slots[name] = self._find(name)
        return self._slots[name]

    def call(self, name: str, address: int) -> PluginError | None:
        """Call a function with the address of its arguments; return its error, which is destroyed here.

        Raises:
            LookupError: the plugin lacks the function.
        """
        slot = self.function(name)
        if slot is None:
            raise LookupError(name)
        error = slot(address)
        return None if not error or FUNCTIONS[name].result == "NOTHING" else self.take_error(error)

    def call_with(self, name: str, **fields: int) -> tuple[PluginError | None, Mapping[str, int]]:
        """Call a function with numbers and handles as arguments; return its error and all fields as numbers.

        A function that the plugin lacks fails with UNIMPLEMENTED.
        """
        spec = STRUCTS[FUNCTIONS[name].args]
        memory = ctypes.create_string_buffer(spec.size)
        address = ctypes.addressof(memory)
        ctypes.c_size_t.from_address(address).value = spec.size
        for field, value in fields.items():
            ctypes.c_uint64.from_address(address + spec.fields[field].offset).value = value
        missing = PluginError(StatusCode.UNIMPLEMENTED, f"the plugin has no {name}")
        error = missing if self.function(name) is None else self.call(name, address)
        sizes = {8: ctypes.c_uint64, 4: ctypes.c_uint32, 1: ctypes.c_uint8}
        numbers = {
            each.name: int(sizes[each.size].from_address(address + each.offset).value)
            for each in spec.fields.values()
            if each.size in sizes
        }
        return error, numbers

    def take_error(self, error: int) -> PluginError:
        """Read an error of the plugin, and destroy it."""
        code, message = int(StatusCode.UNKNOWN), ""
        if self.function("PJRT_Error_GetCode") is not None:
            code = self.call_with("PJRT_Error_GetCode", error=error)[1]["code"]
        if self.function("PJRT_Error_Message") is not None:
            fields = self.call_with("PJRT_Error_Message", error=error)[1]
            if fields["message"]:
                message = ctypes.string_at(fields["message"], fields["message_size"]).decode("utf-8", "replace")
        if self.function("PJRT_Error_Destroy") is not None:
            self.call_with("PJRT_Error_Destroy", error=error)
        return PluginError(code, message)

    def _find(self, name: str) -> Any:
        function = FUNCTIONS.get(name)
        if function is None:
            return None
        if not function.extension:
            begin, offset, size = self._address, _FIRST_SLOT + 8 * function.index, self._size
        else:
            begin = self._extensions.get(function.extension, 0)
            if not begin or function.extension in _NOT_CALLED:
                return None
            offset = _FIRST_SLOT_OF_EXTENSION + 8 * _place(function)
            size = ctypes.c_size_t.from_address(begin).value
        if offset + 8 > size:
            return None
        target = ctypes.c_void_p.from_address(begin + offset).value
        return Slot(target) if target else None

    def _find_extensions(self) -> dict[str, int]:
        names = {number: name for name, number in ENUMS["PJRT_Extension_Type"]}
        places: dict[str, int] = {}
        at = ctypes.c_void_p.from_address(self._address + 8).value
        while at and len(places) < 64:
            number = ctypes.c_int.from_address(at + 8).value
            places.setdefault(names.get(number, str(number)), at)
            at = ctypes.c_void_p.from_address(at + 16).value
        return places


def _place(function: Function) -> int:
    """Return the place of a function among those of its extension."""
    same = [each.name for each in FUNCTIONS.values() if each.extension == function.extension]
    return same.index(function.name)
