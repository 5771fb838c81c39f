"""Python functions as callbacks of the C API."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from pjrt.abi.schema import CALLBACKS, STRUCTS, Field

_P = ctypes.c_void_p
_INTEGERS = {1: ctypes.c_int8, 2: ctypes.c_int16, 4: ctypes.c_int32, 8: ctypes.c_int64}


def callback(kind: str, function: Callable[..., Any]) -> Any:
    """Return a Python function as a C function of the type of a callback; it lives as long as the returned object.

    Args:
        kind: the callback, such as ``PJRT_Event_OnReadyCallback``.
        function: is called with the parameters that the header states: numbers and addresses as ``int``, a null pointer
            as 0. A callback whose C function takes one struct is called with the address of that struct. It returns
            ``None``, or the address of what the C function returns.
    """
    prototype, returns = _prototype(kind)

    def call(*arguments: Any) -> Any:
        answer = function(*(0 if each is None else each for each in arguments))
        return answer if returns else None

    return prototype(call)


@functools.cache
def _prototype(kind: str) -> tuple[Any, bool]:
    spec = CALLBACKS[kind]
    fields = STRUCTS[spec.args].fields
    # Some callbacks take one struct, which has its own size; the schema writes the parameters of others as a struct.
    types = [_P] if "struct_size" in fields else [_parameter(field) for field in fields.values()]
    returns = spec.result != "NOTHING"
    return ctypes.CFUNCTYPE(_P if returns else None, *types), returns


def _parameter(field: Field) -> Any:
    if field.kind == "BOOL":
        return ctypes.c_bool
    if field.kind in ("SIGNED", "ENUM"):
        return _INTEGERS[field.size]
    if field.kind in ("COUNT", "UNSIGNED"):
        return ctypes.c_size_t if field.size == 8 else ctypes.c_uint32
    return _P


def address_of(function: Any) -> int:
    """Return the address of a C function that ``callback`` made."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def callback_error(maker: int, code: int, message: str) -> int:
    """Return the address of an error for a callback to return, made by the function that the plugin gave it.

    Args:
        maker: the callback's argument ``callback_error``: the address of a pointer to the function.
        code: the status code.
        message: the text.
    """
    text = message.encode()
    make = ctypes.CFUNCTYPE(_P, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t).from_address(maker)
    return int(make(int(code), text, len(text)) or 0)


def call_function(address: int, *arguments: int) -> int:
    """Call a function that the plugin gave, such as a deleter, with addresses as arguments; return what it returns."""
    return int(ctypes.CFUNCTYPE(_P, *[_P] * len(arguments))(address)(*arguments) or 0)
