"""The options ``memory`` and ``memory_fraction``: the same for all plugins, translated to each plugin's own options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.plugins.declaration import Declaration, MemoryOptions

MEMORY = "memory"
"""The option for when a client allocates memory: ``on-demand`` or ``preallocated``."""

FRACTION = "memory_fraction"
"""The option for the part of each device's memory that a client may allocate, more than 0 and up to 1."""

ON_DEMAND, PREALLOCATED = "on-demand", "preallocated"


def translate(declaration: Declaration, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return client options in which those of memory are replaced by the plugin's own.

    Args:
        declaration: the plugin. If it declares no options of memory, a factory with parameters of these names gets
            them as they are.
        options: the options of a client.

    Raises:
        UnimplementedError: the plugin does not support the option; the message names those that it supports.
        InvalidArgumentError: a value is invalid, or contradicts one of the plugin's own options.
    """
    if MEMORY not in options and FRACTION not in options:
        return dict(options)
    supported = declaration.memory
    if supported is None:
        _check_parameters(declaration, options)
        return dict(options)
    result = {name: value for name, value in options.items() if name not in (MEMORY, FRACTION)}
    own: dict[str, tuple[str, Any]] = {}
    if MEMORY in options:
        text = f"{MEMORY}={options[MEMORY]!r}"
        own |= {name: (text, value) for name, value in _way(declaration, supported, options[MEMORY]).items()}
    if FRACTION in options:
        text = f"{FRACTION}={options[FRACTION]!r}"
        own[_fraction_option(declaration, supported)] = (text, _fraction(options[FRACTION]))
    for name, (text, value) in own.items():
        if name in result and result[name] != value:
            raise InvalidArgumentError(
                f"{text} means {name}={value!r} to {declaration.name!r}, but {name}={result[name]!r} is set as well; "
                "set one of them"
            )
        result[name] = value
    return result


def _ways(supported: MemoryOptions) -> dict[str, Mapping[str, Any] | None]:
    return {ON_DEMAND: supported.on_demand, PREALLOCATED: supported.preallocated}


def _way(declaration: Declaration, supported: MemoryOptions, value: Any) -> Mapping[str, Any]:
    ways = _ways(supported)
    if value not in ways:
        raise InvalidArgumentError(f"{MEMORY} must be {ON_DEMAND!r} or {PREALLOCATED!r}, found {value!r}")
    options = ways[value]
    if options is None:
        raise UnimplementedError(f"{declaration.name!r} has no memory {value}: it has {_names(supported)}")
    return options


def _fraction_option(declaration: Declaration, supported: MemoryOptions) -> str:
    if not supported.fraction:
        raise UnimplementedError(f"{declaration.name!r} has no {FRACTION}: it has {_names(supported)}")
    return supported.fraction


def _fraction(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise InvalidArgumentError(f"{FRACTION} must be more than 0 and up to 1, such as 0.5; found {value!r}")
    return float(value)


def _names(supported: MemoryOptions) -> str:
    names = [f"{MEMORY}={name!r}" for name, way in _ways(supported).items() if way is not None]
    return ", ".join([*names, *([FRACTION] if supported.fraction else [])]) or "no options of memory"


def _check_parameters(declaration: Declaration, options: Mapping[str, Any]) -> None:
    """Raise for options that the factory would ignore: many plugins accept options that they do not know."""
    parameters = _parameters(declaration.factory)
    for name in (MEMORY, FRACTION):
        if name in options and name not in parameters:
            raise UnimplementedError(
                f"{declaration.name!r} has no option {name!r}, and no options of memory are declared for it; use its "
                "own options, or declare 'memory' in its manifest or in the configuration"
            )


def _parameters(factory: Any) -> frozenset[str]:
    """Return the names of a factory's parameters, without ``*args`` and ``**kwargs``."""
    if isinstance(factory, str):
        from pjrt.plugins.loader import import_place

        factory = import_place(factory)
    if not callable(factory) or isinstance(factory, type):
        return frozenset()
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return frozenset(each.name for each in parameters if each.kind not in variable)
