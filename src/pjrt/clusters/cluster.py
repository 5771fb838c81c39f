"""The function ``pjrt.cluster``: starts the workers, makes the client of all their devices, and supervises them."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pjrt.api.errors import InvalidArgumentError, PjrtError, UnavailableError
from pjrt.clusters.calls import ControllerFunctions
from pjrt.clusters.client.client import ClusterClient
from pjrt.clusters.client.member import Member, member_of, reason_of
from pjrt.clusters.launchers import Launcher, make_launcher
from pjrt.clusters.settings import SHOWN, ClusterSettings, host_names
from pjrt.clusters.workers.workers import (
    CAUSE_SECONDS,
    InnerNodeState,
    Node,
    OnProgress,
    ProgressLine,
    Workers,
    WorkerState,
    workers_of,
)
from pjrt.distributed.settings import LONGEST_START_SECONDS
from pjrt.remote.client.client import RemoteClient
from pjrt.remote.client.plugin import RemotePlugin

_LINES = 10
_MOST_CONNECTING = 64


def cluster(
    hosts: int | str | Sequence[str] | None = None,
    device: str = "cpu",
    *,
    launcher: str | Launcher = "local",
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    working_directory: str | os.PathLike[str] | None = None,
    logs: str | os.PathLike[str] = SHOWN,
    progress: OnProgress | bool = True,
    start_timeout: float = LONGEST_START_SECONDS,
    heartbeat_timeout: float = 10,
    controller_address: str = "",
    fan_out: int | None = None,
    **further_options: Any,
) -> ClusterClient:
    """Start a worker on each host, join the workers to a job, and return one client of the devices of all.

    The client is a context manager. Its end, or that of this process in any way, ends the workers.

    Args:
        hosts: the number of workers, or the names of their hosts; ``node2:4`` stands for four workers on one host.
        device: the device of each worker, as ``pjrt.client`` takes it.
        launcher: the way to start the workers: ``local``, ``ssh``, ``ray`` or ``external``, or a
            ``pjrt.clusters.launchers.Launcher`` of your own.
        options: the device's options, if their names are also those of other options here.
        environment: further environment variables of the workers.
        working_directory: the working directory of the workers.
        logs: ``show`` the workers' output on the error stream, with the host in front of each line; ``hide`` it; or a
            directory for a file of each worker.
        progress: called with a ``StartProgress`` while the workers start; by default, a terminal shows it.
        start_timeout: the seconds in which all workers must be ready.
        heartbeat_timeout: the seconds without a sign of life after which a worker is lost, at least 2; three times as
            many where its process lives and only its Python stands still. The end of a process is noticed at once.
        controller_address: the host, or ``HOST:PORT``, at which workers on other machines reach this process; by
            default they try all addresses of this host. This process listens at this address alone if it is one of this
            host, otherwise at all.
        fan_out: the number of workers to which this process connects at most. With more workers, it connects to inner
            nodes, processes on the workers' hosts that pass on what it sends to as many workers each, or to further
            inner nodes; ``None`` connects to all workers.
        further_options: the options of the launcher and of the device, such as ``num_devices``.

    Raises:
        InvalidArgumentError: an option is unknown or has a wrong value.
        DeadlineExceededError: a worker was not ready in time; the message names its host, and what it waits for.
        FailedPreconditionError: a package or a program that is needed is missing.
        PjrtError: a worker could not start, with the code of its error; the message names its host, and has the end
            of its output.
    """
    device_options = dict(further_options)
    way = _launcher(launcher, hosts, device_options)
    settings = ClusterSettings.of(
        device=device,
        options=_both({} if options is None else options, device_options),
        environment=environment or {},
        working_directory=working_directory,
        logs=logs,
        start_timeout=start_timeout,
        heartbeat_timeout=heartbeat_timeout,
        controller_address=controller_address,
    )
    line = ProgressLine()
    show = progress if callable(progress) else line if progress else lambda _: None
    try:
        workers = Workers(way, settings, show, fan_out=_fan_out(fan_out))
    finally:
        line.clear()
    try:
        return _client(workers)
    except BaseException:
        workers.close()
        raise


def _close_soon(workers: Workers) -> None:
    """End the workers of a client that was collected, in any thread, which must not wait for them."""
    threading.Thread(target=workers.close, name="pjrt-cluster-end").start()


def _fan_out(fan_out: Any) -> int:
    if fan_out is None:
        return 0
    if isinstance(fan_out, bool) or not isinstance(fan_out, int) or fan_out < 2:
        raise InvalidArgumentError(f"expected fan_out as a number of workers, at least 2, or None, found {fan_out!r}")
    return fan_out


def _both(options: Any, further_options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of the device, which are in two places."""
    if not isinstance(options, Mapping):
        raise InvalidArgumentError(f"expected the device's options as a dict with names, found {options!r}")
    for name in options:
        if name in further_options:
            raise InvalidArgumentError(f"the option {name} of the device is there twice; give it once")
    return {**options, **further_options}


def _launcher(launcher: str | Launcher, hosts: int | str | Sequence[str] | None, options: dict[str, Any]) -> Launcher:
    if isinstance(launcher, Launcher):
        if hosts is not None:
            raise InvalidArgumentError(f"{launcher!r} has its hosts already; leave out hosts={hosts!r}")
        return launcher
    return make_launcher(launcher, host_names(hosts), options)


def _client(workers: Workers) -> ClusterClient:
    """Return the client of the devices of all workers; its end is theirs."""

    def connect(node: Node) -> Member:
        client = RemotePlugin().client(**workers.connection_options(node))
        places = [(worker.host, worker.index) for worker in workers_of(node)]
        return member_of(client, places, is_inner_node=isinstance(node, InnerNodeState))

    with ThreadPoolExecutor(min(_MOST_CONNECTING, len(workers.children)), "pjrt-cluster") as pool:
        connections = [pool.submit(connect, node) for node in workers.children]
    try:
        members = [connection.result() for connection in connections]
        functions = ControllerFunctions(workers.send)
        workers.on_call(functions.receive)
        client = ClusterClient(members, close=workers.close, functions=functions)
        client.add_close_callback(functools.partial(_close_soon, workers))
        Supervision(workers, members)
        return client
    except BaseException:
        for connection in connections:
            if connection.exception() is None:
                connection.result().client.close()
        raise


class Supervision:
    """The supervision of the workers of one cluster: each loss is one error with its cause everywhere.

    Three signs show that a worker is lost. Its process or a connection ends, which is noticed at once. Its machine,
    network or whole process stands still: the pings of the connection to its client, which gRPC's own threads answer,
    find that within the heartbeat timeout, also while a long call keeps Python's lock. Or its Python alone stands
    still: then the worker sends no signs of life to the leader of the job, which waits three times as long.

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
