"""Dispatch: an execution goes to its device's queue when its inputs are ready."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import CancelledError, FailedPreconditionError, PjrtError
from pjrt.api.future import Future, when_all_done
from pjrt.api.waits import server_here, time_left
from pjrt.host.copies import Copy
from pjrt.host.device_memory.fence_waiter import FenceWaiter
from pjrt.host.execution import Execution
from pjrt.host.fork_safety import runtime_lock
from pjrt.host.shutdown import is_exiting
from pjrt.host.storage import is_any_alone
from pjrt.host.work_queue import Task, WorkQueue
from pjrt.host_memory import references

if TYPE_CHECKING:
    from pjrt.host.device import HostDevice

_PendingLaunch = tuple[Execution, ...]
"""The executions of one launch, which are put on their queues together."""


class Dispatcher:
    """Puts executions on their devices' queues as soon as their inputs are ready, or sure to be ready in time.

    An input that an earlier task of the same queue makes will be ready when the queue comes to the execution. All other
    inputs are waited for outside of the queues: the head of a queue never waits for an input, so an input may come
    late, even from a program on the same device, and finds the queue running. The executions of one launch go to all of
    their queues at one moment, when the inputs of all are ready. So any two launches are in the same order on all
    devices that they share, and their collectives cannot wait for each other in a circle.

    Launches on devices of several processes are put in the order of the calls, even where the inputs of a later one are
    ready first: the calls come in one order in all processes, the inputs need not.

    Args:
        devices: the devices of the client that belong to this process.
    """

    __slots__ = ("_fences", "_gates", "_last_gate", "_putting", "_queues", "_ready", "_waiting")

    def __init__(self, devices: Sequence[HostDevice]) -> None:
        self._queues = tuple(queue for device in devices for queue in (device.compute, device.transfers))
        self._fences = tuple(device.fences for device in devices)
        self._waiting: set[_PendingLaunch] = set()
        # For each waiting launch on devices of several processes: done when it is put. The next one waits for that.
        self._gates: dict[_PendingLaunch, Future[None]] = {}
        self._last_gate: Future[None] | None = None
        # Launches that are ready to be put, in one order for all queues, and the lock of the caller that puts them.
        self._ready: deque[_PendingLaunch] = deque()
        self._putting = threading.Lock()

    def enqueue(self, executions: Sequence[Execution]) -> None:
        """Run the executions of one launch, each on its device, when their inputs are ready; do not wait for that."""
        missing: list[Future[None]] = []
        for execution in executions:
            compute = execution.device.compute
            missing += [
                storage.definition
                for storage in execution.inputs
                if not storage.definition._done and storage.queue is not compute
            ]
        across = executions[0].spans_processes if executions else False
        if not missing and len(executions) == 1 and not across:
            execution = executions[0]
            if execution.runs_on_caller and _run_here(execution):
                return
            try:
                _put(execution)
            except PjrtError as error:
                execution.fail(error)
                raise
            return
        launch = tuple(executions)
        if across:
            self._wait_for_turn(launch, missing)
        if missing:
            for execution in launch:
                execution.definition.need(*missing)
            self._waiting.add(launch)
            when_all_done(missing, lambda: self._stop_waiting(launch))
        else:
            self._release(launch)

    def finish(self, end_waiting: Callable[[], object]) -> None:
        """Wait for the work under way, cancel executions whose inputs will never come, and close the queues.

        Args:
            end_waiting: called when all that can run has run; it ends the waits that the caller knows of.
        """
        self._drain()
        end_waiting()
        self._drain()
        while self._waiting:
            error = CancelledError("the client was closed while the execution waited for its arguments")
            launch = self._waiting.pop()
            _fail(launch, error)
            self._end_turn(launch)
            self._drain()
        for queue in self._queues:
            queue.close()
        for fences in self._fences:
            fences.close()

    def give_up(self, error: PjrtError, only_ask: bool) -> None:
        """Fail all executions that are not done, and ask the running functions to end.

        Args:
            error: the reason.
            only_ask: ask the running functions only, and fail nothing.
        """
        if only_ask:
            for queue in self._queues:
                queue.ask_to_end(error)
            return
        for launch in list(self._waiting):
            self._waiting.discard(launch)
            _fail(launch, error)
            self._end_turn(launch)
        for queue in self._queues:
            for task in queue.tasks():
                if isinstance(task, Execution):
                    task.poison(error)
        for fences in self._fences:
            fences.poison(error)

    def unfinished(self) -> list[Execution]:
        """Return the executions that are not done, in no order."""
        tasks = [task for queue in self._queues for task in queue.tasks() if isinstance(task, Execution)]
        return tasks + [execution for launch in list(self._waiting) for execution in launch]

    def wait_for_memory(self, device: HostDevice) -> bool:
        """Wait until work of a device ends that alone holds memory; return whether there was such work.

        Callers run ahead of a device, and then most of its memory is that of arguments that nobody else holds. Work
        that waits for its inputs, or may wait for the caller, is not waited for.
        """
        here = server_here()
        if here is not None and here is not device.compute.server and here is not device.transfers.server:
            return False  # this thread may be the one that ends the work
        ends: list[Future[Any]] = device.fences.ends_of_holders()
        for queue in (device.compute, device.transfers):
            if not queue.is_current_thread:
                ends += [end for task in queue.tasks() if (end := _end_of_holder(task)) is not None]
        if not ends:
            return False
        first: Future[None] = Future()
        first.need(*ends)
        for end in ends:
            end.add_done_callback(lambda _: first._complete(None))
        try:
            first.result()
        except FailedPreconditionError:  # the work needs the calling thread
            return False
        return True

    def _drain(self) -> None:
        # Work on one queue may put more on another.
        workers: tuple[WorkQueue | FenceWaiter, ...] = (*self._queues, *self._fences)
        while any(worker.is_busy for worker in workers):
            for worker in workers:
                if not is_exiting():
                    worker.drain()
                elif not worker.drain(time_left()):
                    worker.abandon(CancelledError("the interpreter ended before the work was done"))

    def _stop_waiting(self, launch: _PendingLaunch) -> None:
        try:
            self._waiting.remove(launch)
        except KeyError:
            return  # It was cancelled.
        self._release(launch)

    def _wait_for_turn(self, launch: _PendingLaunch, missing: list[Future[None]]) -> None:
        """Have a launch on devices of several processes wait for the one before it, and the next one for this one."""
        with runtime_lock:
            last = self._last_gate
            if last is not None and not last._done:
                missing.append(last)
            if missing:
                gate: Future[None] = Future()
                gate.need(*missing)
                self._last_gate = self._gates[launch] = gate

    def _end_turn(self, launch: _PendingLaunch) -> None:
        gate = self._gates.pop(launch, None) if self._gates else None
        if gate is not None:
            gate._complete(None)

    def _release(self, launch: _PendingLaunch) -> None:
        """Put the executions of a launch on their queues.

        It never waits for another caller that does so: the garbage collector may run while executions are being put,
        drop a promise, and by that release another launch on the same thread. The caller that holds the lock puts that
        one too.
        """
        self._ready.append(launch)
        while self._ready:
            if not self._putting.acquire(blocking=False):
                return
            try:
                while self._ready:
                    launch = self._ready.popleft()
                    _put_all(launch)
                    self._end_turn(launch)
            finally:
                self._putting.release()


def _end_of_holder(task: Task) -> Future[Any] | None:
    """Return the end of a task that alone holds memory; ``None`` if it does not, or may wait for the caller."""
    if isinstance(task, Execution):
        return task.definition if not task.may_wait_for_caller and is_any_alone(task.inputs) else None
    if isinstance(task, Copy) and task.source is not None and references.to_attribute(task, "source") == 1:
        return task.future
    return None


def _put_all(launch: _PendingLaunch) -> None:
    try:
        for execution in launch:
            _put(execution)
    except PjrtError as error:
        _fail(launch, error.with_traceback(None))


def _fail(launch: _PendingLaunch, error: PjrtError) -> None:
    for execution in launch:
        execution.fail(error)


def _run_here(execution: Execution) -> bool:
    """Run an execution on the caller's thread, if its device is idle; return whether it was run."""
    queue = execution.device.compute
    visit = queue.enter()
    if visit is None:
        return False
    try:
        execution.run()
    finally:
        queue.leave(visit)
    hand_over(execution)
    return True


def hand_over(execution: Execution) -> None:
    """Let later executions of the device be enqueued behind one that has run on the caller's thread."""
    if not execution.definition._done:  # It has enqueued work, which later executions of the device need not wait for.
        for storage in execution.outputs or ():
            storage.queue = execution.device.compute


def _put(execution: Execution) -> None:
    # Read before the execution is put: it may be done, and its outputs gone, as soon as it is.
    outputs, queue = execution.outputs, execution.device.compute
    execution.definition.need(queue.server)
    queue.put(execution)
    # Only now: what other threads put because they see the queue here must come after the execution.
    for storage in outputs or ():
        storage.queue = queue
