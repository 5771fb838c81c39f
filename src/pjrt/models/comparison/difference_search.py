"""The search for the first operation that differs: cuts of the program run on the device and on a judge.

A *frontier* is the set of values that the first operations of a block compute and the others use. If two devices agree
on a frontier, a difference of the results arises behind it; so each comparison of a frontier halves the operations that
come into question. What is left is one operation, whose inputs agree and whose results do not. The search runs it alone
on the judge's inputs, which distinguishes a wrong operation from rounding, and enters calls, loops and branches.
"""

from __future__ import annotations

import enum
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.api.program import Program
from pjrt.host_memory.difference import Difference
from pjrt.host_memory.tolerance import Tolerance
from pjrt.models.comparison.compared_device import Array, ComparedDevice, Row
from pjrt.stablehlo import Block, Cut, Cutter, Operation, TensorType, Value
from pjrt.stablehlo.transforms.cutting import inputs_of, limit_iterations


class Cause(enum.StrEnum):
    """The reason for a difference.

    ``OPERATION``: on the same inputs the operation gives another result. ``ROUNDING``: on the same inputs it agrees,
    but its inputs in the program are apart by rounding, and it passes that on or amplifies it. ``CONTEXT``: on the same
    inputs it agrees when it is compiled alone, and differs when it is compiled with the program around it.
    ``FAILURE``: the device cannot compile or run it. ``UNKNOWN``: the search ended before it knew.
    """

    OPERATION = "operation"
    ROUNDING = "rounding"
    CONTEXT = "context"
    FAILURE = "failure"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """The difference of one value of the program.

    Attributes:
        index: its index among the inputs or the results of the operation.
        name: its name, as ``pjrt.stablehlo.parse`` gives it, such as ``%3``.
        type: its type as MLIR spells it.
        difference: how far the device's value is from the judge's.
    """

    index: int
    name: str
    type: str
    difference: Difference

    def as_dict(self) -> dict[str, Any]:
        """Return it in machine-readable form."""
        return {"index": self.index, "name": self.name, "type": self.type, **self.difference.as_dict()}


@dataclass(frozen=True, slots=True)
class Suspect:
    """An operation whose result is apart on the same inputs, within the tolerance.

    Attributes:
        operation: the operation as text.
        location: its source location.
        difference: how far the device's result is from the judge's.
    """

    operation: str
    location: str
    difference: Difference


@dataclass(frozen=True, slots=True)
class Case:
    """A small program that shows a difference, with its inputs.

    Attributes:
        program: the program.
        inputs: its arguments.
        expected: the judge's results; None where it has none.
        results: the device's results; None where it failed.
    """

    program: Program
    inputs: tuple[Array, ...] = field(repr=False)
    expected: tuple[Array, ...] | None = field(repr=False)
    results: tuple[Array, ...] | None = field(repr=False)

    def save(self, folder: Path, *, device: str, judge: str) -> None:
        """Write the case to a folder, which is made: ``program.mlir``, ``0.npy`` … for the inputs, and the results.

        Args:
            folder: the folder.
            device: the device's name, for the command that repeats the comparison.
            judge: the judge's name.

        Raises:
            InvalidArgumentError: the folder cannot be written.
        """
        from pjrt import stablehlo

        try:
            folder.mkdir(parents=True, exist_ok=True)
            text = stablehlo.to_text(self.program, locations=True, trusted=True)
            (folder / "program.mlir").write_text(text, encoding="utf-8")
            for index, array in enumerate(self.inputs):
                np.save(folder / f"{index}.npy", array, allow_pickle=False)
            for name, arrays in (("expected", self.expected), ("results", self.results)):
                if arrays is not None:
                    named = {f"result_{index}": array for index, array in enumerate(arrays)}
                    np.savez(folder / f"{name}.npz", allow_pickle=False, **named)
            inputs = "".join(f" -i {index}={index}.npy" for index in range(len(self.inputs)))
            command = f"pjrt compare program.mlir -d {_from_anywhere(device)} -d {judge}{inputs}"
            (folder / "command.txt").write_text(f"{command}\n", encoding="utf-8")
        except OSError as error:
            raise InvalidArgumentError(
                f"cannot write the case to {str(folder)!r}: {error.strerror or error}"
            ) from error


@dataclass(frozen=True, slots=True, repr=False)
class FirstDifference:
    """The first operation of a program from which on a device differs from the judge.

    Attributes:
        device: the device's name.
        judge: the judge's name.
        cause: the reason.
        name: the name of the operation, such as ``stablehlo.tanh``; empty if the search ended before.
        operation: the operation as MLIR spells it; where the search ended before, the operations among which it is.
        location: its source location.
        function: the function that it is in.
        path: how to get there from the entry function: calls, iterations of loops and branches, the outermost first.
        inputs: its inputs in the program: how far they are apart.
        results: its results: on the same inputs for the cause ``OPERATION``, in the program otherwise.
        suspects: where rounding is the cause, the operations that round the most, on the same inputs.
        error: the device's error for the cause ``FAILURE``.
        notes: what the search left out, such as programs that the device did not compile.
        case: a program that shows the difference; None where there is none.
        compilations: the number of programs that both devices compiled for the search.
        seconds: the time of the search.
    """

    device: str
    judge: str
    cause: Cause
    name: str = ""
    operation: str = ""
    location: str = ""
    function: str = ""
    path: tuple[str, ...] = ()
    inputs: tuple[ValueDifference, ...] = ()
    results: tuple[ValueDifference, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    error: str = ""
    notes: tuple[str, ...] = ()
    case: Case | None = None
    compilations: int = 0
    seconds: float = 0.0

    def with_effort(self, compilations: int, seconds: float, notes: Sequence[str]) -> FirstDifference:
        """Return the same with the effort of the search."""
        return replace(self, compilations=compilations, seconds=seconds, notes=(*self.notes, *notes))

    def save_case(self, folder: str | Path) -> None:
        """Write the program that shows the difference, its inputs and the results to a folder.

        Raises:
            InvalidArgumentError: there is no such program, or the folder cannot be written.
        """
        if self.case is None:
            raise InvalidArgumentError("there is no case to save: the search ended before it had one")
        self.case.save(Path(folder), device=self.device, judge=self.judge)

    def as_dict(self) -> dict[str, Any]:
        """Return the finding in machine-readable form, without the arrays of the case."""
        return {
            "device": self.device,
            "judge": self.judge,
            "cause": str(self.cause),
            "name": self.name,
            "operation": self.operation,
            "location": self.location,
            "function": self.function,
            "path": list(self.path),
            "inputs": [value.as_dict() for value in self.inputs],
            "results": [value.as_dict() for value in self.results],
            "suspects": [
                {"operation": each.operation, "location": each.location, **each.difference.as_dict()}
                for each in self.suspects
            ],
            "error": self.error,
            "notes": list(self.notes),
            "compilations": self.compilations,
            "seconds": self.seconds,
        }

    def __repr__(self) -> str:
        return f"<FirstDifference: {self._headline()}>"

    def _headline(self) -> str:
        return _HEADLINES[self.cause].format(device=self.device, judge=self.judge, name=self.name or "an operation")

    def __str__(self) -> str:
        lines = [self._headline()]
        lines += [f"  {line}" for line in self.operation.splitlines()]
        if self.location:
            lines.append(f"at {self.location}, in the function {self.function}")
        lines += [f"inside {step}" for step in self.path]
        lines += [f"error: {self.error}"] * bool(self.error)
        lines += [f"input {each.index}, {each.type}: {each.difference}" for each in self.inputs]
        lines += [f"result {each.index}, {each.type}: {each.difference}" for each in self.results]
        for each in self.suspects:
            lines.append(f"rounds on the same inputs: {_first_line(each.operation)} at {each.location}")
            lines.append(f"  {each.difference}")
        lines += [f"note: {note}" for note in self.notes]
        lines.append(f"found with {self.compilations} compilations in {self.seconds:.1f} s")
        return "\n".join(lines)


_HEADLINES: Mapping[Cause, str] = {
    Cause.OPERATION: "{name} differs: {device} and {judge} give different results on the same inputs",
    Cause.ROUNDING: "{name} is the first beyond the tolerance, by rounding: "
    "on the same inputs {device} and {judge} agree",
    Cause.CONTEXT: "{name} differs in the program only: alone, on the same inputs, {device} and {judge} agree",
    Cause.FAILURE: "{name} fails on {device}; {judge} runs it",
    Cause.UNKNOWN: "the search ended early; the first difference is among these operations",
}


def _from_anywhere(device: str) -> str:
    """Return the name of a device with its path made absolute, if it is one, quoted for a shell."""
    path, colon, function = device.rpartition(":")
    if colon and Path(path).is_file():
        return shlex.quote(f"{Path(path).resolve()}:{function}")
    return shlex.quote(str(Path(device).resolve()) if Path(device).is_file() else device)


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


# Blocks of a search, and the values that pass from some of their operations to the others.

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


# Cuts of the program, run on the device and on the judge.


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


# The search in a loop: the first iteration from which on a device differs, and the operation in it.

_CONDITION, _BODY = 0, 1
_ALL_ITERATIONS = 2**31 - 1

State = list[list[Array]]
"""The values that a loop carries, one array for each replica; behind them the number of iterations."""


class LoopSearch:
    """The search in a loop that differs on the same inputs.

    The loop runs with a limit of its iterations, which is an argument of one program, so that all runs of the search
    need one compilation.

    Args:
        search: the search that this one is a part of.
        block: the block that the loop is in, with the judge's values of the loop's inputs.
        loop: the loop.
    """

    def __init__(self, search: Search, block: SearchBlock, loop: Operation) -> None:
        self._search, self._block, self._loop = search, block, loop
        self._cuts = search.cuts
        alone = self._cuts.cut_alone(block, [loop])
        self._limited = limit_iterations(alone.program)
        self._arguments = [block.values[name] for name in alone.arguments]
        self._states: dict[int, State] = {}

    def run(self) -> FirstDifference | None:
        """Return the first difference in the loop; None if the loop itself is all that can be named.

        Raises:
            LimitReachedError: a limit is reached.
            PjrtError: a device fails.
        """
        if self._search.is_for_failure:
            return self._in_region(_CONDITION, 0, "the condition") or self._in_region(_BODY, 0, "the body")
        total = max(int(count) for count in self._after(self._cuts.judge, _ALL_ITERATIONS)[-1])
        if self._agrees_after(total):
            return self._in_condition(total)
        low, high = 0, total
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._agrees_after(middle) else (low, middle)
        step = f"iteration {high} of {total}"
        return self._in_condition(low) or self._in_region(_BODY, low, step) or self._explain(low, high, step)

    def _after(self, device: ComparedDevice, iterations: int) -> State:
        """Return what the loop carries after some iterations, or after its last one."""
        return self._cuts.run(device, self._limited, [*self._arguments, [np.array(iterations, np.int32)]])

    def _expected(self, iterations: int) -> State:
        if iterations not in self._states:
            self._states[iterations] = self._after(self._cuts.judge, iterations)
        return self._states[iterations]

    def _agrees_after(self, iterations: int) -> bool:
        if iterations == 0:
            return True
        return self._cuts.agree(self._after(self._cuts.device, iterations), self._expected(iterations))

    def _in_condition(self, iterations: int) -> FirstDifference | None:
        return self._in_region(_CONDITION, iterations, f"the condition behind iteration {iterations}")

    def _in_region(self, index: int, iterations: int, step: str) -> FirstDifference | None:
        return self._search.enter(self._region(index, self._expected(iterations), step))

    def _region(self, index: int, state: Sequence[list[Array]], step: str) -> SearchBlock:
        """Return a region of the loop, on what the loop carries."""
        outer, region = self._block, self._loop.regions[index]
        names = tuple(value.name for value in region.arguments)
        values = {**outer.values, **dict(zip(names, state, strict=False))}
        path = (*outer.path, f"{step} of {self._loop.name} at {self._loop.location}")
        return SearchBlock(outer.function, region, names, values, path)

    def _explain(self, low: int, high: int, step: str) -> FirstDifference:
        """Return the difference of an iteration that agrees when it runs alone on the same inputs."""
        cuts = self._cuts
        body = self._region(_BODY, self._expected(low), step)
        wrong, suspects = self._search.run_alone(body)
        if wrong is not None:
            return wrong
        before, behind = (self._after(cuts.device, iterations)[:-1] for iterations in (low, high))
        outputs = body.contents.outputs
        from_drift = cuts.compute(cuts.judge, self._region(_BODY, before, step), outputs)
        is_explained = cuts.agree(behind, [from_drift[value.name] for value in outputs])
        inputs, results = (
            tuple(
                ValueDifference(value.index, value.name, str(value.type), cuts.difference(*pair))
                for value, *pair in zip(values, own, self._expected(count)[:-1], strict=True)
            )
            for values, own, count in ((body.contents.arguments, before, low), (self._loop.results, behind, high))
        )
        return self._search.finding(
            body,
            self._loop,
            Cause.ROUNDING if is_explained else Cause.CONTEXT,
            inputs=inputs,
            results=results,
            suspects=tuple(suspects),
        )


# The search in the whole program.

_MOST_SUSPECTS = 3
_GONE = "the difference is gone in a second run: results vary from run to run, or from one compilation to the next"


class Search:
    """A search for the first operation from which on a device differs from the judge.

    Args:
        cutter: the program, with static shapes.
        device: the device that differs.
        judge: the device whose values are expected.
        arguments: the program's arguments.
        tolerance: the tolerance.
        limits: the limits of the search.
        failure: the error of the device if it cannot run the whole program; then the search is for the operation that
            it cannot compile or run.

    Attributes:
        cuts: the cuts of the program, on the device and on the judge.
    """

    def __init__(
        self,
        cutter: Cutter,
        device: ComparedDevice,
        judge: ComparedDevice,
        arguments: Row,
        tolerance: Tolerance,
        limits: SearchLimits,
        failure: PjrtError | None = None,
    ) -> None:
        self.cuts = CutComparison(cutter, device, judge, tolerance, limits)
        self._failure = failure
        entry = cutter.parsed.entry
        assert entry.body is not None
        names = [value.name for value in entry.body.arguments]
        self._entry = SearchBlock(entry.name, entry.body, None, {n: [a] for n, a in zip(names, arguments, strict=True)})
        self._narrowed = (self._entry, 0, len(self._entry.operations))

    def run(self) -> FirstDifference:
        """Return the first difference. The results of the whole program are known to differ."""
        try:
            # Whether they differ again is not known: a device may give other results in each run.
            difference = self.enter(self._entry) or self._unfinished(_GONE)
        except LimitReachedError:
            spent = f"{self.cuts.compilations} compilations and {self.cuts.seconds:.0f} s"
            difference = self._unfinished(f"the search ended at its limit, after {spent}; give it a higher one")
        return difference.with_effort(self.cuts.compilations, self.cuts.seconds, tuple(self.cuts.notes))

    @property
    def is_for_failure(self) -> bool:
        """Whether the search is for the operation that the device cannot compile or run."""
        return self._failure is not None

    # Halving a block.

    def enter(self, block: SearchBlock) -> FirstDifference | None:
        """Return the first difference in a block; None if its results do not differ when it runs on its own."""
        outputs = [value for value in block.contents.outputs if is_array(value)]
        if self.cuts.differs_at(block, outputs, by_failing=self.is_for_failure):
            return self._first_in(block)
        return None

    def _first_in(self, block: SearchBlock, count: int | None = None) -> FirstDifference:
        """Return the first difference in a block whose results differ, or in so many of its operations."""
        low, high = 0, len(block.operations) if count is None else count
        self._narrowed = (block, low, high)
        while high - low > 1:
            step = next(self._decided(block, low, high), None)
            if step is None:
                return self._unfinished("no cut between these operations could be compared")
            middle, differs = step
            low, high = (low, middle) if differs else (middle, high)
            self._narrowed = (block, low, high)
        if not block.operations:
            return self._unfinished("the block has no operations to search")
        return self.examine(block, block.operations[high - 1])

    def _decided(self, block: SearchBlock, low: int, high: int) -> Iterator[tuple[int, bool]]:
        """Yield a place between two others, and whether the device differs there; several are tried."""
        for middle in block.middles(low, high):
            frontier = block.frontier(middle)
            differs = self.cuts.differs_at(block, frontier, by_failing=self.is_for_failure) if frontier else False
            if differs is not None:
                yield middle, differs

    # Looking at one operation.

    def examine(self, block: SearchBlock, operation: Operation) -> FirstDifference:
        """Return the difference of an operation, or of one inside of it."""
        inputs = [value for value in inputs_of(operation) if str(value.type) != "!stablehlo.token"]
        results = block.results_of(operation)
        if not results or not all(map(is_array, inputs)):
            self.cuts.note(f"{operation.name} cannot run alone: it takes or gives values that are no arrays")
            return self.finding(block, operation, Cause.UNKNOWN)
        try:
            if self._failure is not None:
                return self._examine_failure(block, operation, inputs, self._failure)
            return self._examine_values(block, operation, inputs, results)
        except PjrtError as error:
            self.cuts.note_failure(self.cuts.device, error)
            return self.finding(block, operation, Cause.UNKNOWN)

    def _examine_values(
        self, block: SearchBlock, operation: Operation, inputs: Sequence[Value], results: Sequence[Value]
    ) -> FirstDifference:
        cuts = self.cuts
        expected = cuts.compute(cuts.judge, block, [*inputs, *results])
        alone = cuts.cut_alone(block, [operation])
        right, own = (cuts.run_cut(device, alone, expected) for device in (cuts.judge, cuts.device))
        differences = cuts.differences(results, own, right)
        if all(each.difference.agrees for each in differences):
            return self._explain(block, operation, expected, alone)
        inner = self._inside(block, operation, {**block.values, **expected})
        if inner is not None:
            return inner
        case = case_of(alone, expected, right, own)
        return self.finding(block, operation, Cause.OPERATION, results=differences, case=case)

    def _explain(self, block: SearchBlock, operation: Operation, expected: Values, alone: Cut) -> FirstDifference:
        """Return the difference of an operation that agrees when it runs alone on the same inputs."""
        cuts = self.cuts
        results = block.results_of(operation)
        inputs = [value for value in inputs_of(operation) if value.name in expected]
        own = cuts.compute(cuts.device, block, [*inputs, *results])
        found = self._by_signs_of_zeros(block, operation, own, expected)
        if found is not None:
            return found
        from_drift = cuts.run_cut(cuts.judge, alone, own)
        drifts, changes = (cuts.differences(values, own, expected) for values in (inputs, results))
        places = {value.name: index for index, value in enumerate(operation.operands)}
        drifts = tuple(replace(each, index=places.get(each.name, each.index)) for each in drifts)
        # The judge gets from the device's inputs what the device gets. These agreed in a program without the operation.
        is_explained = all(each.difference.agrees for each in (*cuts.differences(results, own, from_drift), *drifts))
        if all(each.difference.agrees for each in changes):
            is_explained = False
            cuts.note(f"the difference is gone where the inputs of {operation.name} are results of the program")
        suspects: Sequence[Suspect] = ()
        if is_explained:
            wrong, suspects = self.run_alone(block)
            if wrong is not None:
                return wrong
        cause = Cause.ROUNDING if is_explained else Cause.CONTEXT
        case = case_of(cuts.cut(block, [value.name for value in results]), block.values, expected, own)
        return self.finding(
            block, operation, cause, inputs=drifts, results=changes, suspects=tuple(suspects), case=case
        )

    def _by_signs_of_zeros(
        self, block: SearchBlock, operation: Operation, own: Values, expected: Values
    ) -> FirstDifference | None:
        """Search again for an operation before another, whose inputs differ in the signs of zeros.

        +0 and -0 are the same number, and the wrong one may come out of an operation long before it is divided by.
        """
        cuts = self.cuts
        if cuts.tells_zeros_apart:
            return None
        with cuts.telling_zeros_apart():
            if all(each.difference.agrees for each in cuts.differences([*inputs_of(operation)], own, expected)):
                return None
            narrowed = self._narrowed
            place = next(index for index, each in enumerate(block.operations) if each is operation)
            found = self._first_in(block, place)
            self._narrowed = narrowed
        return found if found.cause is Cause.OPERATION else None

    def _examine_failure(
        self, block: SearchBlock, operation: Operation, inputs: Sequence[Value], failure: PjrtError
    ) -> FirstDifference:
        cuts = self.cuts
        expected = cuts.compute(cuts.judge, block, inputs)
        alone = cuts.cut_alone(block, [operation])
        right = cuts.run_cut(cuts.judge, alone, expected)
        try:
            cuts.run_cut(cuts.device, alone, expected)
        except PjrtError as error:
            inner = self._inside(block, operation, {**block.values, **expected})
            case = case_of(alone, expected, right, None)
            return inner or self.finding(block, operation, Cause.FAILURE, error=error.message, case=case)
        cuts.note(f"alone, {operation.name} runs on {cuts.device.name}")
        return self.finding(block, operation, Cause.FAILURE, error=failure.message)

    def run_alone(self, block: SearchBlock) -> tuple[FirstDifference | None, list[Suspect]]:
        """Run each operation of a block alone on the judge's inputs.

        Return the first one that is wrong, and of the others those that round the most.
        """
        cuts = self.cuts
        wrong: list[Operation] = []
        suspects: list[Suspect] = []
        for chunk in block.chunks():
            values = [value for operation in chunk for value in (*inputs_of(operation), *block.results_of(operation))]
            try:
                expected = cuts.compute(cuts.judge, block, values)
                own = cuts.run_cut(cuts.device, cuts.cut_alone(block, chunk), expected)
            except PjrtError as error:
                cuts.note_failure(cuts.device, error)
                continue
            for operation in chunk:
                differences = [each.difference for each in cuts.differences(block.results_of(operation), own, expected)]
                worst = max(differences, key=lambda each: each.severity)
                if not worst.agrees:
                    wrong.append(operation)
                elif worst.severity:
                    suspects.append(Suspect(cuts.text_of(block, operation), str(operation.location), worst))
        suspects.sort(key=lambda each: -each.difference.severity)
        findings = (self.examine(block, operation) for operation in wrong[:_MOST_SUSPECTS])
        first = next((finding for finding in findings if finding.cause is Cause.OPERATION), None)
        return first, suspects[:_MOST_SUSPECTS]

    # Entering operations.

    def _inside(self, block: SearchBlock, operation: Operation, values: Values) -> FirstDifference | None:
        """Return the first difference inside of an operation that differs on the same inputs; None if it is none."""
        entered = block.with_values(values)
        try:
            if operation.name in ("func.call", "stablehlo.composite"):
                return self._inside_call(entered, operation)
            if operation.name == "stablehlo.while" and all(map(is_array, operation.results)):
                return LoopSearch(self, entered, operation).run()
            if operation.name in ("stablehlo.if", "stablehlo.case"):
                return self._inside_branch(entered, operation)
        except PjrtError as error:
            self.cuts.note_failure(self.cuts.device, error)
        return None

    def _inside_call(self, block: SearchBlock, operation: Operation) -> FirstDifference | None:
        callee = operation.attributes["callee" if operation.name == "func.call" else "decomposition"]
        function = self.cuts.cutter.parsed.functions.get(callee)
        if function is None or function.body is None:
            return None
        operands = self.cuts.compute(self.cuts.judge, block, operation.operands)
        names = tuple(value.name for value in function.arguments)
        values = {name: operands[value.name] for name, value in zip(names, operation.operands, strict=True)}
        step = f"{operation.name} of {callee} at {operation.location}"
        return self.enter(SearchBlock(callee, function.body, names, values, (*block.path, step)))

    def _inside_branch(self, block: SearchBlock, operation: Operation) -> FirstDifference | None:
        index = operation.operands[0]
        column = self.cuts.compute(self.cuts.judge, block, [index])[index.name]
        branches = {_branch(operation, array) for array in column}
        if len(branches) != 1:
            self.cuts.note(f"replicas take different branches of {operation.name}, which was not entered")
            return None
        (branch,) = branches
        step = f"branch {branch} of {operation.name} at {operation.location}"
        return self.enter(SearchBlock(block.function, operation.regions[branch], (), block.values, (*block.path, step)))

    # Findings.

    def finding(self, block: SearchBlock, operation: Operation, cause: Cause, **facts: Any) -> FirstDifference:
        """Return a finding about an operation of a block."""
        return FirstDifference(
            self.cuts.device.name,
            self.cuts.judge.name,
            cause,
            name=operation.name,
            operation=self.cuts.text_of(block, operation),
            location=str(operation.location),
            function=block.function,
            path=block.path,
            **facts,
        )

    def _unfinished(self, why: str) -> FirstDifference:
        block, low, high = self._narrowed
        self.cuts.note(why)
        return FirstDifference(
            self.cuts.device.name,
            self.cuts.judge.name,
            Cause.UNKNOWN,
            operation="\n".join(map(repr, block.operations[low:high])),
            function=block.function,
            path=block.path,
        )


def _branch(operation: Operation, index: Array) -> int:
    if operation.name == "stablehlo.if":
        return 0 if bool(index) else 1
    return int(index) if 0 <= int(index) < len(operation.regions) else len(operation.regions) - 1


def case_of(cut: Cut, arguments: Values, expected: Values, results: Values | None) -> Case:
    """Return a cut with its arguments and results as a case, of the first replica."""

    def first(values: Values, names: Sequence[str]) -> tuple[Array, ...]:
        return tuple(values[name][0] for name in names)

    own = None if results is None else first(results, cut.results)
    program: Program = cut.program
    return Case(program, first(arguments, cut.arguments), first(expected, cut.results), own)
