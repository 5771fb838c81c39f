"""The functions of a plugin's table, called with addresses of structs: no class of this package stands between."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pjrt.abi.schema import ENUMS, FUNCTIONS, STRUCTS, Function
from pjrt.api.errors import StatusCode
from pjrt.capi.raw.struct import Memory, StructReader, address_of, callback, callback_error, load, load_number, store

Slot = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
"""A function of the table: it takes the address of its arguments, and returns that of an error, or ``None``."""

_FIRST_SLOT = 40  # struct_size, extension_start and the version come before
_FIRST_SLOT_OF_EXTENSION = 24
_MAJOR, _MINOR = 32, 36
_NOT_CALLED = frozenset({"Profiler", "Megascale"})  # their structs have more than functions
_MAX_EXTENSIONS = 64
_SIZES = (8, 4, 1)


@dataclass(frozen=True, slots=True)
class Error:
    """An error of the plugin: its status code and its message."""

    code: int
    message: str

    def __str__(self) -> str:
        return f"{code_name(self.code)}: {self.message.strip()[:300]}"


def code_name(code: int) -> str:
    """Return the name of a status code; of one that PJRT does not have, the number."""
    return {number: name for name, number in ENUMS["PJRT_Error_Code"]}.get(code, f"code {code}")


class Table:
    """A ``PJRT_Api`` by its address.

    Attributes:
        address: its address.
        size: the bytes that it states in ``struct_size``.
        api_version: the version of the C API that the plugin was built with, as a pair of numbers.
        extensions: the addresses of the plugin's extensions by their names in ``PJRT_Extension_Type``; an extension of
            a later version has its number for a name.
    """

    def __init__(self, address: int) -> None:
        self.address = address
        self.size = load(address)
        self.api_version = (
            load_number(address + _MAJOR, 4, signed=True),
            load_number(address + _MINOR, 4, signed=True),
        )
        self.extensions = self._find_extensions()
        self._slots: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        """Return a function, or ``None`` if the plugin lacks it or its extension."""
        if name not in self._slots:
            self._slots[name] = self._find(name)
        return self._slots[name]

    def call(self, name: str, address: int) -> Error | None:
        """Call a function with the address of its arguments; return its error, which is destroyed here.

        Raises:
            LookupError: the plugin lacks the function.
        """
        slot = self.function(name)
        if slot is None:
            raise LookupError(name)
        error = slot(address)
        return None if not error or FUNCTIONS[name].result == "NOTHING" else self.take_error(error)

    def call_with(self, name: str, **fields: int) -> tuple[Error | None, Mapping[str, int]]:
        """Call a function with numbers and handles as arguments; return its error and all fields as numbers.

        A function that the plugin lacks fails with UNIMPLEMENTED.
        """
        spec = STRUCTS[FUNCTIONS[name].args]
        memory = ctypes.create_string_buffer(spec.size)
        address = ctypes.addressof(memory)
        store(address, spec.size)
        for field, value in fields.items():
            store(address + spec.fields[field].offset, value)
        missing = Error(StatusCode.UNIMPLEMENTED, f"the plugin has no {name}")
        error = missing if self.function(name) is None else self.call(name, address)
        numbers = {
            each.name: load_number(address + each.offset, each.size, signed=False)
            for each in spec.fields.values()
            if each.size in _SIZES
        }
        return error, numbers

    def take_error(self, error: int) -> Error:
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
        return Error(code, message)

    def _find(self, name: str) -> Any:
        function = FUNCTIONS.get(name)
        if function is None:
            return None
        if not function.extension:
            if function.minor > self.api_version[1]:
                return None  # the slots behind those of a version had another meaning before they got theirs
            begin, offset, size = self.address, _FIRST_SLOT + 8 * function.index, self.size
        else:
            begin = self.extensions.get(function.extension, 0)
            if not begin or function.extension in _NOT_CALLED:
                return None
            offset = extension_offset(function)
            size = load(begin)
        if offset + 8 > size:
            return None
        target = load(begin + offset)
        return Slot(target) if target else None

    def _find_extensions(self) -> dict[str, int]:
        names = {number: name for name, number in ENUMS["PJRT_Extension_Type"]}
        places: dict[str, int] = {}
        at = load(self.address + 8)
        for _ in range(_MAX_EXTENSIONS):  # a chain may lead back to itself
            if not at:
                break
            number = load_number(at + 8, 4, signed=True)
            places.setdefault(names.get(number, str(number)), at)
            at = load(at + 16)
        return places


def extension_offset(function: Function) -> int:
    """Return the offset of a function's pointer in the struct of its extension."""
    same = [each.name for each in FUNCTIONS.values() if each.extension == function.extension]
    return _FIRST_SLOT_OF_EXTENSION + 8 * same.index(function.name)


# A key-value store for plugins: the callbacks that several processes of one client talk through.

_GET, _TRY_GET, _PUT = "PJRT_KeyValueGetCallback", "PJRT_KeyValueTryGetCallback", "PJRT_KeyValuePutCallback"


class KeyValueStore:
    """A key-value store in this process, whose callbacks several clients may be given.

    Args:
        values: the values that it begins with.
        waits: whether a plugin that gets a missing key waits for it, as long as it asks to; or fails at once.
        on_call: is called with the name of each callback that a plugin calls.

    Attributes:
        values: the values by their keys.
    """

    def __init__(
        self, values: dict[bytes, bytes] | None = None, *, waits: bool = True, on_call: Callable[[str], object] = len
    ) -> None:
        self.values: dict[bytes, bytes] = {} if values is None else values
        self._waits, self._on_call = waits, on_call
        self._changed = threading.Condition()
        self._memory = Memory()  # values that a plugin has: they live as long as the store, so the deleter does nothing
        self._deleters = {kind: callback(f"{kind}_ValueDeleter", lambda _: None) for kind in (_GET, _TRY_GET)}

    def fields(self) -> dict[str, Any]:
        """Return the fields of ``PJRT_Client_Create`` with the callbacks."""
        return {
            "kv_get_callback": self.get,
            "kv_put_callback": self.put,
            "kv_try_get_callback": self.try_get,
        }

    def get(self, args: int) -> int | None:
        """Answer ``PJRT_KeyValueGetCallback``."""
        return self._answer(_GET, args)

    def try_get(self, args: int) -> int | None:
        """Answer ``PJRT_KeyValueTryGetCallback``."""
        return self._answer(_TRY_GET, args)

    def put(self, args: int) -> int | None:
        """Answer ``PJRT_KeyValuePutCallback``."""
        fields = StructReader().read(f"{_PUT}_Args", args, ("key", "value")).fields
        with self._changed:
            self.values[fields["key"] or b""] = fields["value"] or b""
            self._changed.notify_all()
        self._on_call(_PUT)
        return None

    def _answer(self, kind: str, args: int) -> int | None:
        spec = STRUCTS[f"{kind}_Args"]
        key = StructReader().read(spec.name, args, ("key",)).fields["key"] or b""
        self._on_call(kind)
        with self._changed:
            if kind == _GET and self._waits:
                milliseconds = load_number(args + spec.fields["timeout_in_ms"].offset, 4, signed=True)
                self._changed.wait_for(lambda: key in self.values, milliseconds / 1000)
            value = self.values.get(key)
        if value is None:
            waited = kind == _GET and self._waits
            code = StatusCode.DEADLINE_EXCEEDED if waited else StatusCode.NOT_FOUND
            maker = load(args + spec.fields["callback_error"].offset)
            return callback_error(maker, code, f"there is no value for the key {key.decode(errors='replace')!r}")
        store(args + spec.fields["value"].offset, self._memory.copy(value))
        store(args + spec.fields["value_size"].offset, len(value))
        store(args + spec.fields["value_deleter_callback"].offset, address_of(self._deleters[kind]))
        return None
