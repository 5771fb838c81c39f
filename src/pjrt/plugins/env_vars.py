"""The environment variables that users set for plugins, and those that plugins need.

Every client of a built-in device reads some of them, so this module imports little.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from pjrt import system
from pjrt.api.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pjrt.api.device import NamedValue
    from pjrt.plugins.declaration import Declaration

DEVICE = "PJRT_DEVICE"
"""Names the default device, as for PyTorch/XLA."""

LIBRARY_PATH = "PJRT_LIBRARY_PATH"
"""The library of the default device where ``PJRT_DEVICE`` is ``LIBRARY``."""

TORCH_XLA_DEVICE = "PJRT_TORCH_XLA_DEVICE"
"""The default device where ``PJRT_DEVICE`` is ``PJRT``."""

NAMES_AND_PATHS = "PJRT_NAMES_AND_LIBRARY_PATHS"
"""Plugins as ``name:path,name2:path2``."""

PLUGIN_FOLDERS = "PJRT_PLUGIN_LIBRARY_PATH"
"""Folders with plugins."""

CONFIG = "PJRT_CONFIG"
"""The path of the configuration file."""

CONFIG_FILE_NAME = "plugins.toml"

_OPTIONS_PREFIX = "PJRT_OPTIONS_"

FileState = tuple[str, int, int]
"""The path of a file, the time of its last change in nanoseconds, and its size in bytes."""


def config_path() -> str:
    """Return the path of the configuration file, which need not exist; ``os.devnull`` for none."""
    path = os.environ.get(CONFIG)
    if path:
        return path
    try:
        return str(system.config_folder() / CONFIG_FILE_NAME)
    except RuntimeError:  # this user has no home folder
        return os.devnull


def config_state() -> FileState | None:
    """Return a value that changes when the configuration file does.

    It is ``None`` without a file; a file that ``PJRT_CONFIG`` names and that is missing has a state, to be reported.
    """
    path = config_path()
    if path == os.devnull:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return (path, 0, 0) if os.environ.get(CONFIG) else None
    return path, status.st_mtime_ns, status.st_size


def option_value(text: str) -> NamedValue:
    """Return a text as a value of one of the five types of PJRT's options.

    ``true`` and ``false`` are booleans, ``1,2,3`` is a list of integers; what is no number either is a string.
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


def split_options(name: str) -> tuple[str, dict[str, NamedValue]]:
    """Return the name of a device, and the options of its client behind it: ``NAME:KEY=VALUE,KEY=VALUE``."""
    begin = _OPTIONS.search(name)
    if begin is None or os.path.exists(name):
        return name, {}
    pairs = (part.partition("=") for part in _NEXT_OPTION.split(name[begin.end() :]))
    return name[: begin.start()], {key: option_value(text) for key, _, text in pairs}


def option_text(key: str, value: NamedValue) -> str:
    """Return an option as ``KEY=VALUE``, which ``option_value`` reads again."""
    if isinstance(value, bool):
        return f"{key}={str(value).lower()}"
    return f"{key}={','.join(map(str, value)) if isinstance(value, list | tuple) else value}"


_OPTIONS = re.compile(r":(?=[A-Za-z_]\w*=)")
_NEXT_OPTION = re.compile(r",(?=[A-Za-z_]\w*=)")
"""A comma before a key; others are in values, such as lists of numbers."""


def options_variable(name: str) -> str:
    """Return the variable that holds a plugin's client options: ``PJRT_OPTIONS_MY_CHIP`` for ``my-chip``."""
    return _OPTIONS_PREFIX + "".join(c if c.isalnum() else "_" for c in name).upper()


def client_options(name: str) -> dict[str, NamedValue]:
    """Return the options that the environment sets for a plugin's clients, written ``key=value;key=value``.

    Raises:
        InvalidArgumentError: the variable has another form.
    """
    variable = options_variable(name)
    options: dict[str, NamedValue] = {}
    for part in filter(None, (part.strip() for part in os.environ.get(variable, "").split(";"))):
        key, equals, text = part.partition("=")
        if not equals or not key.strip():
            raise InvalidArgumentError(f"{variable}: expected key=value;key=value, found {part!r}")
        options[key.strip()] = option_value(text.strip())
    return options


def set_environment(declaration: Declaration) -> None:
    """Set the variables that a plugin needs, before its library or module is loaded.

    A variable that is set, and not empty, keeps its value.
    """
    variables = dict(declaration.environment)
    if declaration.environment_without_hardware and not system.any_file(declaration.hardware):
        variables |= declaration.environment_without_hardware
    for variable, value in variables.items():
        if not os.environ.get(variable):
            os.environ[variable] = value
