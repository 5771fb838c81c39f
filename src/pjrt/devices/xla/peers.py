"""Peers: the processes of a job that make one client together, each with devices of its own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import stat
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pjrt import distributed
from pjrt.api.buffer import Buffer
from pjrt.api.checks import expect_all, expect_int
from pjrt.api.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    PjrtError,
    StatusCode,
    UnavailableError,
    UnimplementedError,
    unimplemented,
)
from pjrt.api.future import Future
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla._jaxlib import converted
from pjrt.devices.xla.buffer import PendingBuffer, XlaBuffer
from pjrt.devices.xla.device import IDS_OF_A_PROCESS, XlaMemorySpace
from pjrt.devices.xla.future import in_thread
from pjrt.devices.xla.runtime import ArrayType, Runtime
from pjrt.devices.xla.special_buffers import type_of_spec, uninitialized
from pjrt.distributed import CoordinationStore
from pjrt.distributed.settings import LONGEST_START_SECONDS

# The sockets of gloo, which carries XLA's collectives between processes. A collective waits for its peers for half an
# hour, and XLA has no function to end it sooner. But gloo gives up at once when a connection breaks. So the connections
# of a job that has lost a process are shut down from here: they are found among the sockets of this process by the
# addresses on which the gloo of each process listens.

Address = tuple[str, int]
"""The host and the port of an end of a connection."""


def _listening_addresses() -> set[Address]:
    """Return the addresses on which this process accepts TCP connections."""
    return {own for _, own, peer, is_listening in _sockets() if is_listening}


def _connections_of(addresses: Collection[Address]) -> Iterator[tuple[socket.socket, Address, Address]]:
    """Return the connections of this process that have one of the addresses at either end, with both of their ends.

    The sockets that listen are left out: gloo ends the process if one of them fails.
    """
    for opened, own, peer, is_listening in _sockets():
        if peer is not None and not is_listening and (own in addresses or peer in addresses):
            yield opened, own, peer


def _sockets() -> Iterator[tuple[socket.socket, Address, Address | None, bool]]:
    """Return the TCP sockets of this process: each with its own address, its peer's, and whether it listens."""
    for name in os.listdir("/dev/fd"):
        # A copy of the descriptor stays the same socket, even if another thread closes the original meanwhile.
        try:
            copy = os.dup(int(name))
        except OSError:  # closed meanwhile
            continue
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            continue
        opened = socket.socket(fileno=copy)
        with opened:
            if opened.type != socket.SOCK_STREAM or opened.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            with contextlib.suppress(OSError):
                own = opened.getsockname()[:2]
                peer = None
                with contextlib.suppress(OSError):  # it has no peer
                    peer = opened.getpeername()[:2]
                is_listening = bool(opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
                yield opened, own, peer, is_listening


# XLA makes the connections of a group of devices when a program first exchanges data in the group, and keeps them. All
# groups of a process share one listening address, so a connection does not show to which group it belongs. But programs
# are started from here: a connection that appears during the first run of a program is one of its groups. So when a
# process is lost, the connections of programs that include it are shut down, also those between other processes, which
# would wait for one another for ever; and the connections of all other programs stay. When a process has failed its
# part of a program, the same is done for the program's processes.

_Processes = frozenset[int] | None
"""The processes of a connection's programs; ``None`` if it appeared while no program had its first run."""

_READ_SECONDS = 0.5
"""The time in which the other end of a connection has read all messages."""


class CollectiveConnections:
    """The connections of the collectives of one client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: Collection[Address] = ()
        self._processes: dict[tuple[Address, Address], _Processes] = {}
        self._first_runs: dict[object, frozenset[int]] = {}

    def begin(self, addresses: Collection[Address]) -> None:
        """Note the addresses on which the collectives of all processes listen."""
        self._addresses = addresses

    def begin_first_run(self, processes: Collection[int]) -> Callable[[], None]:
        """Note that a program is about to run for the first time; return the function that notes the end of this run.

        Args:
            processes: the processes of its devices.
        """
        run = object()
        with self._lock:
            self._attribute()
            self._first_runs[run] = frozenset(processes)

        def end() -> None:
            with self._lock:
                self._attribute()
                self._first_runs.pop(run, None)

        return end

    def shut_down(self, process_index: int | None = None) -> None:
        """Shut down the connections of programs that include a process, or all connections."""
        self._shut_down(lambda processes: process_index is None or process_index in processes)

    def shut_down_between(self, group: Collection[int]) -> None:
        """Shut down the connections of programs that include two or more processes of a group."""
        self._shut_down(lambda processes: len(processes & frozenset(group)) > 1)

    def _shut_down(self, concerns: Callable[[frozenset[int]], bool]) -> None:
        """Shut down the connections of some programs.

        A connection of unknown programs is shut down, too: a collective that fails is better than one that waits.

        gloo loses an operation, and its caller waits for half an hour, if gloo's own thread cannot write the answer to
        a message that it has just read. So this end is shut down for reading only, which ends gloo's work with it; what
        gloo still writes is taken; and the other end sees the connection break when it has read all messages.
        """
        shut: list[socket.socket] = []
        with self._lock:
            self._attribute()
            for opened, own, peer in _connections_of(self._addresses):
                processes = self._processes.get((own, peer))
                if processes is None or concerns(processes):
                    with contextlib.suppress(OSError):  # it broke just now
                        shut.append(opened.dup())
                        shut[-1].shutdown(socket.SHUT_RD)
        if shut:
            timer = threading.Timer(_READ_SECONDS, _close_all, [shut])
            timer.daemon = True
            timer.start()

    def _attribute(self) -> None:
        """Note to which programs new connections belong; those of several first runs at a time belong to all."""
        ends = [(own, peer) for _, own, peer in _connections_of(self._addresses)]
        running = frozenset().union(*self._first_runs.values()) if self._first_runs else None
        self._processes = {each: self._processes.get(each, running) for each in ends}


def _close_all(sockets: Collection[socket.socket]) -> None:
    for each in sockets:
        each.close()


# XLA does not notice that the processes run different programs: it adds up whatever comes. It gives them 30 seconds to
# meet in the first run of a program, and the loss of one of them does not end this. So they meet here first, and each
# tells the others which program is its n-th new one on some devices. That costs three messages for each new program,
# and nothing for the runs that follow.

_LOOK_SECONDS = 0.5
"""The time after which a process that waits for others looks whether they can still come."""

_FIRST_RUN_SECONDS = LONGEST_START_SECONDS
"""The longest wait for the others in the first run of a program: that of gloo in all later ones."""


class FirstRuns:
    """The programs that a client has run on devices of several processes.

    Args:
        store: the store of the job.
        directory: the directory in the store.
        process_index: this process.
        check: is called with the processes of a program, and raises an error if one of them cannot run it any more.
    """

    def __init__(
        self,
        store: CoordinationStore,
        directory: str,
        process_index: int,
        check: Callable[[Collection[int]], object],
    ) -> None:
        self._store = store
        self._directory = directory
        self._process_index = process_index
        self._check = check
        self._lock = threading.Lock()
        # The programs by devices; None where a program of unknown code has run, which cannot be counted.
        self._seen: dict[tuple[int, ...], set[str] | None] = {}

    def are_new(self, device_ids: Sequence[int], fingerprint: str) -> bool:
        """Whether ``meet`` would wait for the other processes."""
        seen = self._seen.get(tuple(device_ids), set())
        return seen is not None and fingerprint not in seen

    def meet(self, device_ids: Sequence[int], processes: Collection[int], name: str, fingerprint: str) -> None:
        """Wait until all processes run a program, and compare it with theirs; a program that was compared is not again.

        Args:
            device_ids: the devices of the program.
            processes: the processes of the devices.
            name: its name, for messages.
            fingerprint: that of its code; empty if it is unknown, and nothing is waited for.

        Raises:
            FailedPreconditionError: another process runs another program.
            DeadlineExceededError: not all processes came, for half an hour.
            PjrtError: one of the processes is lost, or has failed its part of a program.
        """
        devices = tuple(device_ids)
        with self._lock:
            seen = self._seen.setdefault(devices, set())
            if seen is None or fingerprint in seen:
                return
            seen.add(fingerprint)
            number = len(seen)
            if not fingerprint:
                self._seen[devices] = None
        group = hashlib.sha256(repr(devices).encode()).hexdigest()[:16]
        place = f"{self._directory}/{group}/{number}"
        try:
            self._store.put(f"{place}/{self._process_index}", json.dumps([name, fingerprint]).encode())
            there = self._there(place)
            if there.keys() >= set(processes):
                self._store.put(f"{place}/all", b"")
            elif fingerprint:
                there = self._awaited(place, processes, name)
        except UnavailableError:
            return  # a process is lost; the program finds out by itself
        if not all(other for _, other in there.values()):
            self._seen[devices] = None
        elif fingerprint:
            self._compare(there, name, fingerprint)

    def _awaited(self, place: str, processes: Collection[int], name: str) -> dict[int, tuple[str, str]]:
        """Return what all processes have put; wait for it."""
        end = time.monotonic() + _FIRST_RUN_SECONDS
        while True:
            with contextlib.suppress(DeadlineExceededError):
                self._store.get(f"{place}/all", _LOOK_SECONDS)
                return self._there(place)
            self._check(processes)
            there = self._there(place)
            missing = sorted(set(processes) - there.keys())
            if not missing or not all(fingerprint for _, fingerprint in there.values()):
                return there
            if time.monotonic() > end:
                raise DeadlineExceededError(
                    f"not all processes have run the program {name!r} within {_FIRST_RUN_SECONDS:g} s of the first; "
                    f"missing: {', '.join(f'process {index}' for index in missing)}; see what they do"
                )

    def _there(self, place: str) -> dict[int, tuple[str, str]]:
        """Return the name and the fingerprint of the program of each process that has come."""
        entries = ((key.rpartition("/")[2], value) for key, value in self._store.directory(place).items())
        return {int(index): json.loads(value) for index, value in entries if index.isdecimal()}

    def _compare(self, there: Mapping[int, tuple[str, str]], name: str, fingerprint: str) -> None:
        for index, (other_name, other_fingerprint) in sorted(there.items()):
            if other_fingerprint != fingerprint:
                raise FailedPreconditionError(
                    "the processes do not run the same program in the same order: this process runs the program "
                    f"{name!r} with the fingerprint {fingerprint}, process {index} runs the program {other_name!r} "
                    f"with the fingerprint {other_fingerprint}"
                )


class Launches:
    """The launches of one client that cannot start in the caller's thread, because one waits for other processes.

    They start one after the other, in a thread of their own: their order is that of the callers.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()

    @property
    def are_waiting(self) -> bool:
        """Whether a launch has not started."""
        return bool(self._waiting)

    def add(self, launch: Callable[[], object]) -> None:
        """Start a launch when those before it have started."""
        with self._changed:
            self._waiting.append(launch)
            is_first = len(self._waiting) == 1
        if is_first:
            threading.Thread(target=self._work, name="pjrt-first-runs", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                self._waiting[0]()
            except BaseException:  # the interpreter ends, and lets no thread start anything any more
                with self._changed:
                    self._waiting.clear()
                    self._changed.notify_all()
                raise
            with self._changed:
                self._waiting.popleft()
                if not self._waiting:
                    self._changed.notify_all()
                    return

    def join(self, deadline: float | None = None) -> None:
        """Wait until all have started, or until a time of ``time.monotonic``."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, left)


# XLA's own code exchanges the devices and runs the collectives. This package sees to it that nothing waits for a
# process that is lost: the processes meet before XLA does, and their connections are shut down when one of them is
# lost. If the job goes on without it, so does everything that does not need it. The same is done when a process has
# failed its part of a program: the others would wait for it for half an hour, or take the data of its next program for
# those of this one.

_MEETING_SECONDS = LONGEST_START_SECONDS
"""The longest time to wait until all processes make the client."""

_MPI_LIBRARY = "MPITRAMPOLINE_LIB"
"""The environment variable with the path of MPIwrapper's library, through which jaxlib calls MPI."""

_numbers: weakref.WeakKeyDictionary[distributed.Job, int] = weakref.WeakKeyDictionary()
_numbers_lock = threading.Lock()


class _Part(NamedTuple):
    """A part of a program that this process runs.

    Attributes:
        completion: is done when the part is.
        failed: is called with the error of the part.
    """

    completion: Future[None]
    failed: Callable[[PjrtError], object]


class Peers:
    """The processes of a job that make one client together.

    A job may have several clients. They are told apart by their number, so all processes make them in the same order.

    Args:
        job: the job.
        collectives: the library of the collectives between processes, ``gloo`` or ``mpi``.

    Attributes:
        process_index: the number of this process.
        process_count: the number of processes.
        host: the address of this host at which the other processes reach it; ``None`` if it is unknown.
        launches: those that wait for other processes.
    """

    def __init__(self, job: distributed.Job, collectives: str = "gloo") -> None:
        self._job = self._outer_job = job
        self._kind = collectives
        self._error: PjrtError | None = None
        self._absences: dict[int, PjrtError] = {}
        self._losses: dict[int, PjrtError] = {}
        self._failed_parts: dict[frozenset[int], PjrtError] = {}
        self._running_parts: list[_Part] = []
        self._connections = CollectiveConnections()
        self._at_loss: list[Callable[[int | None], object]] = []
        self.process_index = job.process_index
        self.process_count = job.process_count
        self.host = own_host(job.address)
        with _numbers_lock:
            number = _numbers[job] = _numbers.get(job, -1) + 1
        self._name = f"pjrt/cpu/{number}"
        self.launches = Launches()
        check = weakref.WeakMethod(self._check_before_meeting)
        self._programs = FirstRuns(
            job.store, f"{self._name}/programs", self.process_index, lambda processes: _call(check, processes)
        )
        if number:
            # XLA's keys in the store are the same for each client, so each further client has a store of its own.
            self._job = distributed.join(job.store, job.process_index, job.process_count, name=self._name)

    def make_client(self, num_devices: int, asynchronous: bool) -> Any:
        """Return jaxlib's client of the devices of all processes, when all of them call this.

        Raises:
            InvalidArgumentError: there are more devices than a process of a job can have, or the processes choose
                different libraries for the collectives.
            DeadlineExceededError: not all processes called it in time; the message names those that are missing.
            UnavailableError: a process was lost.
        """
        if num_devices > IDS_OF_A_PROCESS:
            raise InvalidArgumentError(
                f"the device 'cpu' has at most {IDS_OF_A_PROCESS} devices in each process of a job, found "
                f"num_devices={num_devices}"
            )
        before = _listening_addresses()
        collectives = self._collectives()
        self._meet(_listening_addresses() - before)
        # A job must not keep this object alive, nor the client that has it.
        end, miss = weakref.WeakMethod(self._end), weakref.WeakMethod(self._miss)
        for job in {self._job, self._outer_job}:
            job.on_end(lambda: _call(end))
            job.on_absence(lambda process_index, error, is_gone: _call(miss, process_index, error, is_gone))
        try:
            return _jaxlib.make_client(
                num_devices,
                asynchronous,
                distributed_client=self._job.runtime_client,
                node_id=self.process_index,
                num_nodes=self.process_count,
                collectives=collectives,
            )
        except Exception as error:
            self.check()
            raise converted(error) from error

    def check(self, processes: Collection[int] | None = None) -> None:
        """Return if all processes are there, or those that are given, and exchange data, as far as this one knows.

        Raises:
            UnavailableError: a process was lost.
            PjrtError: two of the processes that are given exchange no data any more, because one of them has failed its
                part of a program; the error has the code of that failure.
        """
        self._check(self._absences, processes)
        for part in list(self._running_parts):
            if part.completion.done():
                self._end_part(part)
        for group, error in list(self._failed_parts.items()):
            if len(group.intersection(processes or ())) > 1:
                raise PjrtError.of(error.code, error.message)

    def check_serves(self, process_index: int) -> None:
        """Return if a process is there, also one that has called ``shutdown``: others can fetch what it has offered.

        Raises:
            UnavailableError: the process was lost, or has left.
        """
        self._check(self._losses, (process_index,))

    def _check(self, absences: Mapping[int, PjrtError], processes: Collection[int] | None) -> None:
        error = self._error
        if error is None and absences:
            errors = [each for index, each in absences.items() if processes is None or index in processes]
            error = errors[0] if errors else None
        if error is not None:
            raise PjrtError.of(error.code, error.message)

    def check_takes_part(self, processes: Sequence[int]) -> None:
        """Return if this process has a device among those of a program, and all of its processes are there.

        Args:
            processes: the process of each device.

        Raises:
            InvalidArgumentError: this process has none of the devices.
            UnavailableError: a process was lost.
        """
        if self.process_index not in processes:
            others = ", ".join(map(str, sorted(set(processes))))
            raise InvalidArgumentError(
                f"the program is for devices of process {others} alone, and this is process {self.process_index}; "
                "compile it only in the processes that have its devices"
            )
        if len(set(processes)) > 1:
            self.check(processes)

    @property
    def first_runs(self) -> FirstRuns:
        """The programs that the processes have run together."""
        return self._programs

    def _check_before_meeting(self, processes: Collection[int]) -> None:
        self.check(processes)
        failure = self._published_failure(processes)
        if failure is not None:
            raise failure

    def begin_first_run(self, processes: Collection[int]) -> Callable[[], None]:
        """Note that a program is about to run for the first time; return the function that notes the end of this run.

        Args:
            processes: the processes of its devices.
        """
        return self._connections.begin_first_run(processes)

    def begin_part(self, completion: Future[None], failed: Callable[[PjrtError], object]) -> None:
        """Notice the end of this process's part of a program.

        Args:
            completion: is done when the part is.
            failed: is called with the error of the part, and calls ``part_failed``. When ``check`` returns, it has been
                called for all parts that have failed by then.
        """
        part = _Part(completion, failed)
        self._running_parts.append(part)
        completion.add_done_callback(lambda _: self._end_part(part))

    def _end_part(self, part: _Part) -> None:
        if (error := part.completion.exception()) is not None:
            part.failed(error)
        with contextlib.suppress(ValueError):  # another thread has noticed the end, too
            self._running_parts.remove(part)

    def part_failed(self, processes: Collection[int], error: PjrtError) -> None:
        """Fail what waits for this process's part of a program, because this part has failed.

        From then on these processes exchange no data: what each of them had sent cannot be told from what it would
        send for the next program.

        Args:
            processes: the processes of the program's devices.
            error: the failure. That of a connection counts only where another process has failed its part.
        """
        group = frozenset(processes)
        if group in self._failed_parts or self._error is not None or not group.isdisjoint(self._absences):
            return  # it is done already, or what waits for the lost process has failed
        if self._absences and error.code is StatusCode.UNAVAILABLE:
            return  # a value that a lost process was to compute with the others has failed in all of them
        # The failure may be the refusal to begin this part.
        cause = next((each for known, each in self._failed_parts.items() if len(known & group) > 1), None)
        if cause is None:
            is_symptom = _jaxlib.is_symptom(error)
            cause = self._published_failure(group) if is_symptom else self._publish_failure(group, error)
        if cause is not None:
            self._failed_parts[group] = cause
            self._connections.shut_down_between(group)

    def _publish_failure(self, group: frozenset[int], error: PjrtError) -> PjrtError:
        """Make the failure of this process's part known to the others, and return the error that all of them get."""
        members = sorted(group)
        message = (
            f"process {self.process_index} has failed its part of a program: {error.message}; the processes "
            f"{', '.join(map(str, members))} exchange no data any more, because the others may have been waiting for "
            "it: make a new client in all processes, or a new cluster"
        )
        with contextlib.suppress(PjrtError):  # the job has ended; the connections are shut down all the same
            self.publish("failure", json.dumps([members, error.code, message]).encode())
        return PjrtError.of(error.code, message)

    def _published_failure(self, group: Collection[int] | None = None) -> PjrtError | None:
        """Return the error of a process that has failed its part of a program of two or more processes of a group, or
        of any processes; ``None`` if there is none.
        """
        try:
            failures = self._job.store.directory(f"{self._name}/failure")
        except PjrtError:  # the job has ended
            return None
        for members, code, message in map(json.loads, failures.values()):
            if group is None or len(set(members).intersection(group)) > 1:
                return PjrtError.of(code, message)
        return None

    def publish(self, topic: str, value: bytes) -> None:
        """Make a value of this process known to the others."""
        self._job.store.put(f"{self._name}/{topic}/{self.process_index}", value)

    def published(self, topic: str, process_index: int, timeout: float) -> bytes:
        """Return the value of a process; wait for it.

        Raises:
            DeadlineExceededError: there is no value in time, in seconds.
            UnavailableError: a process was lost.
        """
        return self._job.store.get(f"{self._name}/{topic}/{process_index}", timeout)

    def before_leaving(self, finish: Callable[[float], object]) -> None:
        """Have a method called with a number of seconds, in which it finishes work, before this process leaves the job.

        The object of the method is not kept alive.
        """
        method = weakref.WeakMethod(finish)
        self._job.before_leaving(lambda seconds: _call(method, seconds))

    def at_loss(self, callback: Callable[[int | None], object]) -> None:
        """Have a function called when a process is lost: with its number, or ``None`` if the whole job ends."""
        self._at_loss.append(callback)

    def _collectives(self) -> Any:
        if self._kind == "mpi":
            _check_mpi()
        try:
            return _jaxlib.make_collectives(self._kind, self._job.runtime_client, self.host)
        except Exception as error:
            raise converted(error) from error

    def _meet(self, own: set[Address]) -> None:
        """Wait for the other processes, and learn the addresses at which their collectives listen."""
        failure = weakref.WeakMethod(self._published_failure)
        _jaxlib.begin_job(lambda: _call(failure))
        self.publish("collectives", json.dumps({"collectives": self._kind, "addresses": sorted(own)}).encode())
        self._job.barrier(f"{self._name}/meeting", _MEETING_SECONDS)
        addresses: set[Address] = set()
        for index in range(self.process_count):
            fields = json.loads(self.published("collectives", index, _MEETING_SECONDS))
            if fields["collectives"] != self._kind:
                raise InvalidArgumentError(
                    f"all processes of a job choose the same collectives of the device 'cpu': process "
                    f"{self.process_index} has {self._kind!r}, process {index} has {fields['collectives']!r}"
                )
            addresses |= {(host, port) for host, port in fields["addresses"]}
        self._connections.begin(addresses)

    def _end(self) -> None:
        """Fail what waits for the other processes, because the job has ended."""
        error = self._outer_job.failure or self._job.failure
        if error is not None:
            self._error = error
            self._break_collectives(error, None)
            self._report_loss(None)

    def _miss(self, process_index: int, error: PjrtError, is_gone: bool) -> None:
        """Fail what waits for a process that takes part no more."""
        self._absences[process_index] = error
        if is_gone:
            self._losses[process_index] = error
        self._break_collectives(error, process_index)
        if is_gone:
            self._report_loss(process_index)

    def _break_collectives(self, error: PjrtError, process_index: int | None) -> None:
        _jaxlib.report_end_of_job(error)
        self._connections.shut_down(process_index)

    def _report_loss(self, process_index: int | None) -> None:
        for callback in self._at_loss:
            callback(process_index)


def _call(method: weakref.WeakMethod[Any], *arguments: object) -> Any:
    """Call a method of an object that still exists, and return its result."""
    return None if (bound := method()) is None else bound(*arguments)


def own_host(address: str) -> str | None:
    """Return the address of this host on the way to the leader of a job; ``None`` where the way ends in this host."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as way:  # no data is sent: this only chooses the own address
            way.connect(place)
            return str(way.getsockname()[0])
    except OSError:
        return None


def _check_mpi() -> None:
    """Return if jaxlib can load MPI, whose absence would end the process.

    Raises:
        UnimplementedError: jaxlib has no MPI on this platform.
        FailedPreconditionError: the MPI library is missing.
    """
    if not _jaxlib.HAS_MPI:
        raise UnimplementedError("jaxlib has no MPI collectives on this platform; use collectives='gloo'")
    library = os.environ.get(_MPI_LIBRARY, "")
    if not library or not Path(library).is_file():
        raise FailedPreconditionError(
            f"expected the path of MPIwrapper's library (libmpiwrapper.so) in the environment variable {_MPI_LIBRARY}, "
            f"found {library or 'nothing'!r}; build MPIwrapper for your MPI, or use collectives='gloo'"
        )


# Transfers between the processes, by jaxlib's transfer server. The receiver pulls: the sender's server holds an offered
# array under a number until the receiver has fetched it. Both sides compute the number from the two devices and the
# caller's key.

_ADDRESS_SECONDS = 300.0
"""The longest time to wait for a sender's address, which it makes known with its first transfer."""


class CrossHostTransfers:
    """The transfers of one client to and from other processes.

    Args:
        runtime: the runtime of the client.
        peers: the processes.
    """

    def __init__(self, runtime: Runtime, peers: Peers) -> None:
        self._runtime = runtime
        self._peers = peers
        self._lock = threading.Lock()
        self._server: Any = None
        self._connections: dict[int, Any] = {}
        peers.at_loss(self._break_connections)

    def send(
        self, buffers: Sequence[Buffer], destination_ids: Sequence[int], keys: Sequence[int]
    ) -> list[Future[None]]:
        """Offer buffers to the processes of other devices; see ``XlaClient.cross_host_send_buffers``."""
        expect_all(buffers, Buffer, "a buffer")
        for process_index in self._processes(len(buffers), destination_ids, keys):
            self._peers.check([process_index])
        futures = []
        for buffer, destination, key in zip(buffers, destination_ids, keys, strict=True):
            if not isinstance(buffer, XlaBuffer) or buffer.type.runtime is not self._runtime:
                raise InvalidArgumentError(f"expected buffers of this client to send, found {buffer!r}")
            if not buffer.type.is_row_major or buffer.type.is_packed:
                raise unimplemented("cpu", f"a cross-host transfer of {buffer.type}", "copy by way of row-major bytes")
            if 0 in buffer.shape:  # jaxlib's server never delivers an empty array: the receiver makes one
                futures.append(buffer.ready())
                continue
            number = _transfer_number(buffer.device.id, destination, key)
            future = buffer.when_there(lambda array, number=number: self._offer(array, number))  # type: ignore[misc]  # mypy cannot tell the type of a lambda's default
            future.add_done_callback(_nothing)  # so that it is offered although nobody waits for the future
            futures.append(future)
        return futures

    def receive(
        self, specs: Sequence[ShapeSpec], space: XlaMemorySpace, source_ids: Sequence[int], keys: Sequence[int]
    ) -> list[XlaBuffer]:
        """Return buffers of values that other processes send; see ``Client.cross_host_receive_buffers``."""
        expect_all(specs, ShapeSpec, "a pjrt.ShapeSpec")
        for process_index in self._processes(len(specs), source_ids, keys):
            self._peers.check_serves(process_index)
        types = [type_of_spec(spec, space) for spec in specs]
        return [
            self._fetched(array_type, source, key)
            for array_type, source, key in zip(types, source_ids, keys, strict=True)
        ]

    def _processes(self, count: int, device_ids: Sequence[int], keys: Sequence[int]) -> set[int]:
        """Return the processes of the devices with or from which a number of buffers are exchanged.

        Raises:
            InvalidArgumentError: the numbers differ, or an id is not that of a device of another process.
        """
        if len(device_ids) != count or len(keys) != count:
            raise InvalidArgumentError(
                f"expected a device id and a transfer key for each of {count} buffers, found {len(device_ids)} and "
                f"{len(keys)}"
            )
        processes = set()
        for number in device_ids:
            device = self._runtime.jaxlib_device(expect_int(number, "the id of a device as a whole number"))
            if device.process_index == self._peers.process_index:
                raise InvalidArgumentError(
                    f"expected a device of another process, found cpu:{number} of this one; use buffer.copy_to"
                )
            processes.add(device.process_index)
        for key in keys:
            expect_int(key, "a transfer key as a whole number")
        return processes

    def _offer(self, array: _jaxlib.Array, number: int) -> None:
        """Let another process fetch an array; its memory stays until then."""
        with self._lock:
            self._started_server()._await_pull_flat(number, [array])

    def _fetched(self, array_type: ArrayType, source_id: int, key: int) -> XlaBuffer:
        """Return a buffer of an array that another process offers, now or later."""
        number = _transfer_number(source_id, array_type.memory_space.device.id, key)
        process_index = self._runtime.jaxlib_device(source_id).process_index
        if 0 in array_type.shape:
            return uninitialized(ShapeSpec(array_type.shape, array_type.element_type), array_type.memory_space)

        def fetch() -> _jaxlib.Array:
            connection = self._connection(process_index)
            place = array_type.memory_space.placement
            array = _jaxlib.pull(connection, number, self._runtime.jaxlib_client, array_type.aval, place)
            self._peers.check_serves(process_index)  # a connection that broke before fails nothing that is pulled later
            return array

        if process_index in self._connections:
            return XlaBuffer(fetch(), array_type)
        # The address of the sender is waited for in a thread, because the call itself must not wait.
        return PendingBuffer(in_thread(fetch), array_type)

    def _connection(self, process_index: int) -> Any:
        address = self._peers.published("transfers", process_index, _ADDRESS_SECONDS).decode()
        with self._lock:
            self._peers.check_serves(process_index)
            if process_index not in self._connections:
                self._connections[process_index] = self._started_server().connect(address)
            return self._connections[process_index]

    def _started_server(self) -> Any:
        if self._server is None:
            self._server = _jaxlib.start_transfer_server(self._runtime.jaxlib_client, self._peers.host)
            self._peers.publish("transfers", self._server.address().encode())
        return self._server

    def _break_connections(self, lost_process: int | None) -> None:
        with self._lock:
            for process_index, connection in self._connections.items():
                if lost_process in (process_index, None):
                    connection._poison_connection()


def _nothing(_: Future[None]) -> None:
    """Do nothing: the callback of a future that has to be completed, whoever waits for it."""


def _transfer_number(source_id: int, destination_id: int, key: int) -> int:
    """Return the number of a transfer, which no other transfer between these devices has."""
    digest = hashlib.sha256(f"{source_id} {destination_id} {key}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
