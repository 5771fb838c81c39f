"""Dispatch: when an execution may go to its device's queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pjrt.api.errors import CancelledError, PjrtError
from pjrt.api.future import Future
from pjrt.host.device import HostDevice
from pjrt.host.device_errors import clean
from pjrt.host.execution import Execution
from pjrt.host.queue import WorkQueue, after


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

    __slots__ = ("_order", "_queues", "_waiting")

    def __init__(self, queues: Sequence[WorkQueue]) -> None:
        self._queues = tuple(queues)
        # Held while something is put on more than one queue.
        self._order = threading.Lock()
        self._waiting: set[_Held] = set()

    def enqueue(self, executions: Sequence[Execution], devices: Sequence[HostDevice]) -> None:
        """Runs the executions of one launch, each on its device, when the time has come; returns at once."""
        missing: list[Future[None]] = []
        for execution, device in zip(executions, devices, strict=True):
            missing += [
                storage.definition
                for storage in execution.inputs
                if not storage.definition._done and storage.queue is not device.compute
            ]
        if not missing:
            self._release(executions, devices)
            return
        held = _Held(executions, devices)
        self._waiting.add(held)
        after(missing, lambda: self._release_held(held))

    def finish(self, end_waiting: Callable[[], object]) -> None:
        """Waits for the work under way, cancels what waits for something that will not come, and ends the queues.

        Args:
            end_waiting: called when all that can run has run; ends waits that the caller knows of.
        """
        self._drain()
        end_waiting()
        self._drain()
        while self._waiting:
            held = self._waiting.pop()
            for execution in held.executions:
                execution.fail(CancelledError("the client was closed while the execution waited for its arguments"))
            self._drain()
        for queue in self._queues:
            queue.close()

    def _drain(self) -> None:
        # Work on one queue may put more on another.
        while any(queue.is_busy for queue in self._queues):
            for queue in self._queues:
                queue.drain()

    def _release_held(self, held: _Held) -> None:
        try:
            self._waiting.remove(held)
        except KeyError:
            return  # cancelled
        try:
            self._release(held.executions, held.devices)
        except PjrtError as error:
            for execution in held.executions:
                execution.fail(clean(error))

    def _release(self, executions: Sequence[Execution], devices: Sequence[HostDevice]) -> None:
        if len(executions) == 1:
            _put(executions[0], devices[0])
            return
        with self._order:
            for execution, device in zip(executions, devices, strict=True):
                _put(execution, device)


class _Held:
    """The executions of a launch that wait for inputs."""

    __slots__ = ("devices", "executions")

    def __init__(self, executions: Sequence[Execution], devices: Sequence[HostDevice]) -> None:
        self.executions = executions
        self.devices = devices


def _put(execution: Execution, device: HostDevice) -> None:
    outputs = execution.outputs
    device.compute.put(execution)
    # Only now: what others put because they see the queue here must come after the execution.
    for storage in outputs or ():
        storage.queue = device.compute
