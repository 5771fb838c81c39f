"""Memory of a device's own, which numpy cannot see: its author's allocator, and allocations.

Without one, buffers are numpy arrays, and nothing of this is used.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pjrt.api.device import MemorySpace
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    InternalError,
    InvalidArgumentError,
    ResourceExhaustedError,
    UnimplementedError,
)
from pjrt.api.shape_spec import ShapeSpec, TiledLayout
from pjrt.host.fences import Completion, RunWork, StepWork, free, wait_for
from pjrt.host.shutdown import generation
from pjrt.host_memory.array import HostArray, array_dtype, order_of
from pjrt.host_memory.external import ExternalMemory

# The contract of memory: an allocator of a device's author.


class Memory(abc.ABC):
    """The memory of a device: an allocator whose *handles* stand for arrays, such as tensors of a library.

    A handle is any Python object but ``None``, and a tuple or a list, which are sequences of results. Programs take
    handles and return handles. Arrays are row-major, unless ``layout`` says more. Four methods are required; the others
    make a device faster, or offer more.

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
            spec: the shape and the element type; and what ``layout`` returned, if the dimensions are not in rows.
            space: the memory space; it has the device and the kind of memory.

        Raises:
            ResourceExhaustedError, MemoryError: there is no room.
        """

    def free(self, handle: Any) -> None:  # noqa: B027  # a handle that Python frees needs no more
        """Free the memory of a handle, which nothing uses any more.

        Called once for each handle that came from ``allocate``, from ``from_dlpack`` or from a program, on any thread.
        By default the handle is only dropped.
        """

    def layout(self, spec: ShapeSpec, space: MemorySpace) -> TiledLayout | None:
        """Return how the memory lays out an array, or ``None``, the default, for rows without tiles.

        Frameworks see it: ``array.format`` in JAX. Arrays on the host are in rows in any case, so ``copy_in`` and
        ``copy_out`` divide them into tiles and put them together. If tiles are padded, or elements packed, ``size_of``
        has the bytes.

        Args:
            spec: the shape and the element type; its layout is the order of the dimensions that a framework or a
                compiler asks for, without tiles, and ``None`` for rows.
            space: the memory space.

        Returns:
            The layout, in the order that is asked for.

        Raises:
            UnimplementedError: the memory holds no such arrays, or not in this order; by default all orders but rows.
        """
        if spec.layout is None:
            return None
        raise UnimplementedError(
            f"the memory {space} holds row-major arrays only, found the layout {spec.layout}: {type(self).__name__} "
            "has no method layout"
        )

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
            spec: the shape and the element type of both, and the layout of the source if it is not in rows.
        """
        dtype = array_dtype(spec.element_type)
        visible = self.host_view(source)
        if visible is None:
            visible = np.empty(spec.shape, dtype)
            wait_for(self.copy_out(source, visible))
        wait_for(self.copy_in(target, visible.reshape(-1).view(np.uint8).view(dtype).reshape(spec.shape)))

    def copy_from_peer(self, source: Any, target: Any, spec: ShapeSpec) -> Any:
        """Copy the memory of a handle into that of another device of the client, in the queues of both.

        Nobody waits for work on the source that is under way: the copy comes behind what is in the queues, and what is
        enqueued next comes behind it.

        Args:
            source: the handle to read.
            target: the handle to write, which is new.
            spec: the shape and the element type of both, and the layout of the source if it is not in rows.

        Returns:
            A list of two fences: that of the source's device ends when the source is read, and that of the target's
            when the target is written. ``None`` if all is done; ``NotImplemented``, the default, for an array that
            ``copy`` copies, once it is there.
        """
        return NotImplemented

    # Collectives of devices of the client, in their own queues. A method is called once for all devices that take part,
    # with their handles in one order: those to read, and new ones to write. Nobody waits for work on a source that is
    # under way: the collective comes behind what is in the queues, and what is enqueued next comes behind it. A method
    # returns a list with a fence for each device, which ends when its target is written and its source is read; or
    # ``None`` if all is done; or ``NotImplemented``, the default, for a collective that goes through the host.

    def all_reduce(self, sources: Sequence[Any], targets: Sequence[Any], spec: ShapeSpec, reduction: str) -> Any:
        """Write the sources of all devices, combined, to all targets.

        Args:
            sources, targets: a handle for each device.
            spec: the shape and the element type of each source.
            reduction: ``add``, ``multiply``, ``minimum`` or ``maximum``.
        """
        return NotImplemented

    def all_gather(self, sources: Sequence[Any], targets: Sequence[Any], spec: ShapeSpec, dimension: int) -> Any:
        """Write the sources of all devices, side by side along a dimension, to all targets.

        Args:
            sources, targets, spec: as ``all_reduce`` has them.
            dimension: the dimension.
        """
        return NotImplemented

    def reduce_scatter(
        self, sources: Sequence[Any], targets: Sequence[Any], spec: ShapeSpec, reduction: str, dimension: int
    ) -> Any:
        """Combine the sources of all devices, and write to each target its part along a dimension.

        Args:
            sources, targets, spec, reduction: as ``all_reduce`` has them.
            dimension: the dimension, of which each device gets an equal part.
        """
        return NotImplemented

    def all_to_all(
        self,
        sources: Sequence[Any],
        targets: Sequence[Any],
        spec: ShapeSpec,
        split_dimension: int,
        concat_dimension: int,
    ) -> Any:
        """Cut each source into as many parts as there are devices, and write to each target its part of all of them.

        Args:
            sources, targets, spec: as ``all_reduce`` has them.
            split_dimension: the dimension along which the sources are cut.
            concat_dimension: the dimension along which the parts lie side by side.
        """
        return NotImplemented

    def broadcast(self, sources: Sequence[Any], targets: Sequence[Any], spec: ShapeSpec) -> Any:
        """Write the source of the first device to all targets.

        Args:
            sources, targets, spec: as ``all_reduce`` has them.
        """
        return NotImplemented

    def permute(
        self, sources: Sequence[Any], targets: Sequence[Any], spec: ShapeSpec, pairs: Sequence[tuple[int, int]]
    ) -> Any:
        """Copy sources to the targets of other devices. A target that is in no pair gets zeros.

        Args:
            sources, targets, spec: as ``all_reduce`` has them.
            pairs: the positions of the source and of the target among the devices.
        """
        return NotImplemented

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
        Arrays in tiles or in another order have no view: their bytes are read with ``copy_out``.
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


# Layouts: how a memory lays out arrays.


def has_layouts(memory: Memory | None) -> bool:
    """Return whether a memory says how it lays out arrays."""
    return memory is not None and type(memory).layout is not Memory.layout


def layout_in(memory: Memory, spec: ShapeSpec, space: MemorySpace) -> TiledLayout | None:
    """Return how a memory lays out an array; ``None`` for rows without tiles.

    Args:
        memory: the author's allocator.
        spec: the array; its layout is the order that is asked for, with the memory's tiles or without tiles.
        space: the memory space.

    Raises:
        UnimplementedError: the memory holds no such arrays, not in this order, or in other tiles.
        InternalError: the author's function gave something else than a layout in this order.
    """
    asked = spec.layout
    if spec.element_type is ElementType.TOKEN or (asked is None and not has_layouts(memory)):
        return None
    rows = own = TiledLayout.row_major(len(spec.shape))
    tiles = asked.tiles if isinstance(asked, TiledLayout) else ()
    if asked is not None:
        untiled = TiledLayout(asked.minor_to_major) if isinstance(asked, TiledLayout) else asked
        own = TiledLayout(order_of(untiled, spec.shape, spec.element_type)[::-1])
    given = memory.layout(ShapeSpec(spec.shape, spec.element_type, None if own == rows else own), space)
    given = rows if given is None else given
    if not isinstance(given, TiledLayout) or given.minor_to_major != own.minor_to_major:
        raise InternalError(
            f"expected a pjrt.TiledLayout in the order {own} from {type(memory).__name__}.layout for {spec}, found "
            f"{given}"
        )
    if given.element_bits and not (spec.element_type.bits <= given.element_bits and given.element_bits in (1, 2, 4)):
        raise InternalError(
            f"expected packed elements of 1, 2 or 4 bits that hold one of {spec} from {type(memory).__name__}.layout, "
            f"found {given}"
        )
    if tiles and tiles != given.tiles:
        raise UnimplementedError(f"the memory {space} lays out {spec} as {given}, found the layout {asked}")
    return None if given == rows else given


def kept_spec(memory: Memory, spec: ShapeSpec, space: MemorySpace) -> ShapeSpec:
    """Return the spec of an array in a memory as its allocation has it: with a layout if it is not in rows.

    Raises:
        PjrtError: for the reasons of ``layout_in``.
    """
    if spec.layout is None:
        return spec
    layout = layout_in(memory, spec, space)
    return ShapeSpec(spec.shape, spec.element_type, None if is_in_rows(layout) else layout)


def is_in_rows(layout: TiledLayout | None) -> bool:
    """Return whether the dimensions of a layout are in the order of rows, whatever its tiles."""
    return layout is None or layout.minor_to_major == TiledLayout.row_major(len(layout.minor_to_major)).minor_to_major


enqueuing = threading.Lock()
"""Held while a method enqueues work of several devices: all queues must get such work in one order."""

# Allocations: handles of a device's memory, each with its type, freed when nothing uses it any more.


class Allocation:
    """One array in a device's memory.

    Attributes:
        memory: the author's allocator.
        handle: the author's handle.
        spec: the shape and the element type; and the layout, if the dimensions are not in rows.
        space: the memory space.
        work: the enqueued work that writes to the memory; its end is waited for before the memory is read.
        is_shared: whether something that the runtime cannot see may use the memory, so that no program may write to it.
    """

    __slots__ = (
        "__weakref__", "_copy", "_generation", "_owner", "_user", "handle", "is_shared", "memory", "space", "spec",
        "work",
    )  # fmt: skip

    def __init__(self, memory: Memory, handle: Any, spec: ShapeSpec, space: MemorySpace) -> None:
        self.memory = memory
        self.handle = handle
        self.spec = spec
        self.space = space
        self.work: Completion | StepWork | None = None
        self._user: Completion | StepWork | None = None
        self._copy: HostArray | None = None
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
        plain = kept_spec(memory, spec, space)
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

    @staticmethod
    def begin_of_array(
        memory: Memory, array: HostArray, spec: ShapeSpec, space: MemorySpace, run: RunWork, step: object
    ) -> Allocation:
        """Return new memory that gets the values of a host array behind the work that a run has enqueued."""
        allocation = Allocation.new(memory, spec, space)
        source = np.ascontiguousarray(array, array_dtype(spec.element_type)).reshape(spec.shape)
        fence = memory.copy_in(allocation.handle, source)
        if fence is not None:
            allocation.busy_until(run.add(fence, step, f"{type(memory).__name__}.copy_in", source))
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
        cast._user = self._user
        # References to one of the two do not say whether a program may write to the memory.
        cast.is_shared = cast._owner.is_shared = True
        return cast

    def busy_until(self, work: Completion | StepWork) -> None:
        """Set the enqueued work that writes to the memory."""
        self.work = work
        self._copy = None
        if self._owner is not None:
            self._owner.work = work
        self.used_by(work)

    def used_by(self, work: Completion | StepWork) -> None:
        """Set the last enqueued work that uses the memory: it is freed behind it."""
        self._user = work
        if self._owner is not None:
            self._owner._user = work

    def wait(self) -> None:
        """Wait for the enqueued work that writes to the memory.

        Raises:
            PjrtError: the work has failed.
        """
        work = self.work
        if work is not None:
            work.result()
            if work.has_ended:
                self.work = None

    def write(self, array: HostArray) -> None:
        """Copy a host array into the memory, and wait for it."""
        self.wait()
        self._copy = None
        source = np.ascontiguousarray(array, array_dtype(self.spec.element_type)).reshape(self.spec.shape)
        self._wait_for(self.memory.copy_in(self.handle, source), "copy_in", source)

    def read(self, out: HostArray | None = None) -> HostArray:
        """Copy the memory to the host, and wait for it.

        Args:
            out: the array to copy to, of any strides; a new one by default.
        """
        self.wait()
        if out is None or not out.flags.c_contiguous:
            staging = np.empty(self.spec.shape, array_dtype(self.spec.element_type))
            self._wait_for(self.memory.copy_out(self.handle, staging), "copy_out", staging)
            if out is None:
                return staging
            np.copyto(out, staging)
            return out
        self._wait_for(self.memory.copy_out(self.handle, out), "copy_out", out)
        return out

    def on_host(self) -> HostArray:
        """Return the values on the host, to be read only: a view, or a copy of few bytes, which is kept."""
        if self.spec.size_in_bytes > _SMALL:
            return self.view()
        copy = self._copy
        if copy is None or self.is_shared:
            copy = self._copy = self.read()
            copy.setflags(write=False)
        return copy

    def lend(self) -> None:
        """Note that an author's function may write to the memory."""
        self._copy = None

    def view(self) -> HostArray:
        """Return the values on the host: the memory itself, read-only, if the host can see it, and a copy otherwise.

        A view keeps the memory alive, and a donation of the memory gets a copy while it lives.
        """
        self.wait()
        visible = None if self.spec.layout is not None else self.memory.host_view(self.handle)
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

    def copied(self, space: MemorySpace, spec: ShapeSpec | None = None) -> Allocation:
        """Return a copy in a memory space of the same allocator.

        Args:
            space: the memory space.
            spec: the type, perhaps with another layout; the same by default.
        """
        self.wait()
        target = Allocation.new(self.memory, spec or self.spec, space)
        if type(self.memory).copy is Memory.copy:
            target.write(self.view())  # it does the same, and its fences have the time limit
        else:
            target._wait_for(self.memory.copy(self.handle, target.handle, self.spec), "copy", self)
        return target

    def _wait_for(self, fence: Any, method: str, other: object) -> None:
        """Wait for a copy; until its end, keep this memory, and the other one."""
        if fence is not None:
            device: Any = self.space.devices[0]  # of the runtime
            device.fences.wait(fence, f"{type(self.memory).__name__}.{method}", (self, other))

    def check(self, source: str, spec: ShapeSpec) -> Allocation:
        """Check the type, and that which the memory knows for the handle, and return the allocation.

        Args:
            source: the name of the function that gave it, for messages.
            spec: the expected type, as an allocation has it.

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
        if own is not None and own.layout != spec.layout:
            raise InternalError(
                f"{source} gave a handle of {own} in the layout {own.layout or 'of rows'}, expected "
                f"{spec.layout or 'rows'}; declare the layouts in Compiled.outputs, or copy into new memory"
            )
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
        user = self._user
        if user is None or user.has_ended:
            free(self.memory, self.handle)
        else:
            user.free_later(self.memory, self.handle)


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
        plain: Any = spec if spec is None or spec.layout is None else kept_spec(self._memory, spec, space)
        key = _identity(handle)
        allocation = self._allocations.get(key)
        if allocation is None:
            allocation = self._allocations[key] = Allocation(self._memory, handle, plain, space)
            return allocation
        known = allocation.spec
        if plain is None or known == plain:
            return allocation
        # The same array in another layout stays what it is, for ``Allocation.check``.
        is_same = known is not None and (known.shape, known.element_type) == (plain.shape, plain.element_type)
        return allocation if is_same else allocation.cast(plain)


def _identity(handle: Any) -> Any:
    return handle if type(handle) is int else (id(handle),)


_SMALL = 1 << 12
"""Bytes up to which a copy is faster than a view."""


def on_host(value: Any) -> Any:
    """Return an allocation as a numpy array, read-only or a copy; other values, such as arrays, as they are."""
    return value.on_host() if isinstance(value, Allocation) else value


def handle_of(value: Any) -> Any:
    """Return the handle of an allocation; other values, such as tokens, as they are."""
    return value.handle if isinstance(value, Allocation) else value
