"""A job: several processes that know one another, seen from one of them."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

from pjrt import system
from pjrt.api.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    PjrtError,
    UnavailableError,
)
from pjrt.api.printable import printable
from pjrt.distributed.agent import Agent, Calls, converted
from pjrt.distributed.follower import Follower
from pjrt.distributed.leader import Leader
from pjrt.distributed.messages import EventLoop, Message
from pjrt.distributed.settings import APART, Member, Settings, leader_name
from pjrt.distributed.store import LONGEST_SECONDS, CoordinationStore


class Membership:
    """The processes of a job, as this process knows them."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._lock = threading.Condition()
        self._members = {member.process_index: member for member in members}
        self._leaving: set[int] = set()
        self._ended: dict[int, str] = {}

    def name(self, process_index: int) -> str:
        """Return the name of a process, human-readable."""
        member = self._members.get(process_index)
        return f"process {process_index}" if member is None else str(member)

    def live(self) -> dict[int, Member]:
        """Return the processes that are there, by index."""
        with self._lock:
            return {index: member for index, member in sorted(self._members.items()) if index not in self._ended}

    def rejoins(self, processes: Iterable[int]) -> int:
        """Return how often processes have joined again, in all."""
        with self._lock:
            return sum(self._members[index].rejoins for index in processes)

    def join(self, member: Member) -> None:
        """Note that a process has joined, again."""
        with self._lock:
            self._members[member.process_index] = member
            self._ended.pop(member.process_index, None)
            self._leaving.discard(member.process_index)

    def begin_to_leave(self, process_index: int) -> None:
        """Note that a process has called ``shutdown``."""
        with self._lock:
            self._leaving.add(process_index)
            self._lock.notify_all()

    def end(self, process_index: int, reason: str) -> None:
        """Note that a process is not there any more."""
        with self._lock:
            self._ended[process_index] = reason
            self._lock.notify_all()

    def staying(self) -> list[int]:
        """Return the processes that are there and have not called ``shutdown``."""
        with self._lock:
            return sorted(self._members.keys() - self._ended.keys() - self._leaving)

    def is_gone(self, process_index: int) -> bool:
        """Whether a process is not there any more; one that has called ``shutdown`` may be there."""
        with self._lock:
            return process_index in self._ended

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait for a condition of the membership; return whether it came within ``timeout`` seconds."""
        with self._lock:
            return self._lock.wait_for(condition, timeout)

    def wake(self) -> None:
        """Have those that wait check their condition."""
        with self._lock:
            self._lock.notify_all()

    def absence(self, process_index: int) -> PjrtError | None:
        """Return the error of a call that needs a process which is not there; ``None`` if it is there."""
        with self._lock:
            reason = self._ended.get(process_index)
            leaving = process_index in self._leaving
        if reason is not None:
            return lost(self.name(process_index), reason)
        if leaving:
            return UnavailableError(
                f"{self.name(process_index)} has called shutdown(), so it does not take part any more; let all "
                "processes make the same calls before the first one shuts down"
            )
        return None


def lost(name: str, reason: str) -> UnavailableError:
    """Return the error of calls that need a process that was lost."""
    return UnavailableError(f"{name} was lost: {reason}; see its output for the cause")


_NOTES = "pjrt/barrier"
_NOTES_SECONDS = 1.0
_REACHED = re.compile(r"reached the barrier: (\d+)/")
_FURTHER_SECONDS = 5.0  # the service checks its time limits each second


class Barriers:
    """The barriers of one process.

    Args:
        agent: the agent of this process.
        calls: its calls.
        store: the job's key-value store.
        membership: the processes of the job.
        process_index: the number of this process.
        process_count: the number of processes.
    """

    def __init__(
        self,
        agent: Agent,
        calls: Calls,
        store: CoordinationStore,
        membership: Membership,
        process_index: int,
        process_count: int,
    ) -> None:
        self._agent = agent
        self._calls = calls
        self._store = store
        self._membership = membership
        self._process_index = process_index
        self._process_count = process_count

    def wait(self, name: str, timeout: float, processes: Collection[int] | None) -> None:
        """Wait at a barrier: ``Job.barrier``."""
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"expected a name of at least one character for a barrier, found {name!r}")
        participants = self._participants(processes)
        for index in participants:
            absence = self._membership.absence(index)
            if absence is not None:
                raise absence
        # A process that has joined again has made none of the earlier calls, so the barriers of before do not count.
        rejoins = self._membership.rejoins(participants)
        key = f"{name}#{rejoins}" if rejoins else name
        timeout = min(max(timeout, 0.0), LONGEST_SECONDS)
        whole = len(participants) == self._process_count
        try:
            self._calls.run(
                self._agent.barrier,
                key,
                max(1, int(timeout * 1000)),
                None if whole else participants,
                needs=participants,
                deadline=time.monotonic() + timeout + _FURTHER_SECONDS,
            )
        except TimeoutError:
            raise DeadlineExceededError(f"the barrier {name!r} did not pass within {timeout:g} s") from None
        except RuntimeError as error:
            failure = converted(error)
            if isinstance(failure, DeadlineExceededError):
                failure = self._late(name, key, timeout, participants, failure)
            raise failure from None

    def _participants(self, processes: Collection[int] | None) -> tuple[int, ...]:
        everyone = tuple(range(self._process_count))
        if processes is None:
            return everyone
        chosen = tuple(sorted(set(processes)))
        if self._process_index not in chosen or not set(chosen) <= set(everyone):
            raise InvalidArgumentError(
                f"expected processes from 0 to {self._process_count - 1}, with this process {self._process_index} "
                f"among them; found {sorted(processes)}"
            )
        return chosen

    def _late(
        self, name: str, key: str, timeout: float, participants: tuple[int, ...], failure: PjrtError
    ) -> DeadlineExceededError:
        """Return the error of a barrier that timed out, with the names of all processes that are missing.

        The service names only two of them. But the others get the error at the same time, so each of them notes in the
        store that it was there.
        """
        folder = f"{_NOTES}/{quote(key, safe='')}"
        self._store.put(f"{folder}/{self._process_index}", b"")
        match = _REACHED.search(failure.message)
        reached = int(match.group(1)) if match else len(participants)
        deadline = time.monotonic() + _NOTES_SECONDS
        while True:
            there = {int(entry.rpartition("/")[2]) for entry in self._store.directory(folder)}
            if len(there) >= reached or time.monotonic() > deadline:
                break
        missing = "; ".join(self._membership.name(index) for index in participants if index not in there)
        return DeadlineExceededError(
            f"the barrier {name!r} did not pass within {timeout:g} s; missing: {missing or 'one that came late'}; "
            f"{len(there)} of {len(participants)} processes came to it"
        )


class Preemption:
    """The agreement of a job on the step after which it ends, seen from one process.

    When a process announces its preemption, each process reports the last step that it has asked about, and waits at
    its next one until all have reported. The step after the highest one is agreed on: no process has passed it.

    Args:
        report: sends an event to all processes.
        failure: returns the error that ended the job, if there is one.
    """

    def __init__(self, report: Callable[..., None], failure: Callable[[], PjrtError | None]) -> None:
        self._report = report
        self._failure = failure
        self._changed = threading.Condition(threading.RLock())  # a signal handler may interrupt its owner
        self._last_step = -1
        self._announced = False
        self._agreed: int | None = None
        self._handler: Any = None
        self._watching = False

    def announce(self) -> None:
        """Report that this process was asked to end."""
        self._report("preempted")

    def notice(self, event: Message) -> None:
        """Take note of an event of the job."""
        with self._changed:
            if event["type"] == "preempted":
                if self._announced:
                    return
                self._announced = True
                self._report("step", step=self._last_step)
            else:
                self._agreed = event["step"]
                self._changed.notify_all()

    def wake(self) -> None:
        """Have a call that waits see that the job has failed."""
        with self._changed:
            self._changed.notify_all()

    def reached(self, step: int) -> bool:
        """Return whether ``step`` is the agreed one: ``Job.reached_preemption_step``."""
        self._watch()
        with self._changed:
            if step <= self._last_step and not self._announced:
                raise InvalidArgumentError(f"expected a step after {self._last_step}, found {step}: steps grow")
            if self._announced:
                self._changed.wait_for(lambda: self._agreed is not None or self._failure() is not None)
                failure = self._failure()
                if failure is not None:
                    raise failure
            self._last_step = max(step, self._last_step)
            return self._agreed is not None and step >= self._agreed

    def _watch(self) -> None:
        """Take SIGTERM for the announcement of a preemption, once; a second one has its former effect."""
        if self._watching:
            return
        if threading.current_thread() is not threading.main_thread():
            raise FailedPreconditionError(
                "expected the first call of reached_preemption_step in the main thread, because it handles SIGTERM; "
                "found it in another one"
            )
        self._watching = True
        self._handler = signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.end()
        self.announce()

    def end(self) -> None:
        """Give SIGTERM back its former effect."""
        if self._handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._handler)
            self._handler = None


NOTES = "PJRT_LAUNCH_NOTES"
"""The environment variable with the folder in which ``pjrt launch`` looks for notes of its processes.

A file with the number of a process says that it failed by itself, and one that ends in ``WAITS`` that it waits for all.
"""
WAITS = ".waits"

_running_lock = threading.Lock()
_running: list[Job] = []


def _add_running(job: Job) -> None:
    """Add a job that this process leaves at its end."""
    with _running_lock:
        _running.append(job)


def _remove_running(job: Job) -> None:
    """Remove a job that this process has left."""
    with _running_lock, contextlib.suppress(ValueError):
        _running.remove(job)


def _abandon_all() -> None:
    """Leave all jobs at once, if the main thread has ended with an error."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is not None and not hasattr(sys, "ps1"):
        for job in reversed(_running[:]):
            _note_failure(job)
            job.abandon(f"it ended with {type(error).__name__}: {error}")


def _note_failure(job: Job) -> None:
    """Note for ``pjrt launch`` that this process failed by itself, and not because of another one."""
    folder = os.environ.get(NOTES)
    if folder and job.failure is None:
        with contextlib.suppress(OSError):
            (Path(folder) / str(job.process_index)).touch()


@atexit.register
def _leave_all() -> None:
    """Leave all jobs at the end of the process."""
    _abandon_all()
    for job in reversed(_running[:]):
        try:
            job.shutdown()
        except PjrtError as failure:
            print(
                f"pjrt: at the end of process {job.process_index} of the job: {printable(failure.message)}",
                file=sys.stderr,
            )


# Other threads of the user may wait for the job, and the interpreter waits for them before it calls exit functions. The
# standard library's executors use this function for the same reason.
with contextlib.suppress(AttributeError):
    threading._register_atexit(_abandon_all)  # type: ignore[attr-defined]


def _forget_all() -> None:
    """Leave the jobs to the parent process, in the child of a fork."""
    global _running_lock
    _running_lock = threading.Lock()
    for job in _running:
        job.forget()
    _running.clear()


system.after_fork_in_child(_forget_all)


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
        self._folder = system.TemporaryFolder("job")
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

    def __repr__(self) -> str:
        state = "ended" if self._ended else self.address or "not begun"
        return f"<Job process {self.process_index} of {self.process_count}, {state}>"

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
        _add_running(job)
        return job

    def _begin(self, listening: Callable[[int], None] | None) -> None:
        """Meet the other processes, and connect the agent."""
        deadline = time.monotonic() + self._settings.initialization_timeout
        try:
            settings = self._settings
            side = self._side = (
                Follower(settings, self._folder.path, self._loop, self._notice)
                if self.process_index != settings.leader_index
                else Leader(settings, self._folder.path, self._loop, self._notice, listening)
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
        _remove_running(self)
        self._folder.close()


def _over() -> FailedPreconditionError:
    return FailedPreconditionError("the job has ended in this process: shutdown() was called")


_of_the_parent: list[Any] = []
