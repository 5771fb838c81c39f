"""What libtpu must be told by environment variables for several processes of a machine to use its chips."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pjrt.api.errors import FailedPreconditionError

LIBRARY = "libtpu"
"""How the file name of its library begins."""

# How the chips of one machine are arranged, by their number.
_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}

_FIRST_PORT = 8476


def is_tpu(library: Path | None) -> bool:
    """Whether a plugin's library is libtpu."""
    return library is not None and library.name.startswith(LIBRARY)


def is_unset_by_nothing(variable: str) -> bool:
    """Whether libtpu takes an empty value of an environment variable as if it were not set: those that say where in a
    slice the machine is, and that several processes may load it.
    """
    return variable.startswith("TPU_") or variable == "ALLOW_MULTIPLE_LIBTPU_LOAD"


def environment(chips: Sequence[int], local_rank: int, local_world_size: int) -> Mapping[str, str]:
    """The variables for a process that uses some of the chips: each process has one, or one process has them all.

    Where processes of other machines belong to the same job, ``TPU_PROCESS_BOUNDS`` and ``TPU_PROCESS_ADDRESSES`` have
    to be set: they say how all of them are arranged, which cannot be told from here.

    Raises:
        FailedPreconditionError: it cannot be told how the processes are arranged.
    """
    if local_world_size == 1:
        return {"TPU_CHIPS_PER_PROCESS_BOUNDS": _bounds(len(chips)), "TPU_PROCESS_BOUNDS": "1,1,1"}
    hosts = [name for name in os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",") if name]
    if len(hosts) > 1 and not {"TPU_PROCESS_BOUNDS", "TPU_PROCESS_ADDRESSES"} <= set(os.environ):
        raise FailedPreconditionError(
            f"the TPU is of {len(hosts)} machines: set TPU_PROCESS_BOUNDS and TPU_PROCESS_ADDRESSES for the processes "
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
            f"it is not known how {number} chips or processes of a TPU are arranged: set TPU_PROCESS_BOUNDS and "
            f"TPU_CHIPS_PER_PROCESS_BOUNDS, or use one of {', '.join(map(str, _BOUNDS))}"
        )
    return _BOUNDS[number]
