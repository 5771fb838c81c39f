"""The facts of a plugin as tables of plain values: which keys there are, and which values each of them takes.

A plugin's manifest (``pjrt-plugin-NAME.json``) and the tables ``[plugins.NAME]`` of the configuration file have the
same keys. They are data: a ``factory`` names what is imported when its plugin is loaded, and nothing here imports it. A
``library`` is a path, which is checked here to be safe to load.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, cast

from pjrt import system
from pjrt.api.device import NamedValue
from pjrt.api.errors import DataLossError, InvalidArgumentError, NotFoundError, PermissionDeniedError
from pjrt.plugins.declaration import Declaration, MemoryOptions, ProcessOptions, Sharing
from pjrt.system import elf


def parse_file(path: Path, parse: Callable[[str], Any], language: str) -> Any:
    """Return the parsed content of a file with tables.

    Raises:
        InvalidArgumentError: the file is not a regular one, cannot be read, or is not of the language.
    """
    if path.exists() and not path.is_file() and str(path) != os.devnull:  # reading a pipe would wait for its writer
        raise InvalidArgumentError(f"{path}: expected a regular file, found something else")
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{path} is not valid {language}: {error}") from error


def read_table(table: object) -> dict[str, Any]:
    """Return a table as fields of a ``Declaration``, and ``library`` and ``disabled`` as they are written.

    Raises:
        InvalidArgumentError: a key is unknown, or a value has the wrong type.
    """
    if not isinstance(table, Mapping):
        raise InvalidArgumentError(f"expected a table of {', '.join(KEYS)}; found {table!r}")
    _check_keys("", table, KEYS)
    return {key: _READERS[key](key, value) for key, value in table.items()}


def to_table(declaration: Declaration) -> dict[str, Any]:
    """Return a declaration as a table that ``read_table`` reads, of values that JSON and TOML have too.

    A ``factory`` that is an object is left out.
    """
    memory, processes = declaration.memory, declaration.processes
    table = {
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
        "topology_options": declaration.topology_options or None,
        "memory": None if memory is None else _memory_table(memory),
        "frameworks": {name: _plain(values) for name, values in declaration.frameworks.items()},
    }
    return {key: value for key, value in table.items() if value is not None}


def amend(declaration: Declaration, changes: Mapping[str, Any]) -> Declaration:
    """Return a declaration with the fields that ``read_table`` returned: tables are joined, other values replaced.

    ``library``, ``factory`` and ``disabled`` are left as they are: see ``with_code`` and the configuration file.
    """
    amended: dict[str, Any] = {}
    for key, value in changes.items():
        if key == "frameworks":
            old = declaration.frameworks
            amended[key] = {name: {**old.get(name, {}), **value.get(name, {})} for name in {**old, **value}}
        elif key in ("options", "environment", "environment_without_hardware"):
            amended[key] = {**getattr(declaration, key), **value}
        elif key not in ("library", "factory", "disabled"):
            amended[key] = value
    return replace(declaration, **amended)


def _memory_table(memory: MemoryOptions) -> dict[str, Any]:
    options = {"on_demand": memory.on_demand, "preallocated": memory.preallocated}
    table: dict[str, Any] = {name: _plain(values) for name, values in options.items() if values is not None}
    return {**table, "fraction": memory.fraction} if memory.fraction else table


def _plain(values: Mapping[str, NamedValue]) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        for name, value in values.items()
    }


def _check_keys(prefix: str, table: Mapping[str, Any], keys: Sequence[str]) -> None:
    unknown = next((key for key in table if key not in keys), None)
    if unknown is not None:
        key = f"{prefix}.{unknown}" if prefix else repr(unknown)
        raise InvalidArgumentError(f"unknown key {key}: the keys are {', '.join(keys)}")


def _value_of(kind: type[Any], words: str) -> Callable[[str, object], Any]:
    def read(key: str, value: object) -> Any:
        if type(value) is not kind or value == "":
            raise InvalidArgumentError(f"{key} must be {words}, found {value!r}")
        return value

    return read


_text = _value_of(str, "a text")


def _place(key: str, value: object) -> str:
    text: str = _text(key, value)
    module, colon, attribute = text.partition(":")
    if not colon or not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        raise InvalidArgumentError(f"{key} must be written module:attribute, found {text!r}")
    return text


def _sharing(key: str, value: object) -> Sharing:
    try:
        return Sharing(value)
    except ValueError:
        kinds = ", ".join(kind.value for kind in Sharing)
        raise InvalidArgumentError(f"{key} must be one of {kinds}; found {value!r}") from None


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
    table = _table(key, value)
    for name, each in table.items():
        if not isinstance(each, str):
            raise InvalidArgumentError(f"{key}.{name} must be a text, found {each!r}")
    return dict(table)


def _list_of(kind: str) -> Callable[[str, object], tuple[str, ...]]:
    def read(key: str, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise InvalidArgumentError(f"{key} must be a list of {kind}, found {value!r}")
        return tuple(value)

    return read


def _memory(key: str, value: object) -> MemoryOptions:
    table = _table(key, value)
    _check_keys(key, table, MemoryOptions._fields)
    return MemoryOptions(
        on_demand=_values(f"{key}.on_demand", table["on_demand"]) if "on_demand" in table else None,
        preallocated=_values(f"{key}.preallocated", table["preallocated"]) if "preallocated" in table else None,
        fraction=_text(f"{key}.fraction", table["fraction"]) if "fraction" in table else "",
    )


def _processes(key: str, value: object) -> ProcessOptions:
    table = _texts(key, value)
    _check_keys(key, table, [field.name for field in fields(ProcessOptions)])
    return ProcessOptions(**table)


def _frameworks(key: str, value: object) -> Mapping[str, Mapping[str, NamedValue]]:
    return {name: _values(f"{key}.{name}", each) for name, each in _table(key, value).items()}


_READERS: dict[str, Callable[[str, object], Any]] = {
    "library": _text,
    "factory": _place,
    "options": _values,
    "environment": _texts,
    "environment_without_hardware": _texts,
    "hardware": _list_of("file name patterns"),
    "priority": _value_of(int, "an integer"),
    "sharing": _sharing,
    "partition": _list_of("names of environment variables"),
    "processes": _processes,
    "process_environment": _place,
    "host_variable": _text,
    "resident": _text,
    "topologies": _texts,
    "topology_options": _place,
    "memory": _memory,
    "frameworks": _frameworks,
    "disabled": _value_of(bool, "true or false"),
}

KEYS = tuple(_READERS)
"""The keys that a table may have."""


# The paths of libraries, as users and packages write them.


def library_path(path: str) -> Path:
    """Return the path of a library that a variable or the configuration file names, with links resolved.

    Raises:
        InvalidArgumentError: the path is relative, or leads to something that is no file.
        NotFoundError: nothing is at the path.
        PermissionDeniedError: every user of the machine could put another library there.
        DataLossError: the file is cut off.
    """
    resolved = safe_path(path)
    if not resolved.is_file():
        kind = "a folder" if resolved.is_dir() else "something else"
        raise InvalidArgumentError(f"{path}: expected a regular file, found {kind}")
    _check_complete(resolved)
    return resolved


def installed_library(path: str | Path) -> Path:
    """Return the path of a library that an installed package names, with links resolved.

    Its permissions are not checked: it is as safe as the package.

    Raises:
        NotFoundError: the file does not exist.
        DataLossError: the file is cut off.
    """
    try:
        resolved = Path(path).resolve()
    except RuntimeError as error:  # pathlib's error for a loop of links, before Python 3.13
        raise NotFoundError(f"{path}: its links form a loop; install the package again") from error
    if not resolved.is_file():
        raise NotFoundError(f"{path}: there is no such file; install the package again")
    _check_complete(resolved)
    return resolved


def safe_path(path: str) -> Path:
    """Return an absolute path with links resolved, after a check that only its owner can replace what is there.

    Raises:
        InvalidArgumentError: the path is relative.
        NotFoundError: nothing is at the path.
        PermissionDeniedError: every user of the machine could put something else there.
    """
    expanded = os.path.expanduser(path)
    if not os.path.isabs(expanded):
        raise InvalidArgumentError(
            f"{path!r} is a relative path, which depends on the current folder; write the absolute path"
        )
    try:
        danger = system.writable_by_everyone(expanded)
        resolved = Path(expanded).resolve(strict=True)
    except OSError as error:
        raise NotFoundError(f"{path}: {error.strerror or error}".replace("No such", "there is no such")) from error
    except RuntimeError as error:  # as above
        raise NotFoundError(f"{path}: its links form a loop") from error
    if danger:
        raise PermissionDeniedError(f"{path} is not safe: {danger}; remove that permission, or move the file")
    return resolved


def _check_complete(path: Path) -> None:
    missing = elf.missing_bytes(path)
    if missing is not None:
        size, needed = missing
        raise DataLossError(f"{path} is cut off: it has {size} bytes, and its header requires at least {needed}")


MANIFEST_PREFIX = "pjrt-plugin-"
MANIFEST_SUFFIX = ".json"

# JAX reads such files too, where PJRT_NAMES_AND_LIBRARY_PATHS names one, and has other names for two keys.
_NAMES_IN_JAX = {"library_path": "library", "create_options": "options"}


def manifest_name(name: str) -> str:
    """Return the name of a plugin's manifest."""
    return f"{MANIFEST_PREFIX}{name}{MANIFEST_SUFFIX}"


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the fields of a manifest, as ``read_table`` does. A library's path is relative to the manifest.

    Raises:
        InvalidArgumentError: the file cannot be read, is not JSON, or has an unknown key.
    """
    content = parse_file(path, json.loads, "JSON")
    if isinstance(content, dict):
        content = {_NAMES_IN_JAX.get(key, key): value for key, value in content.items() if value is not None}
    try:
        fields = read_table(content)
        if "disabled" in fields:
            raise InvalidArgumentError("unknown key 'disabled': only the configuration file turns a plugin off")
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error.message}") from error
    if "library" in fields:
        fields["library"] = str(path.parent / fields["library"])
    return fields


def with_code(
    plugin: Declaration, fields: Mapping[str, Any], check: Callable[[str], Path] = library_path
) -> Declaration:
    """Return a plugin with the library or the factory of a table, if it has one.

    Args:
        plugin: the other facts.
        fields: the table, as ``read_table`` returns it.
        check: checks the library's path and returns it.

    Raises:
        PjrtError: the table has both, or its library cannot be loaded; the message is the reason.
    """
    if "library" in fields and "factory" in fields:
        raise InvalidArgumentError("expected a library or a factory, found both")
    if "library" in fields:
        return replace(plugin, library=check(fields["library"]), factory=None)
    return replace(plugin, library=None, factory=fields["factory"]) if "factory" in fields else plugin
