"""Chunks: what a kernel computes at a time, so that arrays on the way to its result stay small and in the cache."""

from __future__ import annotations

CHUNK = 1 << 16
"""Elements of a chunk. Fewer cost more calls of numpy than they save."""


def chunks(length: int, each: int, at_least: int = 1) -> list[slice]:
    """Return slices of a dimension of some length, where every index has ``each`` elements: a chunk in each slice.

    Where indices have many elements, a slice still has ``at_least`` so many of them.
    """
    count = max(at_least, CHUNK // max(each, 1))
    return [slice(start, min(start + count, length)) for start in range(0, length, count)]
