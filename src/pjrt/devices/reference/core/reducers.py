"""Reducers: the bodies of reduce, reduce_window, scatter, …, on arrays.

A body takes the values so far and new ones, one of each for each operand. Where the body is one common op, numpy's
function takes its place; otherwise it is evaluated on whole arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import AnyDType, ElementType
from pjrt.devices.reference.core.block import Environment
from pjrt.devices.reference.core.op_view import Region, conversion, dequantizer, quantizer
from pjrt.devices.reference.numerics import reals
from pjrt.devices.reference.numerics.element_types import COMPLEX, FLOAT, compute_dtype, is_native
from pjrt.devices.reference.numerics.indexing import CHUNK, chunks
from pjrt.stablehlo.ir.types import TensorType, ValueType

Array = Any

_UFUNCS: dict[str, Any] = {
    "add": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_UFUNCS_OF_FLOATS = {**_UFUNCS, "maximum": reals.maximum, "minimum": reals.minimum}
_UFUNCS_OF_COMPLEX = {"add": np.add}
_UFUNCS_OF_BOOLEANS: dict[str, Any] = {
    "add": np.logical_or,
    "multiply": np.logical_and,
    "maximum": np.logical_or,
    "minimum": np.logical_and,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}


class Reducer:
    """The body of a reduction, on arrays.

    ``open`` converts values to the ``working`` dtypes, and ``close`` to those of the results, ``closed``. The result of
    a body is rounded to its type each time, as the specification has it: a sum of bf16 is a sum of rounded sums.

    ``ufunc`` is numpy's function for the body, or None. ``rounds`` is True where it rounds to a type below 32 bits, so
    that the order in which elements are combined matters much. ``replaces`` is True where the body returns the new
    value.
    """

    def __init__(self, region: Region, results: Sequence[ValueType]) -> None:
        self.region = region
        self.count = len(results)
        self._body = body_on_reals(region)
        elements = [_element(type_) for type_ in region.arguments[: self.count]]
        self.replaces = region.pattern == "second"
        self.ufunc = None
        if self.count == 1 and region.pattern is not None:
            self.ufunc = _ufuncs_of(elements[0]).get(region.pattern)
        self.rounds = self.ufunc in (np.add, np.multiply) and not is_native(elements[0]) and elements[0] in FLOAT
        as_they_are = self.ufunc is None or self.rounds
        self.working: tuple[AnyDType, ...] = tuple(
            element.dtype if as_they_are else compute_dtype(element) for element in elements
        )
        self.closed: tuple[AnyDType, ...] = tuple(_element(type_).dtype for type_ in results)

    @property
    def is_native(self) -> bool:
        """Whether results have the working dtypes."""
        return self.working == self.closed

    def open(self, arrays: Sequence[Array]) -> list[Array]:
        """Return operands in the working dtypes."""
        return [x if x.dtype == dtype else x.astype(dtype) for x, dtype in zip(arrays, self.working, strict=True)]

    def take(self, arrays: Sequence[Array], owned: bool = False) -> list[Array]:
        """Return operands in the working dtypes that may be written to: copies, unless they are ``owned``."""
        if owned and all(x.dtype == dtype for x, dtype in zip(arrays, self.working, strict=True)):
            return list(arrays)
        return [np.array(x, dtype, order="C") for x, dtype in zip(arrays, self.working, strict=True)]

    def close(self, arrays: Sequence[Array]) -> list[Array]:
        """Return results in their own dtypes."""
        return [x if x.dtype == dtype else x.astype(dtype) for x, dtype in zip(arrays, self.closed, strict=True)]

    def combine(
        self, environment: Environment, left: Sequence[Array], right: Sequence[Array], owned: bool = False
    ) -> list[Array]:
        """Return the results of the body at each position. Where ``left`` is ``owned`` it may be written to."""
        if self.ufunc is not None:
            return [self.ufunc(left[0], right[0], out=left[0]) if owned else self.ufunc(left[0], right[0])]
        return self._body(environment, *left, *right)

    def update(self, environment: Environment, places: Sequence[Array], values: Sequence[Array]) -> None:
        """Combine the values at each place, views of arrays in the working dtypes, with new values."""
        if self.ufunc is not None:
            self.ufunc(places[0], values[0], out=places[0])
            return
        results = values if self.replaces else self.combine(environment, places, values)
        for place, value in zip(places, results, strict=True):
            place[...] = value

    def fold(self, environment: Environment, arrays: Sequence[Array]) -> list[Array]:
        """Combine all elements along the first dimension, which must not be empty, in their order.

        Neighbours come first, in rounds, so that the number of rounds is the logarithm of that of elements. Large
        arrays are folded in chunks first, which changes neither the neighbours nor their order.
        """
        shape, strides = arrays[0].shape, arrays[0].strides
        across = max(range(len(shape)), key=lambda d: (shape[d] > 1, abs(strides[d])))
        each = arrays[0].size // shape[across]
        if across:
            parts = chunks(shape[across], each)
        else:  # as many rows as give one after some rounds
            rows = 1 << max(1, CHUNK // each).bit_length()
            parts = [slice(start, start + rows) for start in range(0, shape[0], rows)]
        if len(parts) == 1:
            return self._fold(environment, arrays)
        before = (slice(None),) * across
        folded = [self._fold(environment, [x[(*before, part)] for x in arrays]) for part in parts]
        if across:
            return [np.concatenate(column, across - 1) for column in zip(*folded, strict=True)]
        return self._fold(environment, [np.stack(column) for column in zip(*folded, strict=True)])

    def _fold(self, environment: Environment, arrays: Sequence[Array]) -> list[Array]:
        current = list(arrays)
        while (size := current[0].shape[0]) > 1:
            even = size - size % 2
            paired = self.combine(environment, [x[0:even:2] for x in current], [x[1:even:2] for x in current])
            if size % 2:
                paired = [np.concatenate([x, y[even:]]) for x, y in zip(paired, current, strict=True)]
            current = paired
        return [x[0] for x in current]

    def accumulate(
        self,
        environment: Environment,
        data: Sequence[Array],
        rows: Array,
        updates: Sequence[Array],
        unique: bool = False,
    ) -> None:
        """Combine ``data[rows[i]]`` with ``updates[i]``, for one ``i`` after the other, in place.

        ``data`` are arrays of the working dtypes with elements, or rows of them, along the first axis. With ``unique``
        no row number occurs twice.
        """
        if self.replaces and self.count == 1:
            data[0][rows] = updates[0]  # the last one stays
        elif unique or len(rows) < 2:
            self._apply(environment, data, rows, updates)
        elif self.ufunc is None:
            self._in_rounds(environment, data, updates, rows, turns_of(rows))
        elif data[0].ndim == 1:
            self.ufunc.at(data[0], rows, updates[0])
        else:
            turns, width = turns_of(rows), data[0].shape[1]
            if len(turns[1]) * _ROUND <= len(rows) * width:
                self._in_rounds(environment, data, updates, rows, turns)
            else:
                elements = (rows[:, None] * width + np.arange(width)).reshape(-1)
                self.ufunc.at(data[0].reshape(-1), elements, updates[0].reshape(-1))

    def _apply(self, environment: Environment, data: Sequence[Array], rows: Array, updates: Sequence[Array]) -> None:
        # Without a check of each row number, ``take`` is faster than an index.
        results = self.combine(environment, [x.take(rows, 0, mode="clip") for x in data], updates, owned=True)
        for target, values in zip(data, results, strict=True):
            target[rows] = values

    def _in_rounds(
        self,
        environment: Environment,
        data: Sequence[Array],
        updates: Sequence[Array],
        rows: Array,
        turns: tuple[Array, list[int]],
    ) -> None:
        """Apply the first update of every row, then the second of every row that has one, and so on."""
        by_turn, sizes = turns
        end = 0
        for size in sizes:
            begin, end = end, end + size
            chosen = by_turn[begin:end]
            self._apply(environment, data, rows[chosen], [update.take(chosen, 0, mode="clip") for update in updates])


_ROUND = 2048
"""In the time of one round more, numpy's function with a loop over places combines so many elements."""


def turns_of(rows: Array) -> tuple[Array, list[int]]:
    """Return the order of updates of rows in which the first of every row come first, then the second of every row that
    has one, and so on; and how many there are of each.
    """
    count = len(rows)
    places = np.arange(count)
    bits = max(1, count - 1).bit_length()
    if rows.max() < 1 << (62 - bits):
        # Sorting numbers that hold row and position is several times faster than a stable argsort, and as stable.
        packed = np.left_shift(rows, bits)
        np.bitwise_or(packed, places, out=packed)
        packed.sort()
        order, ordered = np.bitwise_and(packed, (1 << bits) - 1), np.right_shift(packed, bits)
    else:
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
    is_first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    turns = np.subtract(places, np.maximum.accumulate(np.multiply(places, is_first)))
    sizes = np.bincount(turns)
    narrow = turns.astype(np.uint16) if len(sizes) <= 1 << 16 else turns  # numpy sorts 16 bits by their digits
    return order[np.argsort(narrow, kind="stable")], sizes.tolist()


def body_on_reals(region: Region) -> Callable[..., list[Array]]:
    """Return ``region.vectorized`` with real numbers in place of the body's quantized values.

    An op on quantized tensors is computed on real numbers, but its body may be written for stored integers.
    """
    types = (*region.arguments, *region.results)
    if not any(isinstance(type_, TensorType) and type_.quantization for type_ in types):
        return region.vectorized
    opening = [conversion(type_, quantizer) for type_ in region.arguments]
    closing = [conversion(type_, dequantizer) for type_ in region.results]

    def run(environment: Environment, *arrays: Array) -> list[Array]:
        stored = [convert(x) for convert, x in zip(opening, arrays, strict=True)]
        results = region.vectorized(environment, *stored)
        return [convert(x) for convert, x in zip(closing, results, strict=True)]

    return run


def _ufuncs_of(element: ElementType) -> dict[str, Any]:
    if element in FLOAT:
        return _UFUNCS_OF_FLOATS
    if element in COMPLEX:
        return _UFUNCS_OF_COMPLEX
    return _UFUNCS_OF_BOOLEANS if element is ElementType.PRED else _UFUNCS


def _element(type_: ValueType) -> ElementType:
    assert isinstance(type_, TensorType)  # bodies of reductions take and return tensors only
    return type_.quantization.expressed if type_.quantization else type_.element
