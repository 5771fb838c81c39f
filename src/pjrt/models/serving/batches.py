"""Batches: requests that run together, and sizes that are rounded up to few, as each new one is compiled for.

A model takes batches if the first sizes of all arguments and results are one symbol, such as ``b`` of ``[b, n]``. Rows
of zeros fill a batch up to its size. Other symbols are rounded up to the sizes that are given as their buckets, with
zeros behind the values, and the results are cut again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError
from pjrt.models.model import Model
from pjrt.stablehlo.facts.signatures import Sizes
from pjrt.stablehlo.ir.argument_shapes import symbols_in

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Key = tuple[Shape, ...]
"""The shapes of the arguments of a batch, without the size of the batch; requests with the same key run together."""


class Batching:
    """The way from requests for a model to calls of it.

    Args:
        model: the model.
        most_rows: the largest batch.
        buckets: the sizes that a symbol is rounded up to, by symbol; those of the batch replace powers of two up to
            ``most_rows``.

    Attributes:
        symbol: the symbol of the batch; empty if the model takes none.
        most_rows: the largest batch; 1 if the model takes none, where a call is one row.

    Raises:
        InvalidArgumentError: a bucket is of no symbol of the model, or its symbol is part of a computed size.
    """

    def __init__(self, model: Model, most_rows: int, buckets: Mapping[str, Sequence[int]]) -> None:
        self._model = model
        self._of_parameters = [each.shape for each in model.parameters]
        self._of_results = [each.shape for each in model.results]
        self.symbol = self._batch_symbol()
        self._buckets = {symbol: sorted(set(sizes)) for symbol, sizes in buckets.items()}
        for symbol in self._buckets:
            self._check(symbol)
        most = most_rows if self.symbol else 1
        powers = [*(1 << n for n in range((most - 1).bit_length())), most]
        self._row_sizes = self._buckets.pop(self.symbol, powers)
        self.most_rows = self._row_sizes[-1]

    def _batch_symbol(self) -> str:
        first = {shape[0] if shape else None for shape in (*self._of_parameters, *self._of_results)}
        symbol = first.pop() if len(first) == 1 else None
        return symbol if isinstance(symbol, str) and symbol.isidentifier() else ""

    def _check(self, symbol: str) -> None:
        sizes = [size for shape in (*self._of_parameters, *self._of_results) for size in shape]
        named = {size for size in sizes if isinstance(size, str)}
        known = sorted({each for size in named for each in symbols_in(size)})
        if symbol not in known:
            raise InvalidArgumentError(
                f"expected a bucket of a dynamic size ({', '.join(known) or 'the model has none'}), found {symbol!r}"
            )
        computed = [size for size in named if size != symbol and symbol in symbols_in(size)]
        if computed or None in sizes:
            raise InvalidArgumentError(
                f"expected sizes that are {symbol} itself, as padding changes others, found "
                f"{computed[0] if computed else 'one that is known only when the model has run'}: leave the bucket out"
            )

    def place(self, arrays: Sequence[Array]) -> tuple[Key, int]:
        """Return what a request may run together with, and its number of rows.

        Raises:
            InvalidArgumentError: it is larger than a batch, or than the largest bucket.
        """
        sizes: dict[str, int] = {}
        rounded = []
        for parameter, array in zip(self._model.parameters, arrays, strict=True):
            for symbol, size in zip(parameter.shape, array.shape, strict=True):
                if isinstance(symbol, str) and sizes.setdefault(symbol, size) != size:
                    raise InvalidArgumentError(f"expected {symbol} = {sizes[symbol]} in {parameter}, found {size}")
            shape = tuple(map(self._rounded, parameter.shape, array.shape))
            rounded.append(shape[1:] if self.symbol else shape)
        rows = sizes[self.symbol] if self.symbol else 1
        if not 0 < rows <= self.most_rows:
            raise InvalidArgumentError(f"expected 1 to {self.most_rows} rows in a request, found {rows}")
        return tuple(rounded), rows

    def _rounded(self, symbol: int | str | None, size: int) -> int:
        sizes = self._buckets.get(symbol) if isinstance(symbol, str) else None
        if sizes is None:
            return size
        larger = next((each for each in sizes if each >= size), None)
        if larger is None:
            raise InvalidArgumentError(f"expected {symbol} up to {sizes[-1]}, its largest bucket, found {size}")
        return larger

    def run(self, key: Key, requests: Sequence[Sequence[Array]]) -> list[list[Array]]:
        """Run requests together; return the results of each.

        Raises:
            PjrtError: the model fails.
        """
        counts = [len(arrays[0]) if self.symbol else 1 for arrays in requests]
        arguments = [self._joined(key[index], [arrays[index] for arrays in requests]) for index in range(len(key))]
        results = [np.asarray(each) for each in self._model.execute(arguments)]
        begins = itertools.accumulate(counts, initial=0)
        return [
            [
                self._cut(result, shape, begin, count, arrays)
                for result, shape in zip(results, self._of_results, strict=True)
            ]
            for begin, count, arrays in zip(begins, counts, requests, strict=False)
        ]

    def _joined(self, shape: Shape, arrays: Sequence[Array]) -> Array:
        if not self.symbol:
            return _padded(arrays[0], shape)
        count = sum(map(len, arrays))
        rows = next(size for size in self._row_sizes if size >= count)
        if len(arrays) == 1 and arrays[0].shape == (rows, *shape):
            return arrays[0]
        joined = np.zeros((rows, *shape), arrays[0].dtype)
        begin = 0
        for array in arrays:
            joined[(slice(begin, begin + len(array)), *map(slice, array.shape[1:]))] = array
            begin += len(array)
        return joined

    def _cut(self, result: Array, shape: Sizes, begin: int, count: int, arrays: Sequence[Array]) -> Array:
        """Return the part of a result that belongs to a request."""
        sizes = {
            symbol: size
            for stated, array in zip(self._of_parameters, arrays, strict=True)
            for symbol, size in zip(stated, array.shape, strict=True)
            if symbol in self._buckets
        }
        places = [slice(sizes.get(symbol)) if isinstance(symbol, str) else slice(None) for symbol in shape]
        if self.symbol:
            places[0] = slice(begin, begin + count)
        return result[tuple(places)]

    def warm_up(self) -> Iterator[str]:
        """Compile for each size that requests are rounded to; yield what was compiled.

        Nothing is compiled ahead if a size has no buckets.

        Raises:
            PjrtError: the compilation fails.
        """
        known: dict[str, Sequence[int]] = {**self._buckets, **({self.symbol: self._row_sizes} if self.symbol else {})}
        sizes = [size for shape in self._of_parameters for size in shape if not isinstance(size, int)]
        if not all(isinstance(size, str) and size in known for size in sizes):
            return
        for values in itertools.product(*known.values()):
            chosen = dict(zip(known, values, strict=True))
            self._model.compile(chosen or None)
            yield str(self._model.compilations[-1])


def _padded(array: Array, shape: Shape) -> Array:
    if array.shape == shape:
        return array
    padded = np.zeros(shape, array.dtype)
    padded[tuple(map(slice, array.shape))] = array
    return padded
