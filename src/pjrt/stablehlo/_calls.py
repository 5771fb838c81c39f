"""Which functions of a program refer to which."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pjrt.stablehlo.operation import ParsedProgram

_CALLING = frozenset({"callee", "called_computations", "decomposition"})
"""The attributes that name a function to be run."""


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


def incomplete(program: ParsedProgram) -> list[str]:
    """The names of functions that are called, in what may run, and have no body."""
    called = {name for caller in reached(program) for name in _named(program, caller, _CALLING)}
    return sorted(name for name in called if program.functions[name].body is None)


def recursive(program: ParsedProgram) -> str:
    """The name of a function that calls itself, directly or by way of others; empty if none does."""
    calls = {name: set(_named(program, name, _CALLING)) for name in program.functions}
    while ends := [name for name, called in calls.items() if called.isdisjoint(calls)]:
        for name in ends:
            del calls[name]
    # From each of those that are left one gets to a circle, if one keeps to them.
    seen: list[str] = []
    name = next(iter(calls), "")
    while calls and name not in seen:
        seen.append(name)
        name = next(called for called in sorted(calls[name]) if called in calls)
    return name


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
