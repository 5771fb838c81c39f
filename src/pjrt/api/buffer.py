"""Buffers: arrays in a device's memory (``PjRtBuffer``, ``PJRT_Buffer``)."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.array_value import ArrayValue
from pjrt.api.errors import unimplemented
from pjrt.api.shape_spec import format_shape

if TYPE_CHECKING:
    from pjrt.api.client import Client
    from pjrt.api.device import Device
    from pjrt.api.element_type import ElementType
    from pjrt.api.future import Future
    from pjrt.api.layout import Layout
    from pjrt.api.memory_space import MemorySpace
    from pjrt.api.raw_buffer import RawBuffer


class Buffer(ArrayValue):
    """An array in one memory space of one device.

    A buffer may get its value later: ``ready`` reports when, and everything that needs the value waits for it. If the
    computation that makes the value fails, reading the value raises its error. After ``delete`` or a donation, every
    use except for the metadata raises a ``FailedPreconditionError``.

    Numpy and Python read it: ``numpy.asarray(buffer)``, ``float(buffer)``, ``buffer.tolist()``, ``buffer[0]``; ``await
    buffer`` waits in asyncio. ``ArrayValue`` documents these.
    """

    __slots__ = ("__weakref__",)

    # Its metadata.

    @property
    @abc.abstractmethod
    def client(self) -> Client:
        """The client that the buffer belongs to."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions; for a bounded dynamic dimension the bound (``PJRT_Buffer_Dimensions``)."""

    @property
    @abc.abstractmethod
    def element_type(self) -> ElementType:
        """The type of the elements (``PJRT_Buffer_ElementType``)."""

    @property
    @abc.abstractmethod
    def layout(self) -> Layout:
        """The order of the elements in the device's memory (``PJRT_Buffer_GetMemoryLayout``)."""

    @property
    def dynamic_dimensions(self) -> tuple[int, ...]:
        """The numbers of the dimensions whose sizes only a run decides (``PJRT_Buffer_DynamicDimensionIndices``)."""
        return ()

    @property
    def unpadded_shape(self) -> tuple[int, ...]:
        """The sizes without padding of dynamic dimensions
        (``PJRT_Buffer_UnpaddedDimensions``); may wait for the value.
        """
        return self.shape

    @property
    @abc.abstractmethod
    def on_device_size(self) -> int:
        """The bytes that the buffer takes on its device, padding included (``PJRT_Buffer_OnDeviceSizeInBytes``)."""

    @property
    @abc.abstractmethod
    def device(self) -> Device:
        """The device that the buffer is on (``PJRT_Buffer_Device``)."""

    @property
    @abc.abstractmethod
    def memory_space(self) -> MemorySpace:
        """The memory space that the buffer is in (``PJRT_Buffer_Memory``)."""

    @property
    @abc.abstractmethod
    def is_on_cpu(self) -> bool:
        """Whether the host's processor can read the memory in place (``PJRT_Buffer_IsOnCpu``)."""

    # Its lifetime.

    @property
    @abc.abstractmethod
    def is_deleted(self) -> bool:
        """Whether the buffer was deleted or donated (``PJRT_Buffer_IsDeleted``)."""

    @abc.abstractmethod
    def delete(self) -> None:
        """Release the memory (``PJRT_Buffer_Delete``). Work that uses it finishes first. A second call does nothing."""

    @abc.abstractmethod
    def ready(self) -> Future[None]:
        """Return a future that is done when the value is there, or fails with its error
        (``PJRT_Buffer_ReadyEvent``).
        """

    # To the host.

    @abc.abstractmethod
    def to_host(
        self, out: np.ndarray[Any, Any] | None = None, *, layout: Layout | None = None
    ) -> Future[np.ndarray[Any, Any]]:
        """Copy the value to the host (``PJRT_Buffer_ToHostBuffer``).

        Args:
            out: a writable array of the same shape and dtype to fill; a new array is the default. Without ``out``, a
                device whose memory the host can read may return a read-only view of the buffer instead of a copy.
            layout: the layout of the new array in host memory; row-major by default.

        Returns:
            A future of the array.

        Raises:
            InvalidArgumentError: ``out`` is read-only, or has another shape or dtype than the buffer.
            FailedPreconditionError: the buffer was deleted or donated, or its client is closed.
        """

    def copy_raw_to_host(self, out: Any, offset: int = 0, size: int | None = None) -> Future[None]:
        """Copy bytes to the host in the order in which the device holds them (``PJRT_Buffer_CopyRawToHost``).

        Args:
            out: a writable object with the buffer protocol; must stay alive until the future is done.
            offset: the first byte of the buffer to copy.
            size: the number of bytes; by default as many as ``out`` has room for.

        Returns:
            A future that is done when ``out`` has the bytes.

        Raises:
            InvalidArgumentError: ``out`` is read-only or too small.
            OutOfRangeError: the buffer does not have these bytes.
        """
        raise unimplemented(self.client.platform_name, "Buffer.copy_raw_to_host")

    def copy_raw_to_host_future(self, out: Future[Any], offset: int = 0, size: int | None = None) -> Future[None]:
        """Copy bytes as ``copy_raw_to_host`` does, to memory that is allocated later
        (``PJRT_Buffer_CopyRawToHostFuture``).

        Args:
            out: a future of the memory to copy to.
            offset: the first byte of the buffer to copy.
            size: the number of bytes; by default as many as the memory has room for.
        """
        raise unimplemented(self.client.platform_name, "Buffer.copy_raw_to_host_future")

    # Copies elsewhere, and other uses of its memory.

    @abc.abstractmethod
    def copy_to(self, destination: Device | MemorySpace) -> Buffer:
        """Return a copy on another device or in another memory space (``PJRT_Buffer_CopyToDevice``,
        ``PJRT_Buffer_CopyToMemory``).
        """

    def bitcast(self, element_type: ElementType, shape: Sequence[int], layout: Layout | None = None) -> Buffer:
        """Return a buffer that reads the same bytes as another type and shape of the same size, and takes over the
        memory (``PJRT_Buffer_Bitcast``). This buffer counts as donated afterwards.
        """
        raise unimplemented(self.client.platform_name, "Buffer.bitcast")

    def donate_with_control_dependency(self, dependency: Future[Any]) -> Buffer:
        """Donate the memory to a new buffer that is ready only when a dependency is done too
        (``PJRT_Buffer_DonateWithControlDependency``).
        """
        raise unimplemented(self.client.platform_name, "Buffer.donate_with_control_dependency")

    def external_reference(self) -> ExternalReference:
        """Return a reference that keeps the memory alive for code outside of the runtime, and has its address
        (``PJRT_Buffer_IncreaseExternalReferenceCount``, ``PJRT_Buffer_OpaqueDeviceMemoryDataPointer``).
        """
        raise unimplemented(self.client.platform_name, "Buffer.external_reference")

    def unsafe_pointer(self) -> int:
        """Return the address of the memory on the device; nothing keeps the memory there
        (``PJRT_Buffer_UnsafePointer``).

        The device ``cpu`` waits for the value: a computation that fails may have no memory.
        """
        raise unimplemented(self.client.platform_name, "Buffer.unsafe_pointer")

    def raw(self) -> RawBuffer:
        """Return the bytes behind the buffer, to read and write them in place (RawBuffer extension)."""
        raise unimplemented(self.client.platform_name, "Buffer.raw")

    def wait_until_ready_on_stream(self, stream: int) -> None:
        """Make a stream of the platform wait for the value; the caller does not wait (Stream extension)."""
        raise unimplemented(self.client.platform_name, "Buffer.wait_until_ready_on_stream")

    def copy_to_remote_device(self, descriptor: Future[bytes]) -> Future[None]:
        """Send the value to a buffer that another process has made ready to receive it (CrossHostTransfers extension).

        Args:
            descriptor: the buffer's entry of the receiver's ``CrossHostReceive.descriptors``, brought here by the
                caller.

        Returns:
            A future that is done when the value was sent.
        """
        raise unimplemented(self.client.platform_name, "Buffer.copy_to_remote_device")

    # Other libraries' protocols.

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """Return the value as a DLPack capsule that shares its memory; wait for the value."""
        raise unimplemented(
            self.client.platform_name, "Buffer.__dlpack__", "use numpy.asarray(buffer) to get the value"
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type and number."""
        raise unimplemented(
            self.client.platform_name, "Buffer.__dlpack_device__", "use numpy.asarray(buffer) to get the value"
        )

    def __repr__(self) -> str:
        state = " deleted" if self.is_deleted else ""
        shape = format_shape(self.element_type, self.shape)
        return f"<{type(self).__name__} {shape} on {self.device} in {self.memory_space.kind}{state}>"


class ExternalReference(abc.ABC):
    """Memory of a buffer that code outside of the runtime uses; a context manager
    (``PjRtBuffer::ExternalReference``).
    """

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def pointer(self) -> int:
        """The address on the device."""

    @abc.abstractmethod
    def release(self) -> None:
        """Release the memory (``PJRT_Buffer_DecreaseExternalReferenceCount``). A second call does nothing."""

    def __enter__(self) -> ExternalReference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
