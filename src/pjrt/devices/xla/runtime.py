"""The runtime behind a client: jaxlib's client with all that its buffers and executions share."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pjrt.api.checks import expect_int
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.element_type import AnyDType, ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.shape_spec import TiledLayout, format_shape
from pjrt.devices.xla import _jaxlib, shutdown
from pjrt.devices.xla.future import CompletionWatcher

if TYPE_CHECKING:
    from pjrt.devices.xla.device import XlaMemorySpace
    from pjrt.devices.xla.peers import Peers


class ArrayType:
    """Element type, shape, layout and memory space of a buffer.

    A runtime makes one object of each type (``Runtime.array_type``), so two buffers have the same type if they have the
    same object, and an execution checks its arguments by comparing identities.

    Attributes:
        shape: the sizes of the dimensions.
        element_type: the type of the elements.
        layout: the order of the elements in memory.
        dynamic_dimensions: the dimensions of which ``shape`` has the bound.
        memory_space: the place of the memory.
        has_buffer_format: whether Python's buffer protocol has the type: not bf16, for example, nor another layout.
        aval: shape and dtype for jaxlib.
        runtime: the runtime that has the memory.
    """

    __slots__ = (
        "aval",
        "dynamic_dimensions",
        "element_type",
        "has_buffer_format",
        "layout",
        "memory_space",
        "runtime",
        "shape",
    )

    def __init__(
        self,
        shape: tuple[int, ...],
        element_type: ElementType,
        layout: TiledLayout,
        memory_space: XlaMemorySpace,
        dynamic_dimensions: tuple[int, ...] = (),
    ) -> None:
        self.shape = shape
        self.element_type = element_type
        self.layout = layout
        self.dynamic_dimensions = dynamic_dimensions
        self.memory_space = memory_space
        self.runtime = memory_space.device.runtime
        has_letter = element_type.dtype.kind in "biufc"
        self.has_buffer_format = has_letter and not dynamic_dimensions and layout.is_row_major
        self.aval = _jaxlib.Aval(shape, element_type.dtype)

    @property
    def is_packed(self) -> bool:
        """Whether an element is less than a byte, so that numpy cannot use the memory in place."""
        return self.element_type.bits < 8

    @property
    def is_row_major(self) -> bool:
        """Whether the elements lie in C order."""
        return self.layout.is_row_major

    def accepts(self, other: ArrayType) -> bool:
        """Whether a parameter of this type accepts an argument of the other type.

        All must agree except the kind of memory: the kinds differ in name only.
        """
        return other is self or (
            other.shape == self.shape
            and other.element_type is self.element_type
            and other.layout == self.layout
            and other.memory_space.device is self.memory_space.device
        )

    def __str__(self) -> str:
        layout = "" if self.is_row_major else str(self.layout)
        return f"{format_shape(self.element_type, self.shape)}{layout}"


class LaunchWindow:
    """The newest launches on several devices: the next one waits until few enough of them are unfinished.

    Args:
        size: the number that may be unfinished, beside one for each thread that launches.
    """

    __slots__ = ("_lock", "_size", "_tokens")

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._tokens: deque[Any] = deque()

    def start(self, launch: Callable[[], Any]) -> tuple[Any, Any]:
        """Return jaxlib's results of a launch, and the token of its completion."""
        with self._lock:
            oldest = self._tokens.popleft() if len(self._tokens) >= self._size else None
        # The lock is free meanwhile: the launch that is waited for may have a callback that launches too.
        if oldest is not None:
            with contextlib.suppress(Exception):  # its results have the error
                oldest.block_until_ready()
        results = launch()
        token = results.consume_token()
        with self._lock:
            self._tokens.append(token)
        return results, token


# Every module below the client takes a ``Runtime``, and none of them imports the client.

_POLL_SECONDS = 0.001


class Unloadable(Protocol):
    """An executable that ends with its runtime."""

    def unload(self, reason: str) -> Any:
        """Release the code, and return jaxlib's executable; later uses raise the reason."""

    def close_short_path(self) -> None:
        """Check at each execution from now on whether the runtime can be used."""


class Runtime:
    """XLA's CPU runtime with a number of virtual devices.

    Args:
        num_devices: the number of devices of this process.
        asynchronous: whether executions return before they are finished.
        peers: the processes of a job that make a client of all their devices together; ``None`` for a process alone.

    Attributes:
        ended: the reason why the runtime cannot be used any more; empty as long as it can.
        peers: the processes of the devices; ``None`` if all devices are of this process.
        all_devices: jaxlib's devices of all processes, by their ids, which are no indices.
        jaxlib_devices: jaxlib's devices of this process.
        launch_window: the unfinished launches on several devices; ``None`` if jaxlib takes any number of them.
        relayouts: the programs that copy a buffer of a type into another layout.
        watcher: notices that arrays have their values.
    """

    __slots__ = (
        "__weakref__",
        "_executables",
        "_jaxlib_client",
        "_lock",
        "_row_major",
        "_types",
        "all_devices",
        "ended",
        "jaxlib_devices",
        "launch_window",
        "peers",
        "relayouts",
        "watcher",
    )

    def __init__(self, num_devices: int = 1, asynchronous: bool = True, peers: Peers | None = None) -> None:
        shutdown.check_not_forked()
        self.ended = ""
        self.peers = peers
        self._lock = threading.Lock()
        self._jaxlib_client = (
            _jaxlib.make_client(num_devices, asynchronous)
            if peers is None
            else peers.make_client(num_devices, asynchronous)
        )
        self.jaxlib_devices: Sequence[Any] = tuple(self._jaxlib_client.local_devices())
        self.all_devices: Mapping[int, Any] = {device.id: device for device in self._jaxlib_client.devices()}
        self._row_major: dict[tuple[object, ...], ArrayType] = {}
        self._types: dict[tuple[object, ...], ArrayType] = {}
        self._executables: weakref.WeakSet[Unloadable] = weakref.WeakSet()
        limit = _jaxlib.LAUNCHES_AT_ONCE
        self.launch_window = None if limit is None else LaunchWindow(limit)
        self.relayouts: dict[tuple[ArrayType, TiledLayout], tuple[Any, Any]] = {}
        self.watcher = CompletionWatcher()
        shutdown.register(self)
        if peers is not None:
            peers.before_leaving(self.settle)

    @property
    def jaxlib_client(self) -> Any:
        """jaxlib's client.

        Raises:
            PjrtError: as ``check_open``.
        """
        self.check_open()
        return self._jaxlib_client

    def check_open(self) -> None:
        """Return if the runtime can be used.

        Raises:
            FailedPreconditionError: the client was closed, or was made before this process was forked.
            SystemExit: the interpreter is ending, and the caller is a daemon thread; see ``shutdown.check_thread``.
        """
        if self.ended:
            if self.is_closed:
                raise FailedPreconditionError(self.ended)
            shutdown.check_thread()

    # Devices.

    def jaxlib_device(self, number: int) -> Any:
        """Return jaxlib's device with an id, of this process or another.

        Raises:
            InvalidArgumentError: no device has this id.
        """
        device = self.all_devices.get(number)
        if device is None:
            ids = f", with the ids {', '.join(map(str, self.all_devices))}" if self.peers else ""
            raise InvalidArgumentError(
                f"the client has no device with id {number}: it has {len(self.all_devices)}{ids}; make it with "
                f"pjrt.client('cpu', num_devices=...)"
            )
        return device

    def default_device_assignment(self, num_replicas: int, num_partitions: int) -> DeviceAssignment:
        """Return the assignment of replicas and partitions to the first devices.

        In a job these are the first devices of this process if it has enough of them, as XLA has it, and otherwise the
        first devices of the job.

        Raises:
            InvalidArgumentError: there are fewer devices.
        """
        count = expect_int(num_replicas, "a number of replicas") * expect_int(num_partitions, "a number of partitions")
        ids = [device.id for device in self.jaxlib_devices]
        if count > len(ids):
            ids = list(self.all_devices)
        if count > len(ids):
            raise InvalidArgumentError(
                f"{num_replicas} replicas × {num_partitions} partitions need {count} devices, the client has "
                f"{len(ids)}; make it with pjrt.client('cpu', num_devices={count})"
            )
        return DeviceAssignment.in_order(ids, num_replicas, num_partitions)

    def bytes_in_use(self, jaxlib_device: Any) -> int:
        """Return the bytes of memory behind the live buffers of one of jaxlib's devices.

        Memory of several arrays counts once: that of views, and of the shards of an array beside the array itself.
        """
        in_use, spans = 0, []
        for _ in range(2):  # a view that was released releases the array that it was a view of
            _jaxlib.collect_released()
        for array in self.jaxlib_client.live_arrays():
            devices = array._sharding._internal_device_list
            if jaxlib_device not in devices or array.is_deleted():
                continue
            size = _jaxlib.size_on_device(array, len(devices))
            begin = _jaxlib.address_on(jaxlib_device, array, devices) if size else None
            if begin is None:
                in_use += size
            else:
                spans.append((begin, begin + size))
        end = 0
        for begin, after in sorted(spans):
            in_use += max(after - max(begin, end), 0)
            end = max(end, after)
        return in_use

    # Types.

    def array_type(
        self,
        shape: tuple[int, ...],
        element_type: ElementType,
        space: XlaMemorySpace,
        minor_to_major: tuple[int, ...] | None = None,
        dynamic_dimensions: tuple[int, ...] = (),
    ) -> ArrayType:
        """Return the one object for buffers of this type; the default layout is row-major."""
        if minor_to_major is None:
            minor_to_major = tuple(range(len(shape) - 1, -1, -1))
        key = (shape, element_type, space.id, minor_to_major, dynamic_dimensions)
        array_type = self._types.get(key)
        if array_type is None:
            array_type = ArrayType(shape, element_type, TiledLayout(minor_to_major), space, dynamic_dimensions)
            array_type = self._types.setdefault(key, array_type)  # another thread may have made it meanwhile
        return array_type

    def row_major_type(self, shape: tuple[int, ...], dtype: AnyDType, space: XlaMemorySpace) -> ArrayType:
        """Return the ``array_type`` of a row-major array, by its dtype.

        Raises:
            InvalidArgumentError: the dtype is not an element type.
        """
        # A table of its own, for each array that comes from the host: looking up the element type takes longer.
        key = (shape, dtype, space)
        array_type = self._row_major.get(key)
        if array_type is None:
            array_type = self._row_major[key] = self.array_type(shape, ElementType.of(dtype), space)
        return array_type

    def type_in(self, array_type: ArrayType, space: XlaMemorySpace) -> ArrayType:
        """Return the same type in another memory space."""
        return self.array_type(
            array_type.shape,
            array_type.element_type,
            space,
            array_type.layout.minor_to_major,
            array_type.dynamic_dimensions,
        )

    # The end.

    @property
    def is_closed(self) -> bool:
        """Whether no thread can use the runtime any more."""
        return bool(self.ended) and self.ended != shutdown.ENDING

    def adopt(self, executable: Unloadable) -> None:
        """Unload an executable when the runtime is closed."""
        self._executables.add(executable)

    def close(self, reason: str) -> bool:
        """Wait for work under way, and release jaxlib's client.

        Returns:
            Whether it was this call that closed the runtime.
        """
        if not self.is_closed:
            self.join_launches()
        with self._lock:
            if self.is_closed:
                return False
            self.ended = reason
        for array in self._jaxlib_client.live_arrays():
            with contextlib.suppress(Exception):  # a failed or deleted array is as good as finished
                array.block_until_ready()
        self._release()
        return True

    def abandon(self, reason: str) -> list[Any]:
        """End the runtime without waiting, in the child of a fork, where the runtime's threads do not exist.

        Returns:
            The objects that must never be destroyed.
        """
        self._lock = threading.Lock()  # the thread that held it is not in this process
        jaxlib_client = self.jaxlib_devices[0].client  # there also after ``close``
        if not self.ended:
            self.ended = reason
        self.watcher.abandon(reason)
        return [jaxlib_client, *jaxlib_client.live_arrays(), *jaxlib_client.live_executables(), *self._release()]

    def join_launches(self, deadline: float | None = None) -> None:
        """Wait for launches that wait for other processes, until a time of ``time.monotonic``."""
        if self.peers is not None:
            self.peers.launches.join(deadline)

    def close_to_others(self) -> None:
        """Refuse all threads from now on except the one that ends the interpreter."""
        self.watcher.is_ending = True
        if not self.ended:
            self.ended = shutdown.ENDING
        for executable in list(self._executables):
            executable.close_short_path()

    def finish(self, deadline: float) -> bool:
        """Wait for work under way and end the watcher's threads, because the interpreter ends.

        Args:
            deadline: the latest time to wait for, on the clock of ``time.monotonic``.

        Returns:
            Whether the work is finished.
        """
        is_finished = self._is_settled_by(deadline)
        self.watcher.stop(deadline)
        return is_finished

    def settle(self, seconds: float) -> None:
        """Wait for work under way, for a number of seconds at most, because this process leaves its job."""
        self._is_settled_by(time.monotonic() + seconds)

    def _is_settled_by(self, deadline: float) -> bool:
        """Whether all work under way is finished by a time."""
        self.join_launches(deadline)
        arrays = [] if self._jaxlib_client is None else self._jaxlib_client.live_arrays()
        return all(_is_settled_by(array, deadline) for array in arrays)

    def _release(self) -> list[Any]:
        """Release jaxlib's client and executables, and return the executables."""
        self.relayouts = {}
        self._jaxlib_client = None
        return [executable.unload(self.ended) for executable in list(self._executables)]


def _is_settled_by(array: _jaxlib.Array, deadline: float) -> bool:
    """Whether an array has its value, or will never have one, by a time. jaxlib's own wait has no limit."""
    with contextlib.suppress(Exception):  # a failed or deleted array is as good as finished
        while not array.is_ready():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
    return True
