"""The memory that a program needs, and the arrays that fill it, before a compiler sees it.

The walk over the program is a model of what compilers do. Compilers differ: they pad, choose layouts, compute things
twice to save memory, and store what others do not. The model is that of a compiler which stores no more than it must:

- a broadcast, an iota, a reshape and a transpose take no memory. Nor does an elementwise result that elementwise
  operations and reductions alone use, if it has one use, or is larger than all that it is computed from, as a wider
  element type is: it is computed where it is used. Where an operation, such as ``dot_general`` or
  a loop, needs one of these in memory, it is stored for it;
- an elementwise operation, an update of a slice and a scatter write over an operand of the same size that nothing uses
  afterwards;
- a loop keeps its state in place, and a called function is part of its caller;
- arrays of the caller are read only, unless they are donated.
"""

from __future__ import annotations

import enum
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pjrt.api.compile_options import CompileOptions
from pjrt.api.program import Program
from pjrt.api.shape_spec import ShapeSpec
from pjrt.stablehlo.analysis._work import is_elementwise, is_free, nbytes
from pjrt.stablehlo.analysis.cost_analysis import counted_program, live_operations
from pjrt.stablehlo.facts.signatures import signature_of
from pjrt.stablehlo.ir.location import Location
from pjrt.stablehlo.ir.operation import Block, Function, Operation, ParsedProgram, Value
from pjrt.stablehlo.ir.types import TensorType, ValueType

MOST_STEPS = 50_000
"""The number of steps beyond which a call is one step: functions that call functions have very many."""


@dataclass(slots=True, eq=False)
class Storage:
    """Memory for one array after the other.

    Attributes:
        nbytes: its size.
        argument: the index of the block's argument that it is; None for memory that the block allocates.
        is_free: whether the block may write over it or free it.
        holds: the values that it holds, each with the time from which on it does.
        pending: the uses of its values that are still to come.
        end: the time at which it is freed; None if it lives on.
    """

    nbytes: int
    argument: int | None
    is_free: bool
    holds: list[tuple[int, Value]]
    pending: int = 0
    end: int | None = None

    def is_live_at(self, time: int) -> bool:
        """Whether it is allocated then."""
        return self.holds[0][0] <= time and (self.end is None or self.end > time)

    def value_at(self, time: int) -> Value:
        """Return the value that it holds then."""
        return next(value for begin, value in reversed(self.holds) if begin <= time)


@dataclass(frozen=True, slots=True)
class Peak:
    """The memory of one block at the step at which it needs the most.

    Attributes:
        nbytes: the bytes on top of those of the arguments at the beginning.
        arrays: the values in memory that it allocated, in it and in the blocks that it runs, each with its bytes and
            whether its memory is that of an output.
        freed: the indices of the arguments whose memory is free by then.
        operation: the operation that runs; None at the end of the block.
        outputs: for each output the index of the argument in whose memory it is, or the value that has new memory.
        steps: the operations in the order in which they end, those of the blocks that they run before them, each with
            the most bytes while it runs. Of a loop one iteration is listed.
    """

    nbytes: int = 0
    arrays: tuple[tuple[Value, int, bool], ...] = ()
    freed: frozenset[int] = frozenset()
    operation: Operation | None = None
    outputs: tuple[int | Value, ...] = ()
    steps: tuple[tuple[Operation, int], ...] = ()


class PeakFinder:
    """The memory of the functions of a program; each function is walked once for each set of arguments it may free.

    Args:
        functions: its functions by name.
        nbytes: returns the bytes of a value of a type.
    """

    def __init__(self, functions: Mapping[str, Function], nbytes: Callable[[ValueType], int] = nbytes) -> None:
        self.nbytes = nbytes
        self._functions = functions
        self._peaks: dict[tuple[str, tuple[bool, ...]], Peak] = {}

    def of_function(self, name: str, may_free: Sequence[bool]) -> Peak:
        """Return the peak of a called function, which may write over some of its arguments."""
        key = name, tuple(may_free)
        peak = self._peaks.get(key)
        if peak is None:
            body = self._functions[name].body
            peak = self._peaks[key] = Peak() if body is None else self.of_block(body, may_free)
        return peak

    def of_block(self, block: Block, may_free: Sequence[bool], *, copied: bool = False) -> Peak:
        """Return the peak of a block.

        Args:
            block: the block.
            may_free: for each argument whether the block may write over it.
            copied: whether outputs in memory that it may not write over are copied, as by the entry function.
        """
        return _BlockWalk(self, block, may_free).peak(copied=copied)


class _BlockWalk:
    """One block, step by step."""

    def __init__(self, finder: PeakFinder, block: Block, may_free: Sequence[bool]) -> None:
        self._finder = finder
        self._nbytes = finder.nbytes
        self._block = block
        self._operations = live_operations(block)
        self._used = [_distinct([*each.operands, *_captured(each)]) for each in self._operations]
        self._users: dict[int, list[Operation]] = {}
        for operation, used in zip(self._operations, self._used, strict=True):
            for value in used:
                self._users.setdefault(id(value), []).append(operation)
        self._outputs = {id(value) for value in block.outputs}
        self._behind: dict[int, list[Storage]] = {}  # the memory that a value is read from, by the value's identity
        self._storages: list[Storage] = []
        self._touched: list[Storage] = []  # since the last operation: only these may have lost their last use
        self._current = 0
        self._peak, self._peak_time, self._inside = 0, 0, Peak()
        self._peak_operation: Operation | None = None
        self._freed_inside: list[Storage] = []
        self._steps: list[tuple[Operation, int]] = []
        self._step_bytes = 0
        self._time = 0  # counts allocations, overwritings and the ends of operations
        self._operation: Operation | None = None
        for index, argument in enumerate(block.arguments):
            storage = Storage(self._nbytes(argument.type), index, may_free[index], [(0, argument)])
            self._add(storage)
            self._put(argument, [storage])
        for operation in self._operations:
            if _is_stored_constant(operation):  # part of the executable, so it is there all the time
                self._put(operation.results[0], [self._allocate(operation.results[0], is_free=False)])
        self._note(Peak())

    def peak(self, *, copied: bool) -> Peak:
        """Walk through the block, and return its peak."""
        for operation, used in zip(self._operations, self._used, strict=True):
            self._operation, self._step_bytes = operation, self._current
            for value in used:
                for storage in self._behind.get(id(value), ()):
                    storage.pending -= 1
                    self._touched.append(storage)
            self._run(operation)
            if operation is not self._block.operations[-1]:  # which returns the outputs
                self._steps.append((operation, max(self._step_bytes, self._current)))
            self._free_unused()
        self._operation = None
        outputs, of_outputs = self._return(copied)
        time, inside = self._peak_time, self._inside
        alive = [each for each in self._storages if each.is_live_at(time) and each not in self._freed_inside]
        own = [(each.value_at(time), each.nbytes, id(each) in of_outputs) for each in alive if each.argument is None]
        return Peak(
            self._peak,
            (*own, *((value, size, False) for value, size, _ in inside.arrays)),
            frozenset(each.argument for each in self._storages if each.argument is not None and each not in alive),
            inside.operation or self._peak_operation,
            outputs,
            tuple(self._steps),
        )

    def _run(self, operation: Operation) -> None:
        name, results = _short_name(operation), operation.results
        if operation.name in _CALLS:
            self._call(operation)
        elif operation.name == "stablehlo.while":
            self._loop(operation)
        elif name in ("case", "if", "manual_computation", "async_start"):
            self._branches(operation)
        elif name == "optimization_barrier":
            for operand, result in zip(operation.operands, results, strict=True):
                self._put(result, [self._stored(operand)])
        elif name in _VIEWS or (name == "custom_call" and is_free(str(operation.attribute("call_target_name", "")))):
            if results and operation.operands and id(operation.operands[0]) in self._behind:
                self._put(results[0], self._behind[id(operation.operands[0])])
        elif name == "constant":
            if id(results[0]) not in self._behind:
                self._put(results[0], [])
        elif name in _COMPUTED or self._is_fused(operation):
            self._put(results[0], self._behind_all(operation.operands))
        else:
            self._compute(operation)

    def _compute(self, operation: Operation) -> None:
        """Store the results of an operation, where it can in the memory of an operand."""
        name, elementwise = _short_name(operation), is_elementwise(operation)
        read = operation.operands[:1] if name in _IN_PLACE else operation.operands
        stored = [] if elementwise or name in _FUSING else [self._stored(operand) for operand in _distinct(read)]
        unused: list[Storage] = []
        if elementwise or name in _IN_PLACE:
            candidates = {id(each): each for each in (*stored, *self._behind_all(operation.operands))}
            unused = [each for each in candidates.values() if each.pending == 0 and each.is_free]
        for result in operation.results:
            size = self._nbytes(result.type)
            storage = next((each for each in unused if each.nbytes == size), None)
            if storage is None:
                storage = self._allocate(result)
            else:
                unused.remove(storage)
                self._hold(storage, result)
            self._put(result, [storage])
        self._note(Peak())

    def _call(self, operation: Operation) -> None:
        operands = [self._stored(operand) for operand in operation.operands]
        counts = Counter(map(id, operands))
        may_free = [each.is_free and each.pending == 0 and counts[id(each)] == 1 for each in operands]
        peak = self._finder.of_function(str(operation.attribute(_CALLS[operation.name])), may_free)
        self._note(peak, operands)
        for result, output in zip(operation.results, peak.outputs, strict=False):
            self._put(result, [operands[output] if isinstance(output, int) else self._allocate(output)])

    def _loop(self, loop: Operation) -> None:
        condition, body = loop.regions
        state: list[Storage] = []
        kept = [output is argument for output, argument in zip(body.outputs, body.arguments, strict=True)]
        for operand, result, is_kept in zip(loop.operands, loop.results, kept, strict=True):
            storage = self._stored(operand)
            if not is_kept and (storage.pending > 0 or not storage.is_free or storage in state):
                storage = self._allocate(result)
            state.append(storage)
        self._note(self._finder.of_block(condition, [False] * len(kept)), state)
        self._note(self._finder.of_block(body, [not is_kept for is_kept in kept]), state)
        for result, storage, is_kept in zip(loop.results, state, kept, strict=True):
            if not is_kept:
                self._hold(storage, result)
            self._put(result, [storage])

    def _branches(self, operation: Operation) -> None:
        for block in operation.regions:
            self._note(self._finder.of_block(block, [False] * len(block.arguments)))
        for result in operation.results:
            self._put(result, [self._allocate(result)])

    def _return(self, copied: bool) -> tuple[tuple[int | Value, ...], set[int]]:
        """Return where the outputs are, and the identities of their storages."""
        outputs: list[int | Value] = []
        taken: set[int] = set()
        for value in self._block.outputs:
            behind = self._behind.get(id(value), [])
            storage = behind[0] if len(behind) == 1 and behind[0].nbytes == self._nbytes(value.type) else None
            if storage is None or id(storage) in taken or (copied and not storage.is_free):
                storage = self._allocate(value)
            taken.add(id(storage))
            outputs.append(value if storage.argument is None else storage.argument)
        self._note(Peak())
        return tuple(outputs), taken

    # The counter.

    def _put(self, value: Value, behind: list[Storage]) -> None:
        self._behind[id(value)] = behind
        uses = len(self._users.get(id(value), ())) + (id(value) in self._outputs)
        for storage in behind:
            storage.pending += uses

    def _add(self, storage: Storage) -> None:
        self._storages.append(storage)
        self._touched.append(storage)

    def _allocate(self, value: Value, *, is_free: bool = True) -> Storage:
        storage = Storage(self._nbytes(value.type), None, is_free, [])
        self._hold(storage, value)
        self._add(storage)
        self._current += storage.nbytes
        return storage

    def _hold(self, storage: Storage, value: Value) -> None:
        self._time += 1
        storage.holds.append((self._time, value))

    def _stored(self, value: Value) -> Storage:
        """Return the memory of a value; one that is computed where it is used is stored for this step."""
        behind = self._behind.get(id(value))
        if behind is None:  # a value of a block around this one
            return Storage(self._nbytes(value.type), None, False, [(0, value)])
        if len(behind) == 1 and behind[0].nbytes == self._nbytes(value.type):
            return behind[0]
        return self._allocate(value)

    def _behind_all(self, values: Iterable[Value]) -> list[Storage]:
        return list({id(each): each for value in values for each in self._behind.get(id(value), ())}.values())

    def _note(self, inside: Peak, arguments: Sequence[Storage] = ()) -> None:
        """Compare the memory at this step, with that of a block that it runs, with the peak."""
        self._step_bytes = max(self._step_bytes, self._current + inside.nbytes)
        if len(self._steps) + len(inside.steps) <= MOST_STEPS:
            self._steps += [(operation, self._current + nbytes_inside) for operation, nbytes_inside in inside.steps]
        if self._current + inside.nbytes > self._peak:
            self._peak, self._peak_time, self._inside = self._current + inside.nbytes, self._time, inside
            self._peak_operation = self._operation
            self._freed_inside = [arguments[index] for index in inside.freed if index < len(arguments)]

    def _free_unused(self) -> None:
        self._time += 1
        for storage in self._touched:
            if storage.pending == 0 and storage.is_free and storage.end is None:
                storage.end = self._time
                self._current -= storage.nbytes
        self._touched.clear()

    def _is_fused(self, operation: Operation) -> bool:
        """Whether an operation is computed where its result is used."""
        if len(operation.results) != 1 or not (is_elementwise(operation) or _short_name(operation) in _FUSED):
            return False
        result = operation.results[0]
        users = self._users.get(id(result), [])
        if not users or id(result) in self._outputs:
            return False
        if not all(is_elementwise(user) or _short_name(user) in _FUSING for user in users):
            return False
        if len(users) == 1:
            return True
        read = sum(storage.nbytes for storage in self._behind_all(operation.operands))
        is_read_here = all(id(operand) in self._behind for operand in operation.operands)
        return is_read_here and self._nbytes(result.type) > read


_CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}
_VIEWS = frozenset(
    ("bitcast_convert", "broadcast_in_dim", "get_tuple_element", "reshape", "sharding_constraint", "transpose")
)
_COMPUTED = frozenset(("constant_like", "iota"))
_IN_PLACE = frozenset(("all_reduce", "dynamic_update_slice", "scatter"))
_FUSED = frozenset(("dynamic_slice", "pad", "reverse", "slice"))
_FUSING = frozenset(("broadcast_in_dim", "concatenate", "pad", "reduce", "reshape", "reverse", "slice"))


def _short_name(operation: Operation) -> str:
    return operation.name.rpartition(".")[2]


def _is_stored_constant(operation: Operation) -> bool:
    """Whether a constant is an array in memory; one whose elements are equal is computed where it is used."""
    if not operation.name.endswith(".constant") or nbytes(operation.results[0].type) <= _SMALL:
        return False
    value = operation.attributes.get("value")
    return not isinstance(value, np.ndarray) or value.size > 1


_SMALL = 64
"""The bytes of a constant that compilers put into the code."""


def _captured(operation: Operation) -> list[Value]:
    """Return the values that the regions of an operation use, and that come from the blocks around it."""
    inside: set[int] = set()
    used: list[Value] = []
    for block in operation.regions:
        pending = [block]
        while pending:
            each = pending.pop()
            inside.update(map(id, each.arguments))
            for inner in each.operations:
                inside.update(map(id, inner.results))
                used += inner.operands
                pending += inner.regions
    return [value for value in used if id(value) not in inside]


def _distinct(values: Iterable[Value]) -> list[Value]:
    return list({id(value): value for value in values}.values())


class ArrayRole(enum.StrEnum):
    """The role of an array in memory in the program."""

    ARGUMENT = "argument"
    RESULT = "result"
    TEMPORARY = "temporary"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class PeakArray:
    """An array in memory.

    Attributes:
        name: the parameter's name, such as ``weights['w']``, or ``argument 3``; otherwise the operation's name.
        role: whether it is an argument, a result, a temporary or a constant.
        type: its type, as one device has it.
        nbytes: its size in bytes.
        location: the source location of the operation that computes it; unknown for an argument.
        value: the value that it holds.
        is_donated: whether it is an argument whose memory the program may reuse.
    """

    name: str
    role: ArrayRole
    type: ValueType
    nbytes: int
    location: Location
    value: Value = field(repr=False)
    is_donated: bool = False

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape, as one device has it; empty for what is not a tensor."""
        return self.type.shape if isinstance(self.type, TensorType) else ()

    def __str__(self) -> str:
        return f"{self.name}: {self.type}, {self.nbytes} bytes"


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """One operation on the way through a program.

    Attributes:
        operation: the operation.
        nbytes: the most bytes in use while it runs, arguments and results included.
    """

    operation: Operation = field(repr=False)
    nbytes: int


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The memory of one device when one run of a program needs the most.

    Attributes:
        nbytes: the bytes in use, arguments and results included.
        argument_nbytes: the bytes of all arguments.
        result_nbytes: the bytes of all results, those in the memory of a donated argument included.
        operation: the operation that runs then; None if it is the end of the program.
        arrays: the arrays in memory then, the largest first.
        steps: the memory at each operation, in the order in which they end; those of called functions and of regions
            are listed before the operation that runs them, of a loop those of one iteration.
    """

    nbytes: int
    argument_nbytes: int
    result_nbytes: int
    operation: Operation | None = field(repr=False)
    arrays: tuple[PeakArray, ...] = field(repr=False)
    steps: tuple[MemoryStep, ...] = field(repr=False)


def peak_memory(
    program: Program | ParsedProgram | str | bytes,
    options: CompileOptions | None = None,
    *,
    trusted: bool = False,
    size_of: Callable[[ShapeSpec], int] | None = None,
) -> PeakMemory:
    """Return the most memory that one run of a program needs on one device, and the arrays that are in it.

    It is an estimate that needs no compiler for the device. Where there is one, ``Executable.memory_stats`` has its own
    numbers.

    Args:
        program: the program. One for several partitions is partitioned first; a parsed program is taken as it stands.
        options: the compile options: how many partitions there are, where the program leaves that open.
        trusted: as for ``parse``.
        size_of: returns the bytes that an array takes on the device, such as ``TopologyDescription.size_of``; by
            default those of its elements.

    Raises:
        UnimplementedError: a shape in it is known only when the program runs, or XLA cannot partition it.
        InvalidArgumentError: a function calls itself, or is only declared.
        NotFoundError: the program has no function to run.
        PjrtError: as for ``parse``.
    """
    parsed = counted_program(program, options, trusted=trusted)
    entry = parsed.entry
    assert entry.body is not None
    signature = signature_of(parsed)
    donated = [each.is_donor or each.aliases_output is not None for each in signature.arguments]
    measured = nbytes if size_of is None else _measured_by(size_of)
    peak = PeakFinder(parsed.functions, measured).of_block(entry.body, donated, copied=True)
    sizes = [measured(type_) for type_ in entry.type.arguments]
    arrays = [
        PeakArray(
            each.name or f"argument {index}",
            ArrayRole.ARGUMENT,
            each.type,
            sizes[index],
            Location(""),
            entry.arguments[index],
            donated[index],
        )
        for index, each in enumerate(signature.arguments)
        if index not in peak.freed
    ]
    names = {id(value): name for value, name in zip(entry.arguments, entry.argument_names, strict=True)}
    arrays += [_array(value, size, is_output, names) for value, size, is_output in peak.arrays]
    return PeakMemory(
        sum(sizes) + peak.nbytes,
        sum(sizes),
        sum(measured(type_) for type_ in entry.type.results),
        peak.operation,
        tuple(sorted(arrays, key=lambda array: -array.nbytes)),
        tuple(MemoryStep(operation, sum(sizes) + size) for operation, size in peak.steps),
    )


def _measured_by(size_of: Callable[[ShapeSpec], int]) -> Callable[[ValueType], int]:
    @functools.cache  # types are asked for again and again
    def measured(type_: ValueType) -> int:
        if isinstance(type_, TensorType) and type_.is_static:
            return size_of(ShapeSpec(type_.sizes, type_.element))
        elements = getattr(type_, "elements", None)
        return nbytes(type_) if elements is None else sum(map(measured, elements))

    return measured


def _array(value: Value, size: int, is_output: bool, names: Mapping[int, str]) -> PeakArray:
    operation = value.owner
    if not isinstance(operation, Operation):
        name = f"copy of {names.get(id(value), '') or f'argument {value.index}'}"
        return PeakArray(
            name, ArrayRole.RESULT if is_output else ArrayRole.TEMPORARY, value.type, size, Location(""), value
        )
    is_constant = operation.name.endswith(".constant")
    role = ArrayRole.RESULT if is_output else ArrayRole.CONSTANT if is_constant else ArrayRole.TEMPORARY
    return PeakArray(operation.name, role, value.type, size, operation.location, value)
