"""The options of a ``cpu`` client for one of several processes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.key_value_store import job_of_caller

if TYPE_CHECKING:
    from pjrt.devices.xla.peers import Peers
    from pjrt.distributed import Job

PROCESS_OPTIONS = ("process_index", "process_count", "key_value_store", "collectives")
"""The names of the options."""

_COLLECTIVES = ("gloo", "mpi")


def peers_of(options: Mapping[str, Any]) -> Peers | None:
    """Return the processes that make a client together; ``None`` for this process alone.

    Args:
        options: the options of the client.

    Raises:
        InvalidArgumentError: an option has a wrong value, or differs from the job of this process.
        FailedPreconditionError: several processes are asked for, and there is no job.
    """
    count, index = (_number(options, name) for name in ("process_count", "process_index"))
    collectives = options.get("collectives", "gloo")
    if collectives not in _COLLECTIVES:
        raise InvalidArgumentError(
            f"the option collectives of the device 'cpu' is one of {', '.join(_COLLECTIVES)}, found {collectives!r}"
        )
    if count == 1:
        return None
    job = _job(options.get("key_value_store"), count, index)
    if job is None:
        return None
    from pjrt.devices.xla.peers import Peers

    return Peers(job, collectives)


def _number(options: Mapping[str, Any], name: str) -> int | None:
    number = options.get(name)
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
        raise InvalidArgumentError(f"the option {name} of the device 'cpu' is a number from 0 on, found {number!r}")
    return number


def _job(store: Any, count: int | None, index: int | None) -> Job | None:
    """Return the job that the options mean: a framework's, by its store, or that of this process."""
    framework = job_of_caller()
    if store is not None:
        if count is None or index is None:
            raise InvalidArgumentError(
                "the option key_value_store of the device 'cpu' needs process_index and process_count, too"
            )
        framework = store, index, count
    if framework is not None:
        from pjrt import distributed

        return distributed.join(*framework, name="pjrt/cpu") if framework[2] > 1 else None
    # A process without a job must not pay for the import.
    job: Job | None = sys.modules["pjrt.distributed"].current() if "pjrt.distributed" in sys.modules else None
    if job is None:
        if count is not None or index:
            raise FailedPreconditionError(
                f"process_count={count} and process_index={index} of the device 'cpu' need a job: call "
                "pjrt.distributed.initialize() in each process first, or pass the key_value_store of a framework"
            )
        return None
    if count not in (None, job.process_count) or index not in (None, job.process_index):
        raise InvalidArgumentError(
            f"this process is process {job.process_index} of {job.process_count} of a job; found "
            f"process_index={index} and process_count={count} for the device 'cpu'; leave them out, or pass "
            "process_count=1 for a client of this process alone"
        )
    return job
