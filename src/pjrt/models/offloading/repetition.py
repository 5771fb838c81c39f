"""Repetitions: the layers of a model, found as runs of equal operations."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

_CANDIDATES = 16
_MOST_OCCURRENCES = 512


class Repetition(NamedTuple):
    """A part of a sequence that repeats.

    Attributes:
        start: the index of the first element.
        period: the number of elements that repeat.
        repeats: how often they occur.
        slack: how many further elements continue the repetition: it may begin later by as many.
    """

    start: int
    period: int
    repeats: int
    slack: int


def repetition(forms: Sequence[int]) -> Repetition | None:
    """Return the repetition that covers the most of a sequence, the shortest period first; None if nothing repeats."""
    places: dict[int, list[int]] = {}
    for index, form in enumerate(forms):
        places.setdefault(form, []).append(index)
    votes: Counter[int] = Counter()
    for indices in places.values():
        few = indices[:_MOST_OCCURRENCES]
        votes.update(after - before for before, after in itertools.pairwise(few))
        # Operations that occur several times in a layer vote for parts of it: look further, too.
        for stride in (2, 3, 4, 6, 8, 12):
            votes.update(after - before for before, after in zip(few, few[stride:], strict=False))
    best: Repetition | None = None
    for period, _ in sorted(votes.most_common(_CANDIDATES)):
        run = _longest_run(forms, period)
        if run is not None and (best is None or run.period * run.repeats > best.period * best.repeats):
            best = run
    return best


def _longest_run(forms: Sequence[int], period: int) -> Repetition | None:
    best, length = None, 0
    for index in range(len(forms) - period + 1):
        if index < len(forms) - period and forms[index] == forms[index + period]:
            length += 1
            continue
        count = length // period + 1
        if count > 1 and (best is None or length > best[1]):
            best = (index - length, length, count)
        length = 0
    if best is None:
        return None
    start, length, count = best
    return Repetition(start, period, count, length % period)
