"""The membership of a job: which of its processes are there, in the order in which the leader reported it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from pjrt.api.errors import PjrtError, UnavailableError
from pjrt.distributed.member import Member


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
