"""The context of one run: which device this is, whom it can talk to, and which loop runs the steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Context:
    """One run of a program on one device; shared by all its blocks.

    Args:
        loop: what runs a block's steps (``run_fast``, or one that ``observers.loop_for`` returns).
        replica_id, partition_id: the device's place.
        num_replicas, num_partitions: how many there are of each.
        host: what the host runtime gives a running program (``pjrt.host.RunContext``): meetings with the other
            devices of the launch, channels to the host, feeds; None where the program runs without a client.
        values: a place for what a chapter needs to keep during the run, by the chapter's own key.
    """

    loop: Callable[[Any, list[Any]], None]
    replica_id: int = 0
    partition_id: int = 0
    num_replicas: int = 1
    num_partitions: int = 1
    host: Any = None
    values: dict[str, Any] = field(default_factory=dict)
