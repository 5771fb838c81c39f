"""A plugin's manifest, ``pjrt-plugin-NAME.json``: what the plugin says of itself, as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.plugins import configuration

PREFIX = "pjrt-plugin-"
SUFFIX = ".json"

# JAX reads such files too, where PJRT_NAMES_AND_LIBRARY_PATHS names one, and spells two keys in its own way.
_SPELLINGS_OF_JAX = {"library_path": "library", "create_options": "options"}


def file_name(name: str) -> str:
    """What the manifest of a plugin is called."""
    return f"{PREFIX}{name}{SUFFIX}"


def read(path: Path) -> dict[str, Any]:
    """What a manifest says, as ``configuration.settings`` gives it. A library is named from the manifest's folder on.

    Raises:
        InvalidArgumentError: it cannot be read, is not written in JSON, or says something that is not known.
    """
    if path.exists() and not path.is_file():  # reading a pipe would wait for who writes to it
        raise InvalidArgumentError(f"{path}: expected the file of a manifest, found something that is no plain file")
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{path} is not written in JSON: {error}") from error
    if isinstance(said, dict):
        said = {_SPELLINGS_OF_JAX.get(key, key): value for key, value in said.items() if value is not None}
    try:
        table = configuration.settings(said)
        if "disabled" in table:
            raise InvalidArgumentError("unknown key 'disabled': only the configuration file turns a plugin off")
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error.message}") from error
    if "library" in table:
        table["library"] = str(path.parent / table["library"])
    return table
