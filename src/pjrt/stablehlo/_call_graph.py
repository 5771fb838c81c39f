"""The call graph of a program: which functions name which."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pjrt.stablehlo.operation import ParsedProgram

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
