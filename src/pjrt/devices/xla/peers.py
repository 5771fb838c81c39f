"""Peers: the processes of a job that make one client together, each with devices of its own.

XLA's own code exchanges the devices and runs the collectives. This package sees to it that nothing waits for a process
that is lost: the processes meet before XLA does, and their connections are shut down when one of them is lost. If the
job goes on without it, so does everything that does not need it. The same is done when a process has failed its part of
a program: the others would wait for it for half an hour, or take the data of its next program for those of this one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pjrt import distributed
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, StatusCode, UnimplementedError
from pjrt.api.future import Future
from pjrt.devices.xla import _jaxlib, collective_errors, collective_sockets
from pjrt.devices.xla._jaxlib import converted
from pjrt.devices.xla.collective_connections import CollectiveConnections
from pjrt.devices.xla.collective_sockets import Address
from pjrt.devices.xla.device import IDS_OF_A_PROCESS
from pjrt.devices.xla.first_runs import FirstRuns

_MEETING_SECONDS = 300.0
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
        self._programs = FirstRuns(job.store, f"{self._name}/programs", self.process_index)
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
        before = collective_sockets.listening()
        collectives = self._collectives()
        self._meet(collective_sockets.listening() - before)
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

    def check_program(self, device_ids: Sequence[int], name: str, fingerprint: str) -> None:
        """Return if the other processes run the same program as the next new one on these devices, as far as is known.

        Raises:
            FailedPreconditionError: another process runs another program.
        """
        self._programs.check(device_ids, name, fingerprint)

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
            is_symptom = collective_errors.is_symptom(error)
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
        collective_errors.begin(lambda: _call(failure))
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
        collective_errors.report(error)
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
