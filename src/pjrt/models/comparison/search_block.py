"""Blocks of a search: a block of a program, and the values that pass from some of its operations to the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pjrt.models.comparison.compared_device import Array
from pjrt.stablehlo import Block, Operation, TensorType, Value
from pjrt.stablehlo.cuts.cutting import inputs_of

Values = dict[str, list[Array]]
"""Values of a program by name: one array for each replica, or one for all."""

_CHUNK_OPERATIONS, _CHUNK_BYTES = 64, 1 << 28
"""The most operations that one program runs alone, and the most bytes of its arguments."""


@dataclass(slots=True)
class SearchBlock:
    """A block that is searched.

    Attributes:
        function: the function that it is in.
        contents: the operations and arguments.
        arguments: the names of its arguments, or None in the entry function, whose arguments all cuts have.
        values: the judge's values of its arguments, and those that it takes from around it.
        path: how to get there.
        operations: its operations, without constants and the last one, which returns its results.
    """

    function: str
    contents: Block
    arguments: tuple[str, ...] | None
    values: Values
    path: tuple[str, ...] = ()
    operations: list[Operation] = field(init=False)
    _last_uses: dict[Value, int] = field(init=False)

    def __post_init__(self) -> None:
        self.operations = [each for each in self.contents.operations[:-1] if not each.name.endswith(".constant")]
        self._last_uses = {}
        for index, operation in enumerate(self.operations):
            for value in inputs_of(operation):
                self._last_uses[value] = index
        for value in self.contents.outputs:
            self._last_uses[value] = len(self.operations)

    def with_values(self, values: Values) -> SearchBlock:
        """Return the same block with other values."""
        return replace(self, values=values)

    def frontier(self, count: int) -> list[Value]:
        """Return the values that the first operations compute and the others use."""
        return [
            value
            for operation in self.operations[:count]
            for value in operation.results
            if self._last_uses.get(value, -1) >= count and is_array(value)
        ]

    def results_of(self, operation: Operation) -> list[Value]:
        """Return the results of an operation that can be compared.

        Those that nothing uses are left out: an operation may leave anything there, as LAPACK does in its work space.
        """
        return [value for value in operation.results if is_array(value) and value in self._last_uses]

    def middles(self, low: int, high: int) -> Iterator[int]:
        """Yield places between two others, the best one first: near the middle, with few bytes to compare."""
        third = max((high - low) // 3, 1)
        inner = range(low + third, high - third + 1) or range(low + 1, high)
        half = (low + high) / 2
        candidates = sorted(inner, key=lambda place: abs(place - half))[:9]
        candidates.sort(key=lambda place: (sum(map(_bytes, self.frontier(place))), abs(place - half)))
        yield from candidates[:4]

    def chunks(self) -> Iterator[list[Operation]]:
        """Yield the operations that can run alone, as many at a time as one program should have."""
        chunk: list[Operation] = []
        size = 0
        for operation in self.operations:
            values = [*inputs_of(operation), *operation.results]
            if not self.results_of(operation) or not all(map(is_array, values)):
                continue
            own = sum(map(_bytes, values))
            if chunk and (len(chunk) >= _CHUNK_OPERATIONS or size + own > _CHUNK_BYTES):
                yield chunk
                chunk, size = [], 0
            chunk.append(operation)
            size += own
        if chunk:
            yield chunk


def is_array(value: Value) -> bool:
    """Whether a value can be compared: it is neither a token nor a tuple."""
    return isinstance(value.type, TensorType)


def _bytes(value: Value) -> int:
    return value.type.nbytes if isinstance(value.type, TensorType) and value.type.is_static else 0
