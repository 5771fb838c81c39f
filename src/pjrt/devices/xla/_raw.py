"""jaxlib's private modules: the one file of this room that imports them and knows how its versions differ.

One habit of jaxlib's is worked around here: for every array that it makes without being told its type it looks for jax,
imports it where it is installed, and takes ten times as long as for the rest where it is not. So arrays are made with
their type (an ``Aval``) in hand, and where jaxlib leaves no way to say it, jax is kept from being found (``_NoJax``).
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pjrt.api.element_type import AnyDType
from pjrt.stablehlo.jaxlib import load

if TYPE_CHECKING:
    from pjrt.devices.xla.memory_space import XlaMemorySpace

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


class _NoJax:
    """A finder of modules that says, in a thread that asks for it, that there is no jax: ``with _no_jax: …``."""

    def __init__(self) -> None:
        self._denying = threading.local()

    def __enter__(self) -> None:
        self._denying.now = True

    def __exit__(self, *_: object) -> None:
        self._denying.now = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Finds nothing; raises where jax must not be found."""
        if getattr(self._denying, "now", False) and name.partition(".")[0] == "jax":
            raise ModuleNotFoundError("jax is not needed here", name="jax")


_no_jax = _NoJax()
sys.meta_path.insert(0, _no_jax)


class Aval:
    """What jaxlib wants to know of an array: its abstract value."""

    __slots__ = ("dtype", "ndim", "shape")

    weak_type = False

    def __init__(self, shape: tuple[int, ...], dtype: AnyDType) -> None:
        self.shape = shape
        self.dtype = dtype
        self.ndim = len(shape)


class _Donated:
    """Stands for an array whose memory went to an execution, where jaxlib's own array does not show it."""

    def is_deleted(self) -> bool:
        return True


DONATED: Array = _Donated()


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


# Arrays.


def put(array: np.ndarray[Any, Any], aval: Aval, space: XlaMemorySpace, semantics: Any) -> Array:
    """A numpy array of exactly the aval's type in a memory space."""
    return jax.batched_device_put(aval, space.sharding, [array], [space.device.raw], True, False, semantics, True)


def copy(array: Array, space: XlaMemorySpace) -> Array:
    """A copy in a memory space; made when the value is there."""
    (made,) = jax.batched_copy_array_to_devices_with_sharding([array], [space.device.raw_list], [space.sharding], _COPY)
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
    with _no_jax:
        made, _ = array._single_device_array_to_np_array_did_copy()
    if made.flags.writeable:
        made.flags.writeable = False
    return made


def capsule(array: Array) -> Any:
    """A DLPack capsule over the array's memory; waits for the value."""
    with _no_jax:
        return jax.buffer_to_dlpack_managed_tensor(array)


def collect_released() -> None:
    """Drops what jaxlib's runtime let go of: it does so itself only when it is called the next time."""
    jax.collect_garbage()


def pointer(array: Array) -> int:
    """The address of an array's memory."""
    with _no_jax:
        address: int = array.unsafe_buffer_pointer()
    return address


def size_on_device(array: Array) -> int:
    """The bytes of an array of one device."""
    try:
        with _no_jax:
            size: int = array.on_device_size_in_bytes()
    except AttributeError:  # before 0.10 jaxlib asks jax's shardings, which these are not; nothing is packed there
        size = array.aval.dtype.itemsize * math.prod(array.aval.shape)
    return size


# Several devices.


def assembled(shards: Sequence[Array], aval: Aval, sharding: Any) -> Array:
    """One array of the shards of all devices."""
    return jax.ArrayImpl(aval, sharding, list(shards), True, True)


def shards(array: Array) -> list[Array]:
    """The shards of an array of several devices."""
    with _no_jax:
        made: list[Array] = array._arrays
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


class Described(NamedTuple):
    """One parameter or result of an executable, on one device."""

    shape: tuple[int, ...]
    dtype: AnyDType | None
    """``None`` for a token."""
    minor_to_major: tuple[int, ...]
    dynamic_dimensions: tuple[int, ...]
    is_in_host_memory: bool


def signature(module: bytes) -> tuple[list[Described], list[Described]]:
    """The parameters and results of a compiled module, an ``HloModuleProto``, on one device."""
    shape = hlo.XlaComputation(module).program_shape()
    parameters = shape.parameter_shapes()
    if len(parameters) == 1 and parameters[0].is_tuple():
        parameters = parameters[0].tuple_shapes()
    result = shape.result_shape()
    results = result.tuple_shapes() if result.is_tuple() else [result]
    return [_described(p) for p in parameters], [_described(r) for r in results]


_HOST_MEMORY = ":S(5)"  # as XLA spells its memory space of the host in a layout


def _described(shape: Any) -> Described:
    if not shape.is_array():
        return Described((), None, (), (), False)
    layout = shape.layout()
    sizes = tuple(shape.dimensions())
    dynamic = tuple(d for d in range(len(sizes)) if shape.is_dynamic_dimension(d)) if shape.is_dynamic() else ()
    return Described(
        sizes, shape.numpy_dtype(), tuple(layout.minor_to_major()), dynamic, _HOST_MEMORY in layout.to_string()
    )
