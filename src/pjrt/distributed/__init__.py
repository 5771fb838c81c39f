"""Jobs of many processes: who takes part, a key-value store, barriers, and the loss of a process as an error."""

from __future__ import annotations

from pjrt.distributed.initialization import (
    barrier,
    current,
    initialize,
    live_processes,
    process_count,
    process_index,
    reached_preemption_step,
    shutdown,
)
from pjrt.distributed.job import Job
from pjrt.distributed.joining import join
from pjrt.distributed.ray import RayStore
from pjrt.distributed.store import CoordinationStore

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
