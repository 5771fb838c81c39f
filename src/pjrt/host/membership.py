"""Memberships: the place of a client among the clients of the other processes of a job, and their devices."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from pjrt.api.checks import expect, expect_int
from pjrt.api.errors import DeadlineExceededError, FailedPreconditionError, InvalidArgumentError
from pjrt.api.key_value_store import KeyValueStore, PrefixedStore, job_of_caller

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
