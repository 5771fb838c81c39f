"""The cost of a program: FLOPs, bytes moved, and bytes that devices exchange, counted from its operations.

The numbers are those of the program as it is written, by the conventions of XLA's cost analysis before optimizations;
see ``_work``. A compiler that merges operations moves fewer bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.program import AnyProgram, Program
from pjrt.stablehlo._call_graph import CallGraph
from pjrt.stablehlo.analysis._collective_traffic import traffic_of
from pjrt.stablehlo.analysis._live_operations import live_operations
from pjrt.stablehlo.analysis._trip_count import Constants, TripCounts
from pjrt.stablehlo.analysis._work import Work, flops_and_bytes, work_of
from pjrt.stablehlo.conversion import to_module
from pjrt.stablehlo.location import Location
from pjrt.stablehlo.operation import Block, Operation, ParsedProgram
from pjrt.stablehlo.outline import COLLECTIVES
from pjrt.stablehlo.parser import parse_module
from pjrt.stablehlo.shardings.partitioner import partition
from pjrt.stablehlo.shardings.stated_partitioning import with_partitioning


@dataclass(frozen=True, slots=True)
class OperationCost:
    """The cost of one operation of a program's text, in one run of the program.

    Attributes:
        operation: the operation.
        function: the name of the function that it is in.
        times: how often it runs.
        flops: the arithmetic operations of all its runs.
        transcendentals: the evaluations of transcendental functions.
        bytes_accessed: the bytes read and written.
        note: why the numbers are not exact; empty if they are.
    """

    operation: Operation = field(repr=False)
    function: str
    times: int
    flops: int
    transcendentals: int
    bytes_accessed: int
    note: str = ""

    @property
    def name(self) -> str:
        """The operation's name with its dialect; of a custom call with its target."""
        target = self.operation.attributes.get("call_target_name")
        return self.operation.name if target is None else f"{self.operation.name} @{target}"

    @property
    def location(self) -> Location:
        """The operation's source location."""
        return self.operation.location


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """The cost of one collective operation, for one device, in one run of the program.

    Attributes:
        operation: the operation.
        kind: its name, such as ``all_reduce``.
        group_size: the number of devices that exchange values; None if the program does not show it.
        times: how often it runs.
        operand_bytes: the bytes that a device contributes, in all runs.
        result_bytes: the bytes that a device obtains.
        sent_bytes: the bytes that a device must send at least; the average over the group, for the best algorithm.
    """

    operation: Operation = field(repr=False)
    kind: str
    group_size: int | None
    times: int
    operand_bytes: int
    result_bytes: int
    sent_bytes: int

    @property
    def location(self) -> Location:
        """The operation's source location."""
        return self.operation.location


@dataclass(frozen=True, slots=True)
class CollectiveTotal:
    """The collectives of one kind among groups of one size.

    Attributes:
        kind: as for ``CollectiveCost``; so are the other attributes, which are sums.
        group_size: the number of devices in a group.
        times: how often such collectives run.
        operand_bytes: the bytes that a device contributes.
        result_bytes: the bytes that a device obtains.
        sent_bytes: the bytes that a device must send at least.
    """

    kind: str
    group_size: int | None
    times: int
    operand_bytes: int
    result_bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one run of a program on one device.

    Attributes:
        flops: the arithmetic operations. Of several branches the most expensive one counts.
        transcendentals: the evaluations of transcendental functions.
        bytes_accessed: the bytes that operations read and write.
        operations: the cost of each operation, in the order of the text; of all branches.
        collectives: the cost of each operation in which several devices take part.
    """

    flops: int
    transcendentals: int
    bytes_accessed: int
    operations: tuple[OperationCost, ...] = field(repr=False)
    collectives: tuple[CollectiveCost, ...]

    @property
    def notes(self) -> tuple[OperationCost, ...]:
        """The operations whose numbers are not exact; each has a note that says why."""
        return tuple(each for each in self.operations if each.note)

    @property
    def sent_bytes(self) -> int:
        """The bytes that a device must send to others at least."""
        return sum(each.sent_bytes for each in self.collectives)

    @property
    def collective_totals(self) -> tuple[CollectiveTotal, ...]:
        """The collectives by kind and size of the group, the most bytes first."""
        totals: dict[tuple[str, int | None], CollectiveTotal] = {}
        for each in self.collectives:
            key = each.kind, each.group_size
            before = totals.get(key, CollectiveTotal(*key, 0, 0, 0, 0))
            totals[key] = CollectiveTotal(
                *key,
                before.times + each.times,
                before.operand_bytes + each.operand_bytes,
                before.result_bytes + each.result_bytes,
                before.sent_bytes + each.sent_bytes,
            )
        return tuple(sorted(totals.values(), key=lambda total: (-total.sent_bytes, -total.operand_bytes)))

    def as_dict(self) -> dict[str, float]:
        """Return the totals under the names that ``Executable.cost_analysis`` has for them."""
        return {
            "flops": float(self.flops),
            "transcendentals": float(self.transcendentals),
            "bytes accessed": float(self.bytes_accessed),
        }


def cost(
    program: Program | ParsedProgram | str | bytes, options: CompileOptions | None = None, *, trusted: bool = False
) -> Cost:
    """Count the work of one run of a program on one device.

    A program for several partitions is partitioned first, so the numbers are those of one of them; a parsed program is
    counted as it stands.

    Args:
        program: the program.
        options: the compile options: how many partitions there are, where the program leaves that open.
        trusted: as for ``parse``.

    Raises:
        UnimplementedError: a shape in it is known only when the program runs, or XLA cannot partition it.
        InvalidArgumentError: a function calls itself, or is only declared.
        NotFoundError: the program has no function to run.
        PjrtError: as for ``parse``.
    """
    parsed = counted_program(program, options, trusted=trusted)
    counter = _Counter(parsed)
    entry = counter.function(parsed.entry.name, {})
    work = entry.work
    return Cost(*work, entry.operation_costs(), entry.collective_costs(parsed))


def counted_program(
    program: AnyProgram | ParsedProgram, options: CompileOptions | None, *, trusted: bool
) -> ParsedProgram:
    """Return a program as ``parse_for_one_device`` does, or a parsed one as it is, when its functions call each other
    without a fault.

    Raises:
        InvalidArgumentError: a function calls itself, or is only declared.
        PjrtError: as for ``parse_for_one_device``.
    """
    parsed = program if isinstance(program, ParsedProgram) else parse_for_one_device(program, options, trusted=trusted)
    for _, message in CallGraph.of(parsed).faults():
        raise InvalidArgumentError(message)
    return parsed


def parse_for_one_device(
    program: AnyProgram, options: CompileOptions | None = None, *, trusted: bool = False
) -> ParsedProgram:
    """Return a program as one of its partitions runs it, parsed for ``cost`` and ``peak_memory``.

    The values of constants with more than one element are left out.

    Args:
        program: the program.
        options: the compile options: how many partitions there are, where the program leaves that open.
        trusted: as for ``parse``.

    Raises:
        UnimplementedError: XLA cannot partition it.
        PjrtError: as for ``parse``.
    """
    program = Program.of(program)
    options = with_partitioning(program, options)
    if options.partitioning.num_partitions > 1:
        module = partition(program, options).module
    else:
        module = to_module(program, trusted=trusted)
    return parse_module(module, largest_constant=1)


@dataclass(slots=True)
class _Runs:
    """The runs of one operation."""

    operation: Operation
    function: str
    times: int
    work: Work
    note: str = ""


class _Tally:
    """The work of a part of a program, in all and by operation."""

    def __init__(self) -> None:
        self.work = Work()
        self.runs: dict[int, _Runs] = {}

    def add(self, other: _Tally, times: int = 1) -> None:
        """Add so many runs of another part."""
        self.work = self.work.plus(other.work.times(times))
        self.add_operations(other.runs.values(), times)

    def add_operations(self, runs: Iterable[_Runs], times: int = 1) -> None:
        """Add operations without their work."""
        for each in runs:
            mine = self.runs.get(id(each.operation))
            if mine is None:
                self.runs[id(each.operation)] = replace(each, times=each.times * times)
            else:
                mine.times += each.times * times

    def operation_costs(self) -> tuple[OperationCost, ...]:
        return tuple(
            OperationCost(each.operation, each.function, each.times, *each.work.times(each.times), each.note)
            for each in self.runs.values()
        )

    def collective_costs(self, program: ParsedProgram) -> tuple[CollectiveCost, ...]:
        costs = []
        for each in self.runs.values():
            if each.operation.name in COLLECTIVES:
                traffic = traffic_of(each.operation, program).times(each.times)
                kind = each.operation.name.rpartition(".")[2]
                costs.append(CollectiveCost(each.operation, kind, traffic.group_size, each.times, *traffic[1:]))
        return tuple(costs)


_CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}
_RUN_ONCE = frozenset(("stablehlo.async_start", "sdy.manual_computation", "sdy.named_computation"))
_BRANCHES = frozenset(("stablehlo.case", "stablehlo.if"))


class _Counter:
    """The count over one program; a function is counted once for each set of constants that it is called with."""

    def __init__(self, program: ParsedProgram) -> None:
        self._functions = program.functions
        self._trips = TripCounts(program.functions)
        self._tallies: dict[tuple[str, tuple[tuple[int, int], ...]], _Tally] = {}

    def function(self, name: str, constants: Constants) -> _Tally:
        key = name, tuple(sorted(constants.items()))
        tally = self._tallies.get(key)
        if tally is None:
            body = self._functions[name].body
            tally = self._tallies[key] = _Tally() if body is None else self._block(body, name, constants)
        return tally

    def _block(self, block: Block, function: str, constants: Constants) -> _Tally:
        tally = _Tally()
        for operation in live_operations(block):
            try:
                tally.add(self._operation(operation, function, constants))
            except UnimplementedError as error:
                if operation.regions or operation.name in _CALLS:
                    raise
                raise UnimplementedError(
                    f"cannot count {operation}: {error.message}; give the program static shapes first "
                    f"[{operation.location}]"
                ) from error
        return tally

    def _operation(self, operation: Operation, function: str, constants: Constants) -> _Tally:
        name = operation.name
        if name in _CALLS:
            return self._call(operation, constants)
        if name == "stablehlo.while":
            return self._loop(operation, function, constants)
        tally = _Tally()
        if name in _BRANCHES:
            for block in operation.regions:
                branch = self._block(block, function, constants)
                tally.work = tally.work.at_least(branch.work)
                tally.add_operations(branch.runs.values())
            return tally
        if name in _RUN_ONCE:
            for block in operation.regions:
                tally.add(self._block(block, function, constants))
            return tally
        work, note = work_of(operation, lambda block: self._block(block, function, constants).work), ""
        if work is None:
            work, note = flops_and_bytes(operation, 0), "the arithmetic of this custom call is unknown and not counted"
        if operation.results or any(work):
            tally.work = work
            tally.runs[id(operation)] = _Runs(operation, function, 1, work, note)
        return tally

    def _call(self, operation: Operation, constants: Constants) -> _Tally:
        callee = self._functions[str(operation.attribute(_CALLS[operation.name]))]
        assert callee.body is not None
        return self.function(callee.name, self._trips.arguments(callee.body, operation.operands, constants))

    def _loop(self, loop: Operation, function: str, constants: Constants) -> _Tally:
        tally = _Tally()
        count = self._trips.trip_count(loop, constants)
        inside = {**constants, **self._trips.invariants(loop, constants)}
        condition, body = loop.regions
        tally.add(self._block(condition, function, inside), 1 if count is None else count + 1)
        tally.add(self._block(body, function, inside), 1 if count is None else count)
        note = "the number of iterations is unknown; one is counted" if count is None else ""
        tally.runs[id(loop)] = _Runs(loop, function, 1, Work(), note)
        return tally
