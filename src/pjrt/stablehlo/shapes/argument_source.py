"""Sources: which part of which array an argument of a straight line is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The origin of an argument of a straight line.

    Attributes:
        name: the name, such as ``params['layers']['w'][3]``.
        argument: the argument of the program that it is, or is a part of; None for a constant of the program.
        offset: the index of its first element in the array, in row-major order.
        shape: its shape. Its elements follow one another in the array.
        value: the array, if it is a constant.
    """

    name: str
    argument: int | None
    offset: int = 0
    shape: tuple[int, ...] = ()
    value: npt.NDArray[Any] | None = None

    def of(self, arrays: Mapping[int, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return the constant, or the part of an argument's array; it shares the memory of a row-major array.

        Args:
            arrays: the arrays of arguments, by their index.
        """
        whole = self.value if self.argument is None else arrays[self.argument]
        assert whole is not None
        return whole.reshape(-1)[self.offset : self.offset + math.prod(self.shape)].reshape(self.shape)

    def part(self, starts: Sequence[int], sizes: Sequence[int]) -> Source | None:
        """Return a part of it; None if its elements do not follow one another."""
        partial = [index for index, pair in enumerate(zip(sizes, self.shape, strict=True)) if pair[0] != pair[1]]
        if any(size != 1 for size in sizes[: max(partial, default=0)]):
            return None
        offset = self.offset
        for dimension, start in enumerate(starts):
            offset += start * math.prod(self.shape[dimension + 1 :])
        label = ",".join(
            str(starts[index]) if sizes[index] == 1 else f"{starts[index]}:{starts[index] + sizes[index]}"
            for index in partial
        )
        return replace(self, name=f"{self.name}[{label}]" if partial else self.name, offset=offset, shape=tuple(sizes))


class View:
    """An argument of a program, a part of one, or a large constant, as it is known before the program runs.

    Attributes:
        source: the array that it is.
        type: the type of the value in MLIR.
        declared: the type of the whole argument or constant in MLIR.
    """

    __slots__ = ("declared", "source", "type", "whole")

    def __init__(self, source: Source, type_: Any, whole: Source, declared: Any) -> None:
        self.source = source
        self.type = type_
        self.whole = whole
        self.declared = declared

    @staticmethod
    def of_whole(source: Source, type_: Any) -> View:
        """Return the view of a whole array."""
        return View(source, type_, source, type_)

    @property
    def is_part(self) -> bool:
        """Whether it is smaller than the whole."""
        return math.prod(self.source.shape) < math.prod(self.whole.shape)

    def part(self, starts: Sequence[int], sizes: Sequence[int], type_: Any) -> View | None:
        """Return the view of a part; None if its elements do not follow one another."""
        source = self.source.part(starts, sizes)
        return None if source is None else View(source, type_, self.whole, self.declared)

    def reshaped(self, sizes: Sequence[int], type_: Any) -> View:
        """Return the view of the same elements in another shape."""
        return View(replace(self.source, shape=tuple(sizes)), type_, self.whole, self.declared)
