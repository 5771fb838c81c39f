"""The client that a worker serves, for the functions that run in the worker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from pjrt.api.client import Client
from pjrt.api.device import AllocatorStats
from pjrt.api.errors import FailedPreconditionError
from pjrt.clusters.workers.controller_calls import ControllerCalls

_serving: list[tuple[Client, ControllerCalls]] = []


@contextlib.contextmanager
def serving(client: Client, calls: ControllerCalls) -> Iterator[None]:
    """Have ``host_client`` return a client while the block runs, and its programs make calls of the controller."""
    _serving.append((client, calls))
    try:
        yield
    finally:
        _serving.remove((client, calls))


def host_client() -> Client:
    """Return the client of the devices of this host: a function that runs in a worker calls it.

    Raises:
        FailedPreconditionError: this process is no worker of a cluster.
    """
    if not _serving:
        raise FailedPreconditionError(
            "this process is no worker of a cluster; call the function with call_on_hosts() of the cluster's client"
        )
    return _serving[-1][0]


def memory_stats(device_id: int) -> AllocatorStats:
    """Return the state of the allocator of a device of this host."""
    return host_client().lookup_device(device_id).memory_stats()


def clear_memory_stats(device_id: int) -> None:
    """Reset the peaks of ``memory_stats`` of a device of this host."""
    host_client().lookup_device(device_id).clear_memory_stats()


def register_ffi_handler(name: str, handler: Callable[..., Any], traits: int) -> None:
    """Register an FFI handler with the client of this host."""
    host_client().register_ffi_handler(name, handler, traits=traits)


def register_controller_handler(name: str, function: int, traits: int) -> None:
    """Register a function of the controller, given its number there, as an FFI handler with the client of this host."""
    client = host_client()
    _, calls = _serving[-1]
    client.register_ffi_handler(name, calls.handler(function), traits=traits)
