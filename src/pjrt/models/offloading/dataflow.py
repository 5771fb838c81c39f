"""Data flow: the operations of a straight line with the values that they take and make, in an order that keeps few
values alive.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt import stablehlo
from pjrt.api.errors import UnimplementedError
from pjrt.stablehlo.cuts.cutting import inputs_of
from pjrt.stablehlo.cuts.straightening import FIRST_OF_LOOP

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
