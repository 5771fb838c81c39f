"""Collectives between the processes of a job, for devices in Python.

Importing this package does not import jaxlib; making collectives does.
"""

from __future__ import annotations

from collections.abc import Sequence

from pjrt.api.key_value_store import KeyValueStore
from pjrt.host import Collectives


def xla_collectives(
    name: str, key_value_store: KeyValueStore, process_index: int, device_counts: Sequence[int]
) -> Collectives:
    """Return collectives through XLA's CPU device, for ``pjrt.host.HostClient(…, collectives=xla_collectives)``.

    Args:
        name: the client's name, the same in all processes.
        key_value_store: the store of this client and of its counterparts in the other processes, alone.
        process_index: the number of this process.
        device_counts: the number of devices of each process.

    Raises:
        FailedPreconditionError: jaxlib is missing.
        PjrtError: the other processes do not come.
    """
    from pjrt.devices.collectives.engine import XlaCollectives

    return XlaCollectives(name, key_value_store, process_index, device_counts)
