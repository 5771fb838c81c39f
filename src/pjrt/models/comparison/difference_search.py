"""The search for the first operation that differs: cuts of the program run on the device and on a judge.

A *frontier* is the set of values that the first operations of a block compute and the others use. If two devices agree
on a frontier, a difference of the results arises behind it; so each comparison of a frontier halves the operations that
come into question. What is left is one operation, whose inputs agree and whose results do not. The search runs it alone
on the judge's inputs, which distinguishes a wrong operation from rounding, and enters calls, loops and branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pjrt.api.errors import PjrtError
from pjrt.api.program import Program
from pjrt.host_memory.tolerance import Tolerance
from pjrt.models.comparison.compared_device import Array, ComparedDevice, Row
from pjrt.models.comparison.cut_comparison import CutComparison, LimitReachedError, SearchLimits
from pjrt.models.comparison.first_difference import Case, Cause, FirstDifference, Suspect
from pjrt.models.comparison.loop_search import LoopSearch
from pjrt.models.comparison.search_block import SearchBlock, Values, is_array
from pjrt.stablehlo import Cut, Cutter, Operation, Value
from pjrt.stablehlo.cuts.cutting import inputs_of

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
