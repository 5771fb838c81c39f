"""The number of functions in the table of an older plugin, for `Control.configure(functions=…)`."""

from __future__ import annotations

from pjrt.abi.schema import TABLE

FIRST_MISSING = {
    53: "Buffer_CopyRawToHost",
    72: "Client_UpdateGlobalProcessInfo",
    88: "Event_Create",
    105: "Device_ClearMemoryStats",
}
"""For a minor version the first function of our table that it does not have yet."""


def function_names() -> tuple[str, ...]:
    """Return the functions of PJRT_Api in table order, without the PJRT_ prefix."""
    return tuple(each.name.removeprefix("PJRT_") for each in TABLE)


def number_of_functions(minor: int) -> int:
    """Return the length of the table at a minor version that is in `FIRST_MISSING`."""
    return function_names().index(FIRST_MISSING[minor])
