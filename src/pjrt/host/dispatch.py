"""Dispatch: when an execution may go to its device's queue."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from pjrt.api.errors import CancelledError, PjrtError
from pjrt.api.future import Future
from pjrt.api.interpreter_end import time_left
from pjrt.host.device import HostDevice
from pjrt.host.execution import Execution
from pjrt.host.shutdown import is_exiting
from pjrt.host.work_queue import WorkQueue, after


class Dispatcher:
    """Puts executions on their devices' queues as soon as their inputs are there, or sure to be there in time.

    An input that is made by a task which the same queue was given earlier will be there when the queue comes to the
    execution. Everything else is waited for outside of the queues: the head of a queue never waits for an input, so
    whoever fulfils one late, be it by a program on the same device, finds the queue running. The executions of one
    launch go to all of their queues at one moment, when the inputs of all are there. So any two launches are in the
    same order on all devices that they share, and their collectives cannot wait for each other in a circle.

    Args:
        queues: all queues of the client.
    """

    __slots__ = ("_putting", "_queues", "_ready", "_waiting")

    def __init__(self, queues: Sequence[WorkQueue]) -> None:
        self._queues = tuple(queues)
        self._waiting: set[_PendingLaunch] = set()
        # Launches on several devices that are ready to be put, in the one order for all queues, and whoever puts them.
        self._ready: deque[_PendingLaunch] = deque()
        self._putting = threading.Lock()

    def enqueue(self, executions: Sequence[Execution], devices: Sequence[HostDevice]) -> None:
        """Runs the executions of one launch, each on its device, when the time has come; returns at once."""
        missing: list[Future[None]] = []
        for execution, device in zip(executions, devices, strict=True):
            missing += [
                storage.definition
                for storage in execution.inputs
                if not storage.definition._done and storage.queue is not device.compute
            ]
        if not missing and len(executions) == 1:
            try:
                _put(executions[0], devices[0])
            except PjrtError as error:
                executions[0].fail(error)
                raise
            return
        shares = _PendingLaunch(executions, devices)
        if missing:
            for execution in executions:
                execution.definition.need(*missing)
            self._waiting.add(shares)
            after(missing, lambda: self._stop_waiting(shares))
        else:
            self._release(shares)

    def finish(self, end_waiting: Callable[[], object]) -> None:
        """Waits for the work under way, cancels what waits for something that will not come, and ends the queues.

        Args:
            end_waiting: called when all that can run has run; ends waits that the caller knows of.
        """
        self._drain()
        end_waiting()
        self._drain()
        while self._waiting:
            self._waiting.pop().fail(
                CancelledError("the client was closed while the execution waited for its arguments")
            )
            self._drain()
        for queue in self._queues:
            queue.close()

    def give_up(self, error: PjrtError, only_ask: bool) -> None:
        """Fail all executions that are not done; the functions of those under way are told, if they ask.

        Args:
            error: why.
            only_ask: whether only to tell them.
        """
        if only_ask:
            for queue in self._queues:
                queue.ask_to_end(error)
            return
        for shares in list(self._waiting):
            self._waiting.discard(shares)
            shares.fail(error)
        for queue in self._queues:
            for task in queue.tasks():
                if isinstance(task, Execution):
                    task.poison(error)

    def unfinished(self) -> list[Execution]:
        """Return the executions that are not done, in no order."""
        tasks = [task for queue in self._queues for task in queue.tasks() if isinstance(task, Execution)]
        return tasks + [execution for shares in list(self._waiting) for execution in shares.executions]

    def _drain(self) -> None:
        # Work on one queue may put more on another.
        while any(queue.is_busy for queue in self._queues):
            for queue in self._queues:
                if not is_exiting():
                    queue.drain()
                elif not queue.drain(time_left()):
                    queue.abandon(CancelledError("the interpreter ended before the work was done"))

    def _stop_waiting(self, shares: _PendingLaunch) -> None:
        try:
            self._waiting.remove(shares)
        except KeyError:
            return  # cancelled
        self._release(shares)

    def _release(self, shares: _PendingLaunch) -> None:
        """Puts the executions of a launch on their queues.

        It never waits for another who does that: the garbage collector may run while executions are being put, drop a
        promise, and by that release another launch on the same thread. Whoever is at it puts that one too.
        """
        self._ready.append(shares)
        while self._ready:
            if not self._putting.acquire(blocking=False):
                return
            try:
                while self._ready:
                    self._ready.popleft().put()
            finally:
                self._putting.release()


class _PendingLaunch:
    """The executions of one launch.

    Attributes:
        executions: one a device.
    """

    __slots__ = ("_devices", "executions")

    def __init__(self, executions: Sequence[Execution], devices: Sequence[HostDevice]) -> None:
        self.executions = executions
        self._devices = devices

    def put(self) -> None:
        """Puts them on their queues; if that cannot be, they fail."""
        try:
            for execution, device in zip(self.executions, self._devices, strict=True):
                _put(execution, device)
        except PjrtError as error:
            self.fail(error.with_traceback(None))

    def fail(self, error: PjrtError) -> None:
        """Fails them."""
        for execution in self.executions:
            execution.fail(error)


def _put(execution: Execution, device: HostDevice) -> None:
    outputs = execution.outputs
    execution.definition.need(device.compute.server)
    device.compute.put(execution)
    # Only now: what others put because they see the queue here must come after the execution.
    for storage in outputs or ():
        storage.queue = device.compute
