"""FFI handlers as the addresses that plugins take; a Python function only where programs run in the host's memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pjrt.api.errors import InvalidArgumentError, UnimplementedError

_DEVICES = ("cuda", "rocm", "tpu")
"""The platforms whose buffers a Python function cannot read."""


def address_of(handler: Callable[..., Any] | int, traits: int, platform: str) -> int:
    """Return the address of a handler: of a Python function the same one each time, so that it can be registered again.

    Raises:
        InvalidArgumentError: the handler is neither an address nor a function.
        UnimplementedError: the handler is a function, and programs of the platform do not run in the host's memory.
    """
    if isinstance(handler, int) and handler > 0:
        return handler
    if not callable(handler):
        raise InvalidArgumentError(f"expected the address of an FFI handler or a Python function, found {handler!r}")
    if platform in _DEVICES:
        raise UnimplementedError(
            f"a Python function cannot be a handler on '{platform}', whose buffers are not in the host's memory; "
            "give the address of a compiled handler"
        )
    from pjrt.devices.xla.ffi_handler import handler_of

    return handler_of(handler, traits)


def function_at(address: int) -> Callable[..., Any] | None:
    """Return the Python function of a handler, or ``None`` for a handler that is no Python function of this process."""
    module = sys.modules.get("pjrt.devices.xla.ffi_handler")  # until it is imported no function is a handler
    return None if module is None else module.function_at(address)
