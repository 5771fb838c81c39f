"""Padding: where the elements of a value go in a larger (or smaller) one, worked out once a shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class PadPlan:
    """How to pad values of one shape: the elements ``x[taken]`` go to ``out[placed]``; the rest of ``out``, of shape
    ``shape``, is the padding value. ``whole`` tells that nothing is added, so that ``x[taken]`` is the result.
    """

    shape: tuple[int, ...]
    taken: tuple[slice, ...]
    placed: tuple[slice, ...]
    whole: bool

    @classmethod
    def of(cls, sizes: Sequence[int], low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> PadPlan:
        """The plan for edges of ``low`` and ``high`` (negative ones cut) and ``interior`` elements between each two.

        Interior padding comes first, so that cutting may cut padding too.
        """
        shape, taken, placed = [], [], []
        whole = True
        for size, before, after, between in zip(sizes, low, high, interior, strict=True):
            step = between + 1
            extent = max(before + after + size + max(size - 1, 0) * between, 0)
            first = max(0, -(before // step))
            last = min(size - 1, (extent - 1 - before) // step)
            count = max(last - first + 1, 0)
            start = before + first * step
            shape.append(extent)
            taken.append(slice(first, first + count))
            placed.append(slice(start, start + (count - 1) * step + 1, step) if count else slice(0, 0))
            whole = whole and count == extent
        return cls(tuple(shape), tuple(taken), tuple(placed), whole)

    def run(self, x: Any, value: Any) -> Any:
        """``x`` padded with ``value``."""
        if self.whole:
            return x[self.taken]
        out = np.empty(self.shape, x.dtype)
        out.fill(value)
        out[self.placed] = x[self.taken]
        return out
