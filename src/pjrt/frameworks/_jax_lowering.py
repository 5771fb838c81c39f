"""JAX's lowering of programs for platforms of this package.

A platform of ours gets the rules that JAX has for CPUs (``_jax_cpu_rules``), but a rule of its own for callbacks into
Python: JAX's rule passes pointers of its process to XLA, which no other device could follow.
"""

from __future__ import annotations

import atexit
import collections
import inspect
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from pjrt.api.client import LocalHandler
from pjrt.api.errors import InternalError, InvalidArgumentError
from pjrt.capi.export import wait_for_pending
from pjrt.frameworks._jax_as_cpu import InCallback
from pjrt.stablehlo.hlo_parameters import DIVIDED_TARGET

CALLBACK_TARGET = "pjrt_python_callback"
"""The custom call that a callback into Python becomes; its attribute ``callback`` is the callback's number."""

_PLACED_TARGET = "xla_python_cpu_callback"
"""The name of the same call in a program of several devices.

Shardy keeps the sharding of a call, which selects the one device that makes it, only for calls of a few names. This is
one of them, and JAX itself does not use it any more.
"""

TARGETS = (CALLBACK_TARGET, _PLACED_TARGET, DIVIDED_TARGET)
"""All names of the call; every client of ours in JAX needs ``call_back`` as the handler of each."""

_CPU = "cpu"
_ERRORS = 2  # the level of XLA's log without warnings

_platforms: set[str] = set()
_lock = threading.Lock()
_numbers = itertools.count(1)
_callbacks: dict[int, Callback] = {}
_retired: collections.deque[int] = collections.deque()


def add_platform(platform: str) -> None:
    """Add a platform of ours to JAX's lowering, by its registered name, before JAX makes its client."""
    from jax._src import callback, debugging
    from jax._src.interpreters import mlir
    from jax.interpreters import mlir as public_mlir

    from pjrt.frameworks import _jax_buffer_callback, _jax_cache, _jax_dlpack, _jax_shardings

    with _lock:
        if not _platforms:
            atexit.register(_at_exit)
            emitter = _emitter(callback.emit_python_callback)
            callback.emit_python_callback = emitter
            public_mlir.emit_python_callback = emitter  # for lowering rules outside of JAX's core
            _jax_buffer_callback.install()
            _jax_cache.install()
            _jax_dlpack.install()
            _jax_shardings.install()
        _platforms.add(platform)
    # A cached rule would give two callbacks the same number.
    mlir._uncacheable_primitives.update((debugging.debug_callback_p, debugging.debug_print_p))


def _at_exit() -> None:
    """Wait for ordered effects while devices in Python still work, and drop those that do not end in time.

    JAX itself waits for them later in the exit, when devices in Python do not work any more. Before 0.12 it also keeps
    those that failed, and each of its waits would show the same error once more.
    """
    from jax._src import dispatch, distributed
    from jax._src.lib import utils

    if distributed.global_state.client is not None and os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
        # The clients of plugins watch the job's other processes to the last, and jaxlib warns when this watch ends.
        utils.absl_set_min_log_level(_ERRORS)
    try:
        if wait_for_pending():
            dispatch.wait_for_tokens()
    finally:
        dispatch.runtime_tokens.clear()


def is_ours(context: Any) -> bool:
    """Whether a module is lowered for a platform of ours: by the platform's name or by its backend in JAX."""
    if len(context.platforms) != 1:
        return False
    if context.platforms[0] in _platforms - {_CPU}:  # a device may have the name of JAX's CPU; its client is looked up
        return True
    try:
        backend = context.get_backend()
    except Exception:  # JAX lowers for a platform that it has no backend for
        return False
    return is_client_of_ours(backend)


def is_client_of_ours(client: Any) -> bool:
    """Whether a client in JAX belongs to a platform of ours."""
    from jax._src import xla_bridge

    return any(xla_bridge._backends.get(name) is client for name in _platforms)


def client_of_ours(platform: str) -> Any:
    """Return the client in JAX of a platform of ours, by the client's platform name; ``None`` if there is none."""
    from jax._src import xla_bridge

    clients = (xla_bridge._backends.get(name) for name in _platforms)
    return next((client for client in clients if client is not None and client.platform == platform), None)


@LocalHandler
def call_back(*buffers: Any, callback: int) -> None:
    """Call a callback: the FFI handler of ``TARGETS``. The buffers are the operands, then the results to fill."""
    function = _callbacks.get(int(callback))
    if function is None:
        raise InternalError(
            f"the program calls back into Python function {callback}, which does not exist (any more) in this process"
        )
    function.fill(buffers)


class Callback(Protocol):
    """A callback into Python."""

    def fill(self, buffers: Sequence[Any]) -> None:
        """Call the function; the buffers are the operands, then the results to fill."""


def add_callback(context: Any, callback: Callback, function: Callable[..., Any]) -> np.int64:
    """Add a callback to a module that is being lowered; return the number by which the program calls it."""
    number = next(_numbers)
    _callbacks[number] = callback
    context.add_keepalive(_KeepAlive(number))
    # So JAX does not keep the compiled program beyond this process: the number means nothing in another.
    context.add_host_callback(function)
    return np.int64(number)


class _ValueCallback:
    """A callback that takes values and returns values."""

    def __init__(
        self, function: Callable[..., Sequence[Any]], num_operands: int, results: Sequence[Any], *, has_token: bool
    ) -> None:
        self._function = function
        self._num_operands = num_operands
        self._results = [(tuple(aval.shape), np.dtype(aval.dtype)) for aval in results]
        self._has_token = int(has_token)

    def fill(self, buffers: Sequence[Any]) -> None:
        """Call the function and fill the results. Tokens, the first of the operands and of the results, are skipped."""
        begin = self._has_token
        end = begin + self._num_operands
        # The device's memory is valid only during the call, and a callback may keep its operands: it gets copies.
        with InCallback():
            values = [_as_jax_takes_it(v) for v in self._function(*(np.array(o) for o in buffers[begin:end]))]
        types = [(v.shape, v.dtype) for v in values]
        if types != self._results:
            raise InvalidArgumentError(
                f"expected that the callback returns {_described(self._results)}, found {_described(types)}"
            )
        for result, value in zip(buffers[end + begin :], values, strict=True):
            result[...] = value


def _described(types: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> str:
    """Return shapes and dtypes as text, such as ``float32[2,3], int32[]``."""
    return ", ".join(f"{dtype.name}[{','.join(map(str, shape))}]" for shape, dtype in types) or "nothing"


def _as_jax_takes_it(value: Any) -> Any:
    """Return a result as an array, in 32 bits instead of 64 unless JAX is told to use those: a Python float has 64."""
    import jax

    array = np.asarray(value)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


class _KeepAlive:
    """An object that JAX keeps as long as a program, and whose end retires the program's callback."""

    _NUM_RETIRED = 256

    def __init__(self, number: int) -> None:
        self._number = number

    def __del__(self, retired: collections.deque[int] = _retired, callbacks: dict[int, Callback] = _callbacks) -> None:
        # The program may still run: the last few callbacks stay. The arguments are bound as defaults because the names
        # of the module are gone at the end of the interpreter.
        retired.append(self._number)
        if len(retired) > self._NUM_RETIRED:
            callbacks.pop(retired.popleft(), None)


def _emitter(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return JAX's function that emits a callback into Python, with ours for our platforms."""

    def emit_python_callback(
        ctx: Any,
        callback: Callable[..., Sequence[Any]],
        token: Any,
        operands: Sequence[Any],
        operand_avals: Sequence[Any],
        result_avals: Sequence[Any],
        **options: Any,
    ) -> Any:
        if not is_ours(ctx.module_context):
            return original(ctx, callback, token, operands, operand_avals, result_avals, **options)
        return _emit(ctx, callback, token, operands, operand_avals, result_avals, options)

    return emit_python_callback


def _emit(
    ctx: Any,
    function: Callable[..., Sequence[Any]],
    token: Any,
    operands: Sequence[Any],
    operand_avals: Sequence[Any],
    result_avals: Sequence[Any],
    options: dict[str, Any],
) -> Any:
    from jax._src import core, ffi

    number = add_callback(
        ctx.module_context, _ValueCallback(function, len(operands), result_avals, has_token=token is not None), function
    )
    tokens = [] if token is None else [core.abstract_token]
    ctx = ctx.replace(avals_in=[*tokens, *operand_avals], avals_out=[*tokens, *result_avals])
    sharding = options.get("sharding")
    target = CALLBACK_TARGET
    if sharding is not None:
        # Each device calls back with its own parts of the operands, or one device with the whole.
        target = DIVIDED_TARGET if options.get("partitioned") else _PLACED_TARGET
    rule = ffi.build_ffi_lowering_function(target, has_side_effect=options.get("has_side_effect", False))
    call = rule(ctx, *([] if token is None else [token]), *operands, callback=number)
    if sharding is not None:
        # Without results the only sharding is that of the token.
        has_both = token is not None and len(result_avals) > 0
        _set_sharding(ctx.module_context, call, _with_token(sharding) if has_both else sharding)
    results = list(call.results)
    if token is not None:
        token, *results = results
    return results, token, function


def _set_sharding(context: Any, call: Any, sharding: Any) -> None:
    from jax._src.interpreters import mlir

    if len(inspect.signature(mlir.set_sharding).parameters) == 2:  # before JAX 0.10
        mlir.set_sharding(call, sharding)
    else:
        mlir.set_sharding(context, call, sharding)


def _with_token(sharding: Any) -> Any:
    """Return the sharding of a call that also returns a token, which needs a sharding of its own in Shardy."""
    from jax._src.sharding_impls import SdyArray, SdyArrayList

    if not isinstance(sharding, SdyArrayList):
        return sharding
    first = sharding.shardings[0]
    token = SdyArray(mesh_shape=(), dim_shardings=(), logical_device_ids=first.logical_device_ids)
    return SdyArrayList((token, *sharding.shardings))
