"""The frame of every benchmark: time several contestants in turn, and print the result as Markdown.

A benchmark is a module with a function `measure(quick: bool) -> Report` and the last line `main(measure)`. Contestants
are calls without arguments. They take turns in short rounds, so that whatever else the machine does meets all of them
alike, and a ratio is the median of the ratios of each round. Each round has another order, drawn by chance, so that
nobody always comes after the same one, and the garbage collector is off while the clock runs, for all contestants.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

Call = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Timing:
    """The seconds that one call of a contestant took, once for each round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def spread(self) -> tuple[float, float]:
        """The lower and the upper quartile."""
        if len(self.rounds) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return low, high

    def ratio_to(self, other: Timing) -> float:
        """Return the median of this contestant's time divided by the other's in the same round."""
        return statistics.median(mine / theirs for mine, theirs in zip(self.rounds, other.rounds, strict=True))

    def __str__(self) -> str:
        low, high = self.spread
        return f"{duration(self.median)} ({duration(low)}–{duration(high)})"


def take_turns(
    contestants: Mapping[str, Call],
    *,
    rounds: int = 15,
    round_seconds: float = 0.02,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time contestants in turn.

    A round calls each contestant as often as fills `round_seconds` (at least once) and notes the mean time of a call.
    One round more, before the others, warms up and is not counted. With `time.process_time` as the `clock`, the times
    are those that all threads of the process compute, which other work on the machine hardly changes.
    """
    counts = {name: calls_that_fill(round_seconds, call, clock) for name, call in contestants.items()}
    noted: dict[str, list[float]] = {name: [] for name in contestants}
    chance = random.Random(0)
    for number in range(rounds + 1):
        for name in chance.sample(list(contestants), len(contestants)):
            seconds = mean_seconds(contestants[name], counts[name], clock)
            if number > 0:
                noted[name].append(seconds)
    return {name: Timing(tuple(seconds)) for name, seconds in noted.items()}


def calls_that_fill(seconds: float, call: Call, clock: Callable[[], float] = time.perf_counter) -> int:
    """Return how many calls take about `seconds`; the first calls, which may compile, do not count."""
    call()
    count = 1
    while True:
        elapsed = mean_seconds(call, count, clock) * count
        if elapsed >= seconds / 4 or count >= 1 << 20:
            return max(1, round(count * seconds / elapsed))
        count *= 4


def mean_seconds(call: Call, count: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the mean time of `count` calls, with the garbage collector off."""
    gc.collect()
    gc.disable()
    try:
        start = clock()
        for _ in range(count):
            call()
        return (clock() - start) / count
    finally:
        gc.enable()


@dataclasses.dataclass(frozen=True)
class Aim:
    """An aim of a benchmark, and the number that was measured for it.

    Attributes:
        text: the aim, such as "within 1.3x of raw jaxlib".
        measured: the number it is about.
        limit: the number's bound.
        at_least: whether `measured` has to reach `limit`; else it must not pass it.
        reason: what explains a miss, printed only with a miss.
    """

    text: str
    measured: float
    limit: float
    at_least: bool = False
    reason: str = ""

    @property
    def met(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def __str__(self) -> str:
        if self.met:
            return f"{self.text}: **met**, {self.measured:.3g}"
        by = abs(self.measured / self.limit - 1)
        return f"{self.text}: **missed** by {by:.1%}, {self.measured:.3g}. {self.reason}".rstrip()


@dataclasses.dataclass
class Report:
    """A benchmark's result: a title, what was compared and how, tables in Markdown, and aims."""

    title: str
    about: str
    tables: list[str] = dataclasses.field(default_factory=list)
    aims: list[Aim] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        aims = "\n".join(f"- {aim}" for aim in self.aims)
        return "\n\n".join([f"## {self.title}", self.about, *self.tables, *([aims] if aims else [])]) + "\n"


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table, padded to read well in a terminal; all columns but the first align right."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = []
    for row in [cells[0], rule, *cells[1:]]:
        padded = [
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("| " + " | ".join(padded) + " |")
    return "\n".join(lines)


def timing_table(timings: Mapping[str, Timing], *, ours: str) -> str:
    """Return a table of each contestant's median and quartiles, and of the ratio of `ours` to it."""
    rows = [
        (
            name,
            duration(timing.median),
            f"{duration(timing.spread[0])}–{duration(timing.spread[1])}",
            f"{timings[ours].ratio_to(timing):.2f}×",
        )
        for name, timing in timings.items()
    ]
    return table(["", "median", "quartiles", f"{ours} takes"], rows)


def duration(seconds: float) -> str:
    """Write seconds with a fitting unit and three digits."""
    units = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"))
    scale, unit = next((unit for unit in units if seconds >= unit[0]), (1e-9, "ns"))
    return f"{seconds / scale:.3g} {unit}"


def main(measure: Callable[[bool], Report]) -> None:
    """Run the command line of a benchmark: measure, print the report, and on request write it as JSON for `run_all`."""
    parser = argparse.ArgumentParser(description=measure.__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes, to see that it works")
    parser.add_argument("--json", type=Path, help="also write the report's Markdown and aims to this file")
    arguments = parser.parse_args()
    report = measure(arguments.quick)
    print(report)
    if arguments.json:
        aims = [{"text": str(aim), "met": aim.met} for aim in report.aims]
        arguments.json.write_text(json.dumps({"title": report.title, "markdown": str(report), "aims": aims}))
