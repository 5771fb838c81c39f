"""Memory: IREE's buffers, as the handles of the author's contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.errors import ResourceExhaustedError
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.iree.runtime import IreeDevice, Runtime
from pjrt.host import Memory
from pjrt.host_memory.aligned import HostArray

if TYPE_CHECKING:
    from pjrt.api.memory_space import MemorySpace

_BYTES = np.dtype(np.uint8)


class Tensor:
    """An array in IREE's memory: a handle of the author's contract.

    Attributes:
        device: the device.
        spec: the shape and the element type.
        fence: reached when the memory has its contents (``iree.runtime.HalFence``); ``None`` if it has them.
    """

    __slots__ = ("_buffer", "_view", "device", "fence", "spec")

    def __init__(
        self, device: IreeDevice, spec: ShapeSpec, buffer: Any = None, view: Any = None, fence: Any = None
    ) -> None:
        self.device = device
        self.spec = spec
        self._buffer = buffer
        self._view = view
        self.fence = fence

    @property
    def buffer(self) -> Any:
        """The memory (``iree.runtime.HalBuffer``); that of a module's result is read from its view."""
        if self._buffer is None:
            self._buffer = self._view.get_buffer()
        return self._buffer

    def view(self, runtime: Runtime) -> Any:
        """Return the memory with its type (``iree.runtime.HalBufferView``), as modules take it."""
        if self._view is None:
            spec = self.spec
            code = runtime.element_types[spec.element_type]
            self._view = runtime.api.HalBufferView(self._buffer, list(spec.shape), code)
        return self._view

    def bytes(self) -> HostArray:
        """Return the bytes of the memory as an array; the host must see the memory."""
        size = self.spec.size_in_bytes
        array: HostArray = self.buffer.map().asarray([size], _BYTES)
        return array


class IreeMemory(Memory):
    """The memory of IREE's devices.

    Args:
        runtime: the runtime.
    """

    kinds = ("device", "pinned_host", "unpinned_host")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def allocate(self, spec: ShapeSpec, space: MemorySpace) -> Tensor:
        runtime = self._runtime
        api = runtime.api
        device = runtime.devices[space.devices[0].local_hardware_id]
        kind, usage = api.MemoryType, api.BufferUsage
        memory = int(kind.DEVICE_LOCAL) | int(kind.HOST_VISIBLE)
        allowed = int(usage.DEFAULT) | int(usage.MAPPING)
        # A buffer of no bytes cannot be mapped.
        try:
            buffer = device.allocator.allocate_buffer(memory, allowed, max(spec.size_in_bytes, 1))
        except (RuntimeError, ValueError) as error:
            raise ResourceExhaustedError(f"IREE's allocator has no {spec.size_in_bytes} bytes: {error}") from error
        return Tensor(device, spec, buffer)

    def copy_in(self, handle: Tensor, array: HostArray) -> None:
        if array.nbytes:
            np.copyto(handle.bytes(), array.reshape(-1).view(np.uint8))

    def copy_out(self, handle: Tensor, array: HostArray) -> None:
        if array.nbytes:
            np.copyto(array.reshape(-1).view(np.uint8), handle.bytes())

    def host_view(self, handle: Tensor) -> HostArray | None:
        return handle.bytes() if handle.spec.size else np.empty(0, np.uint8)

    def spec_of(self, handle: Tensor) -> ShapeSpec:
        return handle.spec
