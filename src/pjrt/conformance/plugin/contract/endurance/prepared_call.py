"""Calls that are made many times: their structs are written once, and no transcript is kept."""

from __future__ import annotations

from typing import Any

from pjrt.api.errors import StatusCode
from pjrt.capi.layer.schema import FUNCTIONS, STRUCTS
from pjrt.capi.raw.numbers import UNSIGNED
from pjrt.capi.raw.struct_writer import StructWriter
from pjrt.conformance.plugin.check import Failed, Unsupported
from pjrt.conformance.plugin.subject import Subject


class PreparedCall:
    """A call of a function with a struct that is written once.

    Args:
        subject: the plugin.
        name: the function.
        fields: the fields of its arguments.
    """

    def __init__(self, subject: Subject, name: str, **fields: Any) -> None:
        self._slot = subject.plugin.table.function(name)
        if self._slot is None:
            raise Unsupported(f"the plugin lacks {name}")
        self._subject, self._name = subject, name
        self._has_succeeded = False
        self._spec = STRUCTS[FUNCTIONS[name].args]
        self._returns_nothing = FUNCTIONS[name].result == "NOTHING"
        writer = StructWriter()
        self._address = writer.build(self._spec.name, fields)
        self._memory = writer.memory

    def field(self, name: str) -> Any:
        """Return a field as a number of ctypes, whose ``value`` is read and written."""
        field = self._spec.fields[name]
        return UNSIGNED[field.size].from_address(self._address + field.offset)

    def __call__(self) -> None:
        """Make the call, which must succeed.

        Raises:
            Failed: the plugin returned an error.
            Unsupported: the first call is answered UNIMPLEMENTED; whether it may be is for the function's own checks.
        """
        error = self._slot(self._address)
        if error and not self._returns_nothing:  # a C function without a result leaves any number in its place
            found = self._subject.plugin.take_error(error)
            if found.code == StatusCode.UNIMPLEMENTED and not self._has_succeeded:
                raise Unsupported(f"{self._name} is unimplemented")
            raise Failed(f"{self._name} to succeed{', as it did before' if self._has_succeeded else ''}", str(found))
        self._has_succeeded = True

    def error(self) -> int:
        """Make the call, which must fail, and return the address of the error."""
        error = self._slot(self._address)
        if not error:
            raise Failed(f"{self._name} to fail, as it did before", "that it succeeded")
        return int(error)


class Destroyer:
    """Calls of a function that destroys or awaits a handle.

    Args:
        subject: the plugin.
        name: the function.
        field: the field with the handle.
    """

    def __init__(self, subject: Subject, name: str, field: str) -> None:
        self._call = PreparedCall(subject, name, **{field: 0})
        self._handle = self._call.field(field)

    def __call__(self, handle: Any) -> None:
        """Call the function with the handle that is in a field of another call."""
        self._handle.value = handle.value
        self._call()
