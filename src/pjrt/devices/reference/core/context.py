"""The context of one run: replica and partition, the host runtime, and the loop that runs the steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Context:
    """One run of a program on one device; shared by all its blocks.

    Args:
        loop: runs a block's steps (``run_fast``, or a loop that ``observers.loop_for`` returns).
        replica_id, partition_id: the device's place.
        num_replicas, num_partitions: how many there are of each.
        host: the host runtime's ``pjrt.host.RunContext``: rendezvous with the other devices of the launch,
            channels to the host, infeed and outfeed; None where the program runs without a client.
        values: values that ops keep during the run, by a key of their module.
    """

    loop: Callable[[Any, list[Any]], None]
    replica_id: int = 0
    partition_id: int = 0
    num_replicas: int = 1
    num_partitions: int = 1
    host: Any = None
    values: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(loop: Callable[[Any, list[Any]], None], host: Any) -> Context:
        """Return the context of a run that a client began, from its ``pjrt.host.RunContext``."""
        assignment = host.device_assignment
        return Context(
            loop, host.replica_id, host.partition_id, assignment.num_replicas, assignment.num_partitions, host
        )
