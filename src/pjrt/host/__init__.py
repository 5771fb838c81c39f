"""The asynchronous host runtime: the basis of devices in this process (like the "TFRT CPU client" of XLA).

A device's author brings ``compile(program, options)``, which returns a function on numpy arrays. ``HostClient`` makes
a complete, asynchronous client of many devices of it. This package must not know StableHLO or any compiler.

- ``HostClient``: the client; its arguments are everything that an author configures.
- ``Compiled``: what ``compile`` may return instead of a bare function, to declare more about it.
- ``Memory``: the allocator of a device whose memory numpy cannot see; ``Allocation``: one array in it; ``Enqueued``:
  the results of a program whose work goes on.
- ``RunContext``: what such a function may ask about its run: device, replica, partition, and a rendezvous with the
  other devices of the launch.
- ``Collectives``: the exchange of values between the processes of a job, among ``ProcessGroup``s; ``Collective``: one
  collective of a launch, as a running function sees it.

Names are imported at their first use: a thread that imports a module of this package waits for no other one that
imports the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.lazy_names import lazy_names

if TYPE_CHECKING:
    from pjrt.host.client import HostClient
    from pjrt.host.device import MEMORY_KINDS
    from pjrt.host.device_memory import Allocation, Memory
    from pjrt.host.executable import Compiled
    from pjrt.host.fences import Enqueued
    from pjrt.host.launch import RunContext
    from pjrt.host.processes import Collective, Collectives, ProcessGroup

__all__ = [
    "MEMORY_KINDS",
    "Allocation",
    "Collective",
    "Collectives",
    "Compiled",
    "Enqueued",
    "HostClient",
    "Memory",
    "ProcessGroup",
    "RunContext",
]

_HOMES = {
    ".client": "HostClient",
    ".device": "MEMORY_KINDS",
    ".device_memory": "Allocation Memory",
    ".executable": "Compiled",
    ".fences": "Enqueued",
    ".launch": "RunContext",
    ".processes": "Collective Collectives ProcessGroup",
}


if not TYPE_CHECKING:  # a type checker has the names from above; with these functions it would accept any other
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
