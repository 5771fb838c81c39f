"""Plots in plain characters: a histogram of times, and times in the order in which they were measured."""

from __future__ import annotations

from collections.abc import Iterator

from pjrt.cli._timing import readable
from pjrt.models.measurement import Latencies

_BINS = 12
_EIGHTHS = " ▏▎▍▌▋▊▉"
_HEIGHTS = "▁▂▃▄▅▆▇█"


def histogram(latencies: Latencies, width: int) -> Iterator[str]:
    """Yield the lines of a histogram; the bars are as long as the terminal allows."""
    if latencies.minimum == latencies.maximum:
        yield f"{readable(latencies.minimum)}, {latencies.count} times"
        return
    contents = latencies.histogram(min(_BINS, latencies.count))
    rows = [(readable(edge), count) for edge, count in zip(contents.edges, contents.counts, strict=False)]
    rows.append((f"> {readable(contents.edges[-1])}", contents.longer))
    labels, counts = max(len(label) for label, _ in rows), max(len(str(count)) for _, count in rows)
    longest = max(count for _, count in rows)
    space = max(width - labels - counts - 4, 10)
    for label, count in rows:
        yield f"{label:>{labels}}  {_bar(count / longest * space):<{space}}  {count:>{counts}}".rstrip()


def timeline(latencies: Latencies, width: int) -> Iterator[str]:
    """Yield two lines: the times in their order as columns, each the median of a span, and the scale."""
    medians = [median for median, _ in latencies.over_time(width)]
    low, high = min(medians), max(medians)
    yield "".join(_HEIGHTS[_height(value, low, high)] for value in medians)
    yield f"{_HEIGHTS[0]} {readable(low)}   {_HEIGHTS[-1]} {readable(high)}   {latencies.count} runs from left to right"


def _bar(length: float) -> str:
    full, rest = divmod(int(length * 8), 8)
    return ("█" * full + _EIGHTHS[rest]).rstrip()


def _height(value: float, low: float, high: float) -> int:
    return round((value - low) / (high - low) * (len(_HEIGHTS) - 1)) if high > low else 0
