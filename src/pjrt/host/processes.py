"""The processes of a job: how a client finds the others, and what devices of several processes exchange."""

from __future__ import annotations

import abc
import contextlib
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from pjrt.api.checks import expect, expect_int
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    PjrtError,
    UnimplementedError,
)
from pjrt.api.key_value_store import KeyValueStore, PrefixedStore, job_of_caller
from pjrt.host.device_memory import Allocation, on_host
from pjrt.host_memory.array import HostArray, array_dtype

if TYPE_CHECKING:
    from pjrt.host.launch import Launch

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Processes that exchange values: one device of each, which stands for all devices of its process that take part.

    Attributes:
        members: the process index, and the number of the device among those of its process, in an order that is the
            same in all of these processes.
        index: the position of this process among the members.
    """

    members: tuple[tuple[int, int], ...]
    index: int

    @property
    def process_indices(self) -> tuple[int, ...]:
        """The process indices of the members."""
        return tuple(process for process, _ in self.members)


class Collectives(abc.ABC):
    """The exchange of values between processes: the part of collectives that needs a network.

    The host runtime calls it once for all devices of this process that take part in a collective. The members of a
    group make the same calls in the same order, and one at a time. Calls for different groups overlap, and come in any
    order: two groups that differ in a device must not wait for each other.

    Only ``gather``, ``fail`` and ``close`` are required. The others are for large arrays. Where one is missing,
    ``gather`` takes its place, which moves more bytes.

    A method waits for the others as long as it takes. It raises a ``PjrtError`` that names the process if one is lost
    or has failed, and ends soon after ``fail`` was called in any of the processes.
    """

    @abc.abstractmethod
    def gather(self, group: ProcessGroup, message: Bytes) -> list[Bytes]:
        """Return the messages of all members, in the order of the group; they may have different lengths.

        The calls for a group all begin with this one. So members whose programs differ meet here, and see each other's
        messages.

        Args:
            group: the processes.
            message: the message of this process.
        """

    def can_reduce(self, reduction: str, dtype: np.dtype[Any]) -> bool:
        """Whether ``all_reduce`` and ``reduce_scatter`` combine values of an element type.

        Args:
            reduction: ``add``, ``multiply``, ``minimum`` or ``maximum``.
            dtype: the element type.
        """
        return False

    def all_reduce(self, group: ProcessGroup, array: HostArray, reduction: str) -> HostArray:
        """Return the arrays of all members, combined: an array of the same type and shape."""
        raise NotImplementedError

    def reduce_scatter(self, group: ProcessGroup, array: HostArray, reduction: str) -> HostArray:
        """Return this member's row of the combined arrays, which have a row for each member."""
        raise NotImplementedError

    can_exchange: bool = False
    """Whether ``all_to_all`` and ``permute`` are there."""

    def all_to_all(self, group: ProcessGroup, rows: Bytes) -> Bytes:
        """Return a row from each member: the row that is for this one. All rows have one length."""
        raise NotImplementedError

    def permute(self, group: ProcessGroup, message: Bytes, pairs: Sequence[tuple[int, int]]) -> Bytes:
        """Return the message of the member that sends to this one, zeros if none does. All messages have one length.

        Args:
            group: the processes.
            message: the message of this process.
            pairs: the positions of the sender and of the receiver; each occurs once among the senders and once among
                the receivers.
        """
        raise NotImplementedError

    def failure(self, group: ProcessGroup) -> PjrtError | None:
        """Return the error with which exchanges in a group end, or will never end; ``None`` as long as there is none.

        It is asked for about ten times a second while a call is under way.
        """
        return None

    @abc.abstractmethod
    def fail(self, error: PjrtError) -> None:
        """End all exchanges, because a program failed here: the others must not wait for this process, and get the
        error.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """End all exchanges. Nothing is under way."""


CollectivesFactory = Callable[[str, KeyValueStore, int, Sequence[int]], Collectives]
"""A function that makes the collectives of a client: ``make(name, key_value_store, process_index, device_counts)``.

It is called in all processes, when the client is made. The name is the same in all of them, and the store is for this
client alone. ``device_counts`` has the number of devices of each process.
"""


# Collectives among the devices of this process: each device gets the values of all, and does the rest itself.

Combine = Callable[[Sequence[Sequence[HostArray]]], Sequence[HostArray]]
"""A function that combines rows of arrays, one row for each participant, to one row."""


class Collective(Protocol):
    """One collective of a launch, as one of its devices sees it. Each device calls one method of it, once.

    Values must not be written to afterwards, neither by the device that gave them nor by those that get them.
    """

    def rendezvous(self, value: Any) -> list[Any]:
        """Return the values of all participants, in their order."""

    def all_reduce(
        self, arrays: Sequence[HostArray], combine: Combine, reduction: str | None = None
    ) -> Sequence[HostArray]:
        """Return the arrays of all participants, combined.

        Args:
            arrays: those of this device.
            combine: combines the arrays of several participants, given as one row for each.
            reduction: ``add``, ``multiply``, ``minimum`` or ``maximum``, if ``combine`` does nothing else. Then large
                arrays are combined on their way between processes, in any order.
        """

    def reduce_scatter(self, parts: Sequence[HostArray], combine: Combine, reduction: str | None = None) -> HostArray:
        """Return this device's part of the values of all participants, combined.

        Args:
            parts: the parts of this device's value, one for each participant.
            combine, reduction: as ``all_reduce`` has them.
        """

    def all_to_all(self, parts: Sequence[HostArray]) -> list[HostArray]:
        """Return a part from each participant: the part that is for this one. All parts have one type.

        Args:
            parts: those of this device, one for each participant.
        """

    def broadcast(self, value: HostArray) -> HostArray:
        """Return the value of the first participant. All values have one type."""

    def permute(self, value: HostArray, pairs: Sequence[tuple[int, int]]) -> HostArray | None:
        """Return the value of the participant that sends to this one; ``None`` if none does.

        Args:
            value: that of this device. All values have one type.
            pairs: the positions of the sender and of the receiver among the participants.
        """


class LaunchCollective:
    """A collective among devices of this process.

    Args:
        exchange: returns the values of all participants for that of this device.
        me: the position of this device among the participants.
    """

    def __init__(self, exchange: Callable[[Any], list[Any]], me: int) -> None:
        self.rendezvous, self._me = exchange, me

    def all_reduce(
        self, arrays: Sequence[HostArray], combine: Combine, reduction: str | None = None
    ) -> Sequence[HostArray]:
        """Return the arrays of all participants, combined."""
        return combine(self.rendezvous(arrays))

    def reduce_scatter(self, parts: Sequence[HostArray], combine: Combine, reduction: str | None = None) -> HostArray:
        """Return this device's part of the values of all participants, combined."""
        return combine([[row[self._me]] for row in self.rendezvous(parts)])[0]

    def all_to_all(self, parts: Sequence[HostArray]) -> list[HostArray]:
        """Return a part from each participant."""
        return [row[self._me] for row in self.rendezvous(parts)]

    def broadcast(self, value: HostArray) -> HostArray:
        """Return the value of the first participant."""
        first: HostArray = self.rendezvous(value)[0]
        return first

    def permute(self, value: HostArray, pairs: Sequence[tuple[int, int]]) -> HostArray | None:
        """Return the value of the participant that sends to this one; ``None`` if none does."""
        values = self.rendezvous(value)
        return next((values[source] for source, target in pairs if target == self._me), None)


# Memberships: the place of a client among the clients of the other processes of a job, and their devices.

_PATIENCE_SECONDS = 300.0
"""The longest wait until all processes have made their clients; XLA waits as long."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The place of a client in a job.

    Attributes:
        process_index: the number of this process.
        device_counts: the number of devices of each process.
        name: a name of the client that is the same in all processes, and that no other client has.
        store: the store of this client and of its counterparts in the other processes, alone; ``None`` if the
            processes do not compute together.
    """

    process_index: int
    device_counts: Sequence[int]
    name: str = ""
    store: KeyValueStore | None = None

    @property
    def process_count(self) -> int:
        """The number of processes."""
        return len(self.device_counts)

    @property
    def first_device_ids(self) -> Sequence[int]:
        """The id of the first device of each process."""
        return [0, *itertools.accumulate(self.device_counts[:-1])]


_lock = threading.Lock()
_counts: dict[tuple[str, int], int] = {}


def membership(
    platform: str,
    num_devices: int,
    process_index: int | None,
    process_count: int | None,
    store: KeyValueStore | None,
) -> Membership:
    """Return the membership of a new client; wait for the clients of the other processes if there is a store.

    Args:
        platform: the platform's name.
        num_devices: the number of devices of this process.
        process_index: the number of this process; by default that in the job.
        process_count: the number of processes; by default that of the job, or one more than ``process_index``.
        store: the store of the job.

    Raises:
        InvalidArgumentError: there is no such process.
        FailedPreconditionError: another process has not made its client in time.
    """
    job = _current()
    if store is None and job is not None and process_index in (None, job[1]) and process_count in (None, job[2]):
        store, process_index, process_count = job
    index = expect_int(0 if process_index is None else process_index, "process_index as a number")
    count = expect_int(index + 1 if process_count is None else process_count, "process_count as a number")
    if not 0 <= index < count:
        raise InvalidArgumentError(
            f"process_index is {index}, expected one of the {count} processes from 0 on; give process_count, too"
        )
    if store is None or count == 1:
        return Membership(index, (num_devices,) * count)
    name = f"{platform}/{_number(platform, index)}"
    own = PrefixedStore(expect(store, KeyValueStore, "a pjrt.KeyValueStore"), f"pjrt/{name}")
    own.put(f"devices/{index}", str(num_devices).encode())
    counts = []
    for process in range(count):
        try:
            counts.append(int(own.get(f"devices/{process}", _PATIENCE_SECONDS)))
        except DeadlineExceededError as error:
            raise FailedPreconditionError(
                f"process {process} of {count} has made no client of '{platform}' within {_PATIENCE_SECONDS:g} s; all "
                "processes of a job make their clients, in the same order"
            ) from error
    return Membership(index, tuple(counts), name, own)


def _current() -> tuple[KeyValueStore, int, int] | None:
    """Return the store of this process's job, the number of the process, and that of all processes."""
    framework = job_of_caller()
    if framework is not None:
        return framework
    # There is no job if nobody has imported its package, which is not small.
    package = sys.modules.get("pjrt.distributed")
    job = None if package is None else package.current()
    return None if job is None else (job.store, job.process_index, job.process_count)


def _number(platform: str, process_index: int) -> int:
    """Return the number of a new client among those of its platform: all processes make them in the same order."""
    with _lock:
        number = _counts[platform, process_index] = _counts.get((platform, process_index), -1) + 1
        return number


# Messages: values of several kinds as bytes, for another process.
#
# A message is the length of a header, the header, and the bytes of the arrays. The header is JSON. The values that it
# describes are numbers, strings, bytes, lists, tuples, dictionaries and arrays; nothing in it is code.

_ALIGNMENT = 64


def pack(value: Any) -> Bytes:
    """Return a value as bytes.

    Raises:
        InvalidArgumentError: the value has a part of a kind that cannot be sent.
    """
    arrays: list[HostArray] = []
    described = json.dumps(_describe(value, arrays), separators=(",", ":")).encode()
    parts: list[Bytes] = [np.frombuffer(len(described).to_bytes(8, "little") + described, np.uint8)]
    position = len(parts[0])
    for array in arrays:
        padding = -position % _ALIGNMENT
        if padding:
            parts.append(_ZEROS[:padding])
        parts.append(array.reshape(-1).view(np.uint8))
        position += padding + array.nbytes
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def unpack(message: Bytes) -> Any:
    """Return the value in the bytes of ``pack``; its arrays are read-only views of them.

    Raises:
        DataLossError: the bytes are damaged.
    """
    try:
        length = int.from_bytes(message[:8].tobytes(), "little")
        described = json.loads(message[8 : 8 + length].tobytes())
        return _Reader(message, 8 + length).value(described)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataLossError(f"a message of another process is damaged: {error}") from error


_ZEROS = np.zeros(_ALIGNMENT, np.uint8)
_PLAIN = (bool, int, float, str, type(None))


def _describe(value: Any, arrays: list[HostArray]) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Allocation):
        value = on_host(value)
    if isinstance(value, list | tuple):
        return {
            type(value).__name__ if type(value) in (list, tuple) else "tuple": [_describe(v, arrays) for v in value]
        }
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: _describe(each, arrays) for name, each in value.items()}}
    if isinstance(value, bytes):
        arrays.append(np.frombuffer(value, np.uint8))
        return {"bytes": len(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, np.ndarray | np.generic):
        element = ElementType.of(value.dtype)
        # In the byte order of this machine; a number becomes an array of one dimension.
        arrays.append(np.ascontiguousarray(value, array_dtype(element)))
        return {"array": [element.name, list(np.shape(value))]}
    raise InvalidArgumentError(
        "expected arrays, numbers, strings, bytes, lists, tuples or dictionaries as values for another process, found "
        f"{type(value).__name__}"
    )


class _Reader:
    def __init__(self, message: Bytes, position: int) -> None:
        self._message, self._position = message, position

    def value(self, described: Any) -> Any:
        if not isinstance(described, dict):
            return described
        ((kind, contents),) = described.items()
        if kind in ("list", "tuple"):
            values = [self.value(each) for each in contents]
            return values if kind == "list" else tuple(values)
        if kind == "dict":
            return {name: self.value(each) for name, each in contents.items()}
        if kind == "bytes":
            return self._take(contents).tobytes()
        if kind == "complex":
            return complex(*contents)
        element, shape = contents
        dtype = array_dtype(ElementType[element])
        array = self._take(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize).view(dtype).reshape(shape)
        array.flags.writeable = False
        return array

    def _take(self, size: int) -> Bytes:
        begin = self._position + (-self._position % _ALIGNMENT)
        if begin + size > len(self._message):
            raise DataLossError(f"expected {begin + size} bytes or more, found {len(self._message)}")
        self._position = begin + size
        return self._message[begin : begin + size]


# Collectives among devices of several processes: first among those of this process, then between processes.
#
# The devices of a process that take part meet as those of one process do (``Launch``). The last one that comes
# exchanges values with the other processes, for all of them. So each process sends as little as possible, and one
# device of each process, the first that takes part, stands for all in the client's ``Collectives``. A device runs one
# program at a time, so no two collectives are under way for the same group.

Place = tuple[int, int]
"""A replica and a partition."""

_SMALL_BYTES = 768
"""Values of at most so many bytes go along with the message by which processes meet: it saves a second exchange."""


@dataclass(frozen=True, slots=True)
class Roster:
    """The participants of a collective, by process.

    Attributes:
        group: the processes.
        here: the participants of this process.
        positions: for each member of the group, the positions of its participants among all.
    """

    group: ProcessGroup
    here: tuple[Place, ...]
    positions: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(participants: Sequence[Place], devices: Sequence[tuple[int, int]], process_index: int) -> Roster:
        """Return the roster of participants.

        Args:
            participants: the participants.
            devices: for each of them the process of its device, and the device's number among those of the process.
            process_index: this process.
        """
        by_process: dict[int, list[int]] = {}
        for position, (process, _) in enumerate(devices):
            by_process.setdefault(process, []).append(position)
        processes = sorted(by_process)
        members = tuple((process, min(devices[p][1] for p in by_process[process])) for process in processes)
        return Roster(
            ProcessGroup(members, processes.index(process_index)),
            tuple(participants[position] for position in by_process[process_index]),
            tuple(tuple(by_process[process]) for process in processes),
        )

    @property
    def count(self) -> int:
        """The number of participants."""
        return sum(map(len, self.positions))

    def in_order(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the values of all participants, in their order, from those of each process."""
        values: list[Any] = [None] * self.count
        for positions, row in zip(self.positions, rows, strict=True):
            for position, value in zip(positions, row, strict=True):
                values[position] = value
        return values


class ProcessCollective:
    """One collective among devices of several processes, as one of them sees it.

    Args:
        launch: the launch.
        who: the replica and the partition that this device runs.
        key: the name of the meeting; the same for all participants.
        program: the program's name and its fingerprint.
        roster: the participants.
        processes: the way to the other processes.
        timeout: the longest time to wait for the others, in seconds.
    """

    def __init__(
        self,
        launch: Launch,
        who: Place,
        key: Hashable,
        program: tuple[str, str],
        roster: Roster,
        processes: ProcessExchange,
        timeout: float,
    ) -> None:
        self._launch, self._who, self._key, self._program = launch, who, key, program
        self._roster, self._processes, self._timeout = roster, processes, timeout

    def rendezvous(self, value: Any) -> list[Any]:
        """Return the values of all participants, in their order."""

        def exchange(values: list[Any]) -> list[list[Any]]:
            everything = self._roster.in_order(self._meet("rendezvous", "", list(values)))
            return [everything] * len(values)

        results: list[Any] = self._together(value, exchange)
        return results

    def all_reduce(
        self, arrays: Sequence[HostArray], combine: Combine, reduction: str | None = None
    ) -> Sequence[HostArray]:
        """Return the arrays of all participants, combined.

        Args:
            arrays: those of this device.
            combine: combines the arrays of several participants.
            reduction: ``add``, ``multiply``, ``minimum`` or ``maximum``, if ``combine`` does nothing else.
        """

        def exchange(rows: list[Sequence[HostArray]]) -> list[Sequence[HostArray]]:
            if reduction is None:  # in the order of all participants, as on the devices of one process
                everything = self._roster.in_order(self._meet("all_reduce", _types(rows[0]), [list(r) for r in rows]))
                return [combine(everything)] * len(rows)
            partial = combine(rows)
            return [self._reduced(partial, combine, reduction)] * len(rows)

        result: Sequence[HostArray] = self._together(arrays, exchange)
        return result

    def reduce_scatter(self, parts: Sequence[HostArray], combine: Combine, reduction: str | None = None) -> HostArray:
        """Return this participant's part of the values of all participants, combined.

        Args:
            parts: the parts of this device's value, one for each participant.
            combine: combines the arrays of several participants.
            reduction: as ``all_reduce`` has it.
        """
        roster, group = self._roster, self._roster.group
        mine = roster.positions[group.index]

        def exchange(rows: list[Sequence[HostArray]]) -> Sequence[HostArray]:
            if reduction is None:
                everything = roster.in_order(self._meet("reduce_scatter", _types(rows[0][:1]), [list(r) for r in rows]))
                return [combine([[row[position]] for row in everything])[0] for position in mine]
            partial = combine([list(row) for row in rows])
            even = len(set(map(len, roster.positions))) == 1
            if not even or not self._reduces(partial, reduction):
                whole = self._reduced(partial, combine, reduction)
                return [whole[position] for position in mine]
            self._meet("reduce_scatter", _types(partial[:1]), None)
            ordered = np.stack([np.stack([partial[p] for p in positions]) for positions in roster.positions])
            rows_of_processes = ordered.reshape(len(roster.positions), -1)
            result = self._collectives.reduce_scatter(group, rows_of_processes, reduction)
            return list(result.reshape(ordered.shape[1:]))

        result: HostArray = self._together(parts, exchange)
        return result

    def all_to_all(self, parts: Sequence[HostArray]) -> list[HostArray]:
        """Return a part from each participant: the part that is for this one. All parts have one type.

        Args:
            parts: those of this device, one for each participant.
        """
        roster, group = self._roster, self._roster.group
        mine = roster.positions[group.index]
        most = max(map(len, roster.positions))

        def exchange(rows: list[Sequence[HostArray]]) -> list[list[HostArray]]:
            part = rows[0][0]
            if not self._collectives.can_exchange or part.nbytes * most * roster.count <= _SMALL_BYTES:
                everything = roster.in_order(self._meet("all_to_all", _types([part]), [list(row) for row in rows]))
                return [[row[position] for row in everything] for position in mine]
            self._meet("all_to_all", _types([part]), None)
            # For each process a block of the parts from each participant here to each one there.
            blocks = np.zeros((len(roster.positions), most, most, part.nbytes), np.uint8)
            for process, positions in enumerate(roster.positions):
                for source, row in enumerate(rows):
                    for target, position in enumerate(positions):
                        blocks[process, source, target] = _bytes_of(row[position])
            received = self._collectives.all_to_all(group, blocks.reshape(len(blocks), -1))
            received = received.reshape(blocks.shape)
            return [
                roster.in_order(
                    [
                        [_array_of(received[process, source, target], part) for source in range(len(positions))]
                        for process, positions in enumerate(roster.positions)
                    ]
                )
                for target in range(len(mine))
            ]

        result: list[HostArray] = self._together(parts, exchange)
        return result

    def broadcast(self, value: HostArray) -> HostArray:
        """Return the value of the first participant."""
        roster, group = self._roster, self._roster.group
        source = next(n for n, positions in enumerate(roster.positions) if 0 in positions)

        def exchange(values: list[HostArray]) -> list[HostArray]:
            own = values[0] if group.index == source else None
            words = np.dtype(np.uint64)
            if value.nbytes <= _SMALL_BYTES or not self._collectives.can_reduce("add", words):
                rows = self._meet("collective_broadcast", _types([value]), own)
                return [rows[source]] * len(values)
            self._meet("collective_broadcast", _types([value]), None)
            # XLA's CPU device has no broadcast. The sum of the value and of zeros moves fewer bytes than a gather.
            padded = np.zeros(-(-value.nbytes // words.itemsize), words)
            if own is not None:
                padded.view(np.uint8)[: own.nbytes] = _bytes_of(own)
            summed = self._collectives.all_reduce(group, padded, "add")
            return [_array_of(summed.view(np.uint8)[: value.nbytes], value)] * len(values)

        result: HostArray = self._together(value, exchange)
        return result

    def permute(self, value: HostArray, pairs: Sequence[tuple[int, int]]) -> HostArray | None:
        """Return the value of the participant that sends to this one; ``None`` if none does.

        Args:
            value: that of this device.
            pairs: the positions of the sender and of the receiver among the participants.
        """
        roster, group = self._roster, self._roster.group
        member_of = {p: member for member, positions in enumerate(roster.positions) for p in positions}
        mine = roster.positions[group.index]
        most = max(map(len, roster.positions))

        def exchange(values: list[HostArray]) -> list[HostArray | None]:
            results: list[HostArray | None] = [None] * len(values)
            between = [pair for pair in pairs if member_of[pair[0]] != member_of[pair[1]]]
            for source, target in pairs:
                if target in mine and source in mine:
                    results[mine.index(target)] = values[mine.index(source)]
            first = values[0]
            if not self._collectives.can_exchange or first.nbytes * most <= _SMALL_BYTES:
                rows = roster.in_order(self._meet("collective_permute", _types([first]), list(values)))
                for source, target in between:
                    if target in mine:
                        results[mine.index(target)] = rows[source]
                return results
            self._meet("collective_permute", _types([first]), None)
            for turn in _turns(between, member_of):
                own = next((values[mine.index(source)] for source, _ in turn if source in mine), first)
                members = [(member_of[source], member_of[target]) for source, target in turn]
                received = self._collectives.permute(group, _bytes_of(own), members)
                for _, target in turn:
                    if target in mine:
                        results[mine.index(target)] = _array_of(received, first)
            return results

        result: HostArray | None = self._together(value, exchange)
        return result

    @property
    def _collectives(self) -> Collectives:
        return self._processes.collectives

    def _together(self, value: Any, exchange: Callable[[list[Any]], Sequence[Any]]) -> Any:
        roster = self._roster

        def work(values: list[Any]) -> Sequence[Any]:
            with self._processes.watched(self._launch, roster.group, self._timeout):
                return exchange(values)

        return self._launch.work_together(self._key, self._who, roster.here, value, self._timeout, work)

    def _reduced(self, partial: Sequence[HostArray], combine: Combine, reduction: str) -> Sequence[HostArray]:
        """Return the arrays of all processes, combined."""
        if not self._reduces(partial, reduction):
            return combine(self._meet("all_reduce", _types(partial), list(partial)))
        self._meet("all_reduce", _types(partial), None)
        group = self._roster.group
        return [self._collectives.all_reduce(group, array, reduction) for array in partial]

    def _reduces(self, arrays: Sequence[HostArray], reduction: str) -> bool:
        """Whether the exchange combines the arrays itself, and is better at it than a gather."""
        small = sum(array.nbytes for array in arrays) <= _SMALL_BYTES
        return not small and all(self._collectives.can_reduce(reduction, array.dtype) for array in arrays)

    def _meet(self, operation: str, types: str, value: Any) -> list[Any]:
        """Meet the other processes, and return the values of all.

        Raises:
            FailedPreconditionError: another process has come to another collective.
        """
        label = json.dumps([*self._program, operation, repr(self._key), types, self._roster.count])
        packed = pack((label, value))
        messages = self._collectives.gather(self._roster.group, packed)
        rows = [unpack(each) for each in messages]
        others = [
            f"process {process} is at {_description(other)}"
            for process, (other, _) in zip(self._roster.group.process_indices, rows, strict=True)
            if other != label
        ]
        if others:
            raise FailedPreconditionError(
                f"the processes do not run the same program in the same order: this process is at "
                f"{_description(label)}, {'; '.join(others)}"
            )
        return [value for _, value in rows]


def _description(label: str) -> str:
    program, fingerprint, operation, key, types, count = json.loads(label)
    values = f" of {types}" if types else ""
    code = f" with the fingerprint {fingerprint}" if fingerprint else ""
    return f"{operation}{values} with {count} participants ({key}) in the program {program!r}{code}"


def _turns(pairs: Sequence[tuple[int, int]], member_of: dict[int, int]) -> list[list[tuple[int, int]]]:
    """Return the pairs in turns, in each of which a process sends at most once and receives at most once."""
    turns: list[list[tuple[int, int]]] = []
    for pair in sorted(pairs):
        source, target = member_of[pair[0]], member_of[pair[1]]
        for turn in turns:
            if all(source != member_of[s] and target != member_of[t] for s, t in turn):
                turn.append(pair)
                break
        else:
            turns.append([pair])
    return turns


def _types(arrays: Sequence[HostArray]) -> str:
    return ", ".join(f"{ElementType.of(a.dtype).mlir}{list(a.shape)}" for a in arrays)


def _bytes_of(array: HostArray) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _array_of(contents: Bytes, like: HostArray) -> HostArray:
    return np.ascontiguousarray(contents).view(like.dtype).reshape(like.shape)


# The exchange of values between the processes of a client: which devices are elsewhere, and the way to them.

_TIMEOUT_SECONDS = 1800.0
"""As XLA has it. A lost process is noticed at once; one that comes late may be compiling or saving."""

_WATCH_SECONDS = 0.1


class ProcessExchange:
    """The way from the devices of a client to those of other processes.

    Args:
        membership: the place of the client in the job.
        factory: makes the ``Collectives``; ``None`` if the processes do not compute together.
        timeout: the longest time to wait for another process, in seconds; 1800 by default.

    Attributes:
        meet: whether devices of several processes can take part in a collective.
    """

    def __init__(
        self, membership: Membership, factory: CollectivesFactory | None, timeout: float | None = None
    ) -> None:
        self._membership = membership
        self.timeout = _TIMEOUT_SECONDS if timeout is None else timeout
        self._first = membership.first_device_ids
        # Made at once, because all processes make it together, and a program may run in some of them only.
        store = membership.store
        self._collectives: Collectives | None = None
        if store is not None and factory is not None:
            self._collectives = factory(membership.name, store, membership.process_index, membership.device_counts)
        self.meet = self._collectives is not None
        self._changed = threading.Condition()
        self._calls: list[_Call] = []
        self._watcher: threading.Thread | None = None
        self._rosters: dict[tuple[tuple[int, ...], tuple[Place, ...]], Roster | None] = {}

    @property
    def is_alone(self) -> bool:
        """Whether all devices of the client are in this process."""
        return self._membership.process_count == 1

    def process_of(self, device_id: int) -> int:
        """Return the process index of a device."""
        return max(n for n, first in enumerate(self._first) if first <= device_id)

    def is_here(self, device_id: int) -> bool:
        """Whether a device belongs to this process."""
        return self.is_alone or self.process_of(device_id) == self._membership.process_index

    def spans(self, assignment: DeviceAssignment) -> bool:
        """Whether a program runs on devices of several processes, of which this is one."""
        if self.is_alone:
            return False
        processes = {self.process_of(device_id) for row in assignment.device_ids for device_id in row}
        return len(processes) > 1 and self._membership.process_index in processes

    def roster(self, assignment: DeviceAssignment, participants: Sequence[Place], name: str) -> Roster | None:
        """Return the roster of participants of a collective; ``None`` if all of them are in this process.

        Args:
            assignment: the devices of the launch.
            participants: the participants.
            name: a name of the collective, for messages.

        Raises:
            UnimplementedError: the processes do not compute together.
            InvalidArgumentError: none of the participants is in this process.
        """
        ids = assignment.device_ids
        devices = tuple(ids[r][p] for r, p in participants if 0 <= r < len(ids) and 0 <= p < len(ids[0]))
        place = (devices, tuple(participants))
        if place not in self._rosters:
            self._rosters[place] = self._roster(devices, participants, name)
        return self._rosters[place]

    def _roster(self, devices: Sequence[int], participants: Sequence[Place], name: str) -> Roster | None:
        here = self._membership.process_index
        others = sorted(device for device in devices if self.process_of(device) != here)
        if not others:
            return None
        if not self.meet:
            raise UnimplementedError(self._refusal(f"{name} needs the devices {others}"))
        if len(others) == len(devices):
            raise InvalidArgumentError(f"no device of this process is one of the participants {list(participants)}")
        return Roster.of(
            participants, [(self.process_of(d), d - self._first[self.process_of(d)]) for d in devices], here
        )

    def _refusal(self, need: str) -> str:
        """Return the message for a program that needs devices of other processes, if processes do not meet."""
        first = self._first[self._membership.process_index]
        here = list(range(first, first + self._membership.device_counts[self._membership.process_index]))
        remedy = (
            "give the client the option collectives=pjrt.xla_collectives"
            if self._membership.store is not None
            else "call pjrt.distributed.initialize before the client is made, so that they can meet"
        )
        return (
            f"{need} of other processes, and these processes do not compute together: {remedy}, or run the program on "
            f"the devices of one process, {here}"
        )

    @property
    def collectives(self) -> Collectives:
        """The exchange of values.

        Raises:
            FailedPreconditionError: the client was closed.
        """
        if self._collectives is None:
            raise FailedPreconditionError("the client was closed; make a new one")
        return self._collectives

    def fail(self, error: PjrtError) -> None:
        """Let the other processes know that a program on devices of several processes failed here."""
        if self._collectives is not None:
            self._collectives.fail(error)

    @contextlib.contextmanager
    def watched(self, launch: Launch, group: ProcessGroup, timeout: float) -> Iterator[None]:
        """Fail a launch meanwhile if the others do not come in time, or if the exchange of values ends.

        A thread that waits for the network cannot be interrupted, so another thread looks at the time.
        """
        call = _Call(launch, group, time.monotonic() + timeout, timeout)
        with self._changed:
            self._calls.append(call)
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="pjrt collectives", daemon=True)
                self._watcher.start()
            elif len(self._calls) == 1:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._calls.remove(call)

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._collectives is None)
                calls, collectives = list(self._calls), self._collectives
            if collectives is None:
                return
            for call in calls:
                failure = collectives.failure(call.group)
                if failure is not None:
                    call.launch.poison(failure)
                elif call.deadline < time.monotonic():
                    others = [n for n in call.group.process_indices if n != self._membership.process_index]
                    call.launch.poison(
                        DeadlineExceededError(
                            f"not all of the processes {others} came to a collective within {call.timeout:g} s; do all "
                            "processes run the same programs in the same order?"
                        )
                    )
            time.sleep(_WATCH_SECONDS)

    def close(self) -> None:
        """End the exchange."""
        with self._changed:
            collectives, self._collectives = self._collectives, None
            self._changed.notify()
        if collectives is not None:
            collectives.close()


class _Call(NamedTuple):
    """A collective that waits for other processes."""

    launch: Launch
    group: ProcessGroup
    deadline: float
    timeout: float
