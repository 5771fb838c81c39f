"""The environment variables that assign libtpu's chips to several processes of a machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from pjrt.api.errors import FailedPreconditionError

# The arrangement of the chips of one machine, by their number.
_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}

_FIRST_PORT = 8476


def process_environment(chips: Sequence[int], local_rank: int, local_world_size: int) -> Mapping[str, str]:
    """Return the variables for a process: each process has one chip, or one process has all of them.

    In a job of several machines ``TPU_PROCESS_BOUNDS`` and ``TPU_PROCESS_ADDRESSES`` have to be set already: they
    contain the arrangement of all processes, which one machine does not know.

    Raises:
        FailedPreconditionError: the arrangement of the processes or chips is unknown.
    """
    if local_world_size == 1:
        return {"TPU_CHIPS_PER_PROCESS_BOUNDS": _bounds(len(chips)), "TPU_PROCESS_BOUNDS": "1,1,1"}
    hosts = [name for name in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
    if len(hosts) > 1 and not {"TPU_PROCESS_BOUNDS", "TPU_PROCESS_ADDRESSES"} <= set(os.environ):
        raise FailedPreconditionError(
            f"the TPU has {len(hosts)} machines: set TPU_PROCESS_BOUNDS and TPU_PROCESS_ADDRESSES for the processes "
            "of all of them"
        )
    ports = range(_FIRST_PORT, _FIRST_PORT + local_world_size)
    worker = int(os.environ.get("TPU_WORKER_ID", "0") or 0)
    return {
        "TPU_CHIPS_PER_PROCESS_BOUNDS": _bounds(len(chips)),
        "TPU_PROCESS_BOUNDS": os.environ.get("TPU_PROCESS_BOUNDS") or _bounds(local_world_size),
        "TPU_PROCESS_ADDRESSES": ",".join(f"localhost:{port}" for port in ports),
        "TPU_PROCESS_PORT": str(ports[local_rank]),
        "CLOUD_TPU_TASK_ID": str(worker * local_world_size + local_rank),
    }


def _bounds(number: int) -> str:
    if number not in _BOUNDS:
        raise FailedPreconditionError(
            f"the arrangement of {number} chips or processes of a TPU is unknown: set TPU_PROCESS_BOUNDS and "
            f"TPU_CHIPS_PER_PROCESS_BOUNDS, or use one of {', '.join(map(str, _BOUNDS))}"
        )
    return _BOUNDS[number]
