"""Barriers of a job, whose errors name the processes that are missing."""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from urllib.parse import quote

from pjrt.api.errors import DeadlineExceededError, InvalidArgumentError, PjrtError
from pjrt.distributed._jaxlib import Agent, converted
from pjrt.distributed.calls import Calls
from pjrt.distributed.membership import Membership
from pjrt.distributed.store import LONGEST_SECONDS, CoordinationStore

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
