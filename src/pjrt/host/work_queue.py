"""Work queues: each has one thread, which runs tasks one after the other, such as copies."""

from __future__ import annotations

import logging
import math
import queue
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pjrt.api.element_type import AnyDType
from pjrt.api.errors import FailedPreconditionError, PjrtError, UnavailableError
from pjrt.api.future import Future, Promise
from pjrt.api.waits import Server, server_here
from pjrt.host import shutdown
from pjrt.host.executable import without_traceback
from pjrt.host.shutdown import forked_error, generation, runtime_lock
from pjrt.host.storage import TOKEN, Storage, freeze
from pjrt.host_memory import references
from pjrt.host_memory.array import HostArray, aligned_copy

if TYPE_CHECKING:
    from pjrt.host.device import HostDevice, HostMemorySpace
    from pjrt.host.execution import Execution

_log = logging.getLogger("pjrt")


class Task(Protocol):
    """A piece of work for a queue."""

    def run(self) -> None:
        """Do the work, and handle its errors."""

    def fail(self, error: PjrtError) -> None:
        """Fail the work, which will never be done; called instead of ``run``."""

    def ask_to_end(self, error: PjrtError) -> None:
        """Ask the work to end, because nobody waits for it any more; it may go on all the same."""


class WorkQueue:
    """Runs tasks in the order in which they were put, on its own thread.

    The thread starts with the first task and ends when the queue is closed or dropped. ``pjrt.host.shutdown`` ends its
    work in the child of a fork and at the end of the interpreter.

    Args:
        name: the name of its device, or of whatever else the work is for.
        role: what the queue does, if several have this name.
    """

    __slots__ = (
        "__weakref__", "_closed", "_finalizer", "_generation", "_items", "_pending", "_server", "_started", "_title",
        "_turn", "_unserved", "name",
    )  # fmt: skip

    def __init__(self, name: str, role: str = "") -> None:
        self.name = name
        self._title = f"{name} {role}".strip()
        self._items: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        # Tasks that are not finished. Kept apart from the items, because after a fork those cannot be inspected.
        self._pending: set[Task] = set()
        # Held by the thread while it runs a task, and by work of a caller that must be alone.
        self._turn = threading.Lock()
        self._server = Server(self._title)
        self._started = False
        self._unserved = False
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._generation = generation()
        self._closed = False
        shutdown.register(self)

    def put(self, task: Task) -> None:
        """Add a task; never blocks.

        Raises:
            FailedPreconditionError: the queue was closed, or belongs to the parent of a forked process.
            UnavailableError: no thread can be started.
        """
        if self._generation != generation():
            raise forked_error()
        if self._closed or sys.is_finalizing():
            raise self._ended()
        if not self._started:
            self._start()
        self._pending.add(task)
        self._items.put(task)
        self._check_served(task)

    def _check_served(self, task: Task) -> None:
        if not self._closed:
            return
        # Another thread has closed the queue meanwhile. The thread of the queue looks under this lock for tasks that
        # are left, and ends under it: where it still serves, it runs this one, too.
        with runtime_lock:
            if self._server.thread or task not in self._pending:
                return
            self._pending.discard(task)
        raise self._ended()

    def _ended(self) -> FailedPreconditionError:
        return FailedPreconditionError(f"the work queue {self._title} was closed, or the interpreter has ended")

    def enter(self, *, alone: bool = False) -> _Visit | None:
        """Begin work on the caller's thread if no task is to be run before it; ``None`` if one is.

        The end of the queue waits for the work, until ``leave``.

        Args:
            alone: whether tasks that are put meanwhile wait for the work, too.
        """
        if self._pending or self._closed or self._generation != generation():
            return None
        visit = _ALONE if alone else _Visit()
        if alone and not self._turn.acquire(blocking=False):
            return None
        self._pending.add(visit)
        if len(self._pending) > 1:  # another thread has come at the same time
            self.leave(visit)
            return None
        return visit

    def leave(self, visit: _Visit) -> None:
        """End work on the caller's thread that ``enter`` began."""
        self._pending.discard(visit)
        if visit is _ALONE:
            self._turn.release()

    @property
    def server(self) -> Server:
        """The thread that does the tasks; a future that a task completes needs it (``Future.need``)."""
        return self._server

    @property
    def is_busy(self) -> bool:
        """Whether a task is not finished, and the caller may wait for it."""
        return bool(self._pending) and self._generation == generation() and not self.is_current_thread

    @property
    def is_current_thread(self) -> bool:
        """Whether the caller is the queue's own thread."""
        return self._server.thread == threading.get_ident()

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until all tasks that were put before are finished; return whether they are."""
        if self._generation != generation() or not self._pending or self.is_current_thread:
            return not self._pending
        if self._closed:  # It takes no fence any more. Tasks that were put while it was being closed are left.
            deadline = math.inf if timeout is None else time.monotonic() + timeout
            while self._pending and time.monotonic() < deadline:
                time.sleep(0.001)
            return not self._pending
        fence = _Fence(self._pending)
        self.put(fence)
        if self._unserved:
            self._items.put(None)
            _serve(self._items, self._pending, self._server, self._turn)
            return not self._pending
        try:
            fence.passed.future.result(timeout)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """End the thread when it has run all tasks; no more can be put."""
        self._closed = True
        if self._finalizer is not None:
            self._finalizer()

    def tasks(self) -> list[Task]:
        """Return the tasks that were put and are not finished, in no order."""
        return list(self._pending)

    def ask_to_end(self, error: PjrtError) -> None:
        """Ask all tasks that are not finished to end, because nobody waits for them any more."""
        for task in self.tasks():
            task.ask_to_end(error)

    def abandon(self, error: PjrtError) -> None:
        """Fail all tasks that are not finished, because the thread is gone or will never return."""
        for task in list(self._pending):
            task.fail(error)
        self._pending.clear()

    def _start(self) -> None:
        try:
            with runtime_lock:
                if self._started:
                    return
                self._started = True
                if self._finalizer is None:
                    self._finalizer = weakref.finalize(self, self._items.put, None)
                    self._finalizer.atexit = False
            # Without the lock: this waits until the new thread runs. The thread may collect garbage before that, which
            # may put tasks.
            threading.Thread(
                target=_serve,
                args=(self._items, self._pending, self._server, self._turn),
                name=f"pjrt {self._title}",
                daemon=True,
            ).start()
        except RuntimeError as error:
            if shutdown.is_exiting() or "interpreter shutdown" in str(error):
                # From Python 3.12 on, no thread starts any more. A caller that waits for the work does it then.
                self._unserved = True
                return
            self._started = False
            failure = UnavailableError(f"the thread of the work queue {self._title} cannot be started: {error}")
            self.abandon(failure)  # Fails the tasks that were put meanwhile.
            raise failure from error
        except BaseException:
            self._started = False  # Ctrl-C. If the thread runs all the same, the next one leaves the work to it.
            raise


class _Visit:
    """Work on the thread of a caller."""

    __slots__ = ()

    def run(self) -> None:
        pass  # The caller does it.

    def fail(self, error: PjrtError) -> None:
        pass

    def ask_to_end(self, error: PjrtError) -> None:
        pass


_ALONE = _Visit()
"""The work of the caller that holds a queue's turn."""


class _Fence:
    """A task that only reports that it was reached."""

    __slots__ = ("_pending", "passed")

    def __init__(self, pending: set[Task]) -> None:
        self._pending = pending
        self.passed: Promise[None] = Promise()

    def run(self) -> None:
        self._pending.discard(self)  # before whoever waits goes on, for whom the queue would still be busy with it
        self.passed.future._complete(None)

    def fail(self, error: PjrtError) -> None:
        self.passed.future._complete(None, error)

    def ask_to_end(self, error: PjrtError) -> None:
        pass  # It ends at once.


class Call:
    """A task that calls a function and puts its result or its error into a future."""

    __slots__ = ("_function", "future")

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function: Callable[[], Any] | None = function
        self.future: Future[Any] = Future()

    def run(self) -> None:
        """Call the function."""
        function, self._function = self._function, None
        if function is None:
            return
        try:
            value = function()
        except BaseException as error:
            function = None
            self.future._complete(None, without_traceback(error))
        else:
            function = None
            self.future._complete(value)

    def fail(self, error: PjrtError) -> None:
        """Fail the future."""
        self._function = None
        self.future._complete(None, error)

    def ask_to_end(self, error: PjrtError) -> None:
        """Do nothing: the function does not check."""


def _serve(items: queue.SimpleQueue[Task | None], pending: set[Task], server: Server, turn: threading.Lock) -> None:
    # Holds neither the queue nor its client, so that both can be collected while the thread waits.
    with runtime_lock:
        if server.thread:
            return
        server.begin()  # This thread was the first to come.
    try:
        _serve_all(items, pending, server, turn)
    finally:
        server.end()


def _serve_all(items: queue.SimpleQueue[Task | None], pending: set[Task], server: Server, turn: threading.Lock) -> None:
    closing = False
    while True:
        task = items.get()
        if task is None:
            closing = True
            if _ends(pending, server):
                return
            continue  # A task was put while the queue was being closed.
        try:
            with turn:
                if task in pending:  # It was not abandoned meanwhile.
                    task.run()
        except BaseException as error:
            _log.exception("a task of a work queue raised, which is a defect of the host runtime")
            task.fail(PjrtError.wrap(error))
        pending.discard(task)
        del task
        if closing and _ends(pending, server):
            return


def _ends(pending: set[Task], server: Server) -> bool:
    """End the service unless a task is left; return whether it has ended."""
    with runtime_lock:
        if pending:
            return False
        server.end()
        return True


# Copies between devices, memory spaces and the host. They wait for the value and block no caller.

T = TypeVar("T")

INLINE_BYTES = 64 * 1024
"""Copies up to this size are made in the calling thread; passing them to another thread would take longer."""


def may_wait_here(device: HostDevice) -> bool:
    """Whether the calling thread may wait for a copy of a device's memory.

    A copy of an author's memory may return a fence. A thread that completes fences must not wait for it: this fence may
    be its next one.
    """
    here = server_here()
    return here is None or device.client.memory is None or here is device.transfers.server


def schedule(device: HostDevice, storage: Storage, function: Callable[[HostArray], T], size: int) -> Future[T]:
    """Return a future of ``function(array)``, which is called when the storage has its array.

    Args:
        device: the device whose thread for transfers makes large copies.
        storage: the source; if it fails, so does the future.
        function: the work.
        size: the number of bytes that it moves.
    """

    copy = Copy(device, storage, function, size)
    copy.future.need(storage.definition)
    copy.caller = threading.get_ident() if may_wait_here(device) else 0
    storage.definition.add_done_callback(copy)
    copy.caller = 0
    return copy.future


class Copy(Call):
    """A copy of a storage's value; as a callback of the storage's definition event, it begins the copy.

    Attributes:
        source: the storage, to which a copy has one reference until it begins; then ``None``.
        caller: the thread that schedules the copy and may wait for it; 0 if it must not, or has gone on.
    """

    __slots__ = ("_device", "_size", "caller", "source")

    def __init__(self, device: HostDevice, source: Storage, function: Callable[[HostArray], T], size: int) -> None:
        self._device = device
        self._size = size
        self.source: Storage | None = source
        self.caller = 0

        def work() -> T:
            # Dropped before the future is done: a thread that waits for it may donate the memory next.
            begun, self.source = self.source, None
            assert begun is not None
            assert begun.array is not None
            return function(begun.array)

        super().__init__(work)

    @property
    def is_wanted(self) -> bool:
        """Whether its result can still be seen: another object holds its future, or the future has callbacks."""
        return bool(self.future._callbacks) or references.to_attribute(self, "future") > 1

    def __call__(self, definition: Future[None]) -> None:
        """Begin the copy, now that the value is there or has failed."""
        if definition._error is not None:
            self.fail(definition._error)
        elif self._size <= INLINE_BYTES and self._runs_here():
            self.run()
        else:
            try:
                self.future.need(self._device.transfers.server)
                self._device.transfers.put(self)
            except Exception as refused:
                self.fail(without_traceback(refused))

    def _runs_here(self) -> bool:
        """Whether the copy may be made on this thread: the caller's, or one that may wait for it."""
        if self._device.client.memory is None or self.caller == threading.get_ident():
            return True
        return server_here() is self._device.transfers.server


def copy_between(
    source: Storage,
    device: HostDevice,
    space: HostMemorySpace,
    dtype: AnyDType,
    order: tuple[int, ...],
    size: int,
) -> Storage:
    """Return a storage in another memory that will hold a copy.

    Args:
        source: the storage to copy.
        device: the device whose thread copies.
        space: the memory to copy to.
        dtype: the dtype of the elements.
        order: the dimensions from the slowest to the fastest varying, which the copy keeps.
        size: the number of bytes.

    Raises:
        ResourceExhaustedError: the memory has no room for the copy.
    """
    target = Storage(source.definition)
    target.charge(space.account, size)

    def copy(array: HostArray) -> None:
        target.array = TOKEN if array is TOKEN else freeze(aligned_copy(array, dtype, order))

    target.definition = schedule(device, source, copy, size)
    return target


# Demand: which executions still have an owner of their results.
#
# References decide, as they do where memory is reused (``take_writable``): an owner of a value holds its storage. Two
# kinds of holders do not count by themselves, because they are work, too: an execution that waits for the value is
# wanted if its own results are, and a copy to the host if its future is.


def wanted_executions(executions: Iterable[Execution]) -> set[Execution]:
    """Return the executions that are wanted: a result, or a value computed from it by another of them, has an owner.

    Programs without results are run for their effects, and are always wanted.

    Args:
        executions: all executions of a client that are not done.
    """
    executions = list(executions)
    uses: Counter[int] = Counter()
    makers: dict[int, Execution] = {}
    for execution in executions:
        uses.update(map(id, execution.inputs))
        makers.update((id(storage), execution) for storage in execution.outputs or ())
    wanted = {execution for execution in executions if not execution.outputs or _is_held(execution.outputs, uses)}
    left = list(wanted)
    while left:
        for number in map(id, left.pop().inputs):
            maker = makers.get(number)
            if maker is not None and maker not in wanted:
                wanted.add(maker)
                left.append(maker)
    return wanted


def _is_held(outputs: list[Storage], uses: Counter[int]) -> bool:
    """Whether one of the outputs has a holder other than executions and copies that are not wanted."""
    for number in range(len(outputs)):  # the storage itself would be a reference more
        callbacks = outputs[number].definition._callbacks or ()
        copies = [each for each in callbacks if isinstance(each, Copy) and each.source is outputs[number]]
        if any(copy.is_wanted for copy in copies):
            return True
        if references.to_item(outputs, number) > 1 + len(copies) + uses[id(outputs[number])]:
            return True
    return False
