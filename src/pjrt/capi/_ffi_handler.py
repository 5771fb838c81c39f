"""FFI handlers as the addresses that plugins take: of compiled handlers, and of Python functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pjrt.api.errors import InvalidArgumentError, UnimplementedError

_GPUS = ("cuda", "rocm")
"""The platforms where a Python function gets addresses on the device, and a stream."""


def address_of(handler: Callable[..., Any] | int, traits: int, platform: str) -> int:
    """Return the address of a handler: of a Python function the same one each time, so that it can be registered again.

    Raises:
        InvalidArgumentError: the handler is neither an address nor a function.
        UnimplementedError: the handler is a function, and programs of the platform run in other memory than the host's
            and that of a GPU.
    """
    if isinstance(handler, int) and handler > 0:
        return handler
    if not callable(handler):
        raise InvalidArgumentError(f"expected the address of an FFI handler or a Python function, found {handler!r}")
    if platform == "tpu":
        raise UnimplementedError(
            "a Python function cannot be a handler on 'tpu', whose buffers are not in the host's memory; "
            "give the address of a compiled handler"
        )
    from pjrt.devices.xla.ffi_handler import handler_of

    return handler_of(handler, traits, on_device=platform in _GPUS)


def function_at(address: int) -> Callable[..., Any] | None:
    """Return the Python function of a handler, or ``None`` for a handler that is no Python function of this process."""
    module = sys.modules.get("pjrt.devices.xla.ffi_handler")  # until it is imported no function is a handler
    return None if module is None else module.function_at(address)
