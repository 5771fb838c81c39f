"""Allocations: handles of a device's memory, each with its type, freed when nothing uses it any more."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.device import MemorySpace
from pjrt.api.errors import InternalError, InvalidArgumentError, ResourceExhaustedError
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host.device_memory.fences import wait_for
from pjrt.host.device_memory.memory import Memory
from pjrt.host.fork_safety import generation
from pjrt.host_memory.array import HostArray, array_dtype
from pjrt.host_memory.external import ExternalMemory

if TYPE_CHECKING:
    from pjrt.host.device_memory.fence_waiter import Completion

_log = logging.getLogger("pjrt")


def free(memory: Memory, handle: Any, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Free the memory of a handle; an exception of the author's code is logged.

    Often the garbage collector drops an allocation, and must go on. At the end of the interpreter the names that the
    author's code needs may be gone, as those of this module may be, but for those bound as defaults.
    """
    try:
        memory.free(handle)
    except BaseException:
        if not is_finalizing():
            _log.exception("the free method of a device's memory raised; the exception is ignored")


class Allocation:
    """One array in a device's memory.

    Attributes:
        memory: the author's allocator.
        handle: the author's handle.
        spec: the shape and the element type.
        space: the memory space.
        work: the enqueued work that writes to the memory; its end is waited for before the memory is read or freed.
        is_shared: whether something that the runtime cannot see may use the memory, so that no program may write to it.
    """

    __slots__ = (
        "__weakref__", "_generation", "_owner", "handle", "is_shared", "memory", "space", "spec", "work",
    )  # fmt: skip

    def __init__(self, memory: Memory, handle: Any, spec: ShapeSpec, space: MemorySpace) -> None:
        self.memory = memory
        self.handle = handle
        self.spec = spec
        self.space = space
        self.work: Completion | None = None
        self.is_shared = False
        self._owner: Allocation | None = None
        self._generation = generation()

    @staticmethod
    def new(memory: Memory, spec: ShapeSpec, space: MemorySpace) -> Allocation:
        """Return new memory, whose contents do not matter; wait for work under way that frees some if there is no room.

        Raises:
            ResourceExhaustedError: there is no room.
            InvalidArgumentError: the handle is None, a tuple or a list.
        """
        plain = ShapeSpec(spec.shape, spec.element_type)
        while True:
            try:
                handle = memory.allocate(plain, space)
                break
            except MemoryError as error:
                if space.devices[0].wait_for_memory():  # type: ignore[attr-defined]  # a device of the runtime
                    continue
                if isinstance(error, ResourceExhaustedError):
                    raise
                raise ResourceExhaustedError(f"out of memory on {space}: {plain} does not fit: {error}") from error
        if handle is None or isinstance(handle, (tuple, list)):
            raise InvalidArgumentError(
                f"expected a handle from {type(memory).__name__}.allocate, found {handle!r}: None is no handle, and "
                "programs return tuples and lists for several results; make the handle an object of a class"
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

    def cast(self, spec: ShapeSpec) -> Allocation:
        """Return the same memory with another type. The first allocation lives as long, and frees it."""
        cast = Allocation(self.memory, self.handle, spec, self.space)
        cast._owner = self if self._owner is None else self._owner
        cast.work = self.work
        # References to one of the two do not say whether a program may write to the memory.
        cast.is_shared = cast._owner.is_shared = True
        return cast

    def busy_until(self, work: Completion) -> None:
        """Set the enqueued work that writes to the memory."""
        self.work = work
        if self._owner is not None:
            self._owner.work = work

    def wait(self) -> None:
        """Wait for the enqueued work that writes to the memory.

        Raises:
            PjrtError: the work has failed.
        """
        work = self.work
        if work is not None:
            work.definition.result()
            if work.has_ended:
                self.work = None

    def write(self, array: HostArray) -> None:
        """Copy a host array into the memory, and wait for it."""
        self.wait()
        source = np.ascontiguousarray(array, array_dtype(self.spec.element_type)).reshape(self.spec.shape)
        wait_for(self.memory.copy_in(self.handle, source))

    def read(self, out: HostArray | None = None) -> HostArray:
        """Copy the memory to the host, and wait for it.

        Args:
            out: the array to copy to, of any strides; a new one by default.
        """
        self.wait()
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
        self.wait()
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
        self.wait()
        target = Allocation.new(self.memory, self.spec, space)
        wait_for(self.memory.copy(self.handle, target.handle, self.spec))
        return target

    def check(self, source: str, spec: ShapeSpec) -> Allocation:
        """Check the type, and that which the memory knows for the handle, and return the allocation.

        Args:
            source: the name of the function that gave it, for messages.
            spec: the expected type; its layout does not matter.

        Raises:
            InternalError: the shape or the element type is another one.
        """
        own, stated = self.spec, self.memory.spec_of(self.handle)
        if own is spec and (stated is spec or stated is None):  # every result is checked: the usual case is quick
            return self
        for actual in (own, stated):
            if actual is None or actual is spec:
                continue
            if (actual.shape, actual.element_type) != (spec.shape, spec.element_type):
                raise InternalError(f"{source} gave a handle of {actual}, expected {spec}")
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

    def __del__(self, generation: Callable[[], int] = generation, free: Callable[[Memory, Any], None] = free) -> None:
        # In the child of a fork, the memory is the parent's. (A constructor that failed leaves attributes unset.)
        if getattr(self, "_generation", None) != generation() or self._owner is not None:
            return
        if self.handle is None:  # a function returned no handle, which is an error by now
            return
        work = self.work
        if work is None or work.has_ended:
            free(self.memory, self.handle)
        else:
            work.free_later(self.memory, self.handle)


class HandleTable:
    """The allocations of one call of an author's function, by their handles: each handle has one owner.

    Handles are the same if they are one object, or equal integers: addresses.

    Args:
        memory: the author's allocator.
        arguments: the arguments of the call; those that are no allocations are left out.
    """

    __slots__ = ("_allocations", "_memory")

    def __init__(self, memory: Memory, arguments: Iterable[Any]) -> None:
        self._memory = memory
        self._allocations = {_identity(a.handle): a for a in arguments if isinstance(a, Allocation)}

    def own(self, handle: Any, spec: ShapeSpec | None, space: MemorySpace) -> Allocation:
        """Return the allocation of a handle: an argument's, or a new one, with a type; ``None`` is not known yet."""
        plain: Any = spec if spec is None or spec.layout is None else ShapeSpec(spec.shape, spec.element_type)
        key = _identity(handle)
        allocation = self._allocations.get(key)
        if allocation is None:
            allocation = self._allocations[key] = Allocation(self._memory, handle, plain, space)
            return allocation
        return allocation if plain is None or allocation.spec == plain else allocation.cast(plain)


def _identity(handle: Any) -> Any:
    return handle if type(handle) is int else (id(handle),)


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
