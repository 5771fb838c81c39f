"""Buffers: arrays in a device's memory (``PjRtBuffer``, ``PJRT_Buffer``), and what fills them.

A buffer is an array value: it converts itself to Python's and numpy's, by way of a copy on the host.
"""

from __future__ import annotations

import abc
import enum
import math
import operator
from collections.abc import Generator, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from pjrt.api.checks import SingleValue
from pjrt.api.element_type import AnyDType, ElementType
from pjrt.api.errors import DeadlineExceededError, InvalidArgumentError, PjrtError, unimplemented
from pjrt.api.future import Future
from pjrt.api.shape_spec import format_shape

if TYPE_CHECKING:
    from pjrt.api.client import Client
    from pjrt.api.device import Attributes, Device, MemorySpace
    from pjrt.api.shape_spec import Layout


_SHOWN_BYTES = 1 << 16
_SHOWN_ELEMENTS = 100
_COPY_SECONDS = 0.05


class ArrayValue(SingleValue, abc.ABC):
    """An array whose value numpy and Python can read: a buffer, or an array that is spread over devices.

    Each conversion waits for the value and copies it to the host, as ``to_host`` does. It raises the error of the
    computation if that failed, and a ``FailedPreconditionError`` after ``delete`` or a donation. To read several
    elements, call ``numpy.asarray`` once: ``array[0]`` and ``array[1]`` copy the whole array twice, where the device's
    memory is not the host's.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""

    @property
    @abc.abstractmethod
    def element_type(self) -> ElementType:
        """The type of the elements."""

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
    def nbytes(self) -> int:
        """The bytes of the elements as a numpy array, where those of less than a byte take one byte each; 0 for a
        token.
        """
        return 0 if self.element_type is ElementType.TOKEN else self.size * self.dtype.itemsize

    @property
    @abc.abstractmethod
    def is_deleted(self) -> bool:
        """Whether the array was deleted or donated."""

    @abc.abstractmethod
    def ready(self) -> Future[None]:
        """Return a future that is done when the value is there, or fails with its error."""

    @abc.abstractmethod
    def to_host(self) -> Future[np.ndarray[Any, Any]]:
        """Copy the value to the host."""

    # Numpy's protocol.

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return the value as a numpy array; wait for it. Without a copy where the device
        allows that, then read-only.

        Raises:
            ValueError: another dtype is asked for, and no copy.
        """
        array = self.to_host().result()
        if dtype is not None and array.dtype != np.dtype(dtype):
            if copy is False:
                raise ValueError(f"an array of {array.dtype} cannot become {np.dtype(dtype)} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    # Python values.

    def item(self) -> bool | int | float | complex:
        """Return the value of an array of one element as a Python number; wait for it.

        Raises:
            InvalidArgumentError: the array has no elements, or several.
        """
        if self.size != 1:
            raise InvalidArgumentError(
                f"expected an array of one element, found {self._described()}; use array[index] for one of them, or "
                "tolist"
            )
        number: bool | int | float | complex = _with_python_numbers(self.__array__()).item()
        return number

    def tolist(self) -> Any:
        """Return the value as nested lists of Python numbers, or as one number if the array has no dimensions; wait for
        it.
        """
        return _with_python_numbers(self.__array__()).tolist()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self._only_number("float"))  # type: ignore[arg-type]  # complex raises a TypeError, as it should

    def __int__(self) -> int:
        return int(self._only_number("int"))  # type: ignore[arg-type]  # as above

    def __complex__(self) -> complex:
        return complex(self._only_number("complex"))

    def __index__(self) -> int:
        if not (self.element_type.is_integer and self.ndim == 0):
            raise TypeError(f"only an array of integers without dimensions is an index, found {self._described()}")
        return operator.index(self.item())  # type: ignore[arg-type]  # an integer

    def _only_number(self, kind: str) -> bool | int | float | complex:
        if self.size != 1:
            # Python's and numpy's error for a value that is no number.
            raise TypeError(f"only an array of one element can become a Python {kind}, found {self._described()}")
        return self.item()

    # A sequence along the first dimension.

    def __getitem__(self, index: Any) -> Any:
        """Return numpy's ``numpy.asarray(self)[index]``: a numpy array or scalar on the host; wait for the value.

        The whole array is copied to the host first, where the device's memory is not the host's.
        """
        return self.__array__()[index]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"an array without dimensions has no length, found {self._described()}")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError(f"an array without dimensions cannot be iterated over, found {self._described()}")
        return iter(self.__array__())

    def __contains__(self, value: object) -> bool:
        return value in self.__array__()

    # asyncio.

    def __await__(self) -> Generator[Any, None, Self]:
        """Wait for the value without blocking the event loop; the result is the array itself."""
        yield from self.ready().__await__()
        return self

    # Notebooks.

    def _repr_html_(self) -> str:
        """Return a description for notebooks, with the first values of a small array that is ready.

        It does not wait for the computation, and a twentieth of a second at most for the copy to the host.
        """
        # Only notebooks need it, and it has a large table.
        import html

        lines = [f"<code>{html.escape(repr(self))}</code>"]
        try:
            values = self._values_now()
        except PjrtError as error:
            values = f"failed: {error}"
        if values:
            lines.append(f"<pre>{html.escape(values)}</pre>")
        return f"<div>{''.join(lines)}</div>"

    def _values_now(self) -> str:
        """Return the first values, or the state that keeps them from being read."""
        if self.is_deleted or self.element_type is ElementType.TOKEN:
            return ""
        ready = self.ready()
        if not ready.done():
            return "not ready"
        ready.result()
        if self.nbytes > _SHOWN_BYTES:
            return ""
        try:
            array = self.to_host().result(_COPY_SECONDS)
        except DeadlineExceededError:
            return ""
        return np.array2string(array, threshold=_SHOWN_ELEMENTS, separator=", ")

    def _described(self) -> str:
        return format_shape(self.element_type, self.shape)


def _with_python_numbers(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array with the same values whose elements numpy turns into Python's numbers.

    The types of ml_dtypes stay what they are in ``ndarray.item``; 64 bits have room for all of their values.
    """
    if array.dtype.isbuiltin == 1:
        return array
    with np.errstate(invalid="ignore"):  # numpy warns about signaling NaNs
        return array.astype(np.int64 if ElementType.of(array.dtype).is_integer else np.float64)


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


class HostBufferSemantics(enum.IntEnum):
    """The caller's promise about the memory of a host array, and the device's right to use it."""

    IMMUTABLE_ONLY_DURING_CALL = 0
    """The array may change as soon as the call returns: the device copies it before that."""

    IMMUTABLE_UNTIL_TRANSFER_COMPLETES = 1
    """The array stays unchanged until the device has a copy and calls the release callback."""

    IMMUTABLE_ZERO_COPY = 2
    """The device may use the array's own memory as long as the buffer exists; the caller does not change it. The
    release callback is called when the buffer is gone.
    """

    MUTABLE_ZERO_COPY = 3
    """As ``IMMUTABLE_ZERO_COPY``, and the device may also write to the memory, for example after a donation."""


class AliasFulfillment(abc.ABC):
    """Names, once, the buffer that an alias buffer is an alias of (``PJRT_FulfillAliasBufferCallback``)."""

    __slots__ = ("__weakref__",)

    @abc.abstractmethod
    def fulfill(self, buffer: Buffer) -> None:
        """Give the alias the value of this buffer (``PJRT_Client_FulfillAliasBuffer``).

        Raises:
            InvalidArgumentError: the buffer has another type, layout or memory space than the alias.
            FailedPreconditionError: the alias has its buffer or its error already.
        """

    @abc.abstractmethod
    def fail(self, error: PjrtError) -> None:
        """Fail the alias: waiting for its value raises the error.

        Raises:
            FailedPreconditionError: the alias has its buffer or its error already.
        """


class RawBuffer(abc.ABC):
    """Memory of a device without shape or type, shared with the buffer that it was made from (``PJRT_RawBuffer``)."""

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def memory_space(self) -> MemorySpace:
        """The memory space of the bytes (``PJRT_RawBuffer_GetMemorySpace``)."""

    @property
    @abc.abstractmethod
    def on_device_size(self) -> int:
        """Its size in bytes (``PJRT_RawBuffer_GetOnDeviceSizeInBytes``)."""

    @abc.abstractmethod
    def host_pointer(self) -> int:
        """Return the address if the host can read the bytes in place, else 0 (``PJRT_RawBuffer_GetHostPointer``)."""

    @abc.abstractmethod
    def copy_from_host(self, source: Any, offset: int = 0) -> Future[None]:
        """Write the bytes of an object with the buffer protocol, from an offset on
        (``PJRT_RawBuffer_CopyRawHostToDevice``).

        Raises:
            OutOfRangeError: the buffer is too small for the bytes.
        """

    @abc.abstractmethod
    def copy_to_host(self, out: Any, offset: int = 0, size: int | None = None) -> Future[None]:
        """Read bytes into a writable object with the buffer protocol (``PJRT_RawBuffer_CopyRawDeviceToHost``).

        Raises:
            OutOfRangeError: the buffer does not have these bytes.
        """

    @abc.abstractmethod
    def release(self) -> None:
        """Release the memory (``PJRT_RawBuffer_Destroy``). A second call does nothing."""


class AsyncHostToDeviceTransferManager(abc.ABC):
    """Fills new buffers in pieces; a context manager (``PJRT_AsyncHostToDeviceTransferManager``).

    ``retrieve_buffer`` returns the buffers at once; each has its value when the last of its pieces has arrived. Closing
    the manager fails the buffers that lack pieces.
    """

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def device(self) -> Device:
        """The device of the buffers."""

    @property
    @abc.abstractmethod
    def buffer_count(self) -> int:
        """The number of buffers."""

    @abc.abstractmethod
    def buffer_size(self, index: int) -> int:
        """Return the number of bytes that a buffer takes on the device."""

    @abc.abstractmethod
    def retrieve_buffer(self, index: int) -> Buffer:
        """Return a buffer, once; it may not have its value yet.

        Raises:
            FailedPreconditionError: the buffer was retrieved already.
        """

    @abc.abstractmethod
    def transfer_data(self, index: int, data: Any, offset: int = 0, *, is_last_transfer: bool = True) -> Future[None]:
        """Copy bytes into a buffer (``PJRT_AsyncHostToDeviceTransferManager_TransferData``).

        Args:
            index: the buffer's number.
            data: an object with the buffer protocol, C-contiguous; must stay unchanged until the future is done.
            offset: the first byte of the buffer to write.
            is_last_transfer: whether the buffer has its value after this.

        Returns:
            A future that is done when the bytes are copied.

        Raises:
            OutOfRangeError: there is no such buffer, or it is too small for the bytes.
            FailedPreconditionError: the buffer has had its last transfer, or has failed.
        """

    @abc.abstractmethod
    def transfer_literal(self, index: int, array: Any) -> Future[None]:
        """Copy a whole array of the buffer's shape; it is the buffer's value (``..._TransferLiteral``)."""

    @abc.abstractmethod
    def set_buffer_error(self, index: int, error: PjrtError) -> None:
        """Fail a buffer: waiting for its value raises the error (``..._SetBufferError``)."""

    @abc.abstractmethod
    def add_metadata(self, metadata: Attributes) -> None:
        """Add facts about the transfer for tracing (``..._AddMetadata``)."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the transfers (``..._Destroy``). A second call does nothing."""

    def __enter__(self) -> AsyncHostToDeviceTransferManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class CopyToDeviceStream(abc.ABC):
    """Takes the chunks of a value that a program receives from the host (``PJRT_CopyToDeviceStream``)."""

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def total_bytes(self) -> int:
        """The number of bytes of the whole transfer."""

    @property
    @abc.abstractmethod
    def granule_size(self) -> int:
        """The number of bytes of which every chunk must be a multiple."""

    @property
    @abc.abstractmethod
    def current_bytes(self) -> int:
        """The number of bytes that were added so far."""

    @abc.abstractmethod
    def add_chunk(self, data: Any) -> Future[None]:
        """Add the next bytes (``PJRT_CopyToDeviceStream_AddChunk``); they are copied before the call returns.

        Raises:
            InvalidArgumentError: the size is not a multiple of the granule, or more bytes than are missing.
        """


class CrossHostReceive(abc.ABC):
    """Buffers that wait for values from another process (``MakeCrossHostReceiveBuffers``)."""

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def buffers(self) -> Sequence[Buffer]:
        """The buffers; they get their values from the sender."""

    @property
    @abc.abstractmethod
    def descriptors(self) -> Future[Sequence[bytes]]:
        """For each buffer the bytes that the sender passes to ``Buffer.copy_to_remote_device``."""

    @abc.abstractmethod
    def cancel(self, index: int, reason: str) -> Future[None]:
        """Stop waiting for one buffer, which fails with ``CANCELLED`` and the reason.

        Returns:
            A future that is done when the sender can be informed.
        """
