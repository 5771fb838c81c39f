"""Collectives among devices of several processes: first among those of this process, then between processes.

The devices of a process that take part meet as those of one process do (``Launch``). The last one that comes exchanges
values with the other processes, for all of them. So each process sends as little as possible, and one device of each
process, the first that takes part, stands for all in the client's ``Collectives``. A device runs one program at a time,
so no two collectives are under way for the same group.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError
from pjrt.host import message
from pjrt.host.collective import Combine
from pjrt.host.collectives import Bytes, Collectives, ProcessGroup
from pjrt.host_memory.array import HostArray

if TYPE_CHECKING:
    from pjrt.host.launch import Launch
    from pjrt.host.process_exchange import ProcessExchange

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
        packed = message.pack((label, value))
        messages = self._collectives.gather(self._roster.group, packed)
        rows = [message.unpack(each) for each in messages]
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
