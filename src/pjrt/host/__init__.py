"""The asynchronous host runtime that in-process devices are built on (the "TFRT CPU client" of the C++ world).

A device's author brings ``compile(program, options)``, which gives a function on numpy arrays; ``HostClient`` makes a
complete, asynchronous, many-device client of it. This room must not know StableHLO or any compiler.

- ``HostClient``: the client; its arguments are all that an author configures.
- ``Compiled``: what ``compile`` may return instead of a bare function, to say more about it.
- ``RunContext``: what such a function can ask about its run: device, replica, partition, and a rendezvous with
  the other devices of the launch.
"""

from pjrt.host.client import HostClient
from pjrt.host.compiled import Compiled
from pjrt.host.platform_spec import MEMORY_KINDS
from pjrt.host.run_context import RunContext

__all__ = ["MEMORY_KINDS", "Compiled", "HostClient", "RunContext"]
