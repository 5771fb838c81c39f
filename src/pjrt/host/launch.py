"""Launches: one run of a program on all of its devices, and what a running program can ask about it."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from pjrt.api import waits
from pjrt.api.buffer import CopyToDeviceStream
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.errors import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PjrtError,
    UnimplementedError,
)
from pjrt.api.future import Future
from pjrt.api.loaded_executable import ExecuteContext, ExecuteOptions, RecvCallback, SendCallback
from pjrt.api.program import the_stranger
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host.executable import without_traceback
from pjrt.host.fences import RunWork
from pjrt.host.processes import Collective, LaunchCollective, ProcessCollective
from pjrt.host.shutdown import runtime_lock
from pjrt.host_memory.array import HostArray, aligned_empty, array_dtype, bytes_of

if TYPE_CHECKING:
    from pjrt.host.execution import DeviceRun
    from pjrt.host.processes import ProcessExchange

_run_ids = itertools.count(1)

_WAIT_SLICE_SECONDS = 0.5


class Launch:
    """The common part of one run on several devices: its number, and the means to meet each other.

    Attributes:
        run_id: a number that is different for each run in this process.
        launch_id: the number that the caller gave, 0 for none.
        processes: the way to the other processes, if devices of several processes take part; otherwise ``None``.
    """

    __slots__ = (
        "_changed", "_error", "_given_up", "_interruptions", "_mail", "_meetings", "_stranger", "_under_way",
        "launch_id", "processes", "run_id",
    )  # fmt: skip

    def __init__(self, launch_id: int = 0, processes: ProcessExchange | None = None) -> None:
        self.run_id = next(_run_ids)
        self.launch_id = launch_id
        self.processes = processes
        self._changed = threading.Condition(runtime_lock)
        self._meetings: dict[Hashable, _Meeting] = {}
        self._mail: dict[Hashable, deque[Any]] = {}
        self._error: PjrtError | None = None
        self._given_up = False
        self._interruptions = waits.interruption_count()
        self._stranger = the_stranger()
        # The executions that are not done. They hold the launch, too, until then.
        self._under_way: list[_UnderWay] = []

    def rendezvous(
        self, key: Hashable, who: Hashable, participants: Sequence[Hashable], value: Any, timeout: float
    ) -> list[Any]:
        """Meet the other participants under a key; return the values of all, in the order of ``participants``.

        Args:
            key: the meeting. After each participant has used it once, it may be used again.
            who: the participant that calls.
            participants: all participants; the same for all.
            value: the caller's value.
            timeout: the longest time to wait for the others, in seconds.

        Raises:
            InvalidArgumentError: the caller is not a participant, or has come to the meeting already.
            AbortedError: another device of the launch failed.
            DeadlineExceededError: a participant did not come in time.
        """
        expected = tuple(participants)
        if who not in expected:
            raise InvalidArgumentError(f"{who} is not one of the participants {expected} of the rendezvous {key!r}")
        with self._changed:
            meeting = self._join(key, who, expected, value)
            if meeting.is_complete:
                del self._meetings[key, expected]
                self._changed.notify_all()
            else:
                self._wait_for(meeting, key, timeout)
            return [meeting.values[participant] for participant in expected]

    def work_together(
        self,
        key: Hashable,
        who: Hashable,
        participants: Sequence[Hashable],
        value: Any,
        timeout: float,
        work: Callable[[list[Any]], Sequence[Any]],
    ) -> Any:
        """Meet the other participants under a key, and let the last one that comes do some work for all.

        Args:
            key, who, participants, value, timeout: as ``rendezvous`` has them. The time to wait ends when all are
                there: the work may take longer.
            work: called with the values of all, in the order of ``participants``; returns a result for each of them.

        Returns:
            The caller's own result.

        Raises:
            PjrtError: the work failed; or as ``rendezvous``.
        """
        expected = tuple(participants)
        if expected == (who,):
            self.check()
            return work([value])[0]
        with self._changed:
            meeting = self._join(key, who, expected, value)
            if not meeting.is_complete:
                self._wait_for(meeting, key, timeout)
                while meeting.outcome is None:
                    self.check()
                    self._changed.wait(_WAIT_SLICE_SECONDS)
                return self._result(meeting, expected.index(who))
            del self._meetings[key, expected]
            self._changed.notify_all()
        outcome: Sequence[Any] | PjrtError
        try:
            outcome = work([meeting.values[participant] for participant in expected])
        except BaseException as error:
            outcome = without_traceback(error)
        with self._changed:
            meeting.outcome = outcome
            self._changed.notify_all()
        return self._result(meeting, expected.index(who))

    @staticmethod
    def _result(meeting: _Meeting, place: int) -> Any:
        if isinstance(meeting.outcome, PjrtError):
            raise meeting.outcome
        assert meeting.outcome is not None
        return meeting.outcome[place]

    def post(self, key: Hashable, value: Any) -> None:
        """Leave a value under a key for ``take``; do not wait."""
        with self._changed:
            self._mail.setdefault(key, deque()).append(value)
            self._changed.notify_all()

    def take(self, key: Hashable, timeout: float) -> Any:
        """Return the first value that was left under a key; wait for it.

        Raises:
            AbortedError: another device of the launch failed.
            DeadlineExceededError: nothing was left in time.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._mail.get(key):
                self.check()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise DeadlineExceededError(f"no other device left anything under {key!r} within {timeout:g} s")
                self._changed.wait(min(left, _WAIT_SLICE_SECONDS))
            return self._mail[key].popleft()

    def abort(self, error: PjrtError) -> None:
        """Make all present and future waits of the launch fail because of this error."""
        with self._changed:
            first = self._error is None
            if first:
                self._error = error
                self._changed.notify_all()
        if first and self.processes is not None:
            self.processes.fail(error)

    def give_up(self, error: PjrtError) -> None:
        """Abort the launch although no device failed, because nobody waits for it any more."""
        with self._changed:
            if self._error is None:
                self._given_up = True
            self.abort(error)

    def poison(self, error: PjrtError) -> None:
        """Fail the results of all executions at once, whatever their functions are doing."""
        for execution in list(self._under_way):
            execution.poison(error)

    @property
    def is_given_up(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._given_up

    def begin(self, execution: _UnderWay) -> None:
        """Add an execution that begins."""
        self._under_way.append(execution)

    def end(self, execution: _UnderWay) -> None:
        """Remove an execution that is done or has failed; does nothing the second time."""
        with contextlib.suppress(ValueError):
            self._under_way.remove(execution)

    def check(self) -> None:
        """Raise an error if the launch has ended.

        Raises:
            AbortedError: a device of the launch failed, or the launch was given up: by the client of a server that has
                left, for example.
        """
        self._end_with_stranger()
        if self._interruptions != waits.interruption_count():
            waits.forget_variables()
            if not any(each.is_wanted for each in self._under_way):
                self.give_up(
                    CancelledError("Ctrl-C ended a wait for a device, and nothing holds the results of the launch")
                )
        if self._error is not None:
            raise self._aborted()

    def check_wanted(self) -> None:
        """Raise an error if the client of a server that began the launch has left: it need not begin on a device.

        Raises:
            AbortedError: the launch was given up for that.
        """
        if self._end_with_stranger():
            raise self._aborted()

    def _end_with_stranger(self) -> bool:
        if self._stranger is None or not self._stranger.has_left:
            return False
        self.give_up(CancelledError("the client that ran the program has left"))
        return True

    def _join(self, key: Hashable, who: Hashable, expected: tuple[Hashable, ...], value: Any) -> _Meeting:
        self.check()
        place = (key, expected)
        meeting = self._meetings.get(place)
        if meeting is None:
            meeting = self._meetings[place] = _Meeting(len(expected))
        if who in meeting.values:
            raise InvalidArgumentError(f"{who} came to the rendezvous {key!r} twice")
        meeting.values[who] = value
        return meeting

    def _wait_for(self, meeting: _Meeting, key: Hashable, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not meeting.is_complete:
            self.check()
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlineExceededError(
                    f"a collective cannot complete: {len(meeting.values)} of {meeting.expected} participants came to "
                    f"the rendezvous {key!r} within {timeout:g} s, only {list(meeting.values)}; is the program run on "
                    "all of its devices?"
                )
            self._changed.wait(min(left, _WAIT_SLICE_SECONDS))

    def _aborted(self) -> PjrtError:
        assert self._error is not None
        why = "the launch was given up" if self._given_up else "another device of the launch failed"
        error = AbortedError(f"{why}: {self._error}", payloads=self._error.payloads)
        error.__cause__ = self._error
        return error


class _UnderWay(Protocol):
    """The part of an execution that a launch knows."""

    @property
    def is_wanted(self) -> bool:
        """Whether an owner of its results is left."""

    def poison(self, error: PjrtError) -> bool:
        """Fail the results at once."""


class _Meeting:
    __slots__ = ("expected", "outcome", "values")

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.values: dict[Hashable, Any] = {}
        self.outcome: Sequence[Any] | PjrtError | None = None

    @property
    def is_complete(self) -> bool:
        return len(self.values) == self.expected


# Host callbacks: the values that running programs send to the host and receive from it.

_CALLBACK_SLICE_SECONDS = 0.2


def send(callbacks: Sequence[SendCallback], channel_id: int, array: HostArray) -> None:
    """Pass the bytes of an array to the callback of a channel, in one chunk."""
    for entry in callbacks:
        if entry.channel_id == channel_id:
            data = np.ascontiguousarray(array).tobytes()
            entry.callback(data, len(data), True)
            return
    raise _no_callback("send", channel_id, [entry.channel_id for entry in callbacks])


def receive(
    callbacks: Sequence[RecvCallback], channel_id: int, spec: ShapeSpec, check: Callable[[], object]
) -> HostArray:
    """Return the array that the callback of a channel supplies; wait until all of its bytes are there.

    Args:
        callbacks: the device's callbacks.
        channel_id: the channel.
        spec: shape and type of the array.
        check: called from time to time while waiting; its exceptions end the wait.
    """
    for entry in callbacks:
        if entry.channel_id == channel_id:
            incoming = _Incoming(spec)
            entry.callback(HostCopyToDeviceStream(incoming))
            return incoming.wait(check)
    raise _no_callback("recv", channel_id, [entry.channel_id for entry in callbacks])


def _no_callback(what: str, channel_id: int, known: list[int]) -> NotFoundError:
    return NotFoundError(
        f"the program wants to {what} on channel {channel_id}, but its {what}_callbacks for this device are for "
        f"the channels {known}"
    )


class _Incoming:
    """The array that a stream fills.

    Attributes:
        array: the array.
        is_complete: set when all bytes are there.
        is_abandoned: whether the stream is gone, so that no more bytes come. The garbage collector may set it, anywhere
            in the program, so it is no event, which has a lock.
    """

    def __init__(self, spec: ShapeSpec) -> None:
        self.array = aligned_empty(spec.shape, array_dtype(spec.element_type))
        self.is_complete = threading.Event()
        self.is_abandoned = False
        if not self.array.nbytes:
            self.is_complete.set()

    def abandon(self) -> None:
        """Note that no more bytes come."""
        self.is_abandoned = True

    def wait(self, check: Callable[[], object]) -> HostArray:
        """Return the array, when all of its bytes are there.

        Raises:
            AbortedError: the stream was released before.
        """
        while not self.is_complete.wait(_CALLBACK_SLICE_SECONDS):
            check()
            if self.is_abandoned and not self.is_complete.is_set():
                raise AbortedError(
                    "the program waits for a value of the host, whose receive callback has released the stream before "
                    f"all of its {self.array.nbytes} bytes were added; add the rest before it is released"
                )
        return self.array


class HostCopyToDeviceStream(CopyToDeviceStream):
    """Collects the bytes of one array, chunk by chunk, from any thread."""

    __slots__ = ("_bytes", "_copied", "_incoming", "current_bytes", "granule_size", "total_bytes")

    current_bytes: int
    granule_size: int
    total_bytes: int

    def __init__(self, incoming: _Incoming) -> None:
        self._incoming = incoming
        self._bytes: Any = incoming.array.reshape(-1).view(np.uint8)
        self.granule_size = incoming.array.itemsize
        self.total_bytes = incoming.array.nbytes
        self.current_bytes = 0
        self._copied = 0
        weakref.finalize(self, incoming.abandon).atexit = False

    def add_chunk(self, data: Any) -> Future[None]:
        chunk = bytes_of(data)
        with runtime_lock:
            left = self.total_bytes - self.current_bytes
            if chunk.nbytes % self.granule_size or chunk.nbytes > left:
                raise InvalidArgumentError(
                    f"a chunk must be a multiple of {self.granule_size} bytes and at most the {left} that are left of "
                    f"{self.total_bytes}, found {chunk.nbytes}"
                )
            offset = self.current_bytes
            self.current_bytes += chunk.nbytes
        self._bytes[offset : offset + chunk.nbytes] = chunk
        with runtime_lock:
            self._copied += chunk.nbytes
            is_complete = self._copied == self.total_bytes
        if is_complete:
            self._bytes = None
            self._incoming.is_complete.set()
        return Future.completed(None)


# Execute contexts of the host runtime: a framework's data for handlers inside a program.


class HostExecuteContext(ExecuteContext):
    """The addresses of a framework's objects by the id of their type."""

    __slots__ = ("_closed", "_user_data")

    def __init__(self) -> None:
        self._user_data: dict[int, int] = {}
        self._closed = False

    def add_user_data(self, type_id: int, address: int) -> None:
        if self._closed:
            raise FailedPreconditionError("the execute context was closed; make a new one")
        if type_id in self._user_data:
            raise AlreadyExistsError(f"the execute context holds user data of the type {type_id} already")
        self._user_data[type_id] = address

    @property
    def user_data(self) -> Mapping[int, int]:
        """The addresses by type id, for the function that computes the program."""
        return dict(self._user_data)

    def close(self) -> None:
        self._closed = True


# Run contexts: the facts about its run that a running program can read.

T = TypeVar("T")


class RunContext:
    """A run of a program on one device of a launch, as seen by the function that computes it.

    Attributes:
        device: the device.
        replica_id: the replica that it runs.
        partition_id: the partition of the replica.
        device_assignment: the devices of all replicas and partitions.
        options: the caller's execute options.
        launch: what the devices of the launch have in common.
        place: the position of this run among those that the caller started, by which host callbacks are listed.
        program: the name of the program.
        fingerprint: tells the program from others of this name, if it runs on devices of several processes.
        work: the work that its steps have enqueued on the device.
    """

    __slots__ = (
        "device",
        "device_assignment",
        "fingerprint",
        "launch",
        "options",
        "partition_id",
        "place",
        "program",
        "replica_id",
        "work",
    )

    def __init__(
        self,
        run: DeviceRun,
        device_assignment: DeviceAssignment,
        options: ExecuteOptions,
        launch: Launch,
        place: int,
        program: str = "main",
        fingerprint: str = "",
    ) -> None:
        self.device = run.device
        self.replica_id = run.replica
        self.partition_id = run.partition
        self.device_assignment = device_assignment
        self.options = options
        self.launch = launch
        self.place = place
        self.program = program
        self.fingerprint = fingerprint
        self.work = RunWork(run.device.fences)

    @property
    def run_id(self) -> int:
        """The number of the launch: the same on all of its devices, another for each launch."""
        return self.launch.run_id

    @property
    def launch_id(self) -> int:
        """The launch id that the caller gave, 0 for none."""
        return self.launch.launch_id

    @property
    def logical_id(self) -> tuple[int, int]:
        """The replica and the partition."""
        return self.replica_id, self.partition_id

    def rendezvous(
        self,
        key: Hashable,
        value: Any = None,
        *,
        participants: Sequence[tuple[int, int]] | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Meet other devices of the launch under a key and exchange values: the basis of collectives.

        Args:
            key: the name of the meeting, such as the operation's number in the program; the same for all participants.
                If they are in several processes, the same in its ``repr``.
            value: this device's value; not copied, so the other devices must not write to it. For devices of other
                processes it consists of arrays, numbers, strings, bytes, lists, tuples and dictionaries.
            participants: the replica and partition of each participant, in an order that all agree on; by default the
                whole launch, replica by replica.
            timeout: the longest time to wait for the others, in seconds; the client's ``collective_timeout`` by
                default.

        Returns:
            The values of all participants, in their order.

        Raises:
            DeadlineExceededError: a participant did not come in time.
            AbortedError: another device of the launch failed, so that it will never come.
            UnavailableError: another process is lost.
            FailedPreconditionError: another process runs another program.
            UnimplementedError: a participant runs in another process, and the processes do not compute together.
        """
        return self.collective(key, participants=participants, timeout=timeout).rendezvous(value)

    def collective(
        self,
        key: Hashable,
        *,
        participants: Sequence[tuple[int, int]] | None = None,
        timeout: float | None = None,
    ) -> Collective:
        """Return a collective of devices of the launch, for one call of one of its methods.

        Where devices of several processes take part, its methods move fewer bytes than a ``rendezvous``.

        Args:
            key, participants, timeout: as ``rendezvous`` has them.

        Raises:
            UnimplementedError: a participant runs in another process, and the processes do not compute together.
        """
        ids = self.device_assignment.device_ids
        if participants is None:
            participants = [(r, p) for r in range(len(ids)) for p in range(len(ids[0]))]
        client = self.device.client
        processes = client.processes
        roster = (
            None
            if processes.is_alone
            else processes.roster(self.device_assignment, participants, f"the collective {key!r}")
        )
        if roster is not None:
            wait = processes.timeout if timeout is None else timeout
            program = (self.program, self.fingerprint)
            return ProcessCollective(self.launch, self.logical_id, key, program, roster, processes, wait)
        wait = client.collective_timeout if timeout is None else timeout
        launch, me, places = self.launch, self.logical_id, participants
        return LaunchCollective(
            lambda value: launch.rendezvous(key, me, places, value, wait), places.index(me) if me in places else -1
        )

    def together(
        self,
        key: Hashable,
        value: Any,
        work: Callable[[list[Any]], Sequence[Any]],
        participants: Sequence[tuple[int, int]],
    ) -> Any:
        """Meet other devices of the launch, in this process, and let the last one that comes do some work for all.

        Args:
            key, value, participants: as ``rendezvous`` has them.
            work: called with the values of all; returns a result for each of them.

        Returns:
            This device's own result.

        Raises:
            PjrtError: the work failed; or as ``rendezvous``.
        """
        timeout = self.device.client.collective_timeout
        return self.launch.work_together(key, self.logical_id, participants, value, timeout, work)

    def are_here(self, participants: Sequence[tuple[int, int]]) -> bool:
        """Whether all participants run in this process."""
        processes, ids = self.device.client.processes, self.device_assignment.device_ids
        return all(processes.is_here(ids[replica][partition]) for replica, partition in participants)

    def check_in_process(self, participants: Sequence[tuple[int, int]], name: str) -> None:
        """Raise an error if a participant runs in another process: ``post`` and ``take`` are for devices of one.

        Args:
            participants: replicas and partitions.
            name: a name of the operation, for the message.

        Raises:
            UnimplementedError: a participant runs in another process.
        """
        processes, ids = self.device.client.processes, self.device_assignment.device_ids
        others = [ids[r][p] for r, p in participants if not processes.is_here(ids[r][p])]
        if others:
            raise UnimplementedError(
                f"{name} needs the devices {others} of other processes: values are sent from device to device within a "
                "process only; use a collective, such as collective_permute"
            )

    def post(self, key: Hashable, value: Any) -> None:
        """Leave a value for another device of the launch under a key, without waiting: one half of a send between
        devices.

        Values under the same key are taken in the order in which they were left.
        """
        self.launch.post(key, value)

    def take(self, key: Hashable, *, timeout: float | None = None) -> Any:
        """Return the value that another device left under a key; wait for it as ``rendezvous`` does."""
        return self.launch.take(key, self.device.client.collective_timeout if timeout is None else timeout)

    def send(self, channel_id: int, array: HostArray) -> None:
        """Send an array to the host: call the caller's ``SendCallback`` of the channel.

        Raises:
            NotFoundError: the caller gave no callback for the channel.
        """
        send(self._mine(self.options.send_callbacks), channel_id, array)

    def receive(self, channel_id: int, spec: ShapeSpec) -> HostArray:
        """Receive an array from the host: call the caller's ``RecvCallback`` of the channel, and wait for all bytes.

        Raises:
            NotFoundError: the caller gave no callback for the channel.
            AbortedError: another device of the launch failed, or the execution was poisoned, meanwhile.
        """
        return receive(self._mine(self.options.recv_callbacks), channel_id, spec, self.check)

    def hand_out(self, callback_id: int, operands: Sequence[HostArray]) -> None:
        """Pass intermediate values to the caller's ``HloOutputCallback`` with this number, if there is one."""
        for entry in self.options.hlo_output_callbacks:
            if entry.callback_id == callback_id:
                for index, operand in enumerate(operands):
                    view = operand.view()
                    view.setflags(write=False)
                    entry.callback(self.replica_id, self.partition_id, view, index)

    def infeed(self, timeout: float | None = None) -> Any:
        """Return the next value that the host gave to ``HostDevice.infeed.put``; wait for it.

        Raises:
            DeadlineExceededError: none came within the timeout; by default, within the client's ``collective_timeout``
                if the host never asked for ``HostDevice.infeed``, and without a limit if it did.
        """
        return self.device.next_infeed(timeout, self.check)

    def outfeed(self, value: Any) -> None:
        """Put a value where the host's ``HostDevice.outfeed.get`` takes it."""
        self.device.outfeed.put(value)

    @property
    def user_data(self) -> Mapping[int, int]:
        """The addresses of a framework's objects in the caller's execute context, by the id of their type."""
        context = self.options.context
        return context.user_data if isinstance(context, HostExecuteContext) else {}

    def check(self) -> None:
        """Raise an error if the launch has ended; long work calls this from time to time.

        Raises:
            AbortedError: another device of the launch failed, the execution was poisoned, or nobody waits for it any
                more: the interpreter is ending, or Ctrl-C ended a framework's wait.
        """
        self.launch.check()

    def _mine(self, callbacks: Sequence[Sequence[T]]) -> Sequence[T]:
        return callbacks[self.place] if self.place < len(callbacks) else ()
