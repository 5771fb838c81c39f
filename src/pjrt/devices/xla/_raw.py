"""jaxlib's private modules: the one file of this room that imports them and knows how its versions differ.

Two habits of jaxlib's are worked around here. It writes news about its devices to the standard error unless told not to
before it is loaded; and where jax is not installed, every array that it makes without being told its type looks for jax
and fails, which costs a hundred times more than the rest. So each array is made with its type (its ``Aval``) in hand.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import AnyDType
from pjrt.stablehlo.jaxlib import load

# Read by XLA's logging once, when the library is loaded: 1 keeps warnings and errors. A user's own choice stays.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

_PURPOSE = "run programs on XLA's CPU device"
jax: Any = load("_jax", _PURPOSE)
hlo: Any = load("_hlo", _PURPOSE)

RuntimeFailure: type[Exception] = jax.JaxRuntimeError

Array = Any
"""One array of jaxlib's, on one device (``ArrayImpl``)."""

VERSION: str = load("version", _PURPOSE).__version__
COPY_DURING_CALL = jax.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
COPY_LATER = jax.HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES
ZERO_COPY = jax.HostBufferSemantics.ZERO_COPY

_REPLICATED = hlo.HloSharding.replicate()


class Aval:
    """What jaxlib wants to know of an array: its abstract value."""

    __slots__ = ("dtype", "ndim", "shape")

    weak_type = False

    def __init__(self, shape: tuple[int, ...], dtype: AnyDType) -> None:
        self.shape = shape
        self.dtype = dtype
        self.ndim = len(shape)


def make_client(num_devices: int, asynchronous: bool) -> Any:
    """A new client of XLA's CPU runtime."""
    return jax.get_tfrt_cpu_client(asynchronous=asynchronous, num_devices=num_devices)


def device_list(devices: Sequence[Any]) -> Any:
    """Several devices of jaxlib's as it takes them."""
    return jax.DeviceList(tuple(devices))


def whole_on(device: Any, memory_kind: str) -> Any:
    """The sharding of an array that lies whole on one device, in a kind of memory."""
    return jax.GSPMDSharding(device_list([device]), _REPLICATED, memory_kind=memory_kind)


def result_handler(aval: Aval, sharding: Any) -> Any:
    """What makes an array of this type of a result; made once a result, used at each execution."""
    try:
        return jax.array_result_handler(aval, sharding, True, True)
    except TypeError:  # from 0.12 on there is nothing to skip
        return jax.array_result_handler(aval, sharding, True)


def put(array: Any, aval: Aval, device: Any, sharding: Any, semantics: Any) -> Array:
    """A numpy array of exactly the aval's type on a device."""
    return jax.batched_device_put(aval, sharding, [array], [device], True, False, semantics, True)


def copy(array: Array, space: Any) -> Array:
    """A copy in a memory space of ours."""
    (made,) = jax.batched_copy_array_to_devices_with_sharding(
        [array], [device_list([space.device.raw])], [space.sharding], [jax.ArrayCopySemantics.ALWAYS_COPY]
    )
    return made


def view(array: Array) -> Any:
    """The array's memory as a read-only numpy array (a copy only for packed elements); waits for the value."""
    try:
        return np.asarray(memoryview(array))
    except BufferError:  # an element type that Python's buffer protocol has no letter for, such as bf16
        pass
    # Not for all of them: the first call imports jax where it is installed, which takes longer than all else.
    made, _ = array._single_device_array_to_np_array_did_copy()
    made.flags.writeable = False
    return made


def signature(executable: Any) -> tuple[list[tuple[tuple[int, ...], AnyDType]], list[tuple[tuple[int, ...], AnyDType]]]:
    """The shapes and dtypes of an executable's parameters and results on one device."""
    module = executable.hlo_modules()[0]
    shape = hlo.XlaComputation(module.as_serialized_hlo_module_proto()).program_shape()
    result = shape.result_shape()
    results = result.tuple_shapes() if result.is_tuple() else [result]
    return [_described(p) for p in shape.parameter_shapes()], [_described(r) for r in results]


def _described(shape: Any) -> tuple[tuple[int, ...], AnyDType]:
    return tuple(shape.dimensions()), shape.numpy_dtype()
