"""Which functions of a program refer to which."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pjrt.stablehlo.operation import ParsedProgram

CALLING = frozenset({"callee", "called_computations", "decomposition"})
"""The attributes that name a function to be run."""


@dataclass(frozen=True, slots=True)
class CallGraph:
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
    def of(program: ParsedProgram) -> CallGraph:
        """Return the call graph of a parsed program."""
        return CallGraph(
            program.entry.name,
            {name: set(_named(program, name, CALLING)) for name in program.functions},
            {name for name, function in program.functions.items() if function.body is None},
        )

    def reached(self) -> set[str]:
        """The names of the entry function and of those that are called from it, directly or by way of others."""
        found: set[str] = set()
        pending = [self.entry]
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                pending += self.calls.get(name, ())
        return found

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each function whose calls no device can follow, and what is wrong with it."""
        reached = self.reached()
        for name in sorted(reached & set(self.bodiless)):
            is_entry = name == self.entry
            yield name, f"the function {name} is {'to be run' if is_entry else 'called'} and has no body"
        name = self._recursive()
        if name:
            yield name, f"the function {name} calls itself, and StableHLO has no recursion"

    def depth(self) -> int:
        """Return how many calls lie one inside the other at most, circles left out."""
        return max(self._heights().values(), default=0)

    def _recursive(self) -> str:
        """The name of a function that calls itself, directly or by way of others; empty if none does."""
        endless = self.calls.keys() - self._heights().keys()
        # From each of those one gets to a circle, if one keeps to them.
        seen: set[str] = set()
        name = min(endless, default="")
        while name and name not in seen:
            seen.add(name)
            name = min(called for called in self.calls[name] if called in endless)
        return name

    def _heights(self) -> dict[str, int]:
        """Return how many calls lie below each function, for the functions from which no circle is reached."""
        callers: dict[str, list[str]] = {}
        waiting = {name: set(called) & self.calls.keys() for name, called in self.calls.items()}
        for name, called in waiting.items():
            for each in called:
                callers.setdefault(each, []).append(name)
        left = {name: len(called) for name, called in waiting.items()}
        heights = {name: 0 for name, count in left.items() if not count}
        pending = list(heights)
        for name in pending:
            for caller in callers.get(name, ()):
                left[caller] -= 1
                if not left[caller]:
                    heights[caller] = 1 + max(heights[called] for called in waiting[caller])
                    pending.append(caller)
        return heights


def reached(program: ParsedProgram) -> set[str]:
    """The names of the entry function and of those that it may refer to, directly or by way of others: by any attribute
    that has such a text.
    """
    found: set[str] = set()
    pending = [program.entry.name]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += _named(program, name, None)
    return found


def _named(program: ParsedProgram, name: str, attributes: frozenset[str] | None) -> Iterator[str]:
    """The functions that a function names in some attributes; in all, if None."""
    body = program.functions[name].body
    for operation in body.walk() if body is not None else ():
        for key, value in operation.attributes.items():
            if attributes is None or key in attributes:
                yield from (text for text in _texts(value) if text in program.functions)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, dict):
        yield from _texts(tuple(value.values()))
