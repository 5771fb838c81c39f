"""The exchange of values between the processes of a client: which devices are elsewhere, and the way to them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    PjrtError,
    UnimplementedError,
)
from pjrt.host.collectives import Collectives, CollectivesFactory, ProcessGroup
from pjrt.host.membership import Membership
from pjrt.host.process_collective import Place, Roster

if TYPE_CHECKING:
    from pjrt.host.launch import Launch

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
