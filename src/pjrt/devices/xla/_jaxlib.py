"""jaxlib's private modules: the one file of this room that imports them and knows how its versions differ.

Two habits of jaxlib's are worked around here. For every array that it makes without being told its type it looks for
jax, imports it where it is installed, and takes ten times as long as for the rest where it is not. So arrays are made
with their type (an ``Aval``) in hand, and where jaxlib leaves no way to say it, it is kept from importing jax
(``_without_jax``). And it notes the stack at each call, but drops the notes only in a few functions: see ``TURNS``.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import itertools
import math
import operator
import sys
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from pjrt.api.element_type import AnyDType
from pjrt.stablehlo.jaxlib import load

if TYPE_CHECKING:
    from pjrt.devices.xla.memory_space import XlaMemorySpace

T = TypeVar("T")

_PURPOSE = "run programs on XLA's CPU device"
jax: Any = load("_jax", _PURPOSE)
# What is about HLO moved into a module of its own with 0.10.
hlo: Any = jax if hasattr(jax, "HloSharding") else load("_hlo", _PURPOSE)
FFI_PLATFORM = "cpu"
HAS_SIX_BITS = hasattr(jax.PrimitiveType if hasattr(jax, "PrimitiveType") else hlo.PrimitiveType, "F6E2M3FN")
"""Whether arrays can have elements of six bits."""

VERSION: str = load("version", _PURPOSE).__version__

Array = Any
"""An array of jaxlib's (``ArrayImpl``): on one device, but for the parents of shards."""

COPY_DURING_CALL = jax.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
COPY_LATER = jax.HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES
ZERO_COPY = jax.HostBufferSemantics.ZERO_COPY

_REPLICATED = hlo.HloSharding.replicate()
_COPY = [jax.ArrayCopySemantics.ALWAYS_COPY]


class Aval:
    """The abstract value of an array, which jaxlib asks for.

    Attributes:
        weak_type: a part of the key under which jaxlib keeps the types that it makes itself. JAX's arrays hardly ever
            have a weak type, so what jaxlib keeps for the arrays of this room does not get into JAX's.
    """

    __slots__ = ("dtype", "ndim", "shape")

    weak_type = True

    def __init__(self, shape: tuple[int, ...], dtype: AnyDType) -> None:
        self.shape = shape
        self.dtype = dtype
        self.ndim = len(shape)


class _Donated:
    """Stands for an array whose memory went to an execution, where jaxlib's own array does not show it."""

    def is_deleted(self) -> bool:
        return True


DONATED: Array = _Donated()

collect_released: Callable[[], None] = jax.collect_garbage
"""Drops what jaxlib's runtime let go of: it does so itself only in a few of its functions."""

TURNS = itertools.cycle((True, *(False,) * 255))
"""Says at which of many calls of jaxlib it is time to drop what they left: ``if next(TURNS): collect_released()``.

Each call that starts, waits or asks leaves a note of the stack behind, and a loop over arrays that stay on the device
calls nothing in which jaxlib drops them.
"""


# Doing without jax.


def _import(name: str, *arguments: Any) -> Any:
    """Imports for jaxlib what it needs, which is not jax unless somebody else has imported it."""
    if name.partition(".")[0] != "jax" or "jax" in sys.modules:
        return builtins.__import__(name, *arguments)
    if name != _CORE:
        raise ModuleNotFoundError("jax is not needed here", name="jax")
    # If this failed, jaxlib would never ask again, and a jax that is imported later would have arrays without a type.
    return sys.modules.setdefault(_CORE, _core)


def _shaped_array(shape: tuple[int, ...], dtype: AnyDType, weak_type: bool) -> Any:
    """The type of an array that jaxlib was not told the type of: jax's own kind, where there is a jax."""
    if "jax" not in sys.modules:
        return Aval(shape, dtype)
    return importlib.import_module(_CORE).ShapedArray(shape, dtype, weak_type)


_CORE = "jax.core"
_core = types.ModuleType(_CORE)
_core.ShapedArray = _shaped_array  # type: ignore[attr-defined]  # what jaxlib looks for in it

# jaxlib imports in the name of the innermost frame of Python's, by the ``__import__`` that this frame sees.
_call = eval("lambda function, *arguments: function(*arguments)", {"__builtins__": {"__import__": _import}})


def _without_jax(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function of jaxlib so that it imports no jax, and return its result."""
    try:
        made: T = _call(function, *arguments)
        return made
    finally:
        if sys.modules.get(_CORE) is _core:
            del sys.modules[_CORE]


# Clients and places.


def make_client(num_devices: int, asynchronous: bool) -> Any:
    """A new client of XLA's CPU runtime."""
    return jax.get_tfrt_cpu_client(asynchronous=asynchronous, num_devices=num_devices)


def device_list(devices: Sequence[Any]) -> Any:
    """Several devices of jaxlib's as it takes them."""
    return jax.DeviceList(tuple(devices))


def whole_on_each(devices: Sequence[Any], memory_kind: str) -> Any:
    """The sharding of an array that has one whole shard on each device, in a kind of memory.

    Shards of one device's part of a program's value: to jaxlib they are copies of one another, which nobody looks at.
    """
    return jax.GSPMDSharding(device_list(devices), _REPLICATED, memory_kind=memory_kind)


# Custom calls.


@functools.cache
def register_own_handlers() -> None:
    """Make XLA know every handler that jaxlib carries for the CPU: LAPACK's and the one for sparse matrices."""
    known = jax.custom_call_targets(FFI_PLATFORM)
    lapack = load("lapack", _PURPOSE)
    for module in (lapack, load("cpu_sparse", _PURPOSE)):
        for name, handler, api_version in module.registrations()[FFI_PLATFORM]:
            if name not in known:
                jax.register_custom_call_target(name, handler, FFI_PLATFORM, api_version=api_version, traits=0)
    for name in lapack.batch_partitionable_targets():
        jax.register_custom_call_as_batch_partitionable(name)


@functools.cache
def lapack_targets() -> frozenset[str]:
    """The targets that call LAPACK."""
    return frozenset(name for name, *_ in load("lapack", _PURPOSE).registrations()[FFI_PLATFORM])


@functools.cache
def load_lapack() -> None:
    """Tell jaxlib's handlers where LAPACK's functions are, which scipy brings: without it they call the address 0."""
    load("cpu._lapack", _PURPOSE).initialize()


def register_handlers_of_jax() -> None:
    """Make XLA know what users registered with JAX for the CPU, now and later; JAX itself does so only when it makes a
    CPU backend of its own.
    """
    client = sys.modules.get("jaxlib.xla_client")
    if client is not None:
        client.register_custom_call_handler(FFI_PLATFORM, jax.register_custom_call_target)
        client.register_custom_type_handler(FFI_PLATFORM, jax.register_custom_type)


# Arrays.


def put(array: np.ndarray[Any, Any], aval: Aval, space: XlaMemorySpace, semantics: Any) -> Array:
    """A numpy array of exactly the aval's type in a memory space."""
    return jax.batched_device_put(
        aval, space.sharding, [array], [space.device.jaxlib_device], True, False, semantics, True
    )


def copy(array: Array, space: XlaMemorySpace) -> Array:
    """A copy in a memory space; made when the value is there."""
    (made,) = jax.batched_copy_array_to_devices_with_sharding(
        [array], [space.device.jaxlib_devices], [space.sharding], _COPY
    )
    return made


def view(array: Array) -> np.ndarray[Any, Any]:
    """The array's memory as a read-only numpy array (a copy where elements are packed); waits for the value."""
    try:
        return np.asarray(memoryview(array))
    except BufferError:  # an element type that Python's buffer protocol has no letter for, such as bf16, or a layout
        return view_of_dynamic(array)


def view_of_dynamic(array: Array) -> np.ndarray[Any, Any]:
    """As ``view``, in the sizes that dynamic dimensions have; slower."""
    made: np.ndarray[Any, Any]
    aval = array.aval  # none for what was apart of several devices' array; no token is
    if aval is not None and 0 in aval.shape:  # a token, which jaxlib reads nothing from
        array.block_until_ready()
        return np.zeros(aval.shape, aval.dtype)
    made, _ = _without_jax(array._single_device_array_to_np_array_did_copy)
    if made.flags.writeable:
        made.flags.writeable = False
    return made


def capsule(array: Array) -> Any:
    """A DLPack capsule over the array's memory; waits for the value."""
    return _without_jax(jax.buffer_to_dlpack_managed_tensor, array)


def pointer(array: Array) -> int:
    """The address of an array's memory."""
    address: int = _without_jax(array.unsafe_buffer_pointer)
    return address


def size_on_device(array: Array) -> int:
    """The bytes of an array of one device."""
    try:
        size: int = _without_jax(array.on_device_size_in_bytes)
    except AttributeError:  # before 0.10 jaxlib asks jax's shardings, which these are not; nothing is packed there
        size = array.aval.dtype.itemsize * math.prod(array.aval.shape)
    return size


# Several devices.


def assembled(shards: Sequence[Array], aval: Aval, sharding: Any) -> Array:
    """One array of the shards of all devices."""
    return jax.ArrayImpl(aval, sharding, list(shards), True, True)


_apart = operator.attrgetter("_arrays")


def shards(array: Array) -> list[Array]:
    """The shards of an array of several devices."""
    made: list[Array] = _without_jax(_apart, array)
    return made


# Executables.


def start(executable_start: Any, arguments: list[Array], with_token: bool, launch_id: int) -> Any:
    """Starts an executable by its ``execute_sharded``; before 0.10 jaxlib knows no launch ids."""
    if launch_id and _HAS_LAUNCH_IDS:
        return executable_start(arguments, with_tokens=with_token, launch_id=launch_id)
    return executable_start(arguments, with_tokens=with_token)


_HAS_LAUNCH_IDS = "launch_id" in (jax.LoadedExecutable.execute_sharded.__doc__ or "")


def result_handler(aval: Aval, sharding: Any) -> Any:
    """What makes an array of this type of a result; made once a result, used at each execution."""
    try:
        return jax.array_result_handler(aval, sharding, True, True)
    except TypeError:  # from 0.12 on there is nothing to skip
        return jax.array_result_handler(aval, sharding, True)


class ValueShape(NamedTuple):
    """One parameter or result of an executable, on one device."""

    shape: tuple[int, ...]
    dtype: AnyDType | None
    """``None`` for a token."""
    minor_to_major: tuple[int, ...]
    dynamic_dimensions: tuple[int, ...]
    is_in_host_memory: bool


def program_shape(module: bytes) -> tuple[list[ValueShape], list[ValueShape]]:
    """The parameters and results of a compiled module, an ``HloModuleProto``, on one device."""
    shape = hlo.XlaComputation(module).program_shape()
    parameters = shape.parameter_shapes()
    if len(parameters) == 1 and parameters[0].is_tuple():
        parameters = parameters[0].tuple_shapes()
    result = shape.result_shape()
    results = result.tuple_shapes() if result.is_tuple() else [result]
    return [_value_shape(p) for p in parameters], [_value_shape(r) for r in results]


_HOST_MEMORY = ":S(5)"  # as XLA spells its memory space of the host in a layout


def _value_shape(shape: Any) -> ValueShape:
    if not shape.is_array():
        return ValueShape((), None, (), (), False)
    layout = shape.layout()
    sizes = tuple(shape.dimensions())
    dynamic = tuple(d for d in range(len(sizes)) if shape.is_dynamic_dimension(d)) if shape.is_dynamic() else ()
    return ValueShape(
        sizes, shape.numpy_dtype(), tuple(layout.minor_to_major()), dynamic, _HOST_MEMORY in layout.to_string()
    )
