"""The cost of a program: FLOPs, bytes moved, and bytes that devices exchange, counted from its operations.

The numbers are those of the program as it is written, by the conventions of XLA's cost analysis before optimizations;
see ``_work``. A compiler that merges operations moves fewer bytes.

The operations of a loop count as often as it runs, where the program shows it. A loop that counts has an argument that
starts at a constant, is compared with a constant, and grows by a constant; so do the loops of ``jax.lax.fori_loop`` and
``scan``. The constants may be arguments of the function, where its caller passes constants, and arguments of the loop
that it never changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.program import AnyProgram, Program
from pjrt.stablehlo.analysis._work import Work, flops_and_bytes, nbytes, work_of
from pjrt.stablehlo.facts.inspection import SIDE_EFFECTS
from pjrt.stablehlo.facts.outline import COLLECTIVES, CallGraph
from pjrt.stablehlo.ir.attributes import Opaque
from pjrt.stablehlo.ir.location import Location
from pjrt.stablehlo.ir.operation import Block, Function, Operation, ParsedProgram, Value
from pjrt.stablehlo.reading.conversion import to_module, with_partitioning
from pjrt.stablehlo.reading.parser import parse_module
from pjrt.stablehlo.transforms.partitioner import partition


def live_operations(block: Block) -> list[Operation]:
    """Return the operations of a block that a compiler keeps, in their order."""
    used: set[int] = set()
    live = []
    for operation in reversed(block.operations):
        if _has_effect(operation) or any(id(result) in used for result in operation.results):
            live.append(operation)
            for user in (operation, *operation.walk()):
                used.update(map(id, user.operands))
    return live[::-1]


def _has_effect(operation: Operation) -> bool:
    """Whether an operation must run although its results are not used."""
    if not operation.results or operation.name in SIDE_EFFECTS or operation.name in COLLECTIVES:
        return True
    if operation.name == "func.call" or operation.attributes.get("has_side_effect", False):
        return True
    return any(map(_has_effect, (inner for inner in operation.walk() if inner.results)))


Constants = Mapping[int, int]
"""The integers that are known to be the values of arguments, by the identity of the ``Value``."""

_DEEPEST = 50


class TripCounts:
    """The trip counts of the loops of a program.

    Args:
        functions: its functions by name.
    """

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self._functions = functions

    def trip_count(self, loop: Operation, constants: Constants) -> int | None:
        """Return how often the body of a ``stablehlo.while`` runs, or None if that is unknown.

        Args:
            loop: the loop.
            constants: the values that are known where it is.
        """
        condition, body = loop.regions
        integers = {**constants, **self.invariants(loop, constants)}
        outputs = condition.outputs
        compare = outputs[0].owner if outputs else None
        if not isinstance(compare, Operation) or not compare.name.endswith(".compare"):
            return None
        direction = str(compare.attribute("comparison_direction"))
        left, right = compare.operands
        for counter, bound, way in ((left, right, direction), (right, left, _MIRRORED.get(direction, ""))):
            limit = self.constant(bound, integers)
            for index, argument in enumerate(condition.arguments):
                ahead = self._distance(counter, argument, integers, 0)
                if limit is None or ahead is None:
                    continue
                start = self.constant(loop.operands[index], constants)
                step = self._distance(body.outputs[index], body.arguments[index], integers, 0)
                return None if start is None or step is None else _count(start + ahead, step, limit, way)
        return None

    def invariants(self, loop: Operation, constants: Constants) -> dict[int, int]:
        """Return the arguments of a loop's blocks that have one known value in all iterations."""
        condition, body = loop.regions
        integers: dict[int, int] = {}
        for index, operand in enumerate(loop.operands):
            value = self.constant(operand, constants)
            if value is not None and body.outputs[index] is body.arguments[index]:
                integers[id(body.arguments[index])] = integers[id(condition.arguments[index])] = value
        return integers

    def arguments(self, block: Block, operands: tuple[Value, ...], constants: Constants) -> dict[int, int]:
        """Return the arguments of a block whose values are known, when it is given these operands."""
        values = (self.constant(operand, constants) for operand in operands)
        return {id(a): value for a, value in zip(block.arguments, values, strict=False) if value is not None}

    def constant(self, value: Value, constants: Constants, depth: int = 0) -> int | None:
        """Return the integer that a scalar is in every run; None if that is unknown."""
        owner = value.owner
        if id(value) in constants:
            return constants[id(value)]
        if not isinstance(owner, Operation) or depth > _DEEPEST:
            return None
        kind = owner.name.rpartition(".")[2]
        if kind == "constant":
            array = owner.attributes.get("value")
            if isinstance(array, np.ndarray) and array.size == 1 and array.dtype.kind in "iu":
                return int(array.item())
            return None
        if kind in ("convert", "reshape") and len(owner.operands) == 1:
            return self.constant(owner.operands[0], constants, depth + 1)
        if kind in _ARITHMETIC:
            left, right = (self.constant(operand, constants, depth + 1) for operand in owner.operands)
            return None if left is None or right is None else _ARITHMETIC[kind](left, right)
        return None

    def _distance(self, value: Value, origin: Value, constants: Constants, depth: int) -> int | None:
        """Return the constant by which a value is larger than another; None if there is none."""
        if value is origin:
            return 0
        owner = value.owner
        if not isinstance(owner, Operation) or depth > _DEEPEST:
            return None
        if owner.name == "func.call":
            return self._distance_through_call(owner, value.index, origin, constants, depth)
        for of, other, sign in _terms(owner):
            difference = self.constant(other, constants)
            distance = None if difference is None else self._distance(of, origin, constants, depth + 1)
            if difference is not None and distance is not None:
                return distance + sign * difference
        return None

    def _distance_through_call(
        self, call: Operation, index: int, origin: Value, constants: Constants, depth: int
    ) -> int | None:
        callee = self._functions.get(str(call.attribute("callee")))
        if callee is None or callee.body is None:
            return None
        inside = self.arguments(callee.body, call.operands, constants)
        for argument, operand in zip(callee.arguments, call.operands, strict=False):
            inner = self._distance(callee.body.outputs[index], argument, inside, depth + 1)
            outer = None if inner is None else self._distance(operand, origin, constants, depth + 1)
            if inner is not None and outer is not None:
                return inner + outer
        return None


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "maximum": max,
    "minimum": min,
}
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE"}


def _terms(operation: Operation) -> Iterator[tuple[Value, Value, int]]:
    """Yield each operand of a sum that may be the counter, the other operand, and the other's sign."""
    if operation.name.endswith(".add"):
        left, right = operation.operands
        yield left, right, 1
        yield right, left, 1
    elif operation.name.endswith(".subtract"):
        left, right = operation.operands
        yield left, right, -1


def _count(start: int, step: int, limit: int, direction: str) -> int | None:
    """Return how often a counter passes a comparison with a limit; None if for ever."""
    if direction in ("GT", "GE"):
        start, step, limit = -start, -step, -limit
    if direction in ("LE", "GE"):
        limit += 1
    if direction == "NE":
        distance = limit - start
        return distance // step if step and distance % step == 0 and distance // step >= 0 else None
    if direction == "EQ":
        return None
    if start >= limit:
        return 0
    return -(-(limit - start) // step) if step > 0 else None


class Traffic(NamedTuple):
    """The bytes of one collective operation for one device.

    Attributes:
        group_size: the number of devices that exchange values; None if the program does not show it.
        operand_bytes: the bytes that a device contributes.
        result_bytes: the bytes that a device obtains.
        sent_bytes: the bytes that a device must send at least, on average over the group.
    """

    group_size: int | None
    operand_bytes: int
    result_bytes: int
    sent_bytes: int

    def times(self, count: int) -> Traffic:
        """Return the traffic of so many runs."""
        return Traffic(self.group_size, *(amount * count for amount in self[1:] if amount is not None))


def traffic_of(operation: Operation, program: ParsedProgram) -> Traffic:
    """Return the bytes of a collective operation."""
    operands = sum(nbytes(value.type) for value in operation.operands)
    results = sum(nbytes(value.type) for value in operation.results)
    kind = operation.name.rpartition(".")[2]
    if kind == "collective_permute":
        pairs = np.reshape(operation.attribute("source_target_pairs"), (-1, 2))
        sending = int((pairs[:, 0] != pairs[:, 1]).sum())
        size = len({int(device) for device in pairs.flat})
        return Traffic(size, operands, results, operands * sending // max(1, size))
    size_or_none = _group_size(operation, program)
    size = size_or_none or 1
    others = size - 1
    sent = {
        "all_gather": operands * others,
        "all_reduce": 2 * operands * others // size,
        "all_to_all": operands * others // size,
        "collective_broadcast": operands * others // size,
        "reduce_scatter": operands * others // size,
    }[kind]
    return Traffic(size_or_none, operands, results, sent)


def _group_size(operation: Operation, program: ParsedProgram) -> int | None:
    replicas, partitions = program.num_replicas, program.num_partitions
    groups = operation.attribute("replica_groups", None)
    if isinstance(groups, Opaque):
        with contextlib.suppress(PjrtError):  # a mesh or an axis that there is not
            along = program.device_groups(operation)
            return len(along[0]) if along else None
        return None
    row = np.reshape(groups, (len(groups), -1))[0] if groups is not None and np.size(groups) else None
    listed = None if row is None else int((row >= 0).sum())
    channel = operation.attribute("channel_handle", None)
    if operation.attribute("use_global_device_ids", False):
        return listed or replicas * partitions
    if channel is None or channel.handle <= 0:
        return listed or replicas
    if operation.name.endswith((".all_gather", ".all_reduce", ".reduce_scatter")):
        return (listed or replicas) * partitions
    return listed or partitions


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
