"""The outline of a module: its operations, types and calls, collected in one walk over it.

The walk costs a few microseconds an operation. A device checks the outline before its compiler sees the program, where
reading the whole program as ``parser`` does would cost more than compiling it. ``faults`` yields what no device runs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError
from pjrt.stablehlo import constant_division
from pjrt.stablehlo._call_graph import CALLING, CallGraph
from pjrt.stablehlo._diagnostics import senseless_refused
from pjrt.stablehlo._mlir import MlirModule
from pjrt.stablehlo.constant_division import ConstantDivisions
from pjrt.stablehlo.mlir_types import decode_type
from pjrt.stablehlo.mlir_walk import symbols, walk, walk_with_depths
from pjrt.stablehlo.types import FutureType, TensorType, TupleType, ValueType

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
        may_trap: whether a compiler that computes constants may divide an integer by zero; see ``ConstantDivisions``.
        choices: the name of each operation that a compiler may not have for all types (divisions, comparisons and
            chlo.top_k), with the element type, and with the texts of the attributes that say how it compares.
    """

    operations: Mapping[str, int]
    types: Collection[ValueType]
    functions: CallGraph
    depth: int
    chain: int
    custom_calls: Collection[tuple[str, str]]
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
    sizes = (size if size is not None else bound for size, bound in zip(type_.shape, bounds, strict=True))
    return math.prod(max(size or 1, 1) for size in sizes) * max(type_.element.bits // 8, 1) >= _MOST_BYTES


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
        return Outline(self._operations, types, functions, self._depth, chain, self._custom_calls, may_trap, choices)

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
        elif name in constant_division.NAMES:
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
