"""Custom calls: the handlers of the user, those that jaxlib has for the CPU, and those that it has for JAX alone."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection
from typing import Any

from pjrt.api.checks import expect, expect_int
from pjrt.api.errors import InvalidArgumentError, PermissionDeniedError, UnimplementedError
from pjrt.api.program import is_for_stranger
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla._jaxlib import converted
from pjrt.stablehlo.hlo_parameters import HloCustomCall, custom_calls

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

_IDLE = frozenset({"dce_sink"})
"""The targets whose handlers do nothing."""

_CALLS = re.compile(rb"custom[-_]call")  # the spellings of StableHLO and HLO

_lock = threading.Lock()
_registered: set[str] = set()
"""The targets that were registered by ``register_handler``, for programs of strangers too."""


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
    try:
        _jaxlib.register_handler(name, address, traits)
    except Exception as error:
        raise converted(error) from error
    _registered.add(name)


def register_handlers(code: bytes) -> None:
    """Register the handlers that jaxlib has for the CPU and those that JAX has, if the program may call one.

    Raises:
        PjrtError: XLA rejects one of the handlers that JAX has.
    """
    if not _CALLS.search(code):
        return
    from pjrt.devices.xla import csr_product  # here: few programs call handlers

    with _lock:
        try:
            _jaxlib.register_own_handlers()
            csr_product.register()
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


def prepare(module: bytes, given: Collection[str]) -> None:
    """Check the calls that a compiled program makes when it runs, and prepare their handlers.

    Args:
        module: the compiled program, a serialized ``HloModuleProto``.
        given: the targets that the program called before it was compiled. XLA has made the calls of others itself.

    Raises:
        InvalidArgumentError: a handler in C would leave the memory of its operands and results.
        UnimplementedError: the program calls a target that only JAX can serve, or one whose calls nobody can check.
        PermissionDeniedError: the program is a stranger's, and calls what is for this process alone.
        PjrtError: LAPACK cannot be loaded.
    """
    calls = custom_calls(module)
    for call in calls:
        _check(call, call.target in given)
    if calls and not _jaxlib.lapack_targets().isdisjoint(call.target for call in calls):
        with _lock:
            try:
                _jaxlib.load_lapack()
            except Exception as error:
                raise converted(error) from error


def _check(call: HloCustomCall, is_given: bool) -> None:
    """Raise an error unless a call can do no harm, or is one that the user of this process answers for."""
    from pjrt.devices.xla import call_signatures  # here: few programs call handlers

    target = call.target
    if target in JAX_ONLY:
        raise UnimplementedError(
            f"the program calls {target!r}, a Python function that only JAX's own CPU backend can find; register "
            "the function with client.register_ffi_handler(name, function) and call it by that name"
        )
    if target in call_signatures.SIGNATURES:
        call_signatures.check(call)
    elif target in _jaxlib.own_targets():
        raise UnimplementedError(
            f"the program calls {target!r}, whose operands this version of pjrt cannot check; compile the program "
            "again if it was saved by another one, otherwise upgrade pjrt"
        )
    elif not is_given or target in _IDLE or target in _registered or target in _MARKERS:
        return  # XLA's own calls fit; a registered handler is the user's matter
    elif target not in _jaxlib.jax.custom_call_targets(_jaxlib.FFI_PLATFORM):
        raise UnimplementedError(
            f"the program calls {target!r}, which has no handler here; register one with "
            "client.register_ffi_handler(name, function)"
        )
    elif is_for_stranger():
        raise PermissionDeniedError(
            f"the program calls {target!r}, a handler in the server's process that is not for its clients; the "
            "server's owner may offer it with client.register_ffi_handler"
        )
