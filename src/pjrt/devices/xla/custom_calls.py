"""Custom calls: the handlers of the user, those that jaxlib has for the CPU, and those that it has for JAX alone."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Callable
from typing import Any

from pjrt.api.checks import expect, expect_int
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla._jaxlib import converted

JAX_ONLY = frozenset(
    {
        "xla_buffer_python_cpu_callback",
        "xla_ffi_partitioned_python_cpu_callback",
        "xla_ffi_python_cpu_callback",
    }
)
"""The targets that call a Python function by its index in a list that JAX gives to XLA when it compiles and executes.

Only JAX gives that list, and jaxlib does not check that there is one: without JAX such a call would end the process.
"""

_MARKERS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"})
"""The targets that JAX writes into partitioned programs. XLA interprets them, and survives any operands."""

_OF_STABLEHLO = r"mhlo\.(?!topk$)\w+"
"""Operations that StableHLO has no name for, in JAX's spelling. XLA checks their operands, except those of ``topk``."""

_TOP_K = r"\{k = \d+ : i64, largest = (true|false)\}"

_CALLS = re.compile(rb"custom[-_]call")  # the spellings of StableHLO and HLO
_TARGET = re.compile(rb"\xe2\x01(.)", re.DOTALL)
"""The tag of ``HloInstructionProto.custom_call_target``, and the name's length. No string contains such bytes."""

_TYPED_API = 1
"""The version of custom calls whose handlers are those of XLA's foreign function interface (FFI)."""

_lock = threading.Lock()

# A prototype of our own: all packages of the process share the function object in ``ctypes.pythonapi``.
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def register_handler(name: str, handler: Callable[..., Any] | int, traits: int) -> None:
    """Register an FFI handler with XLA in this process, for all clients and for ever: XLA cannot remove one.

    Raises:
        InvalidArgumentError: the handler is neither a function nor an address, or the address is null.
        AlreadyExistsError: the name has another handler.
    """
    expect(name, str, "the name of a custom call's target as a str")
    expect_int(traits, "the traits of an FFI handler as the bits of a whole number")
    if callable(handler):
        from pjrt.devices.xla.ffi_handler import handler_of  # here: few programs have handlers

        address = handler_of(handler, traits)
    elif isinstance(handler, int) and handler > 0:
        address = handler
    else:
        raise InvalidArgumentError(f"expected the address of an FFI handler or a Python function, found {handler!r}")
    capsule = _new_capsule(address, None, None)
    try:
        _jaxlib.jax.register_custom_call_target(
            name, capsule, _jaxlib.FFI_PLATFORM, api_version=_TYPED_API, traits=traits
        )
    except Exception as error:
        raise converted(error) from error


def register_handlers(code: bytes) -> None:
    """Register the handlers that jaxlib has for the CPU and those that JAX has, if the program may call one.

    Raises:
        PjrtError: XLA rejects one of the handlers that JAX has.
    """
    if not _CALLS.search(code):
        return
    with _lock:
        try:
            _jaxlib.register_own_handlers()
            _jaxlib.register_handlers_of_jax()
        except Exception as error:
            raise converted(error) from error


def is_ordinary(target: str, attributes: str) -> bool:
    """Whether XLA's compiler leaves a call to its handler, or is known to survive its own treatment of the call.

    Args:
        target: the target of the call.
        attributes: the text of its ``mhlo.attributes``.
    """
    if target == "mhlo.topk":
        return re.fullmatch(_TOP_K, attributes) is not None
    if target in _MARKERS or re.fullmatch(_OF_STABLEHLO, target):
        return True
    return target in _jaxlib.jax.custom_call_targets(_jaxlib.FFI_PLATFORM)


def prepare(module: bytes) -> None:
    """Prepare the handlers that a compiled program calls when it runs.

    Args:
        module: the compiled program, a serialized ``HloModuleProto``.

    Raises:
        UnimplementedError: the program calls a target that only JAX can serve.
        PjrtError: LAPACK cannot be loaded.
    """
    called = {module[tag.end() : tag.end() + tag[1][0]].decode("latin-1") for tag in _TARGET.finditer(module)}
    if not called:
        return
    if refused := sorted(called & JAX_ONLY):
        raise UnimplementedError(
            f"the program calls {refused[0]!r}, a Python function that only JAX's own CPU backend can find; register "
            "the function with client.register_ffi_handler(name, function) and call it by that name"
        )
    if not called.isdisjoint(_jaxlib.lapack_targets()):
        with _lock:
            try:
                _jaxlib.load_lapack()
            except Exception as error:
                raise converted(error) from error
