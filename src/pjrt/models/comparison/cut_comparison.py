"""The comparison of cuts: values inside of a program, computed on a device and on the judge."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pjrt.api.errors import PjrtError
from pjrt.api.program import Program
from pjrt.host_memory.difference import Difference
from pjrt.host_memory.tolerance import Tolerance
from pjrt.models.comparison.compared_device import Array, ComparedDevice
from pjrt.models.comparison.first_difference import ValueDifference
from pjrt.models.comparison.search_block import SearchBlock, Values
from pjrt.stablehlo import Cut, Cutter, Operation, Value


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """The limits of a search.

    Attributes:
        compilations: the most programs that both devices compile together.
        seconds: the time after which no further program is compiled.
    """

    compilations: int = 200
    seconds: float = 600.0


class LimitReachedError(Exception):
    """The search has reached one of its limits."""


class CutComparison:
    """Cuts of a program, run on a device and on the judge.

    Args:
        cutter: the program.
        device: the device that differs.
        judge: the device whose values are expected.
        tolerance: the tolerance.
        limits: the limits of all runs together.

    Attributes:
        notes: the parts that were left out, in order, as keys.
    """

    def __init__(
        self, cutter: Cutter, device: ComparedDevice, judge: ComparedDevice, tolerance: Tolerance, limits: SearchLimits
    ) -> None:
        self.cutter, self.device, self.judge = cutter, device, judge
        self.notes: dict[str, None] = {}
        self._tolerance, self._limits = tolerance, limits
        self._begin = time.perf_counter()
        self._before = device.compilations + judge.compilations

    @property
    def compilations(self) -> int:
        """The number of programs that both devices have compiled since the beginning."""
        return self.device.compilations + self.judge.compilations - self._before

    @property
    def seconds(self) -> float:
        """The time since the beginning."""
        return time.perf_counter() - self._begin

    @property
    def tells_zeros_apart(self) -> bool:
        """Whether +0 and -0 differ."""
        return self._tolerance.tells_zeros_apart

    @contextmanager
    def telling_zeros_apart(self) -> Iterator[None]:
        """Let +0 and -0 differ meanwhile."""
        tolerance = self._tolerance
        self._tolerance = replace(tolerance, tells_zeros_apart=True)
        try:
            yield
        finally:
            self._tolerance = tolerance

    def run(self, device: ComparedDevice, program: Program, arguments: Sequence[list[Array]]) -> list[list[Array]]:
        """Run a program.

        Args:
            device: the device, or the judge.
            program: the program.
            arguments: for each argument an array for each replica, or one for all.

        Returns:
            For each result an array for each replica.

        Raises:
            LimitReachedError: a limit is reached.
            PjrtError: the device fails.
        """
        if self.compilations >= self._limits.compilations or self.seconds >= self._limits.seconds:
            raise LimitReachedError
        count = max((len(column) for column in arguments), default=1)
        rows = [[column[number if len(column) > 1 else 0] for column in arguments] for number in range(count)]
        return [list(column) for column in zip(*device.run(program, rows), strict=True)]

    def run_cut(self, device: ComparedDevice, cut: Cut, values: Values) -> Values:
        """Run a cut on these values of its arguments, and return those of its results.

        Raises:
            LimitReachedError, PjrtError: as for ``run``.
        """
        columns = self.run(device, cut.program, [values[name] for name in cut.arguments])
        return dict(zip(cut.results, columns, strict=True))

    def compute(self, device: ComparedDevice, block: SearchBlock, values: Sequence[Value]) -> Values:
        """Return values of a block, computed from the judge's values of its arguments.

        Raises:
            LimitReachedError, PjrtError: as for ``run``.
        """
        available = {value.name: block.values[value.name] for value in values if value.name in block.values}
        names = list(dict.fromkeys(value.name for value in values if value.name not in available))
        if not names:
            return available
        return available | self.run_cut(device, self.cut(block, names), block.values)

    def cut(self, block: SearchBlock, names: Sequence[str]) -> Cut:
        """Return the part of a block that computes some values from its arguments."""
        return self.cutter.cut(names, arguments=block.arguments, function=block.function)

    def cut_alone(self, block: SearchBlock, operations: Sequence[Operation]) -> Cut:
        """Return operations of a block, each of which takes its own inputs as arguments."""
        return self.cutter.cut_operations(operations, function=block.function)

    def text_of(self, block: SearchBlock, operation: Operation) -> str:
        """Return an operation of a block as MLIR spells it, where it has results."""
        return self.cutter.text_of(operation, function=block.function) if operation.results else repr(operation)

    def difference(self, values: Sequence[Array], expected: Sequence[Array]) -> Difference:
        """Return the difference of a value: that of the replica that is the furthest off."""
        columns = (list(values), list(expected))
        count = max(map(len, columns))
        own, right = (column * count if len(column) == 1 else column for column in columns)
        pairs = zip(own, right, strict=True)
        return max((Difference.of(a, b, self._tolerance) for a, b in pairs), key=lambda each: each.severity)

    def agree(self, values: Sequence[Sequence[Array]], expected: Sequence[Sequence[Array]]) -> bool:
        """Whether several values agree with the expected ones."""
        return all(self.difference(*pair).agrees for pair in zip(values, expected, strict=True))

    def differences(self, names: Sequence[Value], values: Values, expected: Values) -> tuple[ValueDifference, ...]:
        """Return the difference of each of some values, as far as both have it. The index is that of the value."""
        return tuple(
            ValueDifference(
                each.index, each.name, str(each.type), self.difference(values[each.name], expected[each.name])
            )
            for each in dict.fromkeys(names)
            if each.name in values and each.name in expected
        )

    def differs_at(self, block: SearchBlock, values: Sequence[Value], *, by_failing: bool) -> bool | None:
        """Return whether the device differs in some values of a block; None if that is unknown, which is noted.

        Args:
            block: the block.
            values: the values.
            by_failing: whether only to look whether the device can compute them.
        """
        try:
            own = self.compute(self.device, block, values)
        except PjrtError as error:
            if by_failing:
                return True
            self.note_failure(self.device, error)
            return None
        if by_failing:
            return False
        try:
            expected = self.compute(self.judge, block, values)
        except PjrtError as error:
            self.note_failure(self.judge, error)
            return None
        return not all(each.difference.agrees for each in self.differences(values, own, expected))

    def note(self, text: str) -> None:
        """Note something about the search, once."""
        self.notes[text] = None

    def note_failure(self, device: ComparedDevice, error: PjrtError) -> None:
        """Note that a device did not run a part of the program."""
        self.note(f"{device.name} did not run a part of the program, which was left out: {error.message[:300]}")
