"""Stages: parts of a program that run one after the other, each small enough for a device's memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from pjrt import stablehlo
from pjrt.models.offloading.dataflow import Dataflow
from pjrt.models.offloading.repetition import Repetition, repetition

SMALL = 1 << 20
"""Layers with fewer bytes of weights share a stage if a fraction of the memory is enough for it."""

_SHARE = 8
"""The fraction of the memory that several small layers may have together."""

Value = stablehlo.Value


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """Consecutive operations of a program.

    Attributes:
        operations: the operations; values that depend on no argument are computed beside them.
        weights: the weights that they use.
        inputs: all values that they take, weights among them, in the order of their first use.
        outputs: the values that later stages use, or that the program returns.
        key: equal for stages that one executable can run, whatever their outputs.
        temporary_bytes: the bytes of the values that live inside of the stage only, beyond those of its outputs.
    """

    operations: tuple[stablehlo.Operation, ...]
    weights: tuple[Value, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    key: tuple[object, ...]
    temporary_bytes: int

    @property
    def values(self) -> list[Value]:
        """The results of its operations, the same ones in the same order for stages of one key."""
        return [value for operation in self.operations for value in operation.results]


def nbytes(value: Value) -> int:
    """Return the bytes of a value."""
    assert isinstance(value.type, stablehlo.TensorType)
    return value.type.nbytes


def stages_of(flow: Dataflow, limit: int, *, temporaries: bool) -> list[Stage]:
    """Return the stages of a program, of which two fit into the memory wherever that is possible.

    Args:
        flow: the program.
        limit: the bytes of the memory.
        temporaries: whether values inside of a stage count, as if each were stored. Compilers that merge operations
            store few of them; without them, a stage can turn out to need more than there is.
    """
    return _Splitter(flow, limit, temporaries).stages()


class _Splitter:
    """Decides where to split a program."""

    def __init__(self, flow: Dataflow, limit: int, temporaries: bool) -> None:
        self._flow = flow
        self._limit = limit
        self._temporaries = temporaries
        self._weights = frozenset(flow.weights)
        self._results = [sum(map(nbytes, node.operation.results)) for node in flow.nodes]
        self._live = self._live_bytes()

    def stages(self) -> list[Stage]:
        count = len(self._flow.nodes)
        splits = [*self._splits(0, count), count] if count else [0, 0]
        return [self._stage(begin, end) for begin, end in itertools.pairwise(splits)]

    def _live_bytes(self) -> list[int]:
        """Return for each place between two nodes the bytes of the values that are made before and used after it."""
        changes = [0] * (len(self._flow.nodes) + 2)
        for index, node in enumerate(self._flow.nodes):
            for value in node.operation.results:
                last = self._flow.last_use.get(value, index)
                changes[index + 1] += nbytes(value)
                changes[last + 1] -= nbytes(value)
        arguments = sum(map(nbytes, self._flow.arguments))
        return [arguments + total for total in itertools.accumulate(changes)]

    def _splits(self, begin: int, end: int) -> Iterator[int]:
        """Yield the index of the first node of each stage of a range: the layers first, then what is around them."""
        match = repetition([node.form for node in self._flow.nodes[begin:end]])
        if match is None or not self._has_most_weights(begin, end, match):
            yield from self._parts(begin, end)
            return
        first, period, count = self._aligned(begin, match)
        together = self._layers_together(first, period, count)
        if first > begin:
            yield from self._splits(begin, first)
        # Each layer is split as the first one, so that the parts are equal, too.
        offsets = [index - first for index in self._parts(first, first + period * together)]
        for layer in range(0, count, together):
            yield from (first + layer * period + offset for offset in offsets)
        rest = first + period * count
        if rest < end:
            yield from self._splits(rest, end)

    def _has_most_weights(self, begin: int, end: int, match: Repetition) -> bool:
        """Whether a repetition is that of layers: what repeats inside of one layer has a small part of the weights."""
        first = begin + match.start
        return 2 * self._weight_bytes(first, first + match.period * match.repeats) > self._weight_bytes(begin, end)

    def _aligned(self, begin: int, match: Repetition) -> tuple[int, int, int]:
        """Return first node, period and number of the layers, which begin where the fewest bytes are alive."""
        first, slack = begin + match.start, match.slack
        if match.repeats > 2 or slack + 1 >= match.period:
            choices, count = range(match.period), match.repeats
        else:
            choices, count = range(slack + 1), match.repeats

        def cost(offset: int) -> tuple[int, int]:
            return self._live[first + offset], offset

        offset = min(choices, key=cost)
        return first + offset, match.period, count if offset <= slack else count - 1

    def _layers_together(self, first: int, period: int, count: int) -> int:
        weights = max(1, self._weight_bytes(first, first + period))
        most = max(1, min(-(-SMALL // weights), self._limit // _SHARE // weights))
        return next(number for number in range(min(most, count), 0, -1) if count % number == 0)

    def _parts(self, begin: int, end: int) -> Iterator[int]:
        """Yield the first node of each part of a range, split where few bytes are alive."""
        while begin < end:
            yield begin
            fitting = self._last_fit(begin, end)
            if fitting < end:
                nearest = begin + 1 + (fitting - begin - 1) // 2
                fitting = min(range(nearest, fitting + 1), key=lambda index: (self._live[index], -index))
            begin = fitting

    def _last_fit(self, begin: int, end: int) -> int:
        """Return the end of the longest part of which two fit into the memory; of at least one node."""
        room = self._limit - self._live[begin]
        seen: set[Value] = set()
        weights = made = 0
        for index in range(begin, end):
            node = self._flow.nodes[index]
            for value in node.inputs:
                if value in self._weights and value not in seen:
                    seen.add(value)
                    weights += nbytes(value)
            if self._temporaries:
                made = max(made, self._live[index] + self._results[index] - self._live[begin])
            if index > begin and 2 * weights + made > room:
                return index
        return end

    def _weight_bytes(self, begin: int, end: int) -> int:
        values = {value for node in self._flow.nodes[begin:end] for value in node.inputs}
        return sum(nbytes(value) for value in values & self._weights)

    def _stage(self, begin: int, end: int) -> Stage:
        nodes = self._flow.nodes[begin:end]
        made: dict[Value, tuple[int, int]] = {}
        taken: dict[Value, int] = {}
        key: list[object] = []
        for number, node in enumerate(nodes):
            places = tuple(
                (made.get(value) or taken.setdefault(value, len(taken)), value in self._weights)
                for value in node.inputs
            )
            key.append((node.form, node.free, places))
            made.update((value, (number, index)) for index, value in enumerate(node.operation.results))
        outputs = [value for value in made if self._flow.last_use.get(value, -1) >= end]
        if end == len(self._flow.nodes):
            for value in self._flow.unmade_results:
                outputs.append(value)
                if not self._flow.is_free(value):
                    taken.setdefault(value, len(taken))
                key.append(("returned", taken.get(value)))
        return Stage(
            tuple(node.operation for node in nodes),
            tuple(value for value in taken if value in self._weights),
            tuple(taken),
            tuple(outputs),
            tuple(key),
            max(0, self._made_bytes(begin, end) - sum(map(nbytes, outputs))),
        )

    def _made_bytes(self, begin: int, end: int) -> int:
        """Return the most bytes of values made by a range of nodes that are alive at one time."""
        during = (self._live[index] + self._results[index] for index in range(begin, end))
        return max(during, default=self._live[begin]) - self._live[begin]
