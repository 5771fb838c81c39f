"""Allocations: handles of a device's memory, each with its type, freed when nothing uses it any more."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from pjrt.api.errors import InternalError, InvalidArgumentError, ResourceExhaustedError
from pjrt.api.memory_space import MemorySpace
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host.device_memory.fences import wait_for
from pjrt.host.device_memory.memory import Memory
from pjrt.host_memory.aligned import HostArray
from pjrt.host_memory.external import ExternalMemory
from pjrt.host_memory.layout import array_dtype

_log = logging.getLogger("pjrt")


class Allocation:
    """One array in a device's memory.

    Attributes:
        memory: the author's allocator.
        handle: the author's handle.
        spec: the shape and the element type.
        space: the memory space.
    """

    __slots__ = ("__weakref__", "handle", "memory", "space", "spec")

    def __init__(self, memory: Memory, handle: Any, spec: ShapeSpec, space: MemorySpace) -> None:
        self.memory = memory
        self.handle = handle
        self.spec = spec
        self.space = space

    @staticmethod
    def new(memory: Memory, spec: ShapeSpec, space: MemorySpace) -> Allocation:
        """Return new memory, whose contents do not matter.

        Raises:
            ResourceExhaustedError: there is no room.
            InvalidArgumentError: the handle is a tuple or a list.
        """
        plain = ShapeSpec(spec.shape, spec.element_type)
        try:
            handle = memory.allocate(plain, space)
        except MemoryError as error:
            if isinstance(error, ResourceExhaustedError):
                raise
            raise ResourceExhaustedError(f"out of memory on {space}: {plain} does not fit: {error}") from error
        if isinstance(handle, (tuple, list)):
            raise InvalidArgumentError(
                f"expected a handle from {type(memory).__name__}.allocate, found a {type(handle).__name__}: programs "
                "return those for several results; make the handle an object of a class"
            )
        return Allocation(memory, handle, plain, space)

    @staticmethod
    def of_array(memory: Memory, array: HostArray, spec: ShapeSpec, space: MemorySpace) -> Allocation:
        """Return new memory with the values of a host array."""
        allocation = Allocation.new(memory, spec, space)
        allocation.write(array)
        return allocation

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.spec.shape

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.spec.size_in_bytes

    def write(self, array: HostArray) -> None:
        """Copy a host array into the memory, and wait for it."""
        source = np.ascontiguousarray(array, array_dtype(self.spec.element_type)).reshape(self.spec.shape)
        wait_for(self.memory.copy_in(self.handle, source))

    def read(self, out: HostArray | None = None) -> HostArray:
        """Copy the memory to the host, and wait for it.

        Args:
            out: the array to copy to, of any strides; a new one by default.
        """
        if out is None or not out.flags.c_contiguous:
            staging = np.empty(self.spec.shape, array_dtype(self.spec.element_type))
            wait_for(self.memory.copy_out(self.handle, staging))
            if out is None:
                return staging
            np.copyto(out, staging)
            return out
        wait_for(self.memory.copy_out(self.handle, out))
        return out

    def view(self) -> HostArray:
        """Return the values on the host: the memory itself, read-only, if the host can see it, and a copy otherwise.

        A view keeps the memory alive, and a donation of the memory gets a copy while it lives.
        """
        visible = self.memory.host_view(self.handle)
        if visible is None:
            return self.read()
        dtype = array_dtype(self.spec.element_type)
        if visible.nbytes != self.spec.size * dtype.itemsize or not visible.flags.c_contiguous:
            raise InternalError(
                f"host_view of {type(self.memory).__name__} gave an array of {visible.nbytes} bytes, expected a "
                f"row-major one of {self.spec}"
            )
        if visible.nbytes == 0:
            return np.empty(self.spec.shape, dtype)
        array = ExternalMemory(visible.ctypes.data, visible.nbytes, (self, visible)).array(self.spec.shape, dtype)
        array.setflags(write=False)
        return array

    def copied(self, space: MemorySpace) -> Allocation:
        """Return a copy in a memory space of the same allocator."""
        target = Allocation.new(self.memory, self.spec, space)
        wait_for(self.memory.copy(self.handle, target.handle, self.spec))
        return target

    def check(self, source: str) -> Allocation:
        """Check the handle's type, if handles know theirs, and return the allocation.

        Raises:
            InternalError: the handle has another shape or element type.
        """
        found = self.memory.spec_of(self.handle)
        if found is not None and (found.shape, found.element_type) != (self.spec.shape, self.spec.element_type):
            raise InternalError(f"{source} gave a handle of {found}, expected {self.spec}")
        return self

    # A condition or an index of control flow, which the host decides.

    def __bool__(self) -> bool:
        return bool(self.view())

    def __index__(self) -> int:
        return int(self.view())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> HostArray:
        array = self.read() if copy else self.view()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"<Allocation {self.spec} in {self.space}>"

    def __del__(self) -> None:
        memory = getattr(self, "memory", None)
        if memory is not None:
            try:
                memory.free(self.handle)
            except BaseException:  # The memory is often dropped by the garbage collector, which must go on.
                _log.exception("the free method of a device's memory raised; the exception is ignored")


_SMALL = 1 << 12
"""Bytes up to which a copy is faster than a view."""


def on_host(value: Any) -> Any:
    """Return an allocation as a numpy array, read-only or a copy; other values, such as arrays, as they are."""
    if not isinstance(value, Allocation):
        return value
    return value.read() if value.spec.size_in_bytes <= _SMALL else value.view()


def handle_of(value: Any) -> Any:
    """Return the handle of an allocation; other values, such as tokens, as they are."""
    return value.handle if isinstance(value, Allocation) else value
