"""All that this package changes in JAX, for platforms of its own.

Names without a package are those of modules in ``jax._src``.

- Callbacks into Python (``add_platform``): ``callback.emit_python_callback``, also as a name of
  ``jax.interpreters.mlir``; the rule of ``buffer_callback_p``; ``interpreters.mlir._uncacheable_primitives``. At exit
  ``dispatch.runtime_tokens`` is emptied.
- Inspected shardings: the rule of ``debugging.inspect_sharding_p``.
- Jobs of several processes: ``distributed.State.initialize``, whose waiting ``pjrt launch`` sees and whose arguments it
  gives, and
  ``distributed.State.shutdown``, after which XLA's log has no warnings.
- DLPack: ``dlpack._jax``, ``dlpack._check_device``, ``array.ArrayImpl.__dlpack_device__`` and
  ``numpy.array_constructors._get_platform``.
- The shardings of results: ``interpreters.pxla._maybe_get_and_check_out_shardings``.
- The compilation cache: ``compilation_cache.is_cache_used``.
- The rules for CPUs (``add_cpu_rules``): ``interpreters.mlir._platform_specific_lowerings`` and
  ``_platforms_with_donation``; the rules of ``platform_index_p``, ``cond_p`` and ``call_exported_p``.
- Handlers of ``jax.ffi`` (``give_ffi_handlers``): jaxlib's table of who takes them, for each platform.
- A device in the place of JAX's CPU (``take_cpu_place``): ``xla_bridge._backend_factories``,
  ``xla_bridge._topology_factories`` and ``xla_bridge.local_devices``.

The module ``jax`` registers platforms, and changes these registrations: ``xla_bridge._backend_factories`` and
``xla_bridge._alias_to_platforms``.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import dataclasses
import functools
import inspect
import itertools
import os
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from pjrt.api.client import LocalHandler
from pjrt.api.element_type import AnyDType
from pjrt.api.errors import InternalError, InvalidArgumentError, UnimplementedError
from pjrt.host_memory import external
from pjrt.host_memory.array import HostArray
from pjrt.native.library import wait_for_work
from pjrt.stablehlo.encodings.hlo_parameters import DIVIDED_TARGET, INSPECTED_TARGET
from pjrt.stablehlo.transforms.custom_calls import CallPartitioner, let_ask, part_types

# A device in the place of JAX's CPU, for libraries that know no names but ``cpu``, ``gpu`` and ``tpu``.

CPU_PLUGIN = "pjrt_as_cpu"
"""The name by which jaxlib knows the plugin of such a device: no platform of JAX's."""

_CPU = "cpu"
_FORCED = re.compile(r"--xla_force_host_platform_device_count=(\d+)(?!\S)")

_calls = threading.local()


def is_cpu_free(bridge: Any, platform: str) -> bool:
    """Whether a platform is JAX's own CPU, whose place a device can take."""
    return platform == _CPU and bridge._backend_factories[_CPU].factory is bridge.make_cpu_client


def take_cpu_place(bridge: Any) -> None:
    """Give the platform ``cpu`` to the plugin that was just registered as ``CPU_PLUGIN``."""
    registration = bridge._backend_factories.pop(CPU_PLUGIN)
    bridge.register_backend_factory(
        _CPU,
        registration.factory,
        priority=registration.priority,
        fail_quietly=registration.fail_quietly,
        experimental=registration.experimental,
        make_topology=bridge._topology_factories.pop(CPU_PLUGIN, None),
        c_api=registration.c_api,
    )
    # JAX asks here, and nowhere else, where the operands of a callback go, and has no setting for it.
    original = bridge.local_devices

    def local_devices(*args: Any, backend: Any = None, **kwargs: Any) -> Any:
        if backend == _CPU and getattr(_calls, "depth", 0):
            return _own_cpu().local_devices()
        return original(*args, backend=backend, **kwargs)

    bridge.local_devices = local_devices


class InCallback:
    """While a callback runs, JAX puts the operands on a CPU of its own: the device waits for the callback."""

    def __enter__(self) -> None:
        _calls.depth = getattr(_calls, "depth", 0) + 1

    def __exit__(self, *_: object) -> None:
        _calls.depth -= 1


@functools.cache
def _own_cpu() -> Any:
    from jax._src.lib import xla_client

    return xla_client.make_cpu_client(num_devices=1)


def cpu_device_count() -> int:
    """Return how many CPU devices JAX's settings ask for: ``jax_num_cpu_devices``, or XLA's flag; 0 if none does."""
    from jax._src import xla_bridge

    asked = int(xla_bridge.num_cpu_devices.value)
    forced = _FORCED.findall(os.environ.get("XLA_FLAGS", ""))
    return asked if asked >= 0 else int(forced[-1]) if forced else 0


# Callbacks into Python. JAX's rule passes pointers of its process to XLA, which no other device could follow.

CALLBACK_TARGET = "pjrt_python_callback"
"""The custom call that a callback into Python becomes; its attribute ``callback`` is the callback's number."""

_PLACED_TARGET = "xla_python_cpu_callback"
"""The name of the same call in a program of several devices.

Shardy keeps the sharding of a call, which selects the one device that makes it, only for calls of a few names. This is
one of them, and JAX itself does not use it any more.
"""

TARGETS = (CALLBACK_TARGET, _PLACED_TARGET, DIVIDED_TARGET)
"""All names of the call; every client of ours in JAX needs ``call_back`` as the handler of each."""

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

    with _lock:
        if not _platforms:
            atexit.register(_at_exit)
            emitter = _emitter(callback.emit_python_callback)
            callback.emit_python_callback = emitter
            public_mlir.emit_python_callback = emitter  # for lowering rules outside of JAX's core
            _lower_buffer_callbacks()
            _lower_inspections()
            _use_compilation_cache()
            _share_memory()
            _check_result_shardings()
            _note_meetings()
            _leave_jobs_in_silence()
        _platforms.add(platform)
    # A cached rule would give two callbacks the same number.
    mlir._uncacheable_primitives.update((debugging.debug_callback_p, debugging.debug_print_p))


def _note_meetings() -> None:
    """Let ``pjrt launch`` know while this process waits for the others in ``jax.distributed.initialize``.

    Without arguments that takes the place that ``pjrt launch`` gives: JAX has no variables for it.
    """
    from jax._src import distributed

    meet = distributed.State.initialize

    @functools.wraps(meet)
    def noted(
        state: Any,
        coordinator_address: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
        *arguments: Any,
        **further: Any,
    ) -> None:
        from pjrt.distributed.environments import LaunchEnvironment  # here: few processes are in a job
        from pjrt.distributed.initialization import noted_wait

        launched, found = LaunchEnvironment(os.environ), (coordinator_address, num_processes, process_id)
        method = arguments[1] if len(arguments) > 1 else further.get("cluster_detection_method")
        if method is None and found == (None, None, None) and launched.is_present():
            place = launched.place()
            coordinator_address, num_processes = place.coordinator_address, place.process_count
            process_id = place.process_index
        waits: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if coordinator_address is not None and num_processes is not None and process_id is not None:
            waits = noted_wait(coordinator_address, num_processes, process_id)
        with waits:
            meet(state, coordinator_address, num_processes, process_id, *arguments, **further)

    distributed.State.initialize = noted


def _leave_jobs_in_silence() -> None:
    """Leave a warning of six lines out of XLA's log when a job ends, also where the program ends it itself."""
    from jax._src import distributed

    leave = distributed.State.shutdown

    @functools.wraps(leave)
    def silent(state: Any) -> None:
        _leave_out_warnings(state)
        leave(state)

    distributed.State.shutdown = silent


def _leave_out_warnings(job: Any) -> None:
    """Leave warnings out of XLA's log for the rest of a process in a job, unless the user chose a level.

    The clients of plugins watch the job's other processes to the last, and jaxlib warns when this watch ends.
    """
    from jax._src.lib import utils

    if job.client is not None and os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":
        utils.absl_set_min_log_level(_ERRORS)


def _at_exit() -> None:
    """Wait for ordered effects while devices in Python still work, and drop those that do not end in time.

    JAX itself waits for them later in the exit, when devices in Python do not work any more. Before 0.12 it also keeps
    those that failed, and each of its waits would show the same error once more.
    """
    from jax._src import dispatch, distributed

    _leave_out_warnings(distributed.global_state)
    try:
        if wait_for_work():
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
    # So JAX before 0.12 does not keep the compiled program beyond this process. JAX 0.12 does: the number, which is a
    # part of the key, belongs to a function of whichever process has lowered the same program.
    context.add_host_callback(function)
    return np.int64(number)


class _ValueCallback:
    """A callback that takes values and returns values."""

    def __init__(
        self, function: Callable[..., Sequence[Any]], num_operands: int, results: Sequence[Any], *, has_token: bool
    ) -> None:
        from jax._src import config

        self._function = function
        # A device may call back on a thread of its own, which does not know ``with jax.enable_x64(True)``.
        self._with_setting = functools.partial(config.enable_x64, config.enable_x64.value)
        self._num_operands = num_operands
        self._results = [(tuple(aval.shape), np.dtype(aval.dtype)) for aval in results]
        self._has_token = int(has_token)

    def fill(self, buffers: Sequence[Any]) -> None:
        """Call the function and fill the results. Tokens, the first of the operands and of the results, are skipped."""
        begin = self._has_token
        end = begin + self._num_operands
        # The device's memory is valid only during the call, and a callback may keep its operands: it gets copies.
        with InCallback(), self._with_setting():
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


# JAX selects lowering rules by the platform's name, and has none for names that it does not know. Our platforms get
# its rules for CPUs. They also get the parts that a user wrote for CPUs, in ``jax.lax.platform_dependent`` and in
# functions of ``jax.export``, where nothing was written for them.

_Branches = Sequence[tuple[str, ...] | None]
"""The platforms of each branch of ``platform_dependent``; ``None`` is the default branch, for all other platforms."""

_names: set[str] = set()


def add_cpu_rules(name: str) -> None:
    """Have JAX lower programs of a platform by its rules for CPUs, those of now and those of later.

    Args:
        name: the platform name of the client, which JAX lowers by. For ``cpu`` nothing changes.
    """
    from jax._src.interpreters import mlir
    from jax._src.lax import lax, parallel

    if name == _CPU:
        return
    with _lock:
        if not _names:
            _extend_platform_dependent()
            _extend_exported_calls()
        if name in _names:
            return
        _names.add(name)
        if name not in mlir._platforms_with_donation:
            mlir._platforms_with_donation.append(name)
        # A view of JAX's own table: modules that are imported later, such as those of sparse matrices, add rules to it.
        rules = mlir._platform_specific_lowerings
        # The rule of CPUs refuses the algorithms of products that XLA's CPU would ignore, such as TF32_TF32_F32.
        own = {lax.dot_general_p: mlir._lowerings[lax.dot_general_p], **rules.get(name, {})}
        # JAX has this rule for GPUs only. It is nothing but the operation collective_broadcast of StableHLO.
        if parallel.pbroadcast_p in rules["cuda"]:
            own.setdefault(parallel.pbroadcast_p, rules["cuda"][parallel.pbroadcast_p])
        rules[name] = collections.ChainMap(own, rules[_CPU])


def _extend_platform_dependent() -> None:
    """Have ``jax.lax.platform_dependent`` take the branch for CPUs where no other one fits."""
    from jax._src.interpreters import mlir
    from jax._src.lax.control_flow import conditionals

    lower_index, lower_branches = conditionals._platform_index_lowering, conditionals._cond_lowering

    def index(ctx: Any, *, platforms: _Branches) -> Any:
        return lower_index(ctx, platforms=_extended(platforms))

    def branches(ctx: Any, *arguments: Any, **parameters: Any) -> Any:
        if (platforms := parameters.get("branches_platforms")) is not None:
            parameters["branches_platforms"] = _extended(platforms)
        return lower_branches(ctx, *arguments, **parameters)

    mlir.register_lowering(conditionals.platform_index_p, index)
    mlir.register_lowering(conditionals.cond_p, branches)


def _extended(platforms: _Branches) -> _Branches:
    """Return the platforms of each branch, with ours beside the CPU; a default branch is for ours too and stays so."""
    if None in platforms:
        return platforms
    others = sorted(_names.difference(*filter(None, platforms)))
    return tuple((*names, *others) if names and _CPU in names else names for names in platforms)


def _extend_exported_calls() -> None:
    """Have functions that ``jax.export`` exported for CPUs run on our platforms."""
    from jax._src.export import _export
    from jax._src.interpreters import mlir

    original = _export._call_exported_lowering

    def lower(ctx: Any, *arguments: Any, exported: Any) -> Any:
        platforms = ctx.module_context.platforms
        if len(platforms) == 1 and platforms[0] in _names.difference(exported.platforms):
            # The place of the name among the platforms is the index of their code in the program.
            renamed = tuple(platforms[0] if name == _CPU else name for name in exported.platforms)
            exported = dataclasses.replace(exported, platforms=renamed)
        return original(ctx, *arguments, exported=exported)

    mlir.register_lowering(_export.call_exported_p, lower)


# ``jax.debug.inspect_array_sharding``. JAX's rule writes the address of a function into the program. Ours writes a
# number. XLA asks this process about it, from a device's process through the extension Custom_Partitioner.

_inspections: weakref.WeakValueDictionary[bytes, Callable[[Any], object]] = weakref.WeakValueDictionary()
"""The functions that want to know shardings, as long as JAX keeps them: by what their calls are configured with."""


def _lower_inspections() -> None:
    """Have JAX lower inspections of shardings for our platforms with our rule, and for all others with its own."""
    from jax._src import debugging
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    original = debugging._inspect_sharding_lowering_rule

    def lower(ctx: Any, *operands: Any, **options: Any) -> Any:
        kept = len(ctx.module_context.keepalives)
        results = original(ctx, *operands, **options)
        functions = ctx.module_context.keepalives[kept:]
        if functions and is_ours(ctx.module_context):  # on one device JAX has called the function already
            key = str(id(functions[0]))
            _inspections[key.encode()] = functions[0]
            call = ir.InsertionPoint.current.block.operations[-1]
            call.attributes["call_target_name"] = ir.StringAttr.get(INSPECTED_TARGET)
            call.attributes["backend_config"] = ir.StringAttr.get(key)
        return results

    mlir.register_lowering(debugging.inspect_sharding_p, lower)
    let_ask(INSPECTED_TARGET, _INSPECTION)


def give_inspections(capsule: object) -> None:
    """Have a plugin ask this process where its compiler meets a sharding to inspect."""
    from jax._src.lib import xla_client

    xla_client.register_custom_call_partitioner(
        INSPECTED_TARGET, _INSPECTION.propagate, _INSPECTION.divide, _INSPECTION.infer, True, c_api=capsule
    )


def _tell(shapes: Any, shardings: Any, _result_shape: Any, _result_sharding: Any, config: bytes) -> Any:
    """Tell a function the sharding of a call's operand, which is the call's result, too."""
    (sharding,) = shardings
    if sharding is None:
        raise InvalidArgumentError("there is no sharding to inspect")
    _inspections[config](sharding)
    (part,) = part_types(shapes, shardings)
    return f"func.func @main(%0: {part}) -> {part} {{ return %0 : {part} }}".encode(), shardings, sharding


_INSPECTION = CallPartitioner(
    _tell,
    infer=lambda _shapes, shardings, _result_shape, _config: shardings[0],
    propagate=lambda sharding, _shape, _config: sharding,
    may_be_replicated=True,
)


# Buffer callbacks: functions that work in the memory of a program's buffers.


def _lower_buffer_callbacks() -> None:
    """Have JAX lower buffer callbacks for our platforms with our rule, and for all others with its own."""
    from jax._src import buffer_callback
    from jax._src.interpreters import mlir

    original = buffer_callback._buffer_callback_lowering

    def lower(ctx: Any, *operands: Any, **options: Any) -> Any:
        if not is_ours(ctx.module_context):
            return original(ctx, *operands, **options)
        return _lower_buffer_callback(ctx, *operands, **options)

    mlir.register_lowering(buffer_callback.buffer_callback_p, lower, cacheable=False)


def _lower_buffer_callback(
    ctx: Any,
    *operands: Any,
    callback: Callable[..., object],
    in_tree: Any,
    out_tree: Any,
    has_side_effect: bool,
    input_output_aliases: Sequence[tuple[int, int]],
    **_: Any,
) -> Any:
    from jax._src import ffi

    called = _BufferCallback(callback, in_tree, out_tree, input_output_aliases)
    number = add_callback(ctx.module_context, called, callback)
    rule = ffi.build_ffi_lowering_function(
        CALLBACK_TARGET,
        has_side_effect=has_side_effect,
        operand_output_aliases=dict(input_output_aliases),
    )
    return list(rule(ctx, *operands, callback=number).results)


class _BufferCallback:
    """A callback that takes the buffers of operands and results."""

    def __init__(
        self, function: Callable[..., object], in_tree: Any, out_tree: Any, aliases: Sequence[tuple[int, int]]
    ) -> None:
        self._function = function
        self._in_tree = in_tree
        self._out_tree = out_tree
        self._aliases = aliases

    def fill(self, buffers: Sequence[Any]) -> None:
        """Call the function, as ``function(context, results, *operands)``."""
        number = self._in_tree.num_leaves
        for operand, result in self._aliases:  # a device may put the two in different memory
            if not np.may_share_memory(buffers[operand], buffers[number + result]):
                buffers[number + result][...] = buffers[operand]
        arguments, keywords = self._in_tree.unflatten([Buffer(array) for array in buffers[:number]])
        results = self._out_tree.unflatten([Buffer(array) for array in buffers[number:]])
        if self._function(_ExecutionContext(), results, *arguments, **keywords) is not None:
            raise ValueError("the function of a buffer_callback must not return any values: it fills its results")


class _ExecutionContext:
    """The ``jax.experimental.buffer_callback.ExecutionContext`` of an execution on the host."""

    @property
    def stage(self) -> Any:
        """The stage of the execution: only this one has buffers."""
        from jax._src.buffer_callback import ExecutionStage

        return ExecutionStage.EXECUTE

    @property
    def stream(self) -> int:
        """The stream of the execution.

        Raises:
            JaxRuntimeError: always, as on JAX's CPU: devices in the host's memory have no streams.
        """
        from jax.errors import JaxRuntimeError

        raise JaxRuntimeError("UNIMPLEMENTED: this device has no streams: the buffers are in the memory of the host")


class Buffer:
    """A buffer with the interface of ``jax.experimental.buffer_callback.Buffer``, which Python cannot construct."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    @property
    def dtype(self) -> AnyDType:
        """The type of the elements."""
        dtype: AnyDType = self._array.dtype
        return dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._array.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        shape: tuple[int, ...] = self._array.shape
        return shape

    @property
    def writeable(self) -> bool:
        """Whether the buffer is a result."""
        return self._array.flags.writeable

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self._array, dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self._array.__dlpack_device__()
        return int(kind), number


# DLPack. JAX itself shares memory of its own platforms only. Ours share theirs where it is memory of the host.

_ALIGNMENT = 64
"""The alignment in bytes that memory needs so that XLA's CPU uses it in place."""


def _share_memory() -> None:
    """Have JAX share memory of our platforms with our functions, and that of all others with its own."""
    from jax._src import array
    from jax._src import dlpack as jax_dlpack
    from jax._src.numpy import array_constructors

    target = _Target()
    jax_dlpack._jax = _Bindings(jax_dlpack._jax, target)
    check_device = jax_dlpack._check_device
    dlpack_device = array.ArrayImpl.__dlpack_device__
    platform_of = array_constructors._get_platform

    def check(device: Any, source: Any, copy: bool | None) -> None:
        """Take a device of ours as the target of an import from the host; JAX's own way copies by its CPU."""
        target.device = None
        if device is not None and source.platform == "cpu" and is_client_of_ours(device.client):
            target.device = device
        else:
            check_device(device, source, copy)

    def device_of(self: Any) -> tuple[Any, int]:
        if len(self._arrays) == 1 and _is_array_of_ours(self):
            _shared(self)
            return jax_dlpack.DLDeviceType.kDLCPU, 0
        place: tuple[Any, int] = dlpack_device(self)
        return place

    def platform(device: Any) -> str:
        """Return the platform by whose name ``jnp.asarray(copy=False)`` decides whether it can share memory."""
        name: str = platform_of(device)
        client = client_of_ours(name)
        return "cpu" if client is not None and _shares_memory(client.local_devices()[0]) else name

    jax_dlpack._check_device = check
    array.ArrayImpl.__dlpack_device__ = device_of
    array_constructors._get_platform = platform


class _Target(threading.local):
    """The device of ours that ``jax.dlpack.from_dlpack`` imports memory onto, in the course of one call."""

    device: Any = None


class _Bindings:
    """jaxlib's bindings as JAX's DLPack module uses them, with the two functions about capsules replaced."""

    def __init__(self, bindings: Any, target: _Target) -> None:
        self._bindings = bindings
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bindings, name)

    def buffer_to_dlpack_managed_tensor(self, buffer: Any, *, stream: Any = None, **options: Any) -> Any:
        """Return a capsule over the memory of a JAX array, which is kept until the consumer releases it."""
        if not _is_array_of_ours(buffer):
            return self._bindings.buffer_to_dlpack_managed_tensor(buffer, stream=stream, **options)
        try:
            return external.to_capsule(_writable(_shared(buffer)))
        except UnimplementedError as error:
            raise BufferError(error.message) from error

    def dlpack_managed_tensor_to_buffer(
        self, capsule: Any, device: Any, stream: Any, copy: bool | None = None, *more: Any
    ) -> Any:
        """Return a JAX array on a device, from a capsule."""
        device, self._target.device = self._target.device or device, None
        into = self._bindings.dlpack_managed_tensor_to_buffer
        if not is_client_of_ours(device.client):
            return into(capsule, device, stream, copy, *more)
        if copy:
            return _copied(capsule, device)
        try:
            return into(capsule, device, stream, False, *more)
        except self._bindings.JaxRuntimeError:
            if copy is not None:
                raise
        return _copied(capsule, device)


def _copied(capsule: Any, device: Any) -> Any:
    import jax

    return jax.device_put(external.from_capsule(capsule).copy(), device)


def _is_array_of_ours(array: Any) -> bool:
    return is_client_of_ours(next(iter(array.devices())).client)


def _shared(array: Any) -> HostArray:
    """Return an array of one device as a numpy array over the same memory.

    Raises:
        BufferError: the memory is not the host's, or numpy has no array for its layout or its elements.
    """
    values: HostArray = np.asarray(array)
    if not values.size or values.ctypes.data == _address(array):
        return values
    raise BufferError(
        f"DLPack shares memory of the host as it is, and this array of the platform '{array.platform()}' is in other "
        "memory, or numpy needs another layout or size of elements: copy it with numpy.asarray(array)"
    )


def _address(array: Any) -> int | None:
    import jax

    try:
        address: int = array.unsafe_buffer_pointer()
    except jax.errors.JaxRuntimeError:  # the device's memory has no addresses
        return None
    return address


def _writable(array: HostArray) -> HostArray:
    """Return a writable view of an array: a capsule that is not versioned cannot declare that it is for reading only.

    JAX's own arrays are exported in the same way.
    """
    view: HostArray = np.asarray(_Memory(array))
    return view.view(array.dtype)


class _Memory:
    """The memory of an array, in the form that numpy takes; the view keeps it."""

    def __init__(self, array: HostArray) -> None:
        interface = array.view(np.dtype(f"V{array.itemsize}")).__array_interface__
        self.__array_interface__ = {**interface, "data": (array.ctypes.data, False)}
        self.array = array


def _shares_memory(device: Any) -> bool:
    """Whether a device uses memory of the host in place."""
    import jax

    memory = np.zeros(2 * _ALIGNMENT, np.uint8)
    values = memory[-memory.ctypes.data % _ALIGNMENT :][:_ALIGNMENT]
    return _address(jax.device_put(values, device, may_alias=True)) == values.ctypes.data


def _check_result_shardings() -> None:
    """Have JAX raise an error if neither its user nor a device of ours declares how results are split.

    JAX itself goes on without a sharding until something else fails.
    """
    from jax._src.interpreters import pxla

    original = pxla._maybe_get_and_check_out_shardings

    def check(executable: Any, asked: Any, *more: Any) -> Any:
        shardings = original(executable, asked, *more)
        missing = [number for number, each in enumerate(shardings) if isinstance(each, pxla.UnspecifiedValue)]
        if missing and is_client_of_ours(executable.client):
            raise UnimplementedError(
                f"the device '{executable.client.platform}' does not declare how result {missing[0]} of a program of "
                "several partitions is split over its devices: give out_shardings to jax.jit, or output_shardings to "
                "the pjrt.host.Compiled that the device's compile returns"
            )
        return shardings

    pxla._maybe_get_and_check_out_shardings = check


# JAX uses its compilation cache only for platforms in a list of its own. The executables of our devices can be
# serialized too: one without a form of its own is saved as its program.

_LISTED = SimpleNamespace(platform="cpu")
"""A backend of a platform in JAX's list."""


def _use_compilation_cache() -> None:
    """Have JAX use its cache for our platforms too."""
    from jax._src import compilation_cache

    original = compilation_cache.is_cache_used

    def is_cache_used(backend: Any) -> bool:
        return bool(original(_LISTED if is_client_of_ours(backend) else backend))

    compilation_cache.is_cache_used = is_cache_used


# ``jax.ffi.register_ffi_target``. Without this JAX keeps a handler for a plugin that never asks for it.

_TYPED_API = 1
"""The version of custom calls whose handlers are those of XLA's foreign function interface (FFI)."""

# Prototypes of our own: all packages of the process share the function objects in ``ctypes.pythonapi``.
_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class TakesHandlers(Protocol):
    """A plugin whose clients take FFI handlers."""

    def register_ffi_handler(self, name: str, handler: Callable[..., Any] | int, traits: int = 0) -> None:
        """Register a handler with all clients."""


def give_ffi_handlers(plugin: TakesHandlers, platform: str) -> None:
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
            plugin.register_ffi_handler(target, _ffi_handler(target, handler), int(getattr(traits, "value", traits)))

    is_installing = True
    xla_client.register_custom_call_handler(platform, register)
    is_installing = False


def _ffi_handler(target: str, handler: Any) -> Any:
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
