"""Callbacks of the caller, and calls of functions that a plugin returns."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.capi.layer.schema import CALLBACKS, FUNCTIONS, STRUCTS
from pjrt.capi.raw.struct_writer import StructWriter
from pjrt.conformance.plugin.subject import Subject

_PATIENCE = 30.0
"""The seconds after which a callback that was not called counts as lost."""


class Calls:
    """A callback that counts its calls, and keeps what it was called with.

    Attributes:
        arguments: the arguments of each call.
        kept: what must live until the callback is called.
    """

    def __init__(self, subject: Subject) -> None:
        self.arguments: list[Any] = []
        self.kept: list[Any] = []
        self._subject = subject
        self._called = threading.Event()

    def add(self, argument: Any) -> None:
        """Count a call."""
        self.arguments.append(argument)
        self._called.set()

    def wait(self) -> Any:
        """Wait for the first call, and return its argument."""
        self._subject.expect(self._called.wait(_PATIENCE), "a call of the callback", "no call")
        return self.arguments[0]

    def expect_once(self, argument: Any) -> None:
        """Expect exactly one call, with an argument."""
        found = self.wait()
        self._subject.expect(found == argument, f"a call with {argument}", f"a call with {found}")
        self._subject.expect(len(self.arguments) == 1, "one call", f"{len(self.arguments)} calls")

    def expect_none(self) -> None:
        """Expect that there was no call yet."""
        self._subject.expect(not self.arguments, "no call yet", f"{len(self.arguments)} calls")


def on_ready(subject: Subject, event: int) -> Calls:
    """Register a callback on an event; it keeps the event's error, or ``None``."""
    calls = Calls(subject)

    def called(error: int, user_arg: int) -> None:
        calls.add(subject.plugin.take_error(error) if error else None)

    calls.kept.append(subject.call("PJRT_Event_OnReady", event=event, callback=called))
    return calls


def call_back(subject: Subject, result: raw.Result, field: str, **fields: Any) -> None:
    """Call the function that a call returned for the caller, with the ``callback_data`` that it returned.

    Args:
        subject: the plugin.
        result: the call's result.
        field: the field that has the function.
        fields: the further fields of its arguments.
    """
    pointer = getattr(result, field)
    subject.expect(pointer, "a function to call", "a null pointer")
    kind = STRUCTS[FUNCTIONS[result.function].args].fields[field].type
    writer = StructWriter()
    address = writer.build(CALLBACKS[kind].args, {"callback_data": result.callback_data, **fields})
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(pointer)(address)


def error_fields(code: StatusCode, message: str) -> dict[str, Any]:
    """Return the fields of an error in a struct of a callback, or in arguments."""
    return {"error_code": int(code), "error_message": message}
