"""A job inside a framework's job: its processes meet through the framework's key-value store."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
from dataclasses import replace

from pjrt.api.key_value_store import KeyValueStore
from pjrt.distributed.job import Job
from pjrt.distributed.settings import Settings
from pjrt.system.processes import loopback_host

_lock = threading.Lock()
_jobs: dict[tuple[str, int, int], Job] = {}
_generations: dict[tuple[str, int, int], int] = {}


def join(
    key_value_store: KeyValueStore,
    process_index: int,
    process_count: int,
    *,
    name: str = "pjrt",
    initialization_timeout: float = 300,
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
    with _lock:
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
