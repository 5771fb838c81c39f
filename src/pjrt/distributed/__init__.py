"""Jobs of many processes: who takes part, a key-value store, barriers, and the loss of a process as an error."""

from __future__ import annotations

from pjrt.distributed.initialization import (
    barrier,
    current,
    initialize,
    join,
    live_processes,
    process_count,
    process_index,
    reached_preemption_step,
    shutdown,
)
from pjrt.distributed.job import Job
from pjrt.distributed.store import CoordinationStore, RayStore

__all__ = [
    "CoordinationStore",
    "Job",
    "RayStore",
    "barrier",
    "current",
    "initialize",
    "join",
    "live_processes",
    "process_count",
    "process_index",
    "reached_preemption_step",
    "shutdown",
]
