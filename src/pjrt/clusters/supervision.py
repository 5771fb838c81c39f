"""The supervision of a cluster's workers: each loss, whatever shows it, is one error with its cause everywhere.

Three signs show that a worker is lost. Its process or a connection ends, which is noticed at once. Its machine, network
or whole process stands still: the pings of the connection to its client, which gRPC's own threads answer, find that
within the heartbeat timeout, also while a long call keeps Python's lock. Or its Python alone stands still: then the
worker sends no signs of life to the leader of the job, which waits three times as long.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence

from pjrt.api.errors import PjrtError, UnavailableError
from pjrt.clusters.client.member import Member
from pjrt.clusters.workers.connection_loss import reason_of
from pjrt.clusters.workers.worker_state import CAUSE_SECONDS, WorkerState
from pjrt.clusters.workers.workers import Workers
from pjrt.remote.client.client import RemoteClient

_LINES = 10


class Supervision:
    """The supervision of the workers of one cluster.

    Args:
        workers: the workers.
        members: the members of the cluster's client, each with a ``RemoteClient``.
    """

    def __init__(self, workers: Workers, members: Sequence[Member]) -> None:
        self._workers = workers
        workers_of_members = [worker for member in members for worker in member.workers]
        self._members = {worker.process_index: worker for worker in workers_of_members}
        self._lock = threading.Lock()
        self._losses: dict[int, _Loss] = {}
        for member in members:
            assert isinstance(member.client, RemoteClient)
            member.client.connection.on_loss(functools.partial(self._lose_all, member))
        workers.on_lost(self._begin_to_lose)

    def lose(self, index: int, reason: str) -> None:
        """Give a worker up: everything that waits for it fails, and it is ended, if it can be.

        Args:
            index: the worker.
            reason: why; the way in which its process has ended is reported instead, if it has.
        """
        with self._lock:
            is_first = index not in self._losses
            loss = self._losses.setdefault(index, _Loss())
        if not is_first:
            if loss.thread != threading.get_ident():
                loss.is_reported.wait(2 * CAUSE_SECONDS)
            return
        # The other workers first: they may wait for this one in the middle of a program.
        self._workers.report_loss(index, reason)
        error = self._error(self._workers.members[index], self._members[index], reason)
        try:
            self._members[index].lose(error)
        finally:
            loss.is_reported.set()
            # In a thread: to end a process may take seconds, and the caller's thread may be one that others need.
            threading.Thread(target=self._workers.end_lost, args=(index, error), name="pjrt-lost-worker").start()

    def _lose_all(self, member: Member, error: PjrtError) -> None:
        """Give up the worker of a member whose connection has ended, or all workers of a branch."""
        reason = reason_of(error, self._workers.heartbeat_timeout)
        if member.workers == (member,):
            self.lose(member.process_index, reason)
            return
        reason = f"{member} was lost: {reason}"
        threads = [self._begin_to_lose(worker.process_index, reason) for worker in member.workers]
        for thread in threads:
            thread.join(2 * CAUSE_SECONDS)
        member.lose(UnavailableError(reason))

    def _begin_to_lose(self, index: int, reason: str) -> threading.Thread:
        """Give a worker up in a thread, because the calling one must not wait; return the thread."""
        thread = threading.Thread(target=self.lose, args=(index, reason), name="pjrt-lost-worker", daemon=True)
        thread.start()
        return thread

    def _error(self, worker: WorkerState, member: Member, reason: str) -> PjrtError:
        end = worker.end_within(CAUSE_SECONDS)
        cause = reason if end is None else f"its process ended: {end}"
        tail = "".join(f"\n  {line}" for line in worker.output.tail[-_LINES:])
        output = f"; the end of its output:{tail}" if tail else ""
        devices = ", ".join(str(device).partition(" (")[0] for device in member.devices)
        return UnavailableError(f"{worker}, with the devices {devices}, was lost: {cause}{output}")


class _Loss:
    """The loss of one worker, in the thread that handles it."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.is_reported = threading.Event()
