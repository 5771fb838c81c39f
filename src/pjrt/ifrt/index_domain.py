"""Index domains: the box of an array's indices that one shard holds (``xla::ifrt::IndexDomain``)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.shape_spec import expect_shape


@dataclass(frozen=True, slots=True)
class IndexDomain:
    """A box of indices.

    Attributes:
        origin: the first index of each dimension (``xla::ifrt::Index``).
        shape: the number of indices along each dimension; 0 for a shard that holds nothing.
    """

    origin: tuple[int, ...]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "origin", expect_shape(self.origin))
        object.__setattr__(self, "shape", expect_shape(self.shape))
        if len(self.origin) != len(self.shape):
            raise InvalidArgumentError(
                f"expected an origin and a shape of the same number of dimensions, found {self.origin} and {self.shape}"
            )

    @staticmethod
    def whole(shape: tuple[int, ...]) -> IndexDomain:
        """Return the domain of a whole array."""
        return IndexDomain((0,) * len(shape), tuple(shape))

    @property
    def slices(self) -> tuple[slice, ...]:
        """The slices that take this domain out of the whole array."""
        return tuple(slice(begin, begin + size) for begin, size in zip(self.origin, self.shape, strict=True))

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def intersection(self, other: IndexDomain) -> IndexDomain | None:
        """Return the indices that both domains have, or ``None`` if there are none."""
        begins = [max(a, b) for a, b in zip(self.origin, other.origin, strict=True)]
        ends = [
            min(a + m, b + n) for a, m, b, n in zip(self.origin, self.shape, other.origin, other.shape, strict=True)
        ]
        if any(begin >= end for begin, end in zip(begins, ends, strict=True)):
            return None
        return IndexDomain(tuple(begins), tuple(end - begin for begin, end in zip(begins, ends, strict=True)))

    def within(self, outer: IndexDomain) -> IndexDomain:
        """Return this domain with indices that count from the origin of another one, which contains it."""
        return IndexDomain(tuple(a - b for a, b in zip(self.origin, outer.origin, strict=True)), self.shape)

    def __str__(self) -> str:
        return "[" + ", ".join(f"{s.start}:{s.stop}" for s in self.slices) + "]"
