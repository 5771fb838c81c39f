"""Copies from one device of a client to another one in the queues of both, by a method of ``pjrt.host.Memory``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pjrt.api.errors import InternalError, InvalidArgumentError, PjrtError
from pjrt.api.future import Future
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host.device_memory import Allocation, Memory, enqueuing
from pjrt.host.executable import without_traceback
from pjrt.host.fences import Completion, waiting_function
from pjrt.host.storage import Storage
from pjrt.host.work_queue import schedule

if TYPE_CHECKING:
    from pjrt.host.device import HostDevice, HostMemorySpace


class PeerCopy:
    """A copy that a memory's method does. It is a task of the source's device: it comes behind what makes the value.

    What the method does not take goes through ``Memory.copy``, once the value is there.

    Args:
        source: the value.
        device: the device that has it.
        target: a storage of another device, which gets a copy of it; its definition is completed here.
        space: the memory of the target.
        spec: the type of the target.
    """

    __slots__ = ("_device", "_source", "_space", "_spec", "_target")

    def __init__(
        self, source: Storage, device: HostDevice, target: Storage, space: HostMemorySpace, spec: ShapeSpec
    ) -> None:
        self._source: Storage | None = source
        self._target: Storage | None = target
        self._device = device
        self._space = space
        self._spec = spec
        target.placed = Future()
        target.placed.need(source.definition)
        target.definition.need(source.definition)

    def begin(self) -> None:
        """Copy as soon as what makes the value is in the queue of its device; do not wait for that."""
        source = self._source
        assert source is not None
        placed = source.placed
        if source.definition._done:
            self.run()
        elif source.queue is self._device.compute:
            try:
                source.queue.put(self)
            except PjrtError as error:
                self.fail(error)
        elif placed is not None and not placed._done:
            placed.add_done_callback(lambda _: self.begin())
        else:
            self.run()

    def run(self) -> None:
        """Copy now, or when the value is there."""
        source, target = self._source, self._target
        self._source = self._target = None
        assert source is not None
        assert target is not None
        value: Any = source.array
        try:
            if not isinstance(value, Allocation) or not self._enqueue(source, value, target):
                del value
                self._copy_later(source, target)
        except BaseException as error:
            _end(target, without_traceback(error))

    def fail(self, error: PjrtError) -> None:
        """Fail the copy."""
        target, self._source, self._target = self._target, None, None
        if target is not None:
            _end(target, error)

    def ask_to_end(self, error: PjrtError) -> None:
        """Do nothing: it does not take long."""

    def _enqueue(self, source: Storage, value: Allocation, target: Storage) -> bool:
        """Have the author's method copy; return whether it does."""
        memory = value.memory
        home = self._space.devices[0]
        try:
            copied = Allocation.new(memory, self._spec, self._space)
            with enqueuing:
                fences = memory.copy_from_peer(value.handle, copied.handle, value.spec)
        except MemoryError:  # where the value is waited for, so is memory
            return False
        if fences is NotImplemented:
            return False
        name = f"{type(memory).__name__}.copy_from_peer"
        read = Completion(Future(), [], 0, name)
        written = Completion(target.definition, [], 0, name, before=[source.definition, read.definition])
        if fences is not None:
            here, there = _checked(fences, name)
            value.used_by(read)
            copied.busy_until(written)
        array: Any = copied
        target.array = array
        if fences is None:
            read.end(None)
            written.end(None)
        else:
            target.queue = home.compute  # what is put there from now on comes behind the copy
            self._device.fences.add(here, read)
            home.fences.add(there, written)
        assert target.placed is not None
        target.placed._complete(None)
        return True

    def _copy_later(self, source: Storage, target: Storage) -> None:
        space, spec = self._space, self._spec
        home = space.devices[0]

        def copy(value: Any) -> Any:
            return value.copied(space, spec) if isinstance(value, Allocation) else value

        def give(copied: Future[Any]) -> None:
            if copied._error is None:
                target.array = copied._value
            _end(target, copied._error)

        future = schedule(home, source, copy, spec.size_in_bytes)
        target.definition.need(future)
        future.add_done_callback(give)


def has_peer_copies(memory: Memory) -> bool:
    """Return whether a memory has the method."""
    return type(memory).copy_from_peer is not Memory.copy_from_peer


def _end(target: Storage, error: PjrtError | None) -> None:
    target.definition._complete(None, error)
    if target.placed is not None:
        target.placed._complete(None)


def _checked(fences: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(fences, (list, tuple)) or len(fences) != 2:
        raise InternalError(
            f"expected a list of 2 fences from {name}, of the source's device and of the target's, or None or "
            f"NotImplemented, found {fences!r}"
        )
    for fence in fences:
        try:
            waiting_function(fence)
        except InvalidArgumentError as error:
            raise InternalError(f"{name}: {error.message}") from error
    return fences[0], fences[1]
