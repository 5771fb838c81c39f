"""A job: several processes that know one another, seen from one of them."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from pjrt import system
from pjrt.api.errors import DeadlineExceededError, FailedPreconditionError, PjrtError
from pjrt.distributed import process_end
from pjrt.distributed._jaxlib import Agent
from pjrt.distributed.barriers import Barriers
from pjrt.distributed.calls import Calls
from pjrt.distributed.event_loop import EventLoop
from pjrt.distributed.follower import Follower
from pjrt.distributed.leader import Leader
from pjrt.distributed.member import Member
from pjrt.distributed.membership import Membership, lost
from pjrt.distributed.messages import Message
from pjrt.distributed.preemption import Preemption
from pjrt.distributed.settings import APART, Settings, leader_name
from pjrt.distributed.store import LONGEST_SECONDS, CoordinationStore

_GRACE_SECONDS = 1.0
_FAREWELL_SECONDS = 5.0


class Job:
    """A job of several processes, seen from one of them.

    ``pjrt.distributed.initialize`` makes the job of a process, and ``pjrt.distributed.join`` one inside a framework's.

    Attributes:
        process_index: the number of this process.
        process_count: the number of processes.
        store: the key-value store.
        address: where the leader, most often process 0, is reached: ``HOST:PORT``.
    """

    def __init__(self, settings: Settings) -> None:
        self.process_index = settings.process_index
        self.process_count = settings.process_count
        self.address = ""
        self._settings = settings
        self._calls = Calls()
        self._loop = EventLoop()
        self._folder = Path(tempfile.mkdtemp(prefix="pjrt-job-"))
        self._membership = Membership([Member.here(settings.process_index)])
        self._lock = threading.Lock()
        self._begun = False
        self._leaving = False
        self._ended = False
        self._torn_down = threading.Event()
        self._failure: PjrtError | None = None
        self._callbacks: list[Callable[[], object]] = []
        self._absence_callbacks: list[Callable[[int, PjrtError, bool], object]] = []
        self._work: list[Callable[[float], object]] = []
        self._barriers: Barriers | None = None
        self._preemption = Preemption(self._announce, lambda: self._failure)
        self._side: Leader | Follower | None = None
        self._agent: Agent | None = None
        self._connected = False

    # The beginning.

    @classmethod
    def begin(cls, settings: Settings, listening: Callable[[int], None] | None = None) -> Job:
        """Make this process one of a job, and wait for the others.

        Args:
            settings: the settings.
            listening: is called with the leader's port in the leader, before it waits for the others.
        """
        job = cls(settings)
        job._begin(listening)
        process_end.add(job)
        return job

    def _begin(self, listening: Callable[[int], None] | None) -> None:
        """Meet the other processes, and connect the agent."""
        deadline = time.monotonic() + self._settings.initialization_timeout
        try:
            settings = self._settings
            side = self._side = (
                Follower(settings, self._folder, self._loop, self._notice)
                if self.process_index != settings.leader_index
                else Leader(settings, self._folder, self._loop, self._notice, listening)
            )
            side.meet(deadline)
            self.address = side.address
            agent = self._agent = Agent(f"unix:{side.agent_path}", self.process_index, self._settings.can_rejoin)
            self.store = CoordinationStore(agent, self._calls)
            try:
                self._calls.run(agent.connect, deadline=deadline, needs=range(self.process_count))
            except TimeoutError:
                raise DeadlineExceededError("the processes of the job did not connect to its leader in time") from None
            self._connected = True
            self._barriers = Barriers(
                agent, self._calls, self.store, self._membership, self.process_index, self.process_count
            )
        except BaseException:
            self._tear_down()
            raise

    # Events.

    def _notice(self, event: Message) -> None:
        """Take note of an event; this runs in the thread of the event loop."""
        index = event.get("process_index", -1)
        match event["type"]:
            case "ready":
                self._membership = Membership(Member.read(fields) for fields in event["members"])
                self._begun = True
            case "joined":
                self._membership.join(Member.read(event["member"]))
            case "leaving":
                self._membership.begin_to_leave(index)
                # Its last barrier may have passed, and only the news of it be on their way.
                self._loop.call_later(_GRACE_SECONDS, self._give_up_on, index)
            case "left":
                self._membership.end(index, "it has left the job")
                self._give_up_on(index)
            case "lost":
                self._lose(index, event["reason"])
            case "preempted" | "agreed":
                self._preemption.notice(event)

    def _give_up_on(self, process_index: int) -> None:
        absence = self._membership.absence(process_index)
        if absence is not None and not self._leaving:
            self._calls.fail_those_that_need(process_index, lambda: PjrtError.of(absence.code, absence.message))
            if self._absence_callbacks:  # not in the thread of the event loop, which a callback may need
                arguments = process_index, absence, self._membership.is_gone(process_index)
                threading.Thread(target=self._report_absence, args=arguments, name="pjrt-job-absence").start()

    def _report_absence(self, process_index: int, absence: PjrtError, is_gone: bool) -> None:
        for callback in self._absence_callbacks:
            callback(process_index, PjrtError.of(absence.code, absence.message), is_gone)

    def _lose(self, process_index: int, reason: str) -> None:
        self._membership.end(process_index, reason)
        if not self._begun:
            return
        if self._settings.recoverable and process_index not in (self._settings.leader_index, self.process_index):
            self._give_up_on(process_index)
            return
        name = leader_name(APART) if process_index == APART else self._membership.name(process_index)
        if process_index == self.process_index:
            name, reason = f"this process, {name},", f"the other processes have given it up: {reason}"
        self._fail(lost(name, reason))

    def _fail(self, error: PjrtError) -> None:
        with self._lock:
            if self._failure is not None or self._ended:
                return
            self._failure = error
        self._calls.fail(lambda: PjrtError.of(error.code, error.message))
        self._membership.wake()
        self._preemption.wake()
        threading.Thread(target=self._tear_down, name="pjrt-job-end", daemon=True).start()

    # Use.

    @property
    def is_running(self) -> bool:
        """Whether the job has neither failed nor ended in this process."""
        return self._failure is None and not self._ended

    @property
    def failure(self) -> PjrtError | None:
        """The error that ended the job, such as the loss of a process; ``None`` while there is none."""
        return self._failure

    @property
    def runtime_client(self) -> Any:
        """jaxlib's ``DistributedRuntimeClient``, for devices whose engine takes one.

        It must not be connected, shut down or used for barriers.
        """
        self._check()
        assert self._agent is not None
        return self._agent.runtime_client

    def on_end(self, callback: Callable[[], object]) -> None:
        """Have a function called when the job ends, before the agent stops."""
        self._callbacks.append(callback)

    def on_absence(self, callback: Callable[[int, PjrtError, bool], object]) -> None:
        """Have a function called when a process leaves, or is lost while the job goes on.

        The function gets the number of the process, the error of what needs this process, and whether the process is
        gone. One that leaves gets a moment first, because its last work may have reached this process only in part. It
        then takes part in nothing new, but it is there until all others leave, too, and the function is called again.
        """
        self._absence_callbacks.append(callback)

    def before_leaving(self, finish: Callable[[float], object]) -> None:
        """Have a function called with a number of seconds, in which it finishes work with the other processes, before
        this process leaves the job.
        """
        self._work.append(finish)

    def barrier(self, name: str, timeout: float = LONGEST_SECONDS, processes: Collection[int] | None = None) -> None:
        """Wait until processes have called this with the same name.

        A name can be used again when its last barrier has passed.

        Args:
            name: the barrier's name.
            timeout: the longest time to wait, in seconds; that of the first process counts.
            processes: the processes that take part, of which this is one; all by default.

        Raises:
            DeadlineExceededError: not all processes came in time; the message names those that are missing.
            UnavailableError: a process was lost, or has left.
            InvalidArgumentError: the name or the processes are not valid.
        """
        self._check()
        assert self._barriers is not None
        self._barriers.wait(name, timeout, processes)

    def reached_preemption_step(self, step: int) -> bool:
        """Return whether all processes save their work and stop after this step, because one was asked to end.

        Each process calls it once in each step, in the main thread. From the first call on, the first SIGTERM does
        not end the process, but has all processes agree on one step that none of them has passed.

        Args:
            step: the number of the step; it grows.

        Raises:
            UnavailableError: a process was lost.
        """
        self._check()
        return self._preemption.reached(step)

    def announce_preemption(self) -> None:
        """Have all processes agree on the step after which they stop, as SIGTERM does."""
        self._check()
        self._preemption.announce()

    def absence(self, process_index: int) -> PjrtError | None:
        """Return the error of work that needs a process which has left, or wants to; ``None`` if it is there."""
        return self._failure or self._membership.absence(process_index)

    def live_processes(self) -> Mapping[int, int]:
        """Return the processes that are there, and how often each had been there before."""
        self._check()
        return {index: member.rejoins for index, member in self._membership.live().items()}

    def _check(self) -> None:
        self._raise_failure()
        if self._ended:
            raise _over()

    # The end.

    def shutdown(self) -> None:
        """Leave the job, when all processes want to.

        It waits until all processes that are there have called it, or have left. Nothing happens if the job has ended.

        Raises:
            DeadlineExceededError: not all processes came within the shutdown timeout. The job has ended here.
            UnavailableError: a process was lost. The job has ended here.
        """
        with self._lock:
            if self._leaving or self._ended:
                wait = True
            else:
                wait, self._leaving = False, True
        if wait:
            self._torn_down.wait()
            return
        try:
            self._take_leave()
        finally:
            self._tear_down("left")

    def _take_leave(self) -> None:
        """Wait until all want to leave; the leader then waits until all have left."""
        if self._failure is not None:
            return
        membership, timeout = self._membership, self._settings.shutdown_timeout
        for finish in self._work:
            finish(timeout)
        self._announce("leaving")
        if not membership.wait_until(lambda: self._failure is not None or not membership.staying(), timeout):
            missing = "; ".join(membership.name(index) for index in membership.staying())
            raise DeadlineExceededError(
                f"not all processes have called shutdown() within {timeout:g} s; missing: {missing}; this process has "
                "left the job"
            )
        self._raise_failure()
        if self.process_index == self._settings.leader_index:
            membership.wait_until(lambda: len(membership.live()) == 1, _FAREWELL_SECONDS)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise PjrtError.of(self._failure.code, self._failure.message)

    def _announce(self, kind: str, **fields: object) -> None:
        event = {"type": kind, "process_index": self.process_index, **fields}
        if self._side is not None:
            self._side.report(event)

    def abandon(self, reason: str) -> None:
        """Leave the job at once, because of an error; the other processes report the reason."""
        self._tear_down("lost", reason=reason)

    def forget(self) -> None:
        """Leave the job to the parent process, in the child of a fork, where the job's threads do not exist."""
        error = FailedPreconditionError("the job belongs to the parent of this process, which was forked from it")
        self._failure, self._ended = error, True
        self._torn_down.set()
        self._calls.forget(lambda: PjrtError.of(error.code, error.message))
        if self._side is not None:
            system.close_in_child(self._side.descriptors())
        _of_the_parent.append((self._agent, self._side, self._loop))  # their ends would wait for the threads

    def _tear_down(self, farewell: str | None = None, **fields: object) -> None:
        """End the job here.

        Args:
            farewell: the event that the other processes get, unless the job has failed; ``None`` is no event.
            fields: the fields of the event.
        """
        with self._lock:
            first, self._ended = not self._ended, True
        if not first:
            self._torn_down.wait()
            return
        try:
            # A loss is no failure of the job any more: the leader goes as soon as it knows that all others have left.
            if farewell is not None and self._failure is None:
                self._announce(farewell, **fields)
            self._preemption.end()
            for callback in reversed(self._callbacks):
                callback()
        finally:
            self._end_engine()
            self._torn_down.set()

    def _end_engine(self) -> None:
        failure = self._failure or _over()
        self._calls.fail(lambda: PjrtError.of(failure.code, failure.message))
        if self._agent is not None and self._connected:
            self._agent.stop()
        if self._side is not None:
            self._side.close(self._connected)
        if self._connected:
            self._calls.join(_FAREWELL_SECONDS)
        self._loop.stop()
        process_end.remove(self)
        shutil.rmtree(self._folder, ignore_errors=True)


def _over() -> FailedPreconditionError:
    return FailedPreconditionError("the job has ended in this process: shutdown() was called")


_of_the_parent: list[Any] = []
