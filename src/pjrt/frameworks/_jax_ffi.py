"""``jax.ffi.register_ffi_target`` for platforms of this package.

Without this module JAX keeps such a handler for a plugin that never asks for it.
"""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any

from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.capi.export import ExportedPlugin

_TYPED_API = 1
"""The version of custom calls whose handlers are those of XLA's foreign function interface (FFI)."""

# Prototypes of our own: all packages of the process share the function objects in ``ctypes.pythonapi``.
_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def install(plugin: ExportedPlugin, platform: str) -> None:
    """Have JAX give a plugin the handlers that are registered for a platform, those of before and those of later."""
    from jax._src.lib import xla_client

    def register(name: str | bytes, handler: Any, platform: str, api_version: int, traits: Any = 0) -> None:
        target = name.decode() if isinstance(name, bytes) else name
        if api_version != _TYPED_API:
            raise InvalidArgumentError(
                f"the handler of {target!r} is for version {api_version} of custom calls; the platform {platform!r} "
                "takes handlers of XLA's FFI: api_version=1"
            )
        # Those of before are jaxlib's own, too, for a client that takes none: the error comes when a program calls one.
        unsupported = (UnimplementedError,) if is_installing else ()
        with contextlib.suppress(*unsupported):
            plugin.register_ffi_handler(target, _handler(target, handler), int(getattr(traits, "value", traits)))

    is_installing = True
    xla_client.register_custom_call_handler(platform, register)
    is_installing = False


def _handler(target: str, handler: Any) -> Any:
    """Return a handler as ``register_ffi_handler`` takes it: a Python function, or the address of a handler in C."""
    if callable(handler):
        return handler
    if isinstance(handler, dict) and set(handler) == {"execute"}:
        handler = handler["execute"]
    if type(handler).__name__ != "PyCapsule":
        raise InvalidArgumentError(
            f"expected the handler of {target!r} as a Python function, or as a capsule of a handler of one stage, "
            f"'execute'; found {handler!r}"
        )
    return _capsule_pointer(handler, _capsule_name(handler))
