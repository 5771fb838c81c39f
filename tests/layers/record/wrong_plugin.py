"""Plugins that are wrong on purpose, opened in the subprocess of a replay: a table with one function replaced."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from dataclasses import dataclass
from typing import Any

from pjrt.abi.schema import FUNCTIONS, STRUCTS
from pjrt.capi.raw.table import Slot, Table
from pjrt.layers.replay.replay_process import PluginOpener


@dataclass(frozen=True)
class WrongPlugin:
    """A function that opens a library, with one function of the table replaced.

    Attributes:
        library: the path of the library.
        function: the function, such as ``PJRT_Buffer_ToHostBuffer``.
        fault: what it does: ``crash``, ``hang``, ``missing``, ``fail``, or ``flip`` and ``nudge``, which
            change a high and the lowest bit of the result, or ``number``, which changes an identifier.
        calls: how many of its calls are right.
    """

    library: str
    function: str
    fault: str
    calls: int = 0

    def __call__(self) -> tuple[int, Any]:
        address, library = PluginOpener(self.library)()
        size = ctypes.c_size_t.from_address(address).value
        copy = ctypes.create_string_buffer(ctypes.string_at(address, size), size)
        begin = ctypes.addressof(copy)
        place = ctypes.c_void_p.from_address(begin + 40 + 8 * FUNCTIONS[self.function].index)
        right = Slot(place.value or 0)
        table = Table(address)
        left = self.calls

        def wrong(args: int) -> int | None:
            nonlocal left
            left -= 1
            if left >= 0:
                return right(args)
            if self.fault == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            if self.fault == "hang":
                threading.Event().wait()
            if self.fault == "fail":
                return _error(table)
            error = right(args)
            if self.fault in ("flip", "nudge") and not error:
                _change(table, self.function, args, *((3, 0x40) if self.fault == "flip" else (0, 0x01)))
            if self.fault == "number":
                ctypes.c_int.from_address(args + STRUCTS[FUNCTIONS[self.function].args].fields["id"].offset).value += 7
            return error

        replacement = Slot(wrong)
        place.value = None if self.fault == "missing" else ctypes.cast(replacement, ctypes.c_void_p).value
        return begin, (library, copy, replacement, right)


def _error(table: Table) -> int | None:
    """Return an error of the plugin's own: of a device that it does not have."""
    spec = STRUCTS["PJRT_Client_Compile_Args"]
    args = ctypes.create_string_buffer(spec.size)
    ctypes.c_size_t.from_buffer(args).value = spec.size
    program = ctypes.create_string_buffer(STRUCTS["PJRT_Program"].size)
    ctypes.c_size_t.from_buffer(program).value = len(program)
    ctypes.c_void_p.from_buffer(args, spec.fields["program"].offset).value = ctypes.addressof(program)
    return table.function("PJRT_Client_Compile")(ctypes.addressof(args))


def _change(table: Table, function: str, args: int, place: int, bit: int) -> None:
    fields = STRUCTS[FUNCTIONS[function].args].fields
    event = ctypes.c_size_t.from_address(args + fields["event"].offset).value
    target = ctypes.c_size_t.from_address(args + fields["dst"].offset).value
    if target:
        table.call_with("PJRT_Event_Await", event=event)
        ctypes.c_uint8.from_address(target + place).value ^= bit
