"""Custom calls that jaxlib itself answers on the CPU, and those that it answers for JAX alone."""

from __future__ import annotations

import re
import threading

from pjrt.api.errors import UnimplementedError
from pjrt.devices.xla import _raw
from pjrt.devices.xla._errors import converted

JAX_ONLY = frozenset(
    {
        "xla_buffer_python_cpu_callback",
        "xla_ffi_partitioned_python_cpu_callback",
        "xla_ffi_python_cpu_callback",
    }
)
"""Targets that call a Python function by its number in a list that JAX gives to XLA when it compiles and executes.
Nobody else gives that list, and jaxlib does not look whether it is there: such a call would end the process.
"""

_CALLS = re.compile(rb"custom[-_]call")  # as StableHLO and as HLO spell it
_TARGET = re.compile(rb"\xe2\x01(.)", re.DOTALL)
"""The tag of ``HloInstructionProto.custom_call_target``, and the name's length. No string contains such bytes."""

_lock = threading.Lock()


def provide(code: bytes) -> None:
    """Register the handlers that jaxlib has for the CPU, and those that JAX was given, if the program may call any.

    Raises:
        PjrtError: XLA does not take one of those that JAX was given.
    """
    if not _CALLS.search(code):
        return
    with _lock:
        try:
            _raw.register_own_handlers()
            _raw.register_handlers_of_jax()
        except Exception as error:
            raise converted(error) from error


def settle(module: bytes) -> None:
    """Prepare what a compiled program calls when it runs.

    Args:
        module: the compiled program, a serialized ``HloModuleProto``.

    Raises:
        UnimplementedError: the program calls a target that only JAX can serve.
        PjrtError: LAPACK cannot be loaded.
    """
    called = {module[found.end() : found.end() + found[1][0]].decode("latin-1") for found in _TARGET.finditer(module)}
    if not called:
        return
    if refused := sorted(called & JAX_ONLY):
        raise UnimplementedError(
            f"the program calls {refused[0]!r}, a Python function that only JAX's own CPU backend can find; register "
            "the function with client.register_ffi_handler(name, function) and call it by that name"
        )
    if not called.isdisjoint(_raw.lapack_targets()):
        with _lock:
            try:
                _raw.load_lapack()
            except Exception as error:
                raise converted(error) from error
