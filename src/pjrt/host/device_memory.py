"""Memory of a device's own, which numpy cannot see: its author's allocator, allocations and fences.

Without one, buffers are numpy arrays, and nothing of this is used.
"""

from __future__ import annotations

import abc
import concurrent.futures
import contextlib
import functools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from pjrt.api.device import MemorySpace
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    PjrtError,
    ResourceExhaustedError,
    UnimplementedError,
)
from pjrt.api.future import Future
from pjrt.api.shape_spec import ShapeSpec, TiledLayout
from pjrt.api.waits import serving
from pjrt.host import shutdown
from pjrt.host.executable import without_traceback
from pjrt.host.shutdown import generation
from pjrt.host.storage import Storage, is_any_alone
from pjrt.host.work_queue import WorkQueue
from pjrt.host_memory.array import HostArray, array_dtype, order_of
from pjrt.host_memory.external import ExternalMemory

_log = logging.getLogger("pjrt")

_WAITS = ("wait", "synchronize", "result")
"""The methods of fences that return when the work is done."""


class Enqueued(NamedTuple):
    """The results of a program whose work goes on after its function has returned.

    Later programs of the same device may be given the results before the work is done: a device that enqueues does the
    work in the order in which it was enqueued. All others wait for the fence.

    Attributes:
        results: the results, as a function returns them that has done its work.
        fence: a ``pjrt.Future``, a ``concurrent.futures.Future``, an object with a method ``wait``, ``synchronize`` or
            ``result``, or a function that returns when the work is done. An exception of it fails the results. Its
            method ``cancel``, if it has one, is called when nobody wants the work any more, or its time ran out: it
            must return at once, and the fence ends soon.
    """

    results: Any
    fence: Any


def wait_for(fence: Any) -> None:
    """Wait for a fence; ``None`` is done.

    Raises:
        InvalidArgumentError: the object is no fence.
        BaseException: the work has failed.
    """
    if fence is not None:
        waiting_function(fence)()


def waiting_function(fence: Any) -> Callable[[], object]:
    """Return the function that waits for a fence.

    Raises:
        InvalidArgumentError: the object is no fence.
    """
    # Importing asyncio takes as long as importing jaxlib. Where no one has, there are no futures of it.
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and isinstance(fence, (asyncio.Future, asyncio.Task)):
        raise InvalidArgumentError(
            "an asyncio future cannot be waited for on a thread; give a pjrt.Future as the fence"
        )
    if isinstance(fence, (Future, concurrent.futures.Future)):
        return fence.result
    for name in _WAITS:
        method = getattr(fence, name, None)
        if callable(method):
            return method  # type: ignore[no-any-return]
    if callable(fence):
        return fence  # type: ignore[no-any-return]
    raise InvalidArgumentError(
        f"expected a fence, found {type(fence).__name__}: a fence is a future, an object with a method "
        f"{', '.join(_WAITS)}, or a function that waits"
    )


def cancel(fence: Any) -> bool:
    """Cancel a fence whose work nobody wants; return whether it has such a method. An exception of it is logged."""
    method = getattr(fence, "cancel", None)
    # A future that was cancelled counts as done, while the device may be at work, and takes no result any more.
    if not callable(method) or getattr(method, "__func__", None) is concurrent.futures.Future.cancel:
        return False
    try:
        method()
    except BaseException:
        _log.exception("the cancel method of a fence raised; the exception is ignored")
    return True


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


# Allocations: handles of a device's memory, each with its type, freed when nothing uses it any more.


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
        spec: the shape and the element type; and the layout, if the dimensions are not in rows.
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
        wait_for(self.memory.copy(self.handle, target.handle, self.spec))
        return target

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
    if not isinstance(value, Allocation):
        return value
    return value.read() if value.spec.size_in_bytes <= _SMALL else value.view()


def handle_of(value: Any) -> Any:
    """Return the handle of an allocation; other values, such as tokens, as they are."""
    return value.handle if isinstance(value, Allocation) else value


# The waiter for fences: it ends the work that a device has enqueued when the fence says that it is done.


class Completion:
    """The end of work that a device has enqueued: its outputs are defined then, and its memory is released.

    Attributes:
        definition: the definition event of the outputs; it may be poisoned before the work ends.
        launch_id: the launch id of the execution, 0 for none.
        name: the program's name.
        ended: done when the device is done with the memory.
        has_ended: whether it is.
    """

    __slots__ = ("_freed", "_inputs", "definition", "ended", "has_ended", "launch_id", "name")

    def __init__(self, definition: Future[None], inputs: list[Storage], launch_id: int, name: str) -> None:
        self.definition = definition
        self.launch_id = launch_id
        self.name = name
        self.has_ended = False
        self._inputs = inputs
        self._freed: deque[tuple[Memory, Any]] = deque()
        self.ended: Future[None] = Future()

    def end(self, error: PjrtError | None) -> None:
        """Define the outputs, or fail them, and release the memory. The error of an argument is theirs, too."""
        self.has_ended = True
        if error is None:
            failed = (storage.definition.exception() for storage in self._inputs if storage.definition.done())
            error = next((each for each in failed if each is not None), None)
        self._inputs = []
        self._free()
        self.definition._complete(None, error)
        self.ended._complete(None)

    def free_later(self, memory: Memory, handle: Any) -> None:
        """Free the memory of a handle when the work ends."""
        self._freed.append((memory, handle))
        if self.has_ended:  # It ended meanwhile, and may have missed this one.
            self._free()

    @property
    def holds_memory(self) -> bool:
        """Whether memory is freed when the work ends: nothing else holds it."""
        return bool(self._freed) or is_any_alone(self._inputs)

    def poison(self, error: PjrtError) -> bool:
        """Fail the outputs now; return whether they were still to come. The memory is in use until the work ends."""
        return self.definition._complete(None, error)

    def wait(self, timeout: float | None) -> bool:
        """Wait for the end; return whether it has come."""
        try:
            self.ended.result(timeout)
        except TimeoutError:
            return False
        return True

    def _free(self) -> None:
        # No lock: the garbage collector may call free_later at any point here.
        with contextlib.suppress(IndexError):
            while True:
                free(*self._freed.popleft())


class FenceWaiter:
    """Waits for the fences of one device: by their callbacks if they are futures, otherwise on one thread, in order.

    The thread starts with the first fence that needs it. With a time limit, another thread lives as long as fences are
    open: it cancels the first one whose time has run out, and resets the device if that does not help.

    Args:
        name: the name of the device.
        patience: how many seconds the first fence has; ``None`` for no limit.
        reset: gives up all work of the device; ``None`` if the author has no such function.
    """

    __slots__ = ("__weakref__", "_completions", "_lock", "_patience", "_queue", "_reset", "_watches")

    def __init__(self, name: str, patience: float | None = None, reset: Callable[[], object] | None = None) -> None:
        self._queue = WorkQueue(name, "fences")
        self._completions: dict[Completion, Any] = {}
        self._patience = patience
        self._reset = reset
        self._watches = False
        self._lock = threading.Lock()  # guards _watches
        shutdown.register(self)

    @property
    def name(self) -> str:
        """The name of its device, for messages."""
        return self._queue.name

    @property
    def is_busy(self) -> bool:
        """Whether a fence is not reached."""
        return bool(self._completions)

    def add(self, fence: Any, completion: Completion) -> None:
        """End a completion when its fence is reached."""
        self._open(fence, completion)
        if completion.definition.done():  # it was poisoned before it had a fence
            cancel(fence)
        if isinstance(fence, (Future, concurrent.futures.Future)):
            if isinstance(fence, Future):
                completion.definition.need(fence)
            fence.add_done_callback(functools.partial(self._end_by_future, completion))
            return
        completion.definition.need(self._queue.server)
        wait = _Wait(self, fence, completion)
        try:
            self._queue.put(wait)
        except PjrtError:
            wait.run()  # There is no thread for it, and the work goes on all the same.

    def wait(self, fence: Any, name: str) -> None:
        """Wait for a fence on this thread.

        Args:
            fence: the fence.
            name: what it is of, for messages.

        Raises:
            DeadlineExceededError: its time ran out; it was cancelled, or the device was reset.
            BaseException: the work has failed.
        """
        if fence is None or self._patience is None:
            wait_for(fence)
            return
        definition: Future[None] = Future()
        completion = Completion(definition, [], 0, name)
        self._open(fence, completion)
        try:
            wait_for(fence)
        except BaseException:
            if not definition.done():
                raise
        finally:
            self.end(completion, None)
        definition.result()  # the error of the time limit, if it ran out

    def _open(self, fence: Any, completion: Completion) -> None:
        self._completions[completion] = fence
        if self._patience is None:
            return
        with self._lock:
            watches, self._watches = self._watches, True
        if not watches:
            threading.Thread(target=self._watch, name=f"{self.name} watchdog", daemon=True).start()

    def _watch(self) -> None:
        """Give up work that takes too long, as long as there is any."""
        while True:
            with self._lock:
                first = next(iter(list(self._completions)), None)
                if first is None:
                    self._watches = False
                    return
            if first.wait(self._patience):
                continue
            error = DeadlineExceededError(
                f"the work of {first.name!r} on {self.name} has not ended within {self._patience:g} s "
                "(watchdog_seconds)"
            )
            if self._give_up(first, error) and first.wait(self._patience):
                continue
            self.poison(error)  # the device finishes first what it was told first
            if self._reset is not None:
                try:
                    self._reset()
                except BaseException:
                    _log.exception("the reset function of %s raised; the exception is ignored", self.name)
            while not first.wait(self._patience):  # its memory is in use until then
                self.poison(error)

    def _give_up(self, completion: Completion, error: PjrtError) -> bool:
        """Fail the outputs of a completion, and cancel its fence; return whether that has been done."""
        fence = self._completions.get(completion)
        completion.poison(error)
        return cancel(fence)

    def ends_of_holders(self) -> list[Future[Any]]:
        """Return the ends of the enqueued work that alone holds memory."""
        return [each.ended for each in list(self._completions) if each.holds_memory]

    def end(self, completion: Completion, error: PjrtError | None) -> None:
        """End a completion."""
        completion.end(error)
        self._completions.pop(completion, None)

    def poison(self, error: PjrtError) -> int:
        """Fail the outputs of enqueued work now, and return of how many executions."""
        poisoned = [each for each in list(self._completions) if each.poison(error)]
        for completion in poisoned:
            cancel(self._completions.get(completion))
        return len(poisoned)

    def poison_first(self, error: PjrtError, launch_id: int) -> bool:
        """Fail the outputs of the earliest enqueued execution with a launch id; return whether there was one."""
        for completion in list(self._completions):
            if completion.launch_id == launch_id and completion.poison(error):
                cancel(self._completions.get(completion))
                return True
        return False

    def drain(self, timeout: float | None = None) -> bool:
        """Wait for all fences; return whether they were reached in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        return all(
            completion.wait(None if deadline is None else max(deadline - time.monotonic(), 0))
            for completion in list(self._completions)
        )

    def ask_to_end(self, error: PjrtError) -> None:
        """Do nothing: the device does not check."""

    def abandon(self, error: PjrtError) -> None:
        """Fail the outputs, and wait no longer."""
        self.poison(error)
        self._completions.clear()

    def close(self) -> None:
        """End the thread."""
        self._queue.close()

    def _end_by_future(self, completion: Completion, fence: Any) -> None:
        try:
            error = fence.exception()
        except concurrent.futures.CancelledError as cancelled:
            error = cancelled
        # The thread is often the author's, which does the device's work one after the other: what the end sets off
        # must not wait on it for later work.
        with serving(f"the thread that completes the fences of {self.name}"):
            self.end(completion, None if error is None else without_traceback(error))


class _Wait:
    """A task that waits for a fence."""

    __slots__ = ("_completion", "_fence", "_waiter")

    def __init__(self, waiter: FenceWaiter, fence: Any, completion: Completion) -> None:
        self._waiter = waiter
        self._fence = fence
        self._completion = completion

    def run(self) -> None:
        """Wait for the fence."""
        fence, self._fence = self._fence, None
        error = None
        try:
            wait_for(fence)
        except BaseException as raised:
            error = without_traceback(raised)
        self._waiter.end(self._completion, error)

    def fail(self, error: PjrtError) -> None:
        """Fail the outputs. Their memory, and that of the arguments, is left alone: the device may be at work."""
        self._completion.poison(error)

    def ask_to_end(self, error: PjrtError) -> None:
        """Do nothing: the device does not check."""
