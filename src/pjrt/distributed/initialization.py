"""The jobs of this process: one that it begins, and those that it joins in a framework's."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import secrets
import socket
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from pjrt import system
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.key_value_store import KeyValueStore
from pjrt.distributed.environments import ADDRESS, COUNT, detect
from pjrt.distributed.job import NOTES, WAITS, Job
from pjrt.distributed.settings import LONGEST_START_SECONDS, Settings, split_address
from pjrt.distributed.store import LONGEST_SECONDS
from pjrt.system.processes import loopback_host

_lock = threading.Lock()
_job: Job | None = None


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    cluster_detection_method: str | None = None,
    initialization_timeout: float = LONGEST_START_SECONDS,
    heartbeat_timeout_seconds: float = 100,
    shutdown_timeout_seconds: float = 300,
    coordinator_bind_address: str | None = None,
    recoverable: bool = False,
) -> Job:
    """Make this process one of a job, and wait for the others.

    Arguments that are not given come from the environment: that of ``pjrt launch``, of Open MPI, Intel MPI or MPICH, of
    Slurm, or of an Indexed Job of Kubernetes. Process 0 leads the job: the others reach it at the address.

    Args:
        coordinator_address: where process 0 listens, for the others: ``HOST:PORT``.
        num_processes: the number of processes.
        process_id: the number of this process, from 0.
        cluster_detection_method: the name of the environment: ``pjrt launch``, ``openmpi``, ``pmi``, ``slurm``,
            ``kubernetes``, ``mpi4py`` (which asks MPI through that package), or ``deactivate`` to read none. By default
            it is found out.
        initialization_timeout: the seconds to wait for the other processes.
        heartbeat_timeout_seconds: the seconds without a sign of life after which a process is lost. The end of a
            process is noticed at once.
        shutdown_timeout_seconds: the seconds that ``shutdown`` waits for the other processes.
        coordinator_bind_address: the address on which process 0 listens; by default all of its host, or the loopback
            alone if ``coordinator_address`` is there. It has the same port.
        recoverable: whether the job goes on without a process that is lost, and whether that may join again.

    Returns:
        The job, as ``pjrt.distributed.current()`` does.

    Raises:
        DeadlineExceededError: process 0 did not answer, or not all processes came in time; the message names those
            that are missing.
        UnavailableError: process 0 was lost, or cannot listen at the address.
        AlreadyExistsError: another process has the same number.
        InvalidArgumentError: an argument or a variable of the environment is wrong, or they contradict one another.
        FailedPreconditionError: this process is in a job already, an argument is missing, or jaxlib is not installed.
    """
    place = detect(coordinator_address, num_processes, process_id, cluster_detection_method)
    assert place.coordinator_address is not None
    assert place.process_count is not None
    assert place.process_index is not None
    host, port = split_address(place.coordinator_address)
    bind_host = _bind_host(host, port, coordinator_bind_address)
    settings = Settings(
        [(host, port)],
        place.process_count,
        place.process_index,
        bind_host=bind_host,
        initialization_timeout=initialization_timeout,
        heartbeat_timeout=heartbeat_timeout_seconds,
        shutdown_timeout=shutdown_timeout_seconds,
        recoverable=recoverable,
    )
    with noted_wait(place.coordinator_address, place.process_count, place.process_index):
        return enter(settings)


@contextlib.contextmanager
def noted_wait(address: str, count: int, index: int) -> Iterator[None]:
    """Note for ``pjrt launch``, while the block runs, that this process waits for all that it has started, if it does.

    Args:
        address: where the processes meet.
        count: how many there are.
        index: the number of this one.
    """
    folder = os.environ.get(NOTES)
    note = Path(folder or "", f"{index}{WAITS}")
    here = os.environ.get(ADDRESS), os.environ.get(COUNT)
    try:
        if folder and here[0] and (split_address(here[0]), here[1]) == (split_address(address), str(count)):
            note.touch()
    except (OSError, InvalidArgumentError):
        folder = None  # the launcher has ended, or its variables were changed
    try:
        yield
    finally:
        if folder:
            note.unlink(missing_ok=True)


def enter(settings: Settings) -> Job:
    """Make this process one of the job that ``settings`` describe, and wait for the others, as ``initialize`` does."""
    global _job
    with _lock:
        if _job is not None:
            raise FailedPreconditionError(
                f"this process is process {_job.process_index} of a job of {_job.process_count} already; call "
                "shutdown() first"
            )
        _job = Job.begin(settings)
        return _job


def _bind_host(host: str, port: int, bind_address: str | None) -> str | None:
    if bind_address is not None:
        bind_host, bind_port = split_address(bind_address)
        if bind_port != port:
            raise InvalidArgumentError(
                f"expected the same port in coordinator_bind_address as in coordinator_address, found {bind_port} and "
                f"{port}"
            )
        return None if bind_host in ("::", "0.0.0.0") else bind_host
    try:
        return host if ipaddress.ip_address(host).is_loopback else None
    except ValueError:
        return host if host == "localhost" else None


def current() -> Job | None:
    """Return the job of this process; ``None`` outside of one."""
    return _job


def shutdown() -> None:
    """Leave the job, when all processes want to; nothing happens outside of a job."""
    global _job
    job = _job
    if job is not None:
        try:
            job.shutdown()
        finally:
            _job = None


def process_index() -> int:
    """Return the number of this process in its job; 0 outside of a job."""
    return 0 if _job is None else _job.process_index


def process_count() -> int:
    """Return the number of processes in the job of this process; 1 outside of a job."""
    return 1 if _job is None else _job.process_count


def barrier(name: str, timeout: float = LONGEST_SECONDS, processes: Collection[int] | None = None) -> None:
    """Wait until processes have called this with the same name: ``Job.barrier``; nothing happens outside of a job."""
    if _job is not None:
        _job.barrier(name, timeout, processes)


def live_processes() -> Mapping[int, int]:
    """Return the processes of the job that are there: ``Job.live_processes``; this one alone outside of a job."""
    return {0: 0} if _job is None else _job.live_processes()


def reached_preemption_step(step: int) -> bool:
    """Return whether all processes save their work and stop after this step: ``Job.reached_preemption_step``.

    Outside of a job it is false.
    """
    return _job is not None and _job.reached_preemption_step(step)


def _forget() -> None:
    """Leave the job to the parent process, in the child of a fork."""
    global _job, _lock
    _job, _lock = None, threading.Lock()


system.after_fork_in_child(_forget)


_jobs_lock = threading.Lock()
_jobs: dict[tuple[str, int, int], Job] = {}
_generations: dict[tuple[str, int, int], int] = {}


def join(
    key_value_store: KeyValueStore,
    process_index: int,
    process_count: int,
    *,
    name: str = "pjrt",
    initialization_timeout: float = LONGEST_START_SECONDS,
    heartbeat_timeout: float = 100,
    shutdown_timeout: float = 300,
) -> Job:
    """Make this process one of a job that meets through a framework's key-value store.

    A plugin gets only ``put``, ``get`` and ``try_get`` from its framework. Process 0 starts a coordination service and
    puts its address into the store. As long as the job exists, another call with the same name returns it again.

    Args:
        key_value_store: the framework's store.
        process_index: the number of this process, from 0.
        process_count: the number of processes, which all call this.
        name: the job's name in the store.
        initialization_timeout: the seconds to wait for the other processes.
        heartbeat_timeout: the seconds of silence after which a process is lost.
        shutdown_timeout: the seconds to wait for the other processes at the end.

    Raises:
        DeadlineExceededError: not all processes came in time; the message names those that are missing.
        UnavailableError: process 0 was lost, or cannot listen.
    """
    place = name, process_index, process_count
    with _jobs_lock:
        job = _jobs.get(place)
        if job is not None and job.is_running:
            return job
        generation = _generations[place] = _generations.get(place, -1) + 1
        key = f"{name}/leader/{generation}"
        settings = Settings(
            [],
            process_count,
            process_index,
            initialization_timeout=initialization_timeout,
            heartbeat_timeout=heartbeat_timeout,
            shutdown_timeout=shutdown_timeout,
        )
        if process_index == 0:
            hosts, token = own_hosts(), secrets.token_hex(8)

            def publish(port: int) -> None:
                addresses = [(host, port) for host in hosts]
                key_value_store.put(key, json.dumps({"addresses": addresses, "token": token}).encode())

            job = Job.begin(replace(settings, addresses=[(hosts[0], 0)], token=token), publish)
        else:
            place_of_leader = json.loads(key_value_store.get(key, initialization_timeout))
            addresses = [(str(host), int(port)) for host, port in place_of_leader["addresses"]]
            job = Job.begin(replace(settings, addresses=addresses, token=place_of_leader["token"]))
        _jobs[place] = job
        return job


def own_hosts() -> list[str]:
    """Return the addresses of this host, the one that other hosts most likely reach first.

    No data is sent: to connect a UDP socket only chooses the address to send from.
    """
    hosts = []
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                hosts.append(str(probe.getsockname()[0]))
        except OSError:
            continue
    with contextlib.suppress(OSError):
        hosts += socket.gethostbyname_ex(socket.gethostname())[2]
    return list(dict.fromkeys([*hosts, loopback_host()]))
