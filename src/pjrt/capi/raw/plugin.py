"""A plugin by its C API: functions by name, arguments and results by the names of the fields."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pjrt.abi.schema import FUNCTIONS, STRUCTS, Field, Function
from pjrt.api.errors import InvalidArgumentError, StatusCode, UnimplementedError
from pjrt.capi import open_table
from pjrt.capi.raw.struct import Memory, Struct, StructReader, StructWriter
from pjrt.capi.raw.table import Error, Table


class Result:
    """The result of a call; the fields that the function set are its attributes.

    The memory of the arguments lives as long as this object. Keep it while the plugin may use them, such as until a
    transfer's event is ready.

    Attributes:
        function: the name of the function.
        error: the error of the plugin, which is read and destroyed already; ``None`` on success.
        fields: the fields that the function set, and the arrays that it filled; empty after an error.
        struct_bytes: the bytes of the argument struct after the call.
    """

    def __init__(
        self, function: str, error: Error | None, fields: Mapping[str, Any], address: int, memory: Memory
    ) -> None:
        self.function, self.error, self.fields = function, error, fields
        self._address, self._memory = address, memory

    @property
    def struct_bytes(self) -> bytes:
        """The bytes of the argument struct after the call."""
        return ctypes.string_at(self._address, STRUCTS[FUNCTIONS[self.function].args].size)

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "fields")[name]
        except (AttributeError, KeyError):
            raise AttributeError(f"the result has no field {name!r}") from None

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<{self.function}: {self.error}>"
        return f"<{self.function}: {', '.join(f'{name}={value!r}' for name, value in self.fields.items())}>"


class Observer(Protocol):
    """An object that sees each call of a plugin."""

    def begin(self, function: str, fields: Mapping[str, Any]) -> Any:
        """See a call before it is made; return what ``end`` is given."""

    def end(self, token: Any, result: Result) -> None:
        """See the result of a call."""


class Plugin:
    """A plugin, whose functions are called by their names in C with structs made of keyword values.

    Args:
        address: the address of its ``PJRT_Api``.
        owner: an object that keeps the plugin alive.

    Attributes:
        table: its functions by name, for calls with addresses of structs.
        observer: is told of each call; ``None`` by default.
    """

    def __init__(self, address: int, owner: object = None) -> None:
        self.table = Table(address)
        self.observer: Observer | None = None
        self._owner = owner

    @property
    def address(self) -> int:
        """The address of the plugin's ``PJRT_Api``."""
        return self.table.address

    @property
    def api_version(self) -> tuple[int, int]:
        """The version of the C API that the plugin was built with."""
        return self.table.api_version

    @property
    def extensions(self) -> Mapping[str, int]:
        """The addresses of the plugin's extensions, by their names in ``PJRT_Extension_Type``."""
        return self.table.extensions

    def has(self, name: str) -> bool:
        """Whether the plugin has a function of the table or of an extension.

        Raises:
            InvalidArgumentError: the C API has no such function.
        """
        _function(name)
        return self.table.function(name) is not None

    def call(self, name: str, /, **fields: Any) -> Result:
        """Call a function, and return its result. An error of the plugin is in the result, too.

        Args:
            name: the name in C, such as ``PJRT_Client_LookupDevice``.
            fields: the fields of its argument struct. Handles and other pointers are addresses; texts and bytes are
                ``str`` or ``bytes``; arrays are lists, of which those of ``None`` are filled by the plugin; structs are
                ``Struct`` or dictionaries; data of the host is an array of numpy or an address; callbacks are Python
                functions; enums are numbers or their names in C without the prefix. The number of elements of an array
                and of bytes of a text follows from it, and ``struct_size`` is the struct's size. Whatever is stated is
                written as it is, so that wrong calls can be made, too.

        Raises:
            InvalidArgumentError: the C API has no such function, or the struct no such field.
            UnimplementedError: the plugin lacks the function.
        """
        function, slot = self._slot(name)
        writer = StructWriter()
        address = writer.build(function.args, fields)
        token = self.observer.begin(name, fields) if self.observer is not None else None
        pointer = slot(address)
        error = self._error(function, pointer) if pointer else None
        results = {} if error is not None else _results(function, address, fields)
        result = Result(name, error, results, address, writer.memory)
        if self.observer is not None:
            self.observer.end(token, result)
        return result

    def error_address(self, name: str, /, **fields: Any) -> int:
        """Call a function as ``call`` does; return the address of its ``PJRT_Error``, which the caller destroys.

        It is 0 where the call succeeds. The error can then be asked with ``PJRT_Error_Message`` and its like.
        """
        function, slot = self._slot(name)
        writer = StructWriter()
        address = writer.build(function.args, fields)
        token = self.observer.begin(name, fields) if self.observer is not None else None
        pointer = int(slot(address) or 0)
        if self.observer is not None:
            results = {"error": pointer} if pointer else _results(function, address, fields)
            self.observer.end(token, Result(name, None, results, address, writer.memory))
        return pointer

    def take_error(self, address: int) -> Error:
        """Read an error of the plugin, such as a callback is given, and destroy it."""
        return self.table.take_error(address)

    def _slot(self, name: str) -> tuple[Function, Any]:
        function = _function(name)
        slot = self.table.function(name)
        if slot is None:
            where = f"the extension {function.extension}" if function.extension else f"version {self.api_version}"
            raise UnimplementedError(f"the plugin has no {name} ({where}); ask with has() before the call")
        return function, slot

    def _error(self, function: Function, pointer: int) -> Error | None:
        if function.result == "NOTHING":
            return None
        if function.result == "ERROR":
            return self.table.take_error(pointer)
        return Error(StatusCode.UNKNOWN, f"an error of {function.extension}, which has functions of its own to read it")


def load(path: str | os.PathLike[str]) -> Plugin:
    """Open the library of a plugin, and return the plugin. ``PJRT_Plugin_Initialize`` is not called.

    Raises:
        NotFoundError: the file does not exist.
        DataLossError: the file is cut off.
        FailedPreconditionError: the file is no library, no plugin, or a plugin that this package cannot speak to.
    """
    return Plugin(open_table(Path(path))[0])


def _function(name: str) -> Function:
    function = FUNCTIONS.get(name)
    if function is None:
        raise InvalidArgumentError(
            f"expected a function of the C API, such as PJRT_Client_Create, found {name!r}; its header lists them"
        )
    return function


def _results(function: Function, address: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a function set, as far as the caller's struct has them."""
    spec = STRUCTS[function.args]
    size = given.get("struct_size", spec.size)
    lists = [value for name, value in given.items() if spec.fields.get(name) and spec.fields[name].kind == "LISTS"]
    outputs = [value for value in lists if value and isinstance(value[0], (list, tuple)) and None in value[0]]
    reader = StructReader(len(outputs[0][0]) if outputs else 0)
    return {
        field.name: reader.field(address, spec.name, field)
        for field in spec.fields.values()
        if _is_result(field, given.get(field.name)) and field.offset + field.size <= size
    }


def _is_result(field: Field, value: Any) -> bool:
    if field.direction != "IN":
        return True
    # Memory of the caller that the plugin fills is read where its size is known: it was given as a list or a struct.
    return "FILLS" in field.marks and isinstance(value, (list, tuple, Struct, Mapping))
