"""DLPack and JAX on platforms of this package: memory shared with other libraries, in both directions.

JAX itself shares memory of its own platforms only. Ours share theirs where it is memory of the host.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from pjrt.api.errors import UnimplementedError
from pjrt.frameworks import _jax_lowering
from pjrt.host_memory import external
from pjrt.host_memory.array import HostArray

_ALIGNMENT = 64
"""The alignment in bytes that memory needs so that XLA's CPU uses it in place."""


def install() -> None:
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
        if device is not None and source.platform == "cpu" and _jax_lowering.is_client_of_ours(device.client):
            target.device = device
        else:
            check_device(device, source, copy)

    def device_of(self: Any) -> tuple[Any, int]:
        if len(self._arrays) == 1 and _is_ours(self):
            _shared(self)
            return jax_dlpack.DLDeviceType.kDLCPU, 0
        place: tuple[Any, int] = dlpack_device(self)
        return place

    def platform(device: Any) -> str:
        """Return the platform by whose name ``jnp.asarray(copy=False)`` decides whether it can share memory."""
        name: str = platform_of(device)
        client = _jax_lowering.client_of_ours(name)
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
        if not _is_ours(buffer):
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
        if not _jax_lowering.is_client_of_ours(device.client):
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


def _is_ours(array: Any) -> bool:
    return _jax_lowering.is_client_of_ours(next(iter(array.devices())).client)


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
