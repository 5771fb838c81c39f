"""The configuration file, ``plugins.toml`` in the user's configuration folder or at the path in ``PJRT_CONFIG``.

A table ``[plugins.NAME]`` with a ``library`` or a ``factory`` declares a plugin; one without changes the facts of the
plugin that another source finds under that name.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.plugins import schema
from pjrt.plugins.declaration import Declaration, is_path
from pjrt.plugins.discovery import manifest, safe_paths
from pjrt.plugins.env_vars import CONFIG, FileState, config_path, config_state


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


def find() -> Iterator[Declaration]:
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
    path = safe_paths.safe_path(name)
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
            plugin = manifest.with_code(Declaration(plugin_name, f"{_origin()} {path}"), fields)
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
