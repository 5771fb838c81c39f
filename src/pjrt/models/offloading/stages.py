"""The stages of an offloaded program: where it is cut, and the plan of what moves and runs when."""

from __future__ import annotations

import enum
import functools
import itertools
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from pjrt import stablehlo
from pjrt.api.errors import UnimplementedError
from pjrt.api.printable import readable_bytes
from pjrt.stablehlo.transforms.cutting import inputs_of
from pjrt.stablehlo.transforms.straightening import FIRST_OF_LOOP

# Data flow: the operations of a straight line, in an order that keeps few values alive.

_EFFECTS = frozenset(("stablehlo.infeed", "stablehlo.outfeed", "stablehlo.send", "stablehlo.recv"))
_RANDOM = frozenset(("stablehlo.rng", "stablehlo.custom_call"))


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operation.

    Attributes:
        operation: the operation.
        inputs: the values that it takes, also inside of its regions; values that cost nothing are left out.
        form: equal for operations that differ in their values only.
        free: the forms of the inputs that cost nothing.
    """

    operation: stablehlo.Operation
    inputs: tuple[stablehlo.Value, ...]
    form: int
    free: tuple[int, ...]


class Dataflow:
    """The operations of a program's entry function, without those that have no use.

    Values that depend on no argument, such as constants and their broadcasts, are *free*: each part of the program
    computes them again where it needs them. Operations on weights alone, such as conversions, stand where their result
    is first used.

    Args:
        function: the entry function of a straight line.
        weights: the arguments that are weights.

    Attributes:
        nodes: the operations, in an order in which they can run.
        weights: the arguments that are weights and have a use.
        arguments: the other arguments that have a use.
        results: the values that the program returns.
        unmade_results: those of them that no node makes: arguments, weights and free values.
        last_use: the index of the last node that takes a value; the number of nodes for a result of the program.
    """

    def __init__(self, function: stablehlo.Function, weights: frozenset[int]) -> None:
        assert function.body is not None
        *operations, last = function.body.operations
        self.results = last.operands
        self._forms: dict[Hashable, int] = {}
        self._free: dict[stablehlo.Value, int] = {}
        on_weights = {value for i, value in enumerate(function.arguments) if i in weights}
        self.nodes = self._ordered(self._nodes(operations), on_weights)
        self.last_use: dict[stablehlo.Value, int] = {}
        for index, node in enumerate(self.nodes):
            self.last_use.update(dict.fromkeys(node.inputs, index))
        self.last_use.update(dict.fromkeys(self.results, len(self.nodes)))
        used = [(i in weights, value) for i, value in enumerate(function.arguments) if value in self.last_use]
        self.weights = tuple(value for is_weight, value in used if is_weight)
        self.arguments = tuple(value for is_weight, value in used if not is_weight)
        made = {value for node in self.nodes for value in node.operation.results}
        self.unmade_results = tuple(value for value in dict.fromkeys(self.results) if value not in made)

    def is_free(self, value: stablehlo.Value) -> bool:
        """Whether a value depends on no argument."""
        return value in self._free

    def _nodes(self, operations: Sequence[stablehlo.Operation]) -> dict[stablehlo.Value, Node]:
        """Return the node of each value that is not free."""
        nodes: dict[stablehlo.Value, Node] = {}
        for operation in operations:
            if operation.name in _EFFECTS or not operation.results:
                raise UnimplementedError(
                    f"the program has {operation.name} at {operation.location}, whose effect is not a result; such a "
                    "program cannot run in stages"
                )
            inputs = tuple(dict.fromkeys(inputs_of(operation, constants=True)))
            free = tuple(self._free[value] for value in inputs if value in self._free)
            form = self._form((self._identity(operation), free))
            if len(free) == len(inputs) and operation.name not in _RANDOM and not _begins_loop(operation):
                self._free.update((value, self._form((form, i))) for i, value in enumerate(operation.results))
            else:
                costly = tuple(value for value in inputs if value not in self._free)
                node = Node(operation, costly, form, free)
                nodes.update(dict.fromkeys(operation.results, node))
        return nodes

    def _ordered(self, nodes: Mapping[stablehlo.Value, Node], on_weights: set[stablehlo.Value]) -> list[Node]:
        """Return the nodes with a use; those that depend on weights alone stand before the first use."""
        useful: set[Node] = set()
        pending = [nodes[value] for value in self.results if value in nodes]
        while pending:
            node = pending.pop()
            if node not in useful:
                useful.add(node)
                pending += [nodes[value] for value in node.inputs if value in nodes]
        order: dict[Node, None] = {}

        def place(node: Node) -> None:
            for value in node.inputs:
                source = nodes.get(value)
                if source is not None and source not in order:
                    place(source)
            order[node] = None

        for node in dict.fromkeys(nodes.values()):
            if node.inputs and all(value in on_weights for value in node.inputs):
                on_weights.update(node.operation.results)
            elif node in useful:
                place(node)
        for value in self.results:
            if value in nodes and nodes[value] not in order:
                place(nodes[value])
        return list(order)

    def _form(self, key: Hashable) -> int:
        return self._forms.setdefault(key, len(self._forms))

    def _identity(self, operation: stablehlo.Operation) -> Hashable:
        """Return what two operations that differ in their values only have in common."""
        numbers: dict[stablehlo.Value, int] = {}

        def of(each: stablehlo.Operation) -> Hashable:
            operands = tuple((numbers.setdefault(value, len(numbers)), str(value.type)) for value in each.operands)
            regions = tuple(
                (tuple(of_argument(value) for value in block.arguments), tuple(of(inner) for inner in block.operations))
                for block in each.regions
            )
            results = tuple(of_argument(value) for value in each.results)
            return each.name, _frozen(each.attributes), operands, regions, results

        def of_argument(value: stablehlo.Value) -> Hashable:
            return numbers.setdefault(value, len(numbers)), str(value.type)

        return of(operation)


def _begins_loop(operation: stablehlo.Operation) -> bool:
    """Whether a loop began with the result. The other iterations take an activation in its place, so it is one."""
    return FIRST_OF_LOOP in operation.attributes.get("mhlo.frontend_attributes", {})


@functools.singledispatch
def _frozen(value: Any) -> Hashable:
    """Return an attribute as something that can be compared and hashed."""
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return type(value).__name__, value


@_frozen.register
def _(value: np.ndarray) -> Hashable:
    return str(value.dtype), value.shape, value.tobytes()


@_frozen.register(Mapping)
def _(value: Mapping[str, Any]) -> Hashable:
    return tuple((name, _frozen(value[name])) for name in sorted(value))


@_frozen.register(tuple)
@_frozen.register(list)
def _(value: Sequence[Any]) -> Hashable:
    return tuple(_frozen(each) for each in value)


# The cut into stages: where operations repeat, as in the layers of a model, the stages do.

_CANDIDATES = 16
_MOST_OCCURRENCES = 512


class Repetition(NamedTuple):
    """A part of a sequence that repeats.

    Attributes:
        start: the index of the first element.
        period: the number of elements that repeat.
        repeats: how often they occur.
        slack: how many further elements continue the repetition: it may begin later by as many.
    """

    start: int
    period: int
    repeats: int
    slack: int


def repetition(forms: Sequence[int]) -> Repetition | None:
    """Return the repetition that covers the most of a sequence, the shortest period first; None if nothing repeats."""
    places: dict[int, list[int]] = {}
    for index, form in enumerate(forms):
        places.setdefault(form, []).append(index)
    votes: Counter[int] = Counter()
    for indices in places.values():
        few = indices[:_MOST_OCCURRENCES]
        votes.update(after - before for before, after in itertools.pairwise(few))
        # Operations that occur several times in a layer vote for parts of it: look further, too.
        for stride in (2, 3, 4, 6, 8, 12):
            votes.update(after - before for before, after in zip(few, few[stride:], strict=False))
    best: Repetition | None = None
    for period, _ in sorted(votes.most_common(_CANDIDATES)):
        run = _longest_run(forms, period)
        if run is not None and (best is None or run.period * run.repeats > best.period * best.repeats):
            best = run
    return best


def _longest_run(forms: Sequence[int], period: int) -> Repetition | None:
    best, length = None, 0
    for index in range(len(forms) - period + 1):
        if index < len(forms) - period and forms[index] == forms[index + period]:
            length += 1
            continue
        count = length // period + 1
        if count > 1 and (best is None or length > best[1]):
            best = (index - length, length, count)
        length = 0
    if best is None:
        return None
    start, length, count = best
    return Repetition(start, period, count, length % period)


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


# The schedule: when weights come, stages run and what they leave is released. It is made once, from sizes alone: before
# the first run it is known that the memory is enough.

MOST_STARTED = 2
"""The most stages that are started and not finished: the device goes on with the second one without a break."""

MOST_LOADED = 4
"""The most stages whose weights come before they start."""

Weight = TypeVar("Weight", bound=Hashable)


class Action(enum.Enum):
    """One kind of step."""

    LOAD = "load"
    """Bring the weights of a stage that are not on the device."""
    RUN = "run"
    """Start a stage."""
    FINISH = "finish"
    """Wait for the end of a stage; release the values and weights that no later stage uses."""


class Step(NamedTuple):
    """One step of a schedule.

    Attributes:
        action: the action.
        stage: the index of the stage.
    """

    action: Action
    stage: int


@dataclass(frozen=True, slots=True)
class Demand(Generic[Weight]):
    """The memory that one stage needs, in bytes.

    Attributes:
        weights: the bytes of each weight that it uses.
        results: the bytes of its results.
        temporaries: the bytes that it needs while it runs.
        live: the bytes of arguments and activations on the device after it.
    """

    weights: Mapping[Weight, int]
    results: int
    temporaries: int
    live: int


class Memory(Generic[Weight]):
    """The bytes on a device while stages run.

    Args:
        demands: the stages.
        initial: the bytes of the arguments, which are on the device before the first stage.
        resident: the weights that stay on the device between runs.
    """

    def __init__(
        self, demands: Sequence[Demand[Weight]], initial: int, resident: AbstractSet[Weight] = frozenset()
    ) -> None:
        self._demands = demands
        self._live = [initial, *(demand.live for demand in demands)]
        self._resident = {
            weight: size for demand in demands for weight, size in demand.weights.items() if weight in resident
        }

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self._demands)

    @property
    def resident_bytes(self) -> int:
        """The bytes of the weights that stay on the device."""
        return sum(self._resident.values())

    def live_before(self, stage: int) -> int:
        """Return the bytes of arguments and activations on the device before a stage runs."""
        return self._live[stage]

    def in_use(self, finished: int, started: int, loaded: int) -> int:
        """Return the bytes in use when these are the last stages that are finished, started and loaded; −1 is none."""
        weights = dict(self._resident)
        for demand in self._demands[finished + 1 : loaded + 1]:
            weights.update(demand.weights)
        running = self._demands[finished + 1 : started + 1]
        work = sum(demand.results + demand.temporaries for demand in running)
        return self._live[finished + 1] + work + sum(weights.values())

    def alone(self, stage: int) -> int:
        """Return the bytes in use while a stage runs and nothing comes."""
        return self.in_use(stage - 1, stage, stage)

    def with_next(self, stage: int) -> int:
        """Return the bytes in use while a stage runs and the weights of the next one come."""
        return self.in_use(stage - 1, stage, stage + 1)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The steps of one run, and the memory that they need.

    Attributes:
        steps: the steps.
        peak: the most bytes in use at one time.
    """

    steps: tuple[Step, ...]
    peak: int

    @staticmethod
    def of(memory: Memory[Any], limit: int, *, prefetch: bool = True) -> Schedule:
        """Return the schedule that brings weights as early as the limit allows.

        Args:
            memory: the stages; each fits ``alone``.
            limit: the most bytes in use at one time.
            prefetch: whether to bring weights while earlier stages run.
        """
        steps: list[Step] = []
        finished = started = loaded = -1
        peak = memory.in_use(finished, started, loaded)
        last = memory.num_stages - 1
        most_started, most_loaded = (MOST_STARTED, MOST_LOADED) if prefetch else (1, 1)

        def may_load(stage: int) -> bool:
            """Whether the weights of a stage can come now, and each stage before it still runs beside them."""
            if stage > last or stage - (started if prefetch else finished) > most_loaded:
                return False
            states = [(finished, started), *((each - 1, each) for each in range(started + 1, stage + 1))]
            return all(memory.in_use(*state, stage) <= limit for state in states)

        while finished < last:
            can_start = started < loaded and started - finished < most_started
            if can_start and memory.in_use(finished, started + 1, loaded) <= limit:
                started += 1
                steps.append(Step(Action.RUN, started))
            elif may_load(loaded + 1):
                loaded += 1
                steps.append(Step(Action.LOAD, loaded))
            else:
                assert finished < started, "a stage does not fit alone"
                finished += 1
                steps.append(Step(Action.FINISH, finished))
            peak = max(peak, memory.in_use(finished, started, loaded))
        return Schedule(tuple(steps), peak)


def resident_weights(demands: Sequence[Demand[Weight]], initial: int, limit: int) -> frozenset[Weight]:
    """Return the weights that can stay on the device, beside those that come and go.

    Those of the first stages stay, so that a run begins at once, and of as many stages as there is room for while the
    weights of each other stage come during the stage before it.
    """
    stays: frozenset[Weight] = frozenset()
    for demand in demands:
        more = stays | demand.weights.keys()
        memory = Memory(demands, initial, more)
        if all(memory.with_next(stage) <= limit for stage in range(len(demands))):
            stays = more
    return stays


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage of an offloaded program.

    Attributes:
        operations: the names of its operations.
        location: the place of the first one in the source of the program; empty if unknown.
        weights: the names of the weights that it uses.
        weight_bytes: their bytes.
        live_bytes: the bytes of arguments and activations on the device while it runs, its results not counted.
        result_bytes: the bytes of its results that need new memory.
        temporary_bytes: the bytes that it needs while it runs.
        executable: the index of its executable; stages of equal operations share one.
    """

    operations: tuple[str, ...]
    location: str
    weights: tuple[str, ...]
    weight_bytes: int
    live_bytes: int
    result_bytes: int
    temporary_bytes: int
    executable: int


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    """The stages of a program on a device that cannot hold its weights; ``str(plan)`` is a table.

    Attributes:
        stages: the stages, in the order in which they run.
        steps: when weights come and stages begin and end.
        memory_limit: the most bytes that may be on the device at one time.
        peak_bytes: the most bytes that are on the device at one time, by the sizes that the compiler states.
        weight_bytes: the bytes of all weights.
        resident_bytes: the bytes of the weights that stay on the device between calls.
    """

    stages: tuple[StagePlan, ...]
    steps: tuple[Step, ...]
    memory_limit: int
    peak_bytes: int
    weight_bytes: int
    resident_bytes: int

    @property
    def num_executables(self) -> int:
        """The number of programs that were compiled."""
        return len({stage.executable for stage in self.stages})

    @property
    def moved_bytes(self) -> int:
        """The bytes of weights that each call brings to the device."""
        return sum(stage.weight_bytes for stage in self.stages)

    @property
    def summary(self) -> str:
        """The numbers of stages and programs and the memory, in one line."""
        return (
            f"{_count(len(self.stages), 'stage')}, {_count(self.num_executables, 'compiled program')}; "
            f"weights {readable_bytes(self.weight_bytes)}, of which {readable_bytes(self.resident_bytes)} stay on the "
            f"device; at most {readable_bytes(self.peak_bytes)} of {readable_bytes(self.memory_limit)} in use"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the plan without its steps as numbers, texts, lists and dictionaries, such as JSON has."""
        facts = asdict(self)
        del facts["steps"]
        return facts

    def __str__(self) -> str:
        rows: list[Sequence[str]] = [
            ("stage", "program", "operations", "weights", "live", "results", "temporaries", "begins at")
        ]
        for index, stage in enumerate(self.stages):
            sizes = (stage.weight_bytes, stage.live_bytes, stage.result_bytes, stage.temporary_bytes)
            counts = (str(index), str(stage.executable), str(len(stage.operations)))
            rows.append((*counts, *map(readable_bytes, sizes), stage.location))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([self.summary, *lines])


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
