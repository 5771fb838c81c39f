"""The times of repeated work, and their statistics: one place for every command that measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
"""The percentiles that the commands print."""

Nanoseconds = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Latencies:
    """The times of repeated work.

    Attributes:
        nanoseconds: the time of each repetition, in their order.
        begins: the nanoseconds from the start of the measurement to the begin of each repetition; empty if they were
            not recorded.
        rounds: the number of the round, from 0, in which each repetition ran; empty if there were no rounds.
    """

    nanoseconds: Nanoseconds
    begins: Nanoseconds = field(default_factory=lambda: np.zeros(0, np.int64))
    rounds: Nanoseconds = field(default_factory=lambda: np.zeros(0, np.int64))

    @staticmethod
    def of(nanoseconds: Sequence[int], begins: Sequence[int] = (), rounds: Sequence[int] = ()) -> Latencies:
        """Return the latencies in sequences of whole nanoseconds."""
        return Latencies(*(np.asarray(values, np.int64) for values in (nanoseconds, begins, rounds)))

    @property
    def count(self) -> int:
        """The number of repetitions."""
        return len(self.nanoseconds)

    @property
    def median(self) -> float:
        """The median in seconds."""
        return self.percentile(50)

    @property
    def minimum(self) -> float:
        """The shortest time in seconds."""
        return float(self.nanoseconds.min()) / 1e9

    @property
    def maximum(self) -> float:
        """The longest time in seconds."""
        return float(self.nanoseconds.max()) / 1e9

    @property
    def mean(self) -> float:
        """The mean in seconds."""
        return float(self.nanoseconds.mean()) / 1e9

    @property
    def total(self) -> float:
        """The sum in seconds."""
        return float(self.nanoseconds.sum()) / 1e9

    def percentile(self, percent: float) -> float:
        """Return a percentile in seconds, interpolated between two times as ``numpy.percentile`` does."""
        return float(np.percentile(self.nanoseconds, percent)) / 1e9

    def of_round(self, number: int) -> Latencies:
        """Return the repetitions of one round."""
        chosen = self.rounds == number
        return Latencies(self.nanoseconds[chosen], self.begins[chosen], self.rounds[chosen])

    def as_dict(self) -> dict[str, float | int]:
        """Return the statistics by name, in seconds, for ``--json``; only the count if there was no repetition."""
        if not self.count:
            return {"count": 0}
        percentiles = {f"p{percent:g}_seconds".replace(".", "_"): self.percentile(percent) for percent in PERCENTILES}
        return {
            "count": self.count,
            "median_seconds": self.median,
            "mean_seconds": self.mean,
            "min_seconds": self.minimum,
            **percentiles,
            "max_seconds": self.maximum,
        }

    def histogram(self, bins: int) -> Histogram:
        """Return how many repetitions took how long, up to the 99th percentile; the longer ones are counted together.

        The longest times of a busy machine are far from all others: bins up to them would be empty.
        """
        last = self.percentile(99) * 1e9
        edges = np.linspace(float(self.nanoseconds.min()), max(last, float(self.nanoseconds.min()) + 1), bins + 1)
        counts, _ = np.histogram(self.nanoseconds, edges)
        longer = self.count - int(counts.sum())
        return Histogram(tuple(edges / 1e9), tuple(counts.tolist()), longer)

    def over_time(self, columns: int) -> list[tuple[float, float]]:
        """Return the median and the maximum of spans of the repetitions, in seconds; ``columns`` spans at most."""
        spans = np.array_split(self.nanoseconds, min(columns, self.count))
        return [(float(np.median(span)) / 1e9, float(span.max()) / 1e9) for span in spans if len(span)]


@dataclass(frozen=True)
class Histogram:
    """The number of repetitions in each range of times.

    Attributes:
        edges: the limits of the bins in seconds, one more than there are bins.
        counts: the number of repetitions in each bin.
        longer: the number of repetitions that took longer than the last limit.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    longer: int
