"""The times of a program's runs, as the command prints them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """The seconds of compiling, of the first run, and of the runs after it."""

    compile: float
    first: float
    repeats: Sequence[float] = ()

    def as_dict(self) -> dict[str, float | int]:
        """Return the times by name, for ``--json``."""
        facts: dict[str, float | int] = {"compile_seconds": self.compile, "first_run_seconds": self.first}
        if self.repeats:
            low, median, high = self.spread()
            facts |= {
                "repeats": len(self.repeats),
                "median_seconds": median,
                "p10_seconds": low,
                "p90_seconds": high,
                "min_seconds": min(self.repeats),
            }
        return facts

    def spread(self) -> tuple[float, float, float]:
        """Return the tenth percentile, the median and the ninetieth percentile of the repeated runs."""
        from pjrt.models.measurement import Latencies  # most runs are not repeated

        latencies = Latencies.of([round(seconds * 1e9) for seconds in self.repeats])
        return latencies.percentile(10), latencies.median, latencies.percentile(90)


def readable(seconds: float) -> str:
    """Return a time with a suitable unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
