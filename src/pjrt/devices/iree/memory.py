"""Memory: IREE's buffers, as the handles of the author's contract."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, ResourceExhaustedError, UnimplementedError
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.iree.runtime import IreeDevice, Runtime
from pjrt.host import Memory
from pjrt.host_memory.array import HostArray, array_dtype
from pjrt.host_memory.external import ExternalMemory, from_dlpack

if TYPE_CHECKING:
    from pjrt.api.device import MemorySpace

ALIGNMENT = 64
"""The alignment in bytes that the code of modules expects of arguments."""

_BYTES = np.dtype(np.uint8)


class Tensor:
    """An array in IREE's memory: a handle of the author's contract.

    Attributes:
        device: the device.
        spec: the shape and the element type.
        fence: reached when the memory has its contents (``iree.runtime.HalFence``); ``None`` if it has them.
        owner: the host array whose memory it is; ``None`` for memory of IREE's own. IREE does not keep the array alive.
    """

    __slots__ = ("_buffer", "_span", "_view", "device", "fence", "owner", "spec")

    def __init__(
        self,
        device: IreeDevice,
        spec: ShapeSpec,
        buffer: Any = None,
        view: Any = None,
        fence: Any = None,
        owner: HostArray | None = None,
    ) -> None:
        self.device = device
        self.spec = spec
        self._buffer = buffer
        self._view = view
        self._span: tuple[int, int] | None = None
        self.fence = fence
        self.owner = owner

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

    @property
    def span(self) -> tuple[int, int]:
        """The addresses at which the memory begins and ends; the host must see it.

        Raises:
            RuntimeError: IREE has not allocated the memory yet, which is that of a result.
        """
        if self._span is None:
            begin: int = self.bytes().__array_interface__["data"][0]
            self._span = begin, begin + self.spec.size_in_bytes
        return self._span

    def separate(self, runtime: Runtime) -> None:
        """Copy the contents into memory of its own."""
        shared = self.bytes()
        self._buffer = allocate(runtime, self.device, shared.nbytes, "DEVICE_LOCAL", "HOST_VISIBLE")
        self._view = self._span = self.fence = None
        np.copyto(self.bytes(), shared)


def duplicate(runtime: Runtime, tensor: Tensor) -> Tensor:
    """Return a tensor with the same contents in other memory; its fence is reached when they are there."""
    device, fence = tensor.device, runtime.api.HalFence
    kinds = ("DEVICE_LOCAL", "HOST_VISIBLE") if runtime.driver.startswith("local-") else ("DEVICE_LOCAL",)
    buffer = allocate(runtime, device, max(tensor.spec.size_in_bytes, 1), *kinds)
    done = fence.create_at(device.hal.create_semaphore(0), 1)
    device.hal.queue_copy(tensor.buffer, buffer, fence(0) if tensor.fence is None else tensor.fence, done)
    return Tensor(device, tensor.spec, buffer, fence=done)


def allocate(runtime: Runtime, device: IreeDevice, size: int, *kinds: str) -> Any:
    """Return new memory of IREE's (``iree.runtime.HalBuffer``).

    Args:
        runtime: the runtime.
        device: the device.
        size: the number of bytes.
        kinds: names of ``iree.runtime.MemoryType``.

    Raises:
        ResourceExhaustedError: the allocator has none.
    """
    api = runtime.api
    usage = int(api.BufferUsage.DEFAULT)
    if "HOST_VISIBLE" in kinds or "HOST_LOCAL" in kinds:
        usage |= int(api.BufferUsage.MAPPING)
    memory = sum(int(getattr(api.MemoryType, kind)) for kind in kinds)
    try:
        return device.allocator.allocate_buffer(memory, usage, size)
    except (RuntimeError, ValueError) as error:
        raise ResourceExhaustedError(f"IREE's allocator has no {size} bytes: {error}") from error


class IreeMemory(Memory):
    """The memory of IREE's devices, where the host sees it: that of the drivers of processors.

    Args:
        runtime: the runtime.
    """

    kinds = ("device", "pinned_host", "unpinned_host")
    is_on_host = True

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def allocate(self, spec: ShapeSpec, space: MemorySpace) -> Tensor:
        device = self._device(space)
        # A buffer of no bytes cannot be mapped.
        return Tensor(
            device, spec, allocate(self._runtime, device, max(spec.size_in_bytes, 1), "DEVICE_LOCAL", "HOST_VISIBLE")
        )

    def copy_in(self, handle: Tensor, array: HostArray) -> Any:
        if array.nbytes:
            np.copyto(handle.bytes(), array.reshape(-1).view(np.uint8))

    def copy_out(self, handle: Tensor, array: HostArray) -> Any:
        if array.nbytes:
            np.copyto(array.reshape(-1).view(np.uint8), handle.bytes())

    def host_view(self, handle: Tensor) -> HostArray | None:
        return handle.bytes() if handle.spec.size else np.empty(0, np.uint8)

    def import_array(self, array: HostArray, spec: ShapeSpec, space: MemorySpace) -> Tensor | None:
        if array.ctypes.data % ALIGNMENT:  # IREE takes it, and its code reads it with instructions that crash.
            return None
        device, api = self._device(space), self._runtime.api
        kind, usage = api.MemoryType, api.BufferUsage
        buffer = device.allocator.import_host_allocation(
            array.reshape(-1).view(np.uint8),
            int(kind.HOST_LOCAL) | int(kind.DEVICE_VISIBLE),
            int(usage.DEFAULT) | int(usage.MAPPING),
        )
        return Tensor(device, spec, buffer, owner=array)

    def pointer(self, handle: Tensor) -> int:
        return handle.span[0]

    def to_dlpack(self, handle: Tensor) -> Any:
        spec = handle.spec
        if spec.element_type is ElementType.PRED or spec.element_type.dtype.kind in "iufc":
            memory = ExternalMemory(self.pointer(handle), spec.size_in_bytes, handle)
            return memory.array(spec.shape, array_dtype(spec.element_type))
        raise UnimplementedError(f"numpy exports no arrays of {spec.element_type.mlir} by DLPack")

    def from_dlpack(self, source: Any, space: MemorySpace) -> Tensor:
        array = from_dlpack(source)
        spec = ShapeSpec(array.shape, ElementType.of(array.dtype))
        if not array.flags.c_contiguous:
            raise UnimplementedError("IREE's memory holds row-major arrays only; use buffer_from_host")
        if not array.size:
            return self.allocate(spec, space)
        handle = self.import_array(ExternalMemory.over(array), spec, space)
        if handle is None:
            raise InvalidArgumentError(
                f"the array cannot be shared without a copy: its memory is not aligned to {ALIGNMENT} bytes; use "
                "buffer_from_host"
            )
        return handle

    def spec_of(self, handle: Tensor) -> ShapeSpec:
        return handle.spec

    def stats(self, space: MemorySpace) -> Mapping[str, int]:
        allocator = self._device(space).allocator
        if not allocator.has_statistics:
            return {}
        counts = allocator.statistics
        return {
            "pool_bytes": counts["device_bytes_allocated"] - counts["device_bytes_freed"],
            "peak_pool_bytes": counts["device_bytes_peak"],
        }

    def _device(self, space: MemorySpace) -> IreeDevice:
        return self._runtime.devices[space.devices[0].local_hardware_id]


class IreeGpuMemory(IreeMemory):
    """The memory of IREE's devices of other drivers: copies go through memory that both sides see."""

    is_on_host = False

    def allocate(self, spec: ShapeSpec, space: MemorySpace) -> Tensor:
        device = self._device(space)
        return Tensor(device, spec, allocate(self._runtime, device, max(spec.size_in_bytes, 1), "DEVICE_LOCAL"))

    def copy_in(self, handle: Tensor, array: HostArray) -> Any:
        if array.nbytes:
            device = handle.device
            staging = device.allocator.allocate_host_staging_buffer_copy(device.hal, array.reshape(-1).view(np.uint8))
            return self._copy(device, staging, handle.buffer)
        return None

    def copy_out(self, handle: Tensor, array: HostArray) -> Any:
        if array.nbytes:
            device = handle.device
            staging = allocate(self._runtime, device, array.nbytes, "HOST_LOCAL", "DEVICE_VISIBLE")
            self._copy(device, handle.buffer, staging).wait()
            np.copyto(array.reshape(-1).view(np.uint8), staging.map().asarray([array.nbytes], _BYTES))

    def host_view(self, handle: Tensor) -> HostArray | None:
        return None

    def import_array(self, array: HostArray, spec: ShapeSpec, space: MemorySpace) -> Tensor | None:
        return None

    def pointer(self, handle: Tensor) -> int:
        return Memory.pointer(self, handle)

    def to_dlpack(self, handle: Tensor) -> Any:
        return Memory.to_dlpack(self, handle)

    def from_dlpack(self, source: Any, space: MemorySpace) -> Tensor:
        tensor: Tensor = Memory.from_dlpack(self, source, space)
        return tensor

    def _copy(self, device: IreeDevice, source: Any, target: Any) -> Any:
        """Copy on the device, and return the fence of the copy."""
        fence = self._runtime.api.HalFence
        done = fence.create_at(device.hal.create_semaphore(0), 1)
        device.hal.queue_copy(source, target, fence(0), done)
        return done
