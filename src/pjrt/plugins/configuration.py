"""What a plugin's manifest and a user's configuration may say of a plugin: tables of plain values, checked key by key.

The same keys stand in a plugin's manifest (``pjrt-plugin-NAME.json``) and in the tables ``[plugins.NAME]`` of the
configuration file. They are data: a ``factory`` names what is imported when its plugin is loaded, and nothing here
imports it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, cast

from pjrt.api.attributes import NamedValue
from pjrt.api.errors import InvalidArgumentError
from pjrt.plugins.declaration import Declaration, MemoryOptions, ProcessOptions, Sharing

OPTIONS_PREFIX = "PJRT_OPTIONS_"


def option_value(text: str) -> NamedValue:
    """A value of one of the five types of PJRT's options: ``true``/``false``, integers, floats, ``1,2,3``, everything
    else a string.
    """
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    parts = text.split(",")
    if len(parts) > 1:
        try:
            return tuple(int(p) for p in parts)
        except ValueError:
            return text
    return text


def options_variable(name: str) -> str:
    """The environment variable with the options of a plugin's clients: ``PJRT_OPTIONS_MY_CHIP`` for ``my-chip``."""
    return OPTIONS_PREFIX + "".join(c if c.isalnum() else "_" for c in name).upper()


def environment_options(name: str) -> dict[str, NamedValue]:
    """The options that the environment gives a plugin's clients, written ``key=value;key=value``.

    Raises:
        InvalidArgumentError: the variable is written in another way.
    """
    variable = options_variable(name)
    options: dict[str, NamedValue] = {}
    for part in filter(None, (part.strip() for part in os.environ.get(variable, "").split(";"))):
        key, equals, text = part.partition("=")
        if not equals or not key.strip():
            raise InvalidArgumentError(f"{variable}: expected key=value;key=value, found {part!r}")
        options[key.strip()] = option_value(text.strip())
    return options


def settings(table: object) -> dict[str, Any]:
    """What a table says, as the fields of a ``Declaration``, and ``library`` and ``disabled`` as they are written.

    Raises:
        InvalidArgumentError: a key is unknown, or a value is not of its type; the message names the known keys.
    """
    if not isinstance(table, Mapping):
        raise InvalidArgumentError(f"expected a table of {', '.join(KEYS)}; found {table!r}")
    unknown = [key for key in table if key not in KEYS]
    if unknown:
        raise InvalidArgumentError(f"unknown key {unknown[0]!r}: the keys are {', '.join(KEYS)}")
    return {key: _READERS[key](key, value) for key, value in table.items()}


def table(declaration: Declaration) -> dict[str, Any]:
    """What a declaration says, as a table that ``settings`` reads, of values that JSON and TOML have too. A ``factory``
    that is no place is left out.
    """
    memory, processes = declaration.memory, declaration.processes
    said = {
        "library": None if declaration.library is None else str(declaration.library),
        "factory": declaration.factory if isinstance(declaration.factory, str) else None,
        "options": _plain(declaration.options),
        "environment": dict(declaration.environment),
        "environment_without_hardware": dict(declaration.environment_without_hardware) or None,
        "hardware": list(declaration.hardware),
        "priority": declaration.priority,
        "sharing": declaration.sharing.value,
        "partition": list(declaration.partition),
        "processes": None if processes is None else {name: word for name, word in asdict(processes).items() if word},
        "process_environment": declaration.process_environment or None,
        "host_variable": declaration.host_variable or None,
        "resident": declaration.resident or None,
        "topologies": dict(declaration.topologies) or None,
        "memory": None if memory is None else _memory_table(memory),
        "frameworks": {name: _plain(values) for name, values in declaration.frameworks.items()},
    }
    return {key: value for key, value in said.items() if value is not None}


def _memory_table(memory: MemoryOptions) -> dict[str, Any]:
    ways = {"on_demand": memory.on_demand, "preallocated": memory.preallocated}
    said: dict[str, Any] = {name: _plain(options) for name, options in ways.items() if options is not None}
    return {**said, "fraction": memory.fraction} if memory.fraction else said


def _plain(values: Mapping[str, NamedValue]) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        for name, value in values.items()
    }


def amended(declaration: Declaration, said: Mapping[str, Any]) -> Declaration:
    """A declaration with what ``settings`` read: tables are joined, other values replaced."""
    changes = {key: value for key, value in said.items() if key not in ("library", "factory", "disabled")}
    for key in ("options", "environment", "environment_without_hardware"):
        if key in changes:
            changes[key] = {**getattr(declaration, key), **changes[key]}
    if "frameworks" in changes:
        old = declaration.frameworks
        new = changes["frameworks"]
        changes["frameworks"] = {name: {**old.get(name, {}), **new.get(name, {})} for name in {**old, **new}}
    return replace(declaration, **changes)


def _text(key: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(f"{key} must be a text, found {value!r}")
    return value


def _place(key: str, value: object) -> str:
    text = _text(key, value)
    module, colon, attribute = text.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        raise InvalidArgumentError(f"{key} must be written module:attribute, found {text!r}")
    return text


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{key} must be true or false, found {value!r}")
    return value


def _number(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgumentError(f"{key} must be an integer, found {value!r}")
    return value


def _sharing(key: str, value: object) -> Sharing:
    try:
        return Sharing(value)
    except ValueError:
        known = ", ".join(kind.value for kind in Sharing)
        raise InvalidArgumentError(f"{key} must be one of {known}; found {value!r}") from None


def _table(key: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidArgumentError(f"{key} must be a table, found {value!r}")
    return value


def _values(key: str, value: object) -> Mapping[str, NamedValue]:
    return {name: _named_value(f"{key}.{name}", each) for name, each in _table(key, value).items()}


def _named_value(key: str, value: object) -> NamedValue:
    if isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in value):
        return tuple(cast("list[int]", value))
    raise InvalidArgumentError(f"{key} must be a text, a number, true or false, or a list of integers; found {value!r}")


def _texts(key: str, value: object) -> Mapping[str, str]:
    found = _table(key, value)
    for name, each in found.items():
        if not isinstance(each, str):
            raise InvalidArgumentError(f"{key}.{name} must be a text, found {each!r}")
    return dict(found)


def _patterns(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidArgumentError(f"{key} must be a list of file name patterns, found {value!r}")
    return tuple(value)


def _variables(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidArgumentError(f"{key} must be a list of names of environment variables, found {value!r}")
    return tuple(value)


def _memory(key: str, value: object) -> MemoryOptions:
    table = _table(key, value)
    unknown = [name for name in table if name not in ("on_demand", "preallocated", "fraction")]
    if unknown:
        raise InvalidArgumentError(f"unknown key {key}.{unknown[0]}: the keys are on_demand, preallocated, fraction")
    return MemoryOptions(
        on_demand=_values(f"{key}.on_demand", table["on_demand"]) if "on_demand" in table else None,
        preallocated=_values(f"{key}.preallocated", table["preallocated"]) if "preallocated" in table else None,
        fraction=_text(f"{key}.fraction", table["fraction"]) if "fraction" in table else "",
    )


def _processes(key: str, value: object) -> ProcessOptions:
    table = _texts(key, value)
    known = [each.name for each in fields(ProcessOptions)]
    unknown = [name for name in table if name not in known]
    if unknown:
        raise InvalidArgumentError(f"unknown key {key}.{unknown[0]}: the keys are {', '.join(known)}")
    return ProcessOptions(**table)


def _frameworks(key: str, value: object) -> Mapping[str, Mapping[str, NamedValue]]:
    return {name: _values(f"{key}.{name}", each) for name, each in _table(key, value).items()}


_READERS: dict[str, Callable[[str, object], Any]] = {
    "library": _text,
    "factory": _place,
    "options": _values,
    "environment": _texts,
    "environment_without_hardware": _texts,
    "hardware": _patterns,
    "priority": _number,
    "sharing": _sharing,
    "partition": _variables,
    "processes": _processes,
    "process_environment": _place,
    "host_variable": _text,
    "resident": _text,
    "topologies": _texts,
    "memory": _memory,
    "frameworks": _frameworks,
    "disabled": _flag,
}

KEYS = tuple(_READERS)
"""The keys that a table may have."""
