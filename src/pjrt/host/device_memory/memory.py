"""The contract of memory: an allocator of a device's author."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.errors import UnimplementedError
from pjrt.host.device_memory.fences import wait_for
from pjrt.host_memory.array import HostArray, array_dtype

if TYPE_CHECKING:
    from pjrt.api.device import MemorySpace
    from pjrt.api.shape_spec import ShapeSpec


class Memory(abc.ABC):
    """The memory of a device: an allocator whose *handles* stand for arrays, such as tensors of a library.

    A handle is any Python object but ``None``, and a tuple or a list, which are sequences of results. Programs take
    handles and return handles, and arrays are row-major. Four methods are required; the others make a device faster,
    or offer more.

    ``copy_in``, ``copy_out`` and ``copy`` may return before they are done. Then they return a *fence*: a
    ``pjrt.Future``, a ``concurrent.futures.Future``, an object with a method ``wait``, ``synchronize`` or ``result``,
    or a function that returns when the copy is done. The arguments stay alive until then. The methods are called on
    threads of the runtime, also for several arrays at a time.

    Attributes:
        kinds: the kinds of memory that each device has, its default one first.
        is_on_host: whether the memory is the host's: ``pointer`` gives addresses of this process, ``host_view`` gives
            arrays, and copies are those of the processor. Copies to the device are then made on the caller's thread,
            without an array in between.
    """

    kinds: tuple[str, ...] = ("device",)
    is_on_host: bool = False

    @abc.abstractmethod
    def allocate(self, spec: ShapeSpec, space: MemorySpace) -> Any:
        """Return a handle of new memory; its contents do not matter.

        Args:
            spec: the shape and the element type.
            space: the memory space; it has the device and the kind of memory.

        Raises:
            ResourceExhaustedError, MemoryError: there is no room.
        """

    def free(self, handle: Any) -> None:  # noqa: B027  # a handle that Python frees needs no more
        """Free the memory of a handle, which nothing uses any more.

        Called once for each handle that came from ``allocate``, from ``from_dlpack`` or from a program, on any thread.
        By default the handle is only dropped.
        """

    @abc.abstractmethod
    def copy_in(self, handle: Any, array: HostArray) -> Any:
        """Copy a host array, row-major, of the handle's shape and dtype, into the memory."""

    @abc.abstractmethod
    def copy_out(self, handle: Any, array: HostArray) -> Any:
        """Copy the memory into a host array, row-major, of the handle's shape and dtype."""

    def copy(self, source: Any, target: Any, spec: ShapeSpec) -> Any:
        """Copy one handle's memory into that of another, perhaps of another device.

        By default it goes through the host: by an array in between, or straight from what ``host_view`` shows.

        Args:
            source: the handle to read.
            target: the handle to write, of the same shape and element type.
            spec: the shape and the element type of both.
        """
        dtype = array_dtype(spec.element_type)
        visible = self.host_view(source)
        if visible is None:
            visible = np.empty(spec.shape, dtype)
            wait_for(self.copy_out(source, visible))
        wait_for(self.copy_in(target, visible.reshape(-1).view(np.uint8).view(dtype).reshape(spec.shape)))

    def size_of(self, spec: ShapeSpec, space: MemorySpace) -> int:
        """Return the bytes that an array takes in the memory: by default those of its elements.

        A memory that stores arrays in tiles, or aligns them, takes more. The limit of the memory and its statistics
        count these bytes.

        Args:
            spec: the shape and the element type.
            space: the memory space.
        """
        return spec.size_in_bytes

    def host_view(self, handle: Any) -> HostArray | None:
        """Return a numpy array over the memory itself, or ``None``, the default, if the host cannot see it.

        The array is row-major and has all bytes of the memory; its dtype and shape do not matter. With it, copies to
        the host and the fallback's operations read the memory itself. The memory stays until no view of it is left.
        """
        return None

    def import_array(self, array: HostArray, spec: ShapeSpec, space: MemorySpace) -> Any:
        """Return a handle that uses a host array in place, or ``None``, the default, if it must be copied.

        The handle must hold the array: its memory is the caller's again when the array is dropped. No program writes
        to it.

        Args:
            array: the array, row-major.
            spec: its shape and element type.
            space: the memory space.
        """
        return None

    def stats(self, space: MemorySpace) -> Mapping[str, int]:
        """Return facts of the device's own allocator, by the names of ``pjrt.AllocatorStats``; none by default.

        They are added to those that the runtime counts: the bytes of buffers.
        """
        return {}

    def pointer(self, handle: Any) -> int:
        """Return the address of the memory, in the address space of the device.

        Raises:
            UnimplementedError: the memory has no addresses; the default.
        """
        raise UnimplementedError(f"{type(self).__name__} gives no addresses of its memory: it has no method pointer")

    def to_dlpack(self, handle: Any) -> Any:
        """Return an object with ``__dlpack__`` that shares the memory, such as a tensor.

        The memory stays until the consumer of the object is done with it, also after ``free``. From then on, no program
        writes to the memory: a donation gets a copy.

        Raises:
            UnimplementedError: the memory cannot be shared; the default.
        """
        raise UnimplementedError(f"{type(self).__name__} shares no memory by DLPack: it has no method to_dlpack")

    def from_dlpack(self, source: Any, space: MemorySpace) -> Any:
        """Return a handle that shares the memory of an object with ``__dlpack__``.

        Raises:
            UnimplementedError: the memory cannot be shared; the default.
        """
        raise UnimplementedError(f"{type(self).__name__} takes no memory by DLPack: it has no method from_dlpack")

    def spec_of(self, handle: Any) -> ShapeSpec | None:
        """Return the shape and element type of a handle, or ``None``, the default, if handles do not know them.

        With it, the runtime checks the results of programs, and programs need not declare their outputs.
        """
        return None
