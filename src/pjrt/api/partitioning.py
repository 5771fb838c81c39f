"""Partitioning: the number of devices of a program, and the kind of its shardings."""

from __future__ import annotations

from typing import NamedTuple


class Partitioning(NamedTuple):
    """The compile options that a program may state itself; ``pjrt.stablehlo.partitioning_of`` reads them.

    Attributes:
        num_replicas: copies of the program, each with its own data.
        num_partitions: pieces that one copy is cut into.
        use_shardy_partitioner: whether the shardings are Shardy's (``sdy`` dialect) and not GSPMD's.
    """

    num_replicas: int = 1
    num_partitions: int = 1
    use_shardy_partitioner: bool = False

    @property
    def num_devices(self) -> int:
        """The number of devices that take part."""
        return self.num_replicas * self.num_partitions

    def __str__(self) -> str:
        return f"{self.num_replicas} replicas × {self.num_partitions} partitions"
