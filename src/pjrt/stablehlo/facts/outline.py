"""The outline of a module: its operations, types and calls, collected in one walk over it.

The walk costs a few microseconds an operation. A device checks the outline before its compiler sees the program, where
reading the whole program as ``parser`` does would cost more than compiling it. ``faults`` yields what no device runs.

Divisions of integers have a part of their own. A compiler computes an operation whose operands are constants, also
where they become constants only when it simplifies the program. The processor traps at a division that has no result
(by zero, or of the smallest integer by -1), and that ends the compiler's process.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.stablehlo.ir.mlir_module import MlirModule, senseless_refused, symbols, walk, walk_with_depths
from pjrt.stablehlo.ir.types import FutureType, TensorType, TupleType, ValueType, decode_type, element_named

if TYPE_CHECKING:
    from pjrt.stablehlo.ir.operation import ParsedProgram


CALLING = frozenset({"callee", "called_computations", "decomposition"})
"""The attributes that name a function to be run."""


class CallGraph(NamedTuple):
    """The functions of a program and their calls.

    Attributes:
        entry: the name of the function that is run.
        calls: the names of the functions that each function calls.
        bodiless: the names of the functions that are only declared.
    """

    entry: str
    calls: Mapping[str, Collection[str]]
    bodiless: Collection[str]

    @staticmethod
    def of(program: ParsedProgram, attributes: Collection[str] | None = CALLING) -> CallGraph:
        """Return the call graph of a parsed program.

        Args:
            program: the program.
            attributes: the attributes that count as calls where they name a function; None for all.
        """
        functions = program.functions
        return CallGraph(
            program.entry.name,
            {name: set(_names_in(program, name, attributes)) & functions.keys() for name in functions},
            {name for name, function in functions.items() if function.body is None},
        )

    def reached(self) -> set[str]:
        """Return the names of the entry function and of all that are called from it, directly or by way of others."""
        names: set[str] = set()
        pending = [self.entry]
        while pending:
            name = pending.pop()
            if name not in names:
                names.add(name)
                pending += self.calls.get(name, ())
        return names

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each function whose calls no device can follow, and what is wrong with it."""
        for name in sorted(self.reached() & set(self.bodiless)):
            is_entry = name == self.entry
            yield name, f"the function {name} is {'to be run' if is_entry else 'called'} and has no body"
        try:
            self._callees_first()
        except CycleError as error:
            name = min(error.args[1])
            yield name, f"the function {name} calls itself, and StableHLO has no recursion"

    def depth(self) -> int:
        """Return how many calls lie one inside the other at most, in a program without recursion."""
        depths: dict[str, int] = {}
        for name in self._callees_first():
            depths[name] = max((1 + depths[callee] for callee in self.calls.get(name, ())), default=0)
        return max(depths.values(), default=0)

    def _callees_first(self) -> list[str]:
        # Sorted, so that of several circles always the same one is found.
        return [*TopologicalSorter({name: sorted(self.calls[name]) for name in sorted(self.calls)}).static_order()]


def _names_in(program: ParsedProgram, function: str, attributes: Collection[str] | None) -> Iterator[str]:
    """Yield every text in some attributes of a function's operations."""
    body = program.functions[function].body
    for operation in body.walk() if body is not None else ():
        for key, value in operation.attributes.items():
            if attributes is None or key in attributes:
                yield from _texts(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, dict):
        yield from _texts(tuple(value.values()))


Array = np.ndarray[Any, Any]
_Reached = tuple[Any, tuple[Any, ...]]
"""A value, with the calls whose functions lead to it, the outermost first."""

NAMES = frozenset({"stablehlo.divide", "stablehlo.remainder", "chlo.broadcast_divide", "chlo.broadcast_remainder"})
"""The operations that divide."""

_REPEATING = frozenset(
    f"stablehlo.{name}" for name in ("broadcast", "broadcast_in_dim", "reshape", "transpose", "reverse", "slice")
)
_KEEPING = _REPEATING | frozenset(
    f"stablehlo.{name}"
    for name in (
        *("abs", "bitcast_convert", "ceil", "convert", "dynamic_slice", "exponential", "floor", "log", "negate", "not"),
        *("reduce_precision", "round_nearest_afz", "round_nearest_even", "sqrt", "tanh"),
    )
)
"""Operations of whose first operand nothing is lost that would let a compiler know the result."""


_GATHERING = frozenset({"stablehlo.reduce", "stablehlo.reduce_window", "stablehlo.sort"})
"""Operations that depend on each element of their first operand, if it has some."""


class ConstantDivisions:
    """The divisions of a module that may trap in a compiler.

    A value is looked at together with the calls through which it was reached, so that the arguments of a function that
    is called in several places are those of the one call.

    Args:
        entry: the name of the function whose arguments are those of the program.
        functions: the functions.
        call_sites: the operands of all calls of each function; ``None`` for a function that others than calls name.
    """

    def __init__(
        self, entry: str, functions: Mapping[str, Any], call_sites: Mapping[str, Sequence[Sequence[Any]] | None]
    ) -> None:
        self._entry = entry
        self._functions = functions
        self._call_sites = call_sites
        self._variable: dict[_Reached, bool] = {}
        self._known: dict[_Reached, Sequence[Array] | None] = {}

    def may_trap(self, operation: Any) -> bool:
        """Whether a compiler may compute a division of integers, and trap: it is not known to be impossible."""
        if not _is_integer(operation.results[0].type.element_type):
            return False
        dividend, divisor = ((operand, ()) for operand in operation.operands)
        return not (self._is_sound(divisor) or self._is_variable(divisor) or self._is_variable(dividend))

    def _is_sound(self, divisor: _Reached) -> bool:
        """Whether a divisor is known to be neither zero nor -1 in all its elements."""
        literals = self._literals(divisor)
        if literals is None:
            return False
        unsound = [0] if divisor[0].type.element_type.is_unsigned else [0, -1]
        return not any(np.isin(each.astype(np.int64), unsound).any() for each in literals)

    # What is known of values.

    def _literals(self, reached: _Reached) -> Sequence[Array] | None:
        """Return vectors with all elements that a value may have, in any order; ``None`` if they are not known."""
        if reached not in self._known:
            self._known[reached] = None  # for functions that call themselves
            self._known[reached] = self._find_literals(*reached)
        return self._known[reached]

    def _find_literals(self, value: Any, calls: tuple[Any, ...]) -> Sequence[Array] | None:
        if not _is_integer(value.type.element_type):
            return None
        if _is_argument(value):
            return self._all_literals(self._origins(value, calls)) if _is_steady(value) else None
        operation = value.owner.operation
        name, operands = operation.name, [(operand, calls) for operand in operation.operands]
        if name == "stablehlo.constant":
            return _elements(operation.attributes["value"])
        if name == "stablehlo.convert":
            literals, type_ = self._literals(operands[0]), element_named(str(value.type.element_type))
            return None if literals is None else [each.astype(type_.dtype) for each in literals]
        if name in _REPEATING:
            return self._literals(operands[0])
        if name == "stablehlo.select":
            return self._all_literals(operands[1:])
        if name in _COMPUTED:
            return _computed(_COMPUTED[name], [self._literals(each) for each in operands])
        return self._all_literals(self._results(value, calls)) if name == "func.call" else None

    def _all_literals(self, origins: Sequence[_Reached] | None) -> Sequence[Array] | None:
        known = [self._literals(each) for each in origins or ()]
        return None if not known or None in known else [each for literals in known for each in literals or ()]

    def _is_variable(self, reached: _Reached) -> bool:
        """Whether a value is known to depend on the arguments of the program, so that no compiler knows it."""
        if reached not in self._variable:
            self._variable[reached] = False
            self._variable[reached] = self._find_variable(*reached)
        return self._variable[reached]

    def _find_variable(self, value: Any, calls: tuple[Any, ...]) -> bool:
        origins: Sequence[_Reached] | None
        while not _is_argument(value):
            operation = value.owner.operation
            name, operands = operation.name, operation.operands
            if name in _KEEPING or (name in _GATHERING and 0 not in operands[0].type.shape):
                value = operands[0]
            elif name == "stablehlo.optimization_barrier":
                value = operands[value.result_number]
            elif name in ("stablehlo.add", "stablehlo.subtract"):
                known = [self._literals((each, calls)) is not None for each in operands]
                if known[0] == known[1]:
                    return False
                value = operands[known.index(False)]
            else:
                origins = self._results(value, calls) if name == "func.call" else None
                break
        else:
            origins = self._origins(value, calls)
        return origins is not None and all(map(self._is_variable, origins))

    # Functions and loops.

    def _origins(self, argument: Any, calls: tuple[Any, ...]) -> Sequence[_Reached] | None:
        """Return the values that an argument of a function or loop may begin with; none for one of the program.

        ``None`` stands for an argument that may be anything.
        """
        block, number = argument.owner, argument.arg_number
        owner = block.owner.operation
        if owner.name == "stablehlo.while":
            return ((owner.operands[number], calls),)
        if owner.name != "func.func":
            return None
        if calls:
            return ((calls[-1].operands[number], calls[:-1]),)
        name = owner.attributes["sym_name"].value
        if name == self._entry:
            return ()
        sites = self._call_sites.get(name, ())
        return None if sites is None else [(operands[number], ()) for operands in sites]

    def _results(self, value: Any, calls: tuple[Any, ...]) -> Sequence[_Reached] | None:
        """Return the value that a function returns as the result of a call; ``None`` if that is not known."""
        call = value.owner.operation
        (name,) = symbols(call.attributes["callee"])
        function = self._functions.get(name)
        if function is None or not len(function.regions[0].blocks) or len(calls) >= _DEEPEST_CALLS:
            return None
        *_, last = function.regions[0].blocks[0].operations
        return ((last.operation.operands[value.result_number], (*calls, call)),)


_DEEPEST_CALLS = 8


def _is_integer(element: Any) -> bool:
    return type(element).__name__ == "IntegerType"


def _is_steady(argument: Any) -> bool:
    """Whether an argument is none of a loop, or the loop hands it on as it is."""
    owner = argument.owner.owner.operation
    if owner.name != "stablehlo.while":
        return True
    body = owner.regions[1].blocks[0]
    *_, last = body.operations
    return bool(last.operation.operands[argument.arg_number] == body.arguments[argument.arg_number])


def _is_argument(value: Any) -> bool:
    return hasattr(value, "arg_number")


def _computed(compute: Any, operands: Sequence[Sequence[Array] | None]) -> Sequence[Array] | None:
    """Return what an operation makes of all choices of its operands, of which only one may have several elements."""
    choices = list(itertools.islice(itertools.product(*(each or () for each in operands)), _MOST_CHOICES + 1))
    if not 0 < len(choices) <= _MOST_CHOICES or any(sum(each.size > 1 for each in choice) > 1 for choice in choices):
        return None
    return [compute(*choice) for choice in choices]


_MOST_CHOICES = 16

_COMPUTED = {
    "stablehlo.add": np.add,
    "stablehlo.subtract": np.subtract,
    "stablehlo.multiply": np.multiply,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.clamp": lambda low, value, high: np.minimum(np.maximum(low, value), high),
}


def _elements(attribute: Any) -> Sequence[Array] | None:
    from pjrt.stablehlo.ir.mlir_attributes import decode_dense  # here: few programs divide by constants

    try:
        return [np.unique(decode_dense(attribute))]
    except (PjrtError, TypeError, ValueError):  # they are elsewhere
        return None


_MOST_BYTES = 2**63

COLLECTIVES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_gather",
        "all_reduce",
        "all_to_all",
        "collective_broadcast",
        "collective_permute",
        "reduce_scatter",
    )
)
"""The operations in which several devices take part."""


class Outline(NamedTuple):
    """The operations, types and functions of a program.

    Attributes:
        operations: the number of uses of each operation, those that hold the program together included.
        types: the types of its values.
        functions: its functions and their calls.
        depth: the most operations with regions that lie one inside the other.
        chain: the length of the longest chain of operations that compute element by element or move elements, and
            depend one on the other; counted only where there are many operations, 0 otherwise.
        custom_calls: the target of each custom call, with the text of its ``mhlo.attributes`` ("" if it has none).
        composites: the name of each composite, with the text of its attributes ("" if it has none), and whether it has
            a region.
        may_trap: whether a compiler that computes constants may divide an integer by zero; see ``ConstantDivisions``.
        choices: the name of each operation that a compiler may not have for all types (divisions, comparisons and
            chlo.top_k, also as a composite), with the element type, and with the texts of the attributes that say how
            it compares.
    """

    operations: Mapping[str, int]
    types: Collection[ValueType]
    functions: CallGraph
    depth: int
    chain: int
    custom_calls: Collection[tuple[str, str]]
    composites: Collection[tuple[str, str, bool]]
    may_trap: bool
    choices: Collection[tuple[str, ElementType, str]]

    @staticmethod
    def of(module: MlirModule) -> Outline:
        """Return the outline of a module.

        Raises:
            InvalidArgumentError: a name in the module is not UTF-8.
        """
        with senseless_refused():
            return _Walk(module).outline()

    @property
    def has_dynamic_shapes(self) -> bool:
        """Whether a size in the results of its operations is known only when it runs."""
        return any(isinstance(type_, TensorType) and not type_.is_static for type_ in self.types)

    def check(self) -> None:
        """Raise if no device can run the program.

        Raises:
            InvalidArgumentError: the program has a fault; see ``faults``.
        """
        for _, message in faults(self.functions, self.types):
            raise InvalidArgumentError(message)


def faults(functions: CallGraph, types: Collection[ValueType]) -> Iterator[tuple[str, str]]:
    """Yield the faults that no device can run: the name of a function or type, and a message.

    Faults are calls that cannot be followed, and types of more bytes than 64 bits can count.
    """
    yield from functions.faults()
    for type_ in types:
        if _is_beyond_counting(type_):
            yield str(type_), f"{type_} has more bytes than can be counted in 64 bits"


def _is_beyond_counting(type_: ValueType) -> bool:
    if isinstance(type_, TupleType | FutureType):
        return any(map(_is_beyond_counting, type_.elements))
    if not isinstance(type_, TensorType):
        return False
    # A size that is not known yet counts as its bound, or as 1; one of 0 does not make the others harmless, because
    # strides are computed without it.
    bounds = type_.bounds or (None,) * len(type_.shape)
    sizes = [(bound if size is None else size) or 1 for size, bound in zip(type_.shape, bounds, strict=True)]
    return math.prod(sizes) * max(type_.element.bits // 8, 1) >= _MOST_BYTES


class _Walk:
    """One walk over a module, in the order of its text."""

    def __init__(self, module: MlirModule) -> None:
        self._operations: dict[str, int] = {}
        self._types: set[Any] = set()
        self._calls: dict[str, set[str]] = {}
        self._bodiless: set[str] = set()
        self._public: list[str] = []
        self._function: set[str] = set()
        self._depth = 0
        self._custom_calls: set[tuple[str, str]] = set()
        self._composites: set[tuple[str, str, bool]] = set()
        self._choices: set[tuple[str, Any, Any, Any]] = set()
        self._divisions: list[Any] = []
        self._bodies: dict[str, Any] = {}
        self._call_sites: dict[str, list[Any] | None] = {}
        self._module = module

    def outline(self) -> Outline:
        with self._module as mlir:
            for operation, depth in walk_with_depths(mlir.operation):
                self._look(operation, depth)
            types = frozenset(map(decode_type, self._types))
            chain = _longest_chain(mlir) if sum(self._operations.values()) > MANY else 0
            entry = "main" if "main" in self._calls or len(self._public) != 1 else self._public[0]
            may_trap = any(map(ConstantDivisions(entry, self._bodies, self._call_sites).may_trap, self._divisions))
            choices = {
                (name, decoded.element, " ".join("" if each is None else str(each) for each in texts))
                for name, type_, *texts in self._choices
                if isinstance(decoded := decode_type(type_), TensorType)
            }
        functions = CallGraph(entry, self._calls, self._bodiless)
        return Outline(
            self._operations,
            types,
            functions,
            self._depth,
            chain,
            self._custom_calls,
            self._composites,
            may_trap,
            choices,
        )

    def _look(self, operation: Any, depth: int) -> None:
        name = operation.name
        self._operations[name] = self._operations.get(name, 0) + 1
        for result in operation.results:
            self._types.add(result.type)
        if len(operation.regions):
            self._depth = max(self._depth, depth)
            self._enter(operation, name)
        if name in _MAY_CALL:
            self._call(operation)
        elif name in NAMES:
            self._divisions.append(operation)
            self._choices.add((name, operation.results[0].type, None, None))
        elif name == "chlo.top_k":
            self._choices.add((name, operation.results[0].type, None, None))
        elif name in _COMPARISONS:
            attributes = operation.attributes
            kind = attributes["compare_type"] if "compare_type" in attributes else None  # noqa: SIM401  # MLIR has no get
            self._choices.add((name, operation.operands[0].type, attributes["comparison_direction"], kind))

    def _enter(self, operation: Any, name: str) -> None:
        for region in operation.regions:
            for block in region.blocks:
                self._types.update(argument.type for argument in block.arguments)
        attributes = operation.attributes
        if name == "builtin.module" and "sym_name" in attributes:
            attributes["sym_name"].value  # noqa: B018  # raises if the name is not UTF-8
        if name == "func.func":
            own = attributes["sym_name"].value
            self._bodies[own] = operation
            self._function = self._calls.setdefault(own, set())
            kind = attributes["function_type"].value
            self._types.update(kind.inputs)
            self._types.update(kind.results)
            if "sym_visibility" not in attributes or attributes["sym_visibility"].value != "private":
                self._public.append(own)
            if not len(operation.regions[0].blocks):
                self._bodiless.add(own)

    def _call(self, operation: Any) -> None:
        attributes = operation.attributes
        if operation.name == "stablehlo.custom_call":
            more = str(attributes["mhlo.attributes"]) if "mhlo.attributes" in attributes else ""
            self._custom_calls.add((attributes["call_target_name"].value, more))
        elif operation.name == "stablehlo.composite":
            name = attributes["name"].value
            more = str(attributes["composite_attributes"]) if "composite_attributes" in attributes else ""
            self._composites.add((name, "" if more == "{}" else more, bool(len(operation.regions))))
            if name == "chlo.top_k" and len(operation.results):
                self._choices.add((name, operation.results[0].type, None, None))
        for key in CALLING:
            if key in attributes:
                names = list(symbols(attributes[key]))
                self._function.update(names)
                for name in names:
                    sites = self._call_sites.setdefault(name, [])
                    if operation.name != "func.call":
                        self._call_sites[name] = None
                    elif sites is not None:
                        sites.append(operation.operands)


def _longest_chain(module: Any) -> int:
    lengths: dict[Any, int] = {}
    for operation in walk(module.operation):
        if operation.name not in _NOT_FUSED:
            length = 1 + max((lengths.get(operand, 0) for operand in operation.operands), default=0)
            for result in operation.results:
                lengths[result] = length
    return max(lengths.values(), default=0)


MANY = 2000
"""Programs of fewer operations are too small for a chain that matters."""

_NOT_FUSED = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("convolution", "custom_call", "dot", "dot_general", "fft", "gather", "reduce", "reduce_window", "scatter"),
        *("sort", "while", "if", "case", "cholesky", "triangular_solve", "rng_bit_generator", "all_reduce"),
    )
)

_COMPARISONS = frozenset({"stablehlo.compare", "chlo.broadcast_compare"})

_MAY_CALL = frozenset({"func.call", "stablehlo.composite", "stablehlo.custom_call", "call"})
