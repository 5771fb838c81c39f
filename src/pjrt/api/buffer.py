"""Buffers: arrays in a device's memory (``PjRtBuffer``, ``PJRT_Buffer``)."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.element_type import AnyDType, ElementType
from pjrt.api.errors import unimplemented
from pjrt.api.future import Future
from pjrt.api.layout import Layout
from pjrt.api.shape_spec import format_shape

if TYPE_CHECKING:
    from pjrt.api.client import Client
    from pjrt.api.device import Device
    from pjrt.api.memory_space import MemorySpace
    from pjrt.api.raw_buffer import RawBuffer


class Buffer(abc.ABC):
    """An array in one memory space of one device.

    It may not have its value yet: ``ready`` says when, and everything that needs the value waits for it. If the
    computation that was to make it fails, the error arrives wherever the value would have. After ``delete`` or
    donation, every use but the metadata is a ``FailedPreconditionError``.
    """

    __slots__ = ("__weakref__",)

    # What it is.

    @property
    @abc.abstractmethod
    def client(self) -> Client:
        """The client that the buffer belongs to."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions; of a bounded dynamic dimension the bound (``PJRT_Buffer_Dimensions``)."""

    @property
    @abc.abstractmethod
    def element_type(self) -> ElementType:
        """The type of the elements (``PJRT_Buffer_ElementType``)."""

    @property
    def dtype(self) -> AnyDType:
        """The numpy dtype of the elements."""
        return self.element_type.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    @abc.abstractmethod
    def layout(self) -> Layout:
        """How the elements lie in the device's memory (``PJRT_Buffer_GetMemoryLayout``)."""

    @property
    def dynamic_dimensions(self) -> tuple[int, ...]:
        """The numbers of the dimensions whose size is known only at run time
        (``PJRT_Buffer_DynamicDimensionIndices``).
        """
        return ()

    @property
    def unpadded_shape(self) -> tuple[int, ...]:
        """The sizes without padding of dynamic dimensions (``PJRT_Buffer_UnpaddedDimensions``); may wait for the
        value.
        """
        return self.shape

    @property
    @abc.abstractmethod
    def on_device_size(self) -> int:
        """The bytes that the buffer takes on its device, padding included (``PJRT_Buffer_OnDeviceSizeInBytes``)."""

    @property
    @abc.abstractmethod
    def device(self) -> Device:
        """The device whose buffer it is (``PJRT_Buffer_Device``)."""

    @property
    @abc.abstractmethod
    def memory_space(self) -> MemorySpace:
        """The memory space it lives in (``PJRT_Buffer_Memory``)."""

    @property
    @abc.abstractmethod
    def is_on_cpu(self) -> bool:
        """Whether the host's processor can read the memory in place (``PJRT_Buffer_IsOnCpu``)."""

    # Its life.

    @property
    @abc.abstractmethod
    def is_deleted(self) -> bool:
        """Whether it was deleted or donated (``PJRT_Buffer_IsDeleted``)."""

    @abc.abstractmethod
    def delete(self) -> None:
        """Gives the memory up (``PJRT_Buffer_Delete``); work that is already using it finishes first. May be called
        again.
        """

    @abc.abstractmethod
    def ready(self) -> Future[None]:
        """Done when the value is there, or failed with the error that came instead (``PJRT_Buffer_ReadyEvent``)."""

    # To the host.

    @abc.abstractmethod
    def to_host(
        self, out: np.ndarray[Any, Any] | None = None, *, layout: Layout | None = None
    ) -> Future[np.ndarray[Any, Any]]:
        """Copies the value to the host (``PJRT_Buffer_ToHostBuffer``).

        Args:
            out: a writable array of the same shape and dtype to fill; otherwise a new one is made. Without ``out`` a
                device whose memory the host can read may answer with a read-only view of the buffer instead of a copy.
            layout: how the new array is to lie in the host's memory; row-major if not said.

        Returns:
            A future of the array.
        """

    def copy_raw_to_host(self, out: Any, offset: int = 0, size: int | None = None) -> Future[None]:
        """Copies bytes as they lie on the device (``PJRT_Buffer_CopyRawToHost``).

        Args:
            out: a writable object with the buffer protocol; must stay alive until the future is done.
            offset: where to begin in the buffer, in bytes.
            size: how many bytes; if not said, as many as ``out`` has room for.
        """
        raise unimplemented(self.client.platform_name, "Buffer.copy_raw_to_host")

    def copy_raw_to_host_future(self, out: Future[Any], offset: int = 0, size: int | None = None) -> Future[None]:
        """As ``copy_raw_to_host`` into memory that is not there yet: ``out`` gives it when it is
        (``PJRT_Buffer_CopyRawToHostFuture``).
        """
        raise unimplemented(self.client.platform_name, "Buffer.copy_raw_to_host_future")

    # To other places and other hands.

    @abc.abstractmethod
    def copy_to(self, destination: Device | MemorySpace) -> Buffer:
        """A copy on another device or in another memory space (``PJRT_Buffer_CopyToDevice``,
        ``PJRT_Buffer_CopyToMemory``).
        """

    def bitcast(self, element_type: ElementType, shape: Sequence[int], layout: Layout | None = None) -> Buffer:
        """The same bytes read as another type and shape of the same size; takes the memory over
        (``PJRT_Buffer_Bitcast``).
        """
        raise unimplemented(self.client.platform_name, "Buffer.bitcast")

    def donate_with_control_dependency(self, dependency: Future[Any]) -> Buffer:
        """Gives the memory up to a new buffer that is ready only when the dependency is done too
        (``PJRT_Buffer_DonateWithControlDependency``)."""
        raise unimplemented(self.client.platform_name, "Buffer.donate_with_control_dependency")

    def external_reference(self) -> ExternalReference:
        """Keeps the memory alive for a user outside of the runtime and gives its address
        (``PJRT_Buffer_IncreaseExternalReferenceCount``, ``PJRT_Buffer_OpaqueDeviceMemoryDataPointer``)."""
        raise unimplemented(self.client.platform_name, "Buffer.external_reference")

    def unsafe_pointer(self) -> int:
        """The address of the memory on the device, without any promise that it stays
        (``PJRT_Buffer_UnsafePointer``).
        """
        raise unimplemented(self.client.platform_name, "Buffer.unsafe_pointer")

    def raw(self) -> RawBuffer:
        """The bytes behind the buffer, to be read and written in place (RawBuffer extension)."""
        raise unimplemented(self.client.platform_name, "Buffer.raw")

    def wait_until_ready_on_stream(self, stream: int) -> None:
        """Makes a stream of the platform wait for the value, not the caller (Stream extension)."""
        raise unimplemented(self.client.platform_name, "Buffer.wait_until_ready_on_stream")

    def copy_to_remote_device(self, descriptor: Future[bytes]) -> Future[None]:
        """Sends the value to a buffer that another process made ready to receive it (CrossHostTransfers extension).

        Args:
            descriptor: what the receiver's ``CrossHostReceive.descriptors`` said, brought here by the caller.

        Returns:
            A future that is done when the value was sent.
        """
        raise unimplemented(self.client.platform_name, "Buffer.copy_to_remote_device")

    # Python's own protocols.

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The value as a numpy array; waits for it. Without a copy where the device allows, and then read-only."""
        array = self.to_host().result()
        if dtype is not None and array.dtype != np.dtype(dtype):
            if copy is False:
                raise ValueError(f"an array of {array.dtype} cannot become {np.dtype(dtype)} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """The value as a DLPack capsule, sharing memory; waits for the value."""
        raise unimplemented(
            self.client.platform_name, "Buffer.__dlpack__", "use numpy.asarray(buffer) to get the value"
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device type and number."""
        raise unimplemented(
            self.client.platform_name, "Buffer.__dlpack_device__", "use numpy.asarray(buffer) to get the value"
        )

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar buffer has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        state = " deleted" if self.is_deleted else ""
        shape = format_shape(self.element_type, self.shape)
        return f"<{type(self).__name__} {shape} on {self.device} in {self.memory_space.kind}{state}>"


class ExternalReference(abc.ABC):
    """Memory of a buffer in the hands of someone outside of the runtime; a context manager
    (``PjRtBuffer::ExternalReference``).
    """

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def pointer(self) -> int:
        """The address on the device."""

    @abc.abstractmethod
    def release(self) -> None:
        """Says that the memory is not used any more (``PJRT_Buffer_DecreaseExternalReferenceCount``); may be called
        again.
        """

    def __enter__(self) -> ExternalReference:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
