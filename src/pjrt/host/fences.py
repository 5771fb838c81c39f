"""Fences: the ends of work that a device has enqueued, who waits for them, and what is released then."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pjrt.api.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    InternalError,
    InvalidArgumentError,
    PjrtError,
    in_operation,
)
from pjrt.api.future import Future, when_all_done
from pjrt.api.waits import serving
from pjrt.host import shutdown
from pjrt.host.executable import without_traceback
from pjrt.host.storage import Storage, is_any_alone
from pjrt.host.work_queue import Call, WorkQueue

if TYPE_CHECKING:
    from pjrt.host.device_memory import Memory

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


def checked_fences(fences: Any, source: str, count: int) -> Sequence[Any]:
    """Return the fences that an author's method gave for work of several devices, one for each.

    Raises:
        InternalError: it gave something else; the message names the method.
    """
    if not isinstance(fences, (list, tuple)) or len(fences) != count:
        raise InternalError(
            f"expected a list of {count} fences from {source}, one for each device, or None or NotImplemented, found "
            f"{fences!r}"
        )
    for fence in fences:
        try:
            waiting_function(fence)
        except InvalidArgumentError as error:
            raise InternalError(f"{source}: {error.message}") from error
    return fences


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


# The work of steps: an interpreted program enqueues a kernel after the other, and waits only where it needs a value.


class StepWork:
    """Work that one step of a program has enqueued, such as that of a kernel.

    Attributes:
        run: the work of the program's run.
        fence: the author's fence.
        wait: waits for the fence; it is called once.
        step: the step, with its place in the user's program, as a message names it.
        keep: what must live until the work has ended.
        completion: its place among the work that has a time limit; ``None`` without one.
        has_ended: whether the device is done with it.
        has_freed: whether its end freed memory.
    """

    __slots__ = ("_freed", "_joints", "completion", "fence", "has_ended", "has_freed", "keep", "run", "step", "wait")

    def __init__(self, run: RunWork, fence: Any, step: object, keep: Any) -> None:
        self.run = run
        self.fence = fence
        self.wait = waiting_function(fence)
        self.step = step
        self.keep = keep
        self.completion: Completion | None = None
        self.has_ended = self.has_freed = False
        self._freed: deque[tuple[Memory, Any]] = deque()
        self._joints: deque[Joint] = deque()

    def join(self, joint: Joint) -> None:
        """Have the end of the work be one of those that a joint waits for."""
        self._joints.append(joint)
        if self.has_ended:  # It ended meanwhile, and may have missed this one.
            self.arrive()

    def arrive(self) -> None:
        """Tell the joints of the end."""
        while self._joints:
            try:
                joint = self._joints.popleft()
            except IndexError:  # another thread does it, too
                return
            joint.arrive(self.run.error)

    @property
    def holds_memory(self) -> bool:
        """Whether memory is freed when the work ends."""
        return bool(self._freed)

    def result(self) -> None:
        """Wait for the end of the work.

        Raises:
            PjrtError: this step has failed, or one before it.
        """
        self.run.waiter.settle(self)
        if self.run.error is not None:
            raise self.run.error.with_traceback(None)

    def free_later(self, memory: Memory, handle: Any) -> None:
        """Free the memory of a handle when the work ends."""
        self._freed.append((memory, handle))
        if self.has_ended:  # It ended meanwhile, and may have missed this one.
            self.free()

    def free(self) -> None:
        """Free what waited for the end."""
        freed = self._freed
        while freed:
            try:
                memory, handle = freed.popleft()
            except IndexError:  # another thread frees, too
                return
            free(memory, handle)
            self.has_freed = True


class Joint:
    """The end of work that several devices do together: it has failed if the run of one of them had failed before.

    Args:
        count: the number of devices.
    """

    __slots__ = ("_count", "_error", "_lock", "end")

    def __init__(self, count: int) -> None:
        self._count = count
        self._error: PjrtError | None = None
        self._lock = threading.Lock()
        self.end: Future[None] = Future()

    def arrive(self, error: PjrtError | None) -> None:
        """Note that a device is done, with the error of its run."""
        with self._lock:
            self._count -= 1
            self._error = self._error or error
            is_last = self._count == 0
        if is_last:
            self.end._complete(None, self._error)


class RunWork:
    """The work that the steps of one run of a program have enqueued; it is the fence of the run.

    Attributes:
        waiter: the waiter of the device.
        error: the error of the first step that failed.
    """

    __slots__ = ("_joints", "_last", "error", "waiter")

    def __init__(self, waiter: FenceWaiter) -> None:
        self.waiter = waiter
        self.error: PjrtError | None = None
        self._last: StepWork | None = None
        self._joints: list[Joint] = []

    def join(self, joint: Joint) -> None:
        """Have what was added so far be this device's part of work that several devices do together."""
        self._joints.append(joint)
        if self._last is None:
            joint.arrive(self.error)
        else:
            self._last.join(joint)

    def add(self, fence: Any, step: object, source: str, keep: Any = None) -> StepWork:
        """Add the work of a step; do not wait, unless many steps are under way.

        Args:
            fence: the author's fence.
            step: the step, with its place in the user's program, as a message names it.
            source: the name of the author's function, for messages.
            keep: what must live until the work has ended.

        Raises:
            InvalidArgumentError: the object is no fence.
        """
        self._last = work = StepWork(self, fence, step, keep)
        self.waiter.begin(work, source)
        return work

    @property
    def has_ended(self) -> bool:
        """Whether the device is done with all of it, and did it alone."""
        return not self._joints and (self._last is None or self._last.has_ended)

    def exception(self) -> PjrtError | None:
        """Wait for the end of all of it; return the error of the first step that has failed, perhaps of another device
        that took part in it.
        """
        if self._last is not None:
            self.waiter.settle(self._last)
        for joint in self._joints:
            error = joint.end.exception()
            if self.error is None and error is not None:
                self.error = AbortedError(f"another device of the launch failed: {error}", payloads=error.payloads)
        return self.error

    def cancel(self) -> None:
        """Cancel the fences of the steps under way."""
        for work in self.waiter.under_way():
            if work.run is self:
                cancel(work.fence)


# The waiter for fences: it ends the work that a device has enqueued when the fence says that it is done.


class Completion:
    """The end of work that a device has enqueued: its outputs are defined then, and its memory is released.

    Attributes:
        definition: the definition event of the outputs; it may be poisoned before the work ends.
        launch_id: the launch id of the execution, 0 for none.
        name: the program's name, or that of the author's function for a step.
        step: the step of a program that the work is of; ``None`` for the whole program.
        before: events behind which the outputs are defined, as behind those of the arguments; their errors are theirs.
        keep: what must live until the work has ended.
        part_of: for a copy that an execution waits for, the event that defines the outputs of that.
        ended: done when the device is done with the memory.
        has_ended: whether it is.
        is_cancelled: whether its fence was cancelled.
    """

    __slots__ = (
        "_before",
        "_freed",
        "_inputs",
        "definition",
        "ended",
        "has_ended",
        "is_cancelled",
        "keep",
        "launch_id",
        "name",
        "part_of",
        "step",
    )

    def __init__(
        self,
        definition: Future[None],
        inputs: list[Storage],
        launch_id: int,
        name: str,
        step: object = None,
        before: Sequence[Future[None]] = (),
        keep: object = None,
        part_of: Future[None] | None = None,
    ) -> None:
        self.definition = definition
        self.launch_id = launch_id
        self.name = name
        self.step = step
        self.has_ended = False
        self.is_cancelled = False
        self._inputs = inputs
        self._before = before
        self.keep = keep
        self.part_of = part_of
        self._freed: deque[tuple[Memory, Any]] = deque()
        self.ended: Future[None] = Future()

    def result(self) -> None:
        """Wait until the outputs are defined.

        Raises:
            PjrtError: the work has failed.
        """
        self.definition.result()

    def end(self, error: PjrtError | None) -> None:
        """Define the outputs, or fail them, and release the memory. The error of an argument is theirs, too."""
        self.has_ended = True
        before = [*self._before, *(storage.definition for storage in self._inputs)]
        self._before, self._inputs, self.keep = (), [], None
        self._free()
        if error is not None:
            self.definition._complete(None, _first_error(before) or error)
        else:  # The device has done what the arguments come from, too; but whose fence is another may not be told yet.
            when_all_done(before, functools.partial(_define, self.definition, before))
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


def _define(definition: Future[None], before: Sequence[Future[None]]) -> None:
    """Complete an event behind others, with the first error of them."""
    definition._complete(None, _first_error(before))


def _first_error(before: Sequence[Future[None]]) -> PjrtError | None:
    return next((each._error for each in before if each._error is not None), None)


running = threading.local()
"""``definition``: the event that defines the outputs of the execution that this thread is at; ``None`` for none."""


class FenceWaiter:
    """Waits for the fences of one device: by their callbacks if they are futures, otherwise on one thread, in order.

    The thread starts with the first fence that needs it. With a time limit, another thread lives as long as fences are
    open: it cancels the first one whose time has run out, and resets the device if that does not help.

    Args:
        name: the name of the device.
        patience: how many seconds the first fence has; ``None`` for no limit.
        reset: gives up all work of the device; ``None`` if the author has no such function.
    """

    __slots__ = (
        "__weakref__", "_changed", "_completions", "_copies", "_lock", "_num_waiting", "_patience", "_queue", "_reset",
        "_steps", "_turn", "_watches",
    )  # fmt: skip

    def __init__(self, name: str, patience: float | None = None, reset: Callable[[], object] | None = None) -> None:
        self._queue = WorkQueue(name, "fences")
        self._copies = WorkQueue(name, "copies")  # of copies that may have a queue of their own
        self._completions: dict[Completion, Any] = {}
        self._patience = patience
        self._reset = reset
        self._watches = False
        self._lock = threading.Lock()  # guards _watches
        # The work of steps under way, in the order of the device. One thread at a time waits for its fences, each once.
        self._steps: deque[StepWork] = deque()
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._num_waiting = 0  # the threads that wait for that one
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
        self._add(fence, completion, self._queue)

    def wait(self, fence: Any, source: str, keep: object) -> None:
        """Wait for the fence of a copy; ``None`` is done.

        Args:
            fence: the author's fence.
            source: the name of the author's method, for messages.
            keep: what must live until the copy has ended.

        Raises:
            InvalidArgumentError: the object is no fence.
            PjrtError: the copy has failed, was given up, or has taken too long.
        """
        if fence is None:
            return
        wait = waiting_function(fence)
        completion = Completion(Future(), [], 0, source, keep=keep, part_of=getattr(running, "definition", None))
        if self._patience is not None and not self._copies.is_current_thread:
            self._add(fence, completion, self._copies)  # this thread must come back, whether the fence does or not
            completion.definition.result()
            return
        self._open(fence, completion)
        if completion.definition.done():
            self.cancel(completion)
        error = None
        try:
            wait()
        except KeyboardInterrupt:
            completion.poison(CancelledError("Ctrl-C ended the wait for the copy"))
            self.cancel(completion)
            self._wait_on_thread(fence, completion, self._copies)  # its memory is in use until then
            raise
        except BaseException as raised:
            error = without_traceback(raised)
        self.end(completion, error)
        completion.definition.result()

    def _add(self, fence: Any, completion: Completion, queue: WorkQueue) -> None:
        if isinstance(fence, RunWork) and fence.has_ended:
            completion.end(fence.error)
            return
        self._open(fence, completion)
        if completion.definition.done():  # it was poisoned before it had a fence
            self.cancel(completion)
        if isinstance(fence, (Future, concurrent.futures.Future)):
            if isinstance(fence, Future):
                completion.definition.need(fence)
            fence.add_done_callback(functools.partial(self._end_by_future, completion))
            return
        self._wait_on_thread(fence, completion, queue)

    def _wait_on_thread(self, fence: Any, completion: Completion, queue: WorkQueue) -> None:
        completion.definition.need(queue.server)
        wait = _Wait(self, fence, completion)
        try:
            queue.put(wait)
        except PjrtError:
            wait.run()  # There is no thread for it, and the work goes on all the same.

    def begin(self, work: StepWork, source: str) -> None:
        """Take the work of a step, which ends after that of all steps before it.

        Args:
            work: the work.
            source: the name of the author's function, for messages.
        """
        if self._patience is not None:
            work.completion = Completion(Future(), [], 0, source, work.step)
            self._open(work.fence, work.completion)
        self._steps.append(work)
        if self._patience is not None:
            self._queue.put(Call(functools.partial(self.settle, work)))  # else its time would go on behind its end
        elif len(self._steps) > _STEPS_AHEAD:
            self.settle(self._steps[_STEPS_AHEAD // 2])

    def settle(self, work: StepWork) -> None:
        """Wait until the work of a step has ended. The device does what was enqueued before it first."""
        while not work.has_ended:
            if self._turn.acquire(blocking=False):
                self._settle(work)
            else:
                self._wait_for_another(work)

    def _settle(self, work: StepWork) -> None:
        """Wait for the fences of the steps under way up to one, in their order; the caller has the turn."""
        steps = self._steps
        try:
            while not work.has_ended:
                first = steps[0]
                error = None
                try:
                    first.wait()
                except KeyboardInterrupt:
                    raise  # the work goes on
                except BaseException as raised:
                    error = in_operation(without_traceback(raised), str(first.step))
                steps.popleft()
                if first.completion is not None:
                    error = first.completion.definition._error or error  # that of the time limit
                    self.end(first.completion, error)
                if error is not None and first.run.error is None:
                    first.run.error = error
                first.has_ended = True
                first.keep = None
                if first._joints:
                    first.arrive()
                if first._freed:
                    first.free()
                if self._num_waiting:
                    self._wake()
        finally:
            self._turn.release()
            if self._num_waiting:
                self._wake()

    def _wait_for_another(self, work: StepWork) -> None:
        """Wait until another thread, which has the turn, comes to the end of a step, or leaves the turn."""
        with self._changed:
            self._num_waiting += 1  # first: who ends a step looks at it behind
            try:
                if self._turn.acquire(blocking=False):
                    self._turn.release()
                elif not work.has_ended:
                    self._changed.wait(_SLICE_SECONDS)
            finally:
                self._num_waiting -= 1

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def settle_for_memory(self) -> bool:
        """Wait until the end of a step frees memory; return whether one did."""
        for work in self.under_way():
            self.settle(work)
            if work.has_freed:
                return True
        return False

    def under_way(self) -> list[StepWork]:
        """Return the work of steps that has not ended, in the order of the device."""
        return list(self._steps)

    def _open(self, fence: Any, completion: Completion) -> None:
        self._completions[completion] = fence
        whole = completion.part_of
        if whole is not None and whole._error is not None:  # it was given up before this fence was known
            completion.poison(whole._error)
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
            error: PjrtError = DeadlineExceededError(
                f"the work of {first.name!r} on {self.name} has not ended within {self._patience:g} s "
                "(watchdog_seconds)"
            )
            if first.step is not None:
                error = in_operation(error, str(first.step))
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
        steps = {id(work.run) for work in self.under_way() if work.holds_memory}
        return [
            each.ended for each, fence in list(self._completions.items()) if each.holds_memory or id(fence) in steps
        ]

    def end(self, completion: Completion, error: PjrtError | None) -> None:
        """End a completion."""
        completion.end(error)
        self._completions.pop(completion, None)

    def poison(self, error: PjrtError) -> int:
        """Fail the outputs of enqueued work now, and return of how many executions."""
        poisoned = [each for each in list(self._completions) if each.poison(error)]
        for completion in poisoned:
            self.cancel(completion)
        return len(poisoned)

    def cancel(self, completion: Completion) -> None:
        """Cancel the fence of work whose outputs have failed, once; where it comes later, ``add`` does so."""
        fence = self._completions.get(completion)
        if fence is not None and not completion.is_cancelled:
            completion.is_cancelled = True
            cancel(fence)

    def poison_one(self, definition: Future[None], error: PjrtError) -> None:
        """Fail the outputs of the enqueued execution that an event defines, and cancel its fence; a copy that it waits
        for, too.
        """
        for completion in list(self._completions):
            if definition in (completion.definition, completion.part_of) and completion.poison(error):
                self.cancel(completion)

    def poison_first(self, error: PjrtError, launch_id: int) -> bool:
        """Fail the outputs of the earliest enqueued execution with a launch id; return whether there was one."""
        for completion in list(self._completions):
            if completion.launch_id == launch_id and completion.poison(error):
                self.cancel(completion)
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
        """End the threads."""
        self._queue.close()
        self._copies.close()

    def _end_by_future(self, completion: Completion, fence: Any) -> None:
        try:
            error = fence.exception()
        except concurrent.futures.CancelledError as cancelled:
            error = cancelled
        # The thread is often the author's, which does the device's work one after the other: what the end sets off
        # must not wait on it for later work.
        with serving(f"the thread that completes the fences of {self.name}"):
            self.end(completion, None if error is None else without_traceback(error))


_STEPS_AHEAD = 64
"""The most steps whose work is under way: what they use is not freed before."""

_SLICE_SECONDS = 0.5


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
        if isinstance(fence, RunWork):
            error = fence.exception()
        else:
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
