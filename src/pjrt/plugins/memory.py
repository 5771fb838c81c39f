"""How much of a device's memory a client takes, and when: ``memory`` and ``memory_fraction``, spelled alike for all
plugins and handed to each in its own words.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.plugins.declaration import Declaration, MemoryOptions

MEMORY = "memory"
"""The option for when memory is taken: ``on-demand`` or ``preallocated``."""

FRACTION = "memory_fraction"
"""The option for how much of each device's memory a client may take, more than 0 and up to 1."""

ON_DEMAND, PREALLOCATED = "on-demand", "preallocated"


def translated(declaration: Declaration, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a client with those of memory in the plugin's own words.

    Args:
        declaration: the plugin. Where it declares nothing of memory, a factory that has parameters of these names gets
            them as they are.
        options: what somebody gave.

    Raises:
        UnimplementedError: the plugin cannot be told this; the message says what it can be told.
        InvalidArgumentError: a value is none of these, or the plugin's own options say something else.
    """
    if MEMORY not in options and FRACTION not in options:
        return dict(options)
    known = declaration.memory
    if known is None:
        _check_parameters(declaration, options)
        return dict(options)
    left = {name: value for name, value in options.items() if name not in (MEMORY, FRACTION)}
    said: dict[str, tuple[str, Any]] = {}
    if MEMORY in options:
        given = f"{MEMORY}={options[MEMORY]!r}"
        said |= {name: (given, value) for name, value in _when(declaration, known, options[MEMORY]).items()}
    if FRACTION in options:
        given = f"{FRACTION}={options[FRACTION]!r}"
        said[_fraction_option(declaration, known)] = (given, _fraction(options[FRACTION]))
    for name, (given, value) in said.items():
        if name in left and left[name] != value:
            raise InvalidArgumentError(
                f"{given} means {name}={value!r} to {declaration.name!r}, and {name}={left[name]!r} is given as well; "
                "give one of them"
            )
        left[name] = value
    return left


def _when(declaration: Declaration, known: MemoryOptions, value: Any) -> Mapping[str, Any]:
    ways = {ON_DEMAND: known.on_demand, PREALLOCATED: known.preallocated}
    if value not in ways:
        raise InvalidArgumentError(f"{MEMORY} must be {ON_DEMAND!r} or {PREALLOCATED!r}, found {value!r}")
    chosen = ways[value]
    if chosen is None:
        raise UnimplementedError(f"{declaration.name!r} has no memory {value}: it has {_offered(known)}")
    return chosen


def _fraction_option(declaration: Declaration, known: MemoryOptions) -> str:
    if not known.fraction:
        raise UnimplementedError(f"{declaration.name!r} has no {FRACTION}: it has {_offered(known)}")
    return known.fraction


def _fraction(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise InvalidArgumentError(f"{FRACTION} must be more than 0 and up to 1, such as 0.5; found {value!r}")
    return float(value)


def _offered(known: MemoryOptions) -> str:
    ways = {ON_DEMAND: known.on_demand, PREALLOCATED: known.preallocated}
    offered = [f"{MEMORY}={name!r}" for name, way in ways.items() if way is not None]
    return ", ".join([*offered, *([FRACTION] if known.fraction else [])]) or "no options of memory"


def _check_parameters(declaration: Declaration, options: Mapping[str, Any]) -> None:
    """Refuses options of memory that nobody would look at: many plugins pass over options that they do not know."""
    own = _parameters(declaration.factory)
    for name in (MEMORY, FRACTION):
        if name in options and name not in own:
            raise UnimplementedError(
                f"{declaration.name!r} has no option {name!r}, and nothing is declared of how it takes memory; use its "
                "own options, or declare 'memory' in its manifest or in the configuration"
            )


def _parameters(factory: Any) -> frozenset[str]:
    """The names of a factory's parameters, those that take anything left out."""
    if isinstance(factory, str):
        from pjrt.plugins._loading import named

        factory = named(factory)
    if not callable(factory) or isinstance(factory, type):
        return frozenset()
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return frozenset(each.name for each in parameters if each.kind not in variable)
