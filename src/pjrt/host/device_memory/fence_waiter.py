"""The waiter for fences: it ends the work that a device has enqueued when the fence says that it is done."""

from __future__ import annotations

import concurrent.futures
import functools
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import PjrtError
from pjrt.api.future import Future
from pjrt.host.device_errors import without_traceback
from pjrt.host.device_memory.fences import wait_for
from pjrt.host.work_queue import WorkQueue

if TYPE_CHECKING:
    from pjrt.host.storage import Storage


class Completion:
    """The end of work that a device has enqueued: its outputs are defined then, and its arguments are released.

    Attributes:
        definition: the definition event of the outputs.
    """

    __slots__ = ("_inputs", "definition")

    def __init__(self, definition: Future[None], inputs: list[Storage]) -> None:
        self.definition = definition
        self._inputs = inputs

    def end(self, error: PjrtError | None) -> None:
        """Define the outputs, or fail them."""
        self._inputs = []
        self.definition._complete(None, error)


class FenceWaiter:
    """Waits for the fences of one device: by their callbacks if they are futures, otherwise on one thread, in order.

    The thread starts with the first fence that needs it.
    """

    __slots__ = ("_futures", "queue")

    def __init__(self, name: str) -> None:
        self.queue = WorkQueue(name)
        self._futures: dict[Completion, Any] = {}

    def add(self, fence: Any, completion: Completion) -> None:
        """End a completion when its fence is done."""
        if isinstance(fence, (Future, concurrent.futures.Future)):
            self._futures[completion] = fence
            if isinstance(fence, Future):
                completion.definition.need(fence)
            fence.add_done_callback(functools.partial(self._end, completion))
            return
        completion.definition.need(self.queue.server)
        try:
            self.queue.put(_Wait(fence, completion))
        except PjrtError as error:
            completion.end(error.with_traceback(None))

    def finish(self) -> None:
        """Wait for all fences, and end the thread."""
        for fence in list(self._futures.values()):
            fence.exception()
        self.queue.drain()
        self.queue.close()

    def _end(self, completion: Completion, fence: Any) -> None:
        self._futures.pop(completion, None)
        try:
            error = fence.exception()
        except concurrent.futures.CancelledError as cancelled:
            error = cancelled
        completion.end(None if error is None else without_traceback(error))


class _Wait:
    """A task that waits for a fence."""

    __slots__ = ("_completion", "_fence")

    def __init__(self, fence: Any, completion: Completion) -> None:
        self._fence = fence
        self._completion = completion

    def run(self) -> None:
        """Wait for the fence."""
        fence, self._fence = self._fence, None
        try:
            wait_for(fence)
        except BaseException as error:
            self._completion.end(without_traceback(error))
        else:
            self._completion.end(None)

    def fail(self, error: PjrtError) -> None:
        """Fail the outputs."""
        self._completion.end(error)

    def ask_to_end(self, error: PjrtError) -> None:
        """Do nothing: the device does not check."""
