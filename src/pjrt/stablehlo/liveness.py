"""The memory that is live along a program: how many bytes its arrays take at each operation, and which arrays.

The numbers are those of the program as it is written: each result is an array of its own, from its operation to its
last use. A compiler that merges operations needs less.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pjrt.api.errors import InvalidArgumentError
from pjrt.stablehlo._call_graph import CallGraph
from pjrt.stablehlo.operation import Block, Operation, ParsedProgram, Value
from pjrt.stablehlo.types import FutureType, TensorType, TupleType, ValueType

_VIEWS = frozenset(
    f"stablehlo.{name}"
    for name in ("broadcast", "broadcast_in_dim", "get_tuple_element", "optimization_barrier", "reshape", "transpose")
)
"""Operations whose results compilers do not store: they read the operand's memory in another way."""

_CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}
RUN_REGIONS = frozenset(
    ("stablehlo.case", "stablehlo.if", "stablehlo.while", "stablehlo.async_start", "sdy.manual_computation")
)
"""Operations whose regions compute arrays; the regions of the others, such as ``reduce``, compute single elements."""


MOST_STEPS = 50_000
"""The number of steps after which functions are no longer listed again for each call."""


@dataclass(frozen=True, slots=True)
class LiveStep:
    """One operation on the way through a program.

    Attributes:
        operation: the operation.
        function: the name of its function.
        live_bytes: the bytes of all arrays that are live while it runs: its operands and results among them.
    """

    operation: Operation = field(repr=False)
    function: str
    live_bytes: int


@dataclass(frozen=True, slots=True)
class LiveArray:
    """An array that is live at some step.

    Attributes:
        value: the value; its owner is the operation that computes it, or the block that it is an argument of.
        function: the name of its function.
        name: its name: of an argument the name that its author gave it, where that is known.
        nbytes: its bytes.
    """

    value: Value = field(repr=False)
    function: str
    name: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class LiveMemory:
    """The live memory along a program.

    Attributes:
        steps: the operations in the order in which they end, those of called functions and of regions among them. Of a
            loop one iteration is listed. After ``MOST_STEPS`` a call of a function that was listed before is one step.
        peak_bytes: the most bytes that are live at one step; 0 for a program without operations.
        peak_step: the index of the first step with so many.
        peak_arrays: the arrays that are live there, the largest first.
        has_unknown_sizes: whether arrays of dynamic shape count as nothing.
    """

    steps: tuple[LiveStep, ...] = field(repr=False)
    peak_bytes: int
    peak_step: int
    peak_arrays: tuple[LiveArray, ...]
    has_unknown_sizes: bool


def live_memory(program: ParsedProgram) -> LiveMemory:
    """Return the memory that is live along a parsed program.

    The arguments of the program are live all the time, except for donated ones, which are live until their last use.

    Raises:
        InvalidArgumentError: a function calls itself, or is only declared.
        NotFoundError: the program has no function to run.
    """
    for _, message in CallGraph.of(program).faults():
        raise InvalidArgumentError(message)
    walk = _Walk(program)
    walk.run()
    peak = max(range(len(walk.steps)), key=lambda number: walk.steps[number].live_bytes, default=0)
    again = _Walk(program, stop_at=peak)
    again.run()
    arrays = sorted(again.stopped, key=lambda array: -array.nbytes)
    peak_bytes = walk.steps[peak].live_bytes if walk.steps else 0
    return LiveMemory(tuple(walk.steps), peak_bytes, peak, tuple(arrays), walk.has_unknown_sizes)


def nbytes_of(type_: ValueType) -> int | None:
    """Return the bytes of a value of this type; None where a size is dynamic."""
    if isinstance(type_, TensorType):
        return type_.nbytes if type_.is_static else None
    if isinstance(type_, TupleType | FutureType):
        sizes = [nbytes_of(element) for element in type_.elements]
        return None if None in sizes else sum(size for size in sizes if size is not None)
    return 0


class _Walk:
    """One walk along a program.

    Args:
        program: the program.
        stop_at: the index of the step whose live arrays are wanted.
    """

    def __init__(self, program: ParsedProgram, stop_at: int | None = None) -> None:
        self.steps: list[LiveStep] = []
        self.stopped: list[LiveArray] = []
        self.has_unknown_sizes = False
        self._program = program
        self._stop_at = stop_at
        self._live: dict[int, LiveArray] = {}
        self._total = 0
        self._highest = 0
        self._roots: dict[int, Value] = {}
        self._heights: dict[str, int] = {}

    def run(self) -> None:
        """Walk from the first operation to the last."""
        entry = self._program.entry
        donated = set()
        for value, name, attributes in zip(
            entry.arguments, entry.argument_names, entry.argument_attributes, strict=True
        ):
            self._allocate(value, entry.name, name)
            if "tf.aliasing_output" in attributes or attributes.get("jax.buffer_donor", False) is True:
                donated.add(id(value))
        if entry.body is not None:
            self._block(entry.body, entry.name, donated)

    def _block(self, block: Block, function: str, own: set[int]) -> None:
        """Walk over a block; ``own`` are the arrays that are released in it, after their last use."""
        last_uses = self._last_uses(block)
        for index, operation in enumerate(block.operations[:-1]):
            most_inside = self._total + self._inside(operation, function)
            if operation.name == "stablehlo.while":
                self._carry(operation, index, last_uses, own)
            for result in operation.results:
                if id(result) not in self._roots:
                    self._allocate(result, function, result.name)
                    own.add(id(result))
            self._add_step(operation, function, max(self._total, most_inside))
            for value in (*operation.operands, *operation.results):
                root = id(self._root(value))
                if root in own and last_uses.get(root, index) <= index:
                    self._release(root)
                    own.discard(root)
        for root in own:
            self._release(root)

    def _last_uses(self, block: Block) -> dict[int, int]:
        """Return the index of the last operation that uses each array; views use the array that they show."""
        last_uses = {}
        for index, operation in enumerate(block.operations):
            if operation.name in _VIEWS and len(operation.operands) == len(operation.results):
                for operand, result in zip(operation.operands, operation.results, strict=True):
                    self._roots[id(result)] = self._root(operand)
            for user in (operation, *operation.walk()):
                for operand in user.operands:
                    last_uses[id(self._root(operand))] = index
        return last_uses

    def _carry(self, loop: Operation, index: int, last_uses: dict[int, int], own: set[int]) -> None:
        """Let the results of a loop take the memory of those operands that nothing uses after it."""
        carried: set[int] = set()
        for operand, result in zip(loop.operands, loop.results, strict=True):
            root = id(self._root(operand))
            if root in own and root not in carried and last_uses.get(root) == index:
                carried.add(root)
                self._roots[id(result)] = self._root(operand)
                last_uses[root] = last_uses.get(id(result), index)

    def _inside(self, operation: Operation, function: str) -> int:
        """Walk over the regions or the function that an operation runs.

        Returns:
            The most bytes that are live inside, besides those before; 0 if steps show them.
        """
        if operation.name in RUN_REGIONS:
            for block in operation.regions:
                self._block(block, function, set())
            return 0
        if operation.name not in _CALLS:
            return 0
        callee = self._program.functions[str(operation.attribute(_CALLS[operation.name]))]
        if callee.name in self._heights and len(self.steps) >= MOST_STEPS:
            return self._heights[callee.name]
        before, base = self._highest, self._total
        self._highest = base
        if callee.body is not None:
            self._block(callee.body, callee.name, set())
        self._heights[callee.name] = self._highest - base
        self._highest = max(before, self._highest)
        return 0

    def _add_step(self, operation: Operation, function: str, live: int) -> None:
        self._highest = max(self._highest, live)
        self.steps.append(LiveStep(operation, function, live))
        if len(self.steps) - 1 == self._stop_at:
            self.stopped = [*self._live.values()]

    def _root(self, value: Value) -> Value:
        return self._roots.get(id(value), value)

    def _allocate(self, value: Value, function: str, name: str) -> None:
        nbytes = nbytes_of(value.type)
        self.has_unknown_sizes |= nbytes is None
        self._live[id(value)] = LiveArray(value, function, name or value.name, nbytes or 0)
        self._total += nbytes or 0

    def _release(self, root: int) -> None:
        array = self._live.pop(root, None)
        if array is not None:
            self._total -= array.nbytes
