"""A plugin whose results are changed on their way to the caller: a fault for each check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pjrt.api.errors import StatusCode
from pjrt.capi import raw

Change = Callable[[raw.Result, int], raw.Result]
"""A fault: from the right result and the number of the call to the wrong one."""


class WrongResult(raw.Result):
    """A result that is not what the plugin returned.

    Args:
        right: what the plugin returned.
        error: the error to have.
        fields: the fields to have.
        data: the bytes of the argument struct to have; those of the right one by default.
    """

    def __init__(
        self, right: raw.Result, error: raw.Error | None, fields: Mapping[str, Any], data: bytes | None = None
    ) -> None:
        self.function, self.error, self.fields = right.function, error, fields
        self._right, self._data = right, data

    @property
    def struct_bytes(self) -> bytes:
        """The bytes of the argument struct."""
        return self._right.struct_bytes if self._data is None else self._data


def fails(code: str = "INTERNAL", message: str = "a fault") -> Change:
    """Return the fault of a function that fails."""
    return lambda right, _: WrongResult(right, raw.Error(StatusCode[code], message), {})


def succeeds(**fields: Any) -> Change:
    """Return the fault of a function that succeeds whatever it is asked."""
    return lambda right, _: WrongResult(right, None, {**right.fields, **fields})


def returns(**fields: Any) -> Change:
    """Return the fault of a function that returns other values; a function changes the right value."""

    def change(right: raw.Result, _: int) -> raw.Result:
        if right.error is not None:
            return right
        new = {name: value(right.fields[name]) if callable(value) else value for name, value in fields.items()}
        return WrongResult(right, right.error, {**right.fields, **new})

    return change


def counts() -> Change:
    """Return the fault of a function whose answer lies elsewhere each time."""
    return lambda right, number: WrongResult(right, right.error, right.fields, b"%08d" % number)


def later(change: Change) -> Change:
    """Return a fault of all calls but the first."""
    return lambda right, number: change(right, number) if number else right


class FaultyPlugin(raw.Plugin):
    """A plugin with faults.

    Args:
        plugin: the right plugin.
        faults: the faults by function; ``None`` does not make the call at all.
    """

    def __init__(self, plugin: raw.Plugin, faults: Mapping[str, Change]) -> None:
        super().__init__(plugin.address, plugin)
        self._faults = faults
        self._numbers = dict.fromkeys(faults, -1)

    def call(self, name: str, /, **fields: Any) -> raw.Result:
        """Call a function; its result is wrong if the function has a fault."""
        right = super().call(name, **fields)
        if name not in self._faults:
            return right
        self._numbers[name] += 1
        return self._faults[name](right, self._numbers[name])

    def error_address(self, name: str, /, **fields: Any) -> int:
        """Call a function; a fault of ``error_address`` is a number in its place."""
        address = super().error_address(name, **fields)
        fault: Any = self._faults.get(f"{name}@")
        return address if fault is None else int(fault)
