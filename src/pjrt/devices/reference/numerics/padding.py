"""Padding: where the elements of a value go in a larger (or smaller) one, planned once for each shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class PadPlan:
    """The plan to pad values of one shape.

    The elements ``x[source]`` go to ``out[target]``; the rest of ``out``, of shape ``shape``, is the padding value.
    ``whole`` is True where no padding is added, so that ``x[source]`` is the result.
    """

    shape: tuple[int, ...]
    source: tuple[slice, ...]
    target: tuple[slice, ...]
    whole: bool

    @classmethod
    def of(cls, sizes: Sequence[int], low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> PadPlan:
        """Return the plan for ``low`` and ``high`` edges (negative ones cut) and ``interior`` padding.

        Interior padding comes first, so that cutting may cut padding too.
        """
        shape, source, target = [], [], []
        whole = True
        for size, before, after, between in zip(sizes, low, high, interior, strict=True):
            step = between + 1
            extent = max(before + after + size + max(size - 1, 0) * between, 0)
            first = max(0, -(before // step))
            last = min(size - 1, (extent - 1 - before) // step)
            count = max(last - first + 1, 0)
            start = before + first * step
            shape.append(extent)
            source.append(slice(first, first + count))
            target.append(slice(start, start + (count - 1) * step + 1, step) if count else slice(0, 0))
            whole = whole and count == extent
        return cls(tuple(shape), tuple(source), tuple(target), whole)

    def run(self, x: Any, value: Any) -> Any:
        """Return ``x`` padded with ``value``."""
        if self.whole:
            return x[self.source]
        out = np.empty(self.shape, x.dtype)
        out.fill(value)
        out[self.target] = x[self.source]
        return out
