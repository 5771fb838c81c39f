"""Functions of the host inside programs: XLA's foreign function interface (FFI)."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from pjrt.api.checks import expect, expect_int
from pjrt.api.errors import InvalidArgumentError
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla.errors import converted

_TYPED_API = 1
"""The version of custom calls that are FFI handlers."""

_addresses: dict[tuple[Callable[..., Any], int], int] = {}
_addresses_lock = threading.Lock()

# A prototype of our own: the function of ``ctypes.pythonapi`` is shared by all packages of the process.
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def register_handler(name: str, handler: Callable[..., Any] | int, traits: int) -> None:
    """Makes a handler known to XLA in this process, for all clients and for ever: XLA has no way to take one back.

    Raises:
        InvalidArgumentError: it is no handler, or a null address.
        AlreadyExistsError: there is another of that name.
    """
    expect(name, str, "the name of a custom call's target as a str")
    expect_int(traits, "the traits of an FFI handler as the bits of a whole number")
    if callable(handler):
        address = _address_of(handler, traits)
    elif isinstance(handler, int) and handler > 0:
        address = handler
    else:
        raise InvalidArgumentError(f"expected the address of an FFI handler or a Python function, found {handler!r}")
    try:
        _jaxlib.jax.register_custom_call_target(
            name, _new_capsule(address, None, None), _jaxlib.FFI_PLATFORM, api_version=_TYPED_API, traits=traits
        )
    except Exception as error:
        raise converted(error) from error


def _address_of(function: Callable[..., Any], traits: int) -> int:
    """The handler of a Python function, the same one each time: XLA takes a name again if its handler is the same."""
    from pjrt.devices.xla.ffi_function import handler_of

    with _addresses_lock:
        if (function, traits) not in _addresses:
            _addresses[function, traits] = handler_of(function, traits)
        return _addresses[function, traits]
