"""Plugins that the user's configuration names: two environment variables, and the configuration file."""

from __future__ import annotations

import contextlib
import functools
import os
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pjrt import system
from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.plugins import schema
from pjrt.plugins.declaration import Declaration, is_path
from pjrt.plugins.env_vars import CONFIG, NAMES_AND_PATHS, PLUGIN_FOLDERS, FileState, config_path, config_state


def find_named() -> Iterator[Declaration]:
    """Return the plugins of ``PJRT_NAMES_AND_LIBRARY_PATHS``, as JAX reads it: ``name:path,name2:path2``.

    A path is that of a library, or of a manifest in JSON. On Windows the separator is ``;``, not the colon.
    """
    for part in filter(None, (part.strip() for part in os.environ.get(NAMES_AND_PATHS, "").split(","))):
        name, separator, path = part.partition(os.pathsep)
        try:
            if not name or not separator or not path or os.pathsep in path:
                raise InvalidArgumentError(f"expected name{os.pathsep}path, found {part!r}")
            yield declare(name, NAMES_AND_PATHS, path)
        except PjrtError as error:
            yield Declaration(name or part, NAMES_AND_PATHS, problem=error.message)


def declare(name: str, origin: str, path: str) -> Declaration:
    """Return the declaration of a plugin's library, or of a manifest that names one.

    Raises:
        PjrtError: the path, the manifest or the library cannot be used; the message is the reason.
    """
    if is_path(name):
        raise InvalidArgumentError(f"expected a name before the path, found {name!r}")
    if not path.endswith(schema.MANIFEST_SUFFIX):
        return Declaration(name, origin, library=schema.library_path(path))
    fields = schema.read_manifest(schema.safe_path(path))
    return schema.with_code(schema.amend(Declaration(name, origin), fields), fields)


def find_in_folders() -> Iterator[Declaration]:
    """Return the plugins of the folders, and libraries, in ``PJRT_PLUGIN_LIBRARY_PATH``, in its order.

    In a folder, sorted by name, plugins are the libraries ``pjrt-plugin-NAME.so`` (or the system's suffix) and the
    manifests ``pjrt-plugin-NAME.json``, which belong to a library of the same name in the folder or contain a library's
    path.
    """
    for entry in filter(None, os.environ.get(PLUGIN_FOLDERS, "").split(os.pathsep)):
        try:
            path = schema.safe_path(entry)
        except PjrtError as error:
            yield Declaration(entry, PLUGIN_FOLDERS, problem=error.message)
            continue
        if path.is_dir():
            yield from _in_folder(path)
        else:
            yield _declared(Path(os.path.expanduser(entry)))


def _in_folder(folder: Path) -> Iterator[Declaration]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        yield Declaration(str(folder), PLUGIN_FOLDERS, problem=f"the folder cannot be read: {error.strerror or error}")
        return
    manifests = {_name(path) for path in entries if _is_named(path, schema.MANIFEST_SUFFIX)}
    for path in entries:
        is_library = _is_named(path, *system.library_suffixes())
        if _is_named(path, schema.MANIFEST_SUFFIX) or (is_library and _name(path) not in manifests):
            yield _declared(path)


def _declared(path: Path) -> Declaration:
    name, origin = _name(path), f"{PLUGIN_FOLDERS} {path}"
    try:
        plugin = declare(name, origin, str(path))
        if plugin.library is not None or plugin.factory is not None:
            return plugin
        for suffix in system.library_suffixes():
            if path.with_suffix(suffix).exists():
                return replace(plugin, library=schema.library_path(str(path.with_suffix(suffix))))
    except PjrtError as error:
        return Declaration(name, origin, problem=error.message)
    expected = schema.MANIFEST_PREFIX + name + system.library_suffixes()[0]
    return replace(plugin, problem=f"the manifest names no library, and there is no {expected} beside it")


def _is_named(path: Path, *suffixes: str) -> bool:
    return path.name.startswith(schema.MANIFEST_PREFIX) and path.suffix in suffixes and len(_name(path)) > 0


def _name(path: Path) -> str:
    return path.stem.removeprefix(schema.MANIFEST_PREFIX)


# The configuration file is ``plugins.toml`` in the user's configuration folder, or at the path in ``PJRT_CONFIG``. A
# table ``[plugins.NAME]`` with a ``library`` or a ``factory`` declares a plugin; one without changes the facts of the
# plugin that another source finds under that name.


@dataclass(frozen=True, slots=True)
class _Content:
    """The content of the file.

    Attributes:
        plugins: the plugins that it declares.
        facts: changes of plugins' facts by name; the key ``problem`` is the error in the plugin's table.
        problems: errors outside of the tables, each as a plugin that is called by the file's path.
    """

    plugins: tuple[Declaration, ...] = ()
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problems: tuple[Declaration, ...] = ()


def find_in_file() -> Iterator[Declaration]:
    """Return the plugins that the file declares, in its order."""
    yield from _content(config_state()).plugins


def problems() -> tuple[Declaration, ...]:
    """Return the errors in the file as a whole, as a plugin that cannot be used and is called by the file's path."""
    return _content(config_state()).problems


def apply(plugins: Iterable[Declaration], *, all_installed: bool) -> tuple[Declaration, ...]:
    """Return plugins with the changes that the file makes to their facts.

    Args:
        plugins: the plugins.
        all_installed: whether these are all plugins, so that a table of any other name is an error.
    """
    facts = dict(_content(config_state()).facts)
    changed = []
    for plugin in plugins:
        for name in (plugin.name, *plugin.aliases):
            if name in facts:
                plugin = _with(plugin, facts.pop(name))
        changed.append(plugin)
    if all_installed:
        reason = "it is configured, but no plugin of that name is installed; install it, or name its library"
        changed += [
            _with(Declaration(name, config_path()), {"problem": reason, **changes}) for name, changes in facts.items()
        ]
    return tuple(changed)


def _with(plugin: Declaration, changes: Mapping[str, Any]) -> Declaration:
    plugin = schema.amend(plugin, changes)  # with the problem, if there is one
    is_disabled = changes.get("disabled") and "problem" not in changes
    return replace(plugin, disabled=True, problem=f"disabled in {config_path()}") if is_disabled else plugin


@functools.lru_cache(maxsize=1)
def _content(state: FileState | None) -> _Content:
    if state is None:
        return _Content()
    try:
        content = _read(state[0])
    except PjrtError as error:
        content = _Content(problems=(Declaration(state[0], _origin(), problem=error.message),))
    for each in content.problems:
        warnings.warn(f"{each.problem}; it is ignored", stacklevel=2)
    return content


def _origin() -> str:
    return CONFIG if os.environ.get(CONFIG) else "configuration file"


def _read(name: str) -> _Content:
    path = schema.safe_path(name)
    content = schema.parse_file(path, tomllib.loads, "TOML")
    tables, problems = content.pop("plugins", {}), []
    if not isinstance(tables, dict):
        tables, content = {}, {"plugins": tables, **content}
    if content:
        unknown = ", ".join(map(repr, content))
        reason = f"{path}: unknown key {unknown}: expected tables [plugins.NAME] alone"
        problems.append(Declaration(name, _origin(), problem=reason))
    plugins, facts = [], {}
    for plugin_name, table in tables.items():
        try:
            if is_path(plugin_name):
                raise InvalidArgumentError("expected a name that is no path")
            fields = schema.read_table(table)
            plugin = schema.with_code(Declaration(plugin_name, f"{_origin()} {path}"), fields)
            if plugin.library or plugin.factory:
                plugins.append(plugin)
            facts[plugin_name] = fields
        except PjrtError as error:
            problem = f"[plugins.{plugin_name}] in {path}: {error.message}"
            facts[plugin_name] = {**_valid_fields(table), "problem": problem}
    return _Content(tuple(plugins), facts, tuple(problems))


def _valid_fields(table: object) -> dict[str, Any]:
    """Return the valid fields of a table that has an invalid one, to be shown together with the error."""
    fields: dict[str, Any] = {}
    for key, value in table.items() if isinstance(table, Mapping) else ():
        with contextlib.suppress(InvalidArgumentError):
            fields.update(schema.read_table({key: value}))
    return fields
