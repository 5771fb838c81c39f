"""A plugin's manifest, ``pjrt-plugin-NAME.json``: the facts of the plugin, as data."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.plugins import schema
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.discovery import safe_paths

PREFIX = "pjrt-plugin-"
SUFFIX = ".json"

# JAX reads such files too, where PJRT_NAMES_AND_LIBRARY_PATHS names one, and has other names for two keys.
_NAMES_IN_JAX = {"library_path": "library", "create_options": "options"}


def file_name(name: str) -> str:
    """Return the name of a plugin's manifest."""
    return f"{PREFIX}{name}{SUFFIX}"


def read(path: Path) -> dict[str, Any]:
    """Return the fields of a manifest, as ``schema.read_table`` does. A library's path is relative to the manifest.

    Raises:
        InvalidArgumentError: the file cannot be read, is not JSON, or has an unknown key.
    """
    content = schema.parse_file(path, json.loads, "JSON")
    if isinstance(content, dict):
        content = {_NAMES_IN_JAX.get(key, key): value for key, value in content.items() if value is not None}
    try:
        fields = schema.read_table(content)
        if "disabled" in fields:
            raise InvalidArgumentError("unknown key 'disabled': only the configuration file turns a plugin off")
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error.message}") from error
    if "library" in fields:
        fields["library"] = str(path.parent / fields["library"])
    return fields


def with_code(
    plugin: Declaration, fields: Mapping[str, Any], check: Callable[[str], Path] = safe_paths.library_path
) -> Declaration:
    """Return a plugin with the library or the factory of a table, if it has one.

    Args:
        plugin: the other facts.
        fields: the table, as ``schema.read_table`` returns it.
        check: checks the library's path and returns it.

    Raises:
        PjrtError: the table has both, or its library cannot be loaded; the message is the reason.
    """
    if "library" in fields and "factory" in fields:
        raise InvalidArgumentError("expected a library or a factory, found both")
    if "library" in fields:
        return replace(plugin, library=check(fields["library"]), factory=None)
    return replace(plugin, library=None, factory=fields["factory"]) if "factory" in fields else plugin
