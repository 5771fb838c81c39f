"""The waiter for fences: it ends the work that a device has enqueued when the fence says that it is done."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import time
from collections import deque
from typing import Any

from pjrt.api.errors import PjrtError
from pjrt.api.future import Future
from pjrt.api.waits import serving
from pjrt.host import shutdown
from pjrt.host.device_errors import without_traceback
from pjrt.host.device_memory.allocation import free
from pjrt.host.device_memory.fences import wait_for
from pjrt.host.device_memory.memory import Memory
from pjrt.host.storage import Storage, is_any_alone
from pjrt.host.work_queue import WorkQueue


class Completion:
    """The end of work that a device has enqueued: its outputs are defined then, and its memory is released.

    Attributes:
        definition: the definition event of the outputs; it may be poisoned before the work ends.
        launch_id: the launch id of the execution, 0 for none.
        ended: done when the device is done with the memory.
        has_ended: whether it is.
    """

    __slots__ = ("_freed", "_inputs", "definition", "ended", "has_ended", "launch_id")

    def __init__(self, definition: Future[None], inputs: list[Storage], launch_id: int) -> None:
        self.definition = definition
        self.launch_id = launch_id
        self.has_ended = False
        self._inputs = inputs
        self._freed: deque[tuple[Memory, Any]] = deque()
        self.ended: Future[None] = Future()

    def end(self, error: PjrtError | None) -> None:
        """Define the outputs, or fail them, and release the memory."""
        self.has_ended = True
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

    The thread starts with the first fence that needs it.
    """

    __slots__ = ("__weakref__", "_completions", "_queue")

    def __init__(self, name: str) -> None:
        self._queue = WorkQueue(name, "fences")
        self._completions: dict[Completion, None] = {}
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
        self._completions[completion] = None
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

    def ends_of_holders(self) -> list[Future[Any]]:
        """Return the ends of the enqueued work that alone holds memory."""
        return [each.ended for each in list(self._completions) if each.holds_memory]

    def end(self, completion: Completion, error: PjrtError | None) -> None:
        """End a completion."""
        completion.end(error)
        self._completions.pop(completion, None)

    def poison(self, error: PjrtError) -> int:
        """Fail the outputs of enqueued work now, and return of how many executions."""
        return sum(completion.poison(error) for completion in list(self._completions))

    def poison_first(self, error: PjrtError, launch_id: int) -> bool:
        """Fail the outputs of the earliest enqueued execution with a launch id; return whether there was one."""
        return any(each.poison(error) for each in list(self._completions) if each.launch_id == launch_id)

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
