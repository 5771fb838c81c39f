"""The configuration file, ``plugins.toml`` in the user's folder of settings or where ``PJRT_CONFIG`` says.

A table ``[plugins.NAME]`` with a ``library`` or a ``factory`` is a plugin; one without says something of the plugin
that is found by that name elsewhere.
"""

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

from pjrt.api.errors import InvalidArgumentError, NotFoundError, PjrtError
from pjrt.plugins import configuration
from pjrt.plugins.declaration import Declaration, is_path
from pjrt.plugins.discovery import libraries
from pjrt.plugins.discovery.settings import CONFIG, FileState, config_path, config_state


@dataclass(frozen=True, slots=True)
class _Content:
    """What the file says: plugins, further facts of plugins by name, and what is wrong with the file as a whole."""

    plugins: tuple[Declaration, ...] = ()
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    problems: tuple[Declaration, ...] = ()


def found() -> Iterator[Declaration]:
    """The plugins that the file names, in its order."""
    yield from _content(config_state()).plugins


def problems() -> tuple[Declaration, ...]:
    """What is wrong with the file as a whole, as a plugin that cannot be used and is called by its path."""
    return _content(config_state()).problems


def applied(plugins: Iterable[Declaration], *, all_installed: bool) -> tuple[Declaration, ...]:
    """Plugins with what the file says of them.

    Args:
        plugins: those that were found.
        all_installed: whether they are all there are, so that one that the file speaks of and that is not among them
            is a mistake.
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
            _with(Declaration(name, config_path()), {"problem": reason, **said}) for name, said in facts.items()
        ]
    return tuple(changed)


def _with(plugin: Declaration, said: Mapping[str, Any]) -> Declaration:
    plugin = configuration.amended(plugin, {key: value for key, value in said.items() if key != "problem"})
    if "problem" in said:
        return replace(plugin, problem=said["problem"])
    return replace(plugin, disabled=True, problem=f"disabled in {config_path()}") if said.get("disabled") else plugin


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


def _read(written: str) -> _Content:
    place = libraries.safe(written)
    if not place.is_file() and str(place) != os.devnull:  # reading a pipe would wait for who writes to it
        raise InvalidArgumentError(
            f"{place}: expected the file of a configuration, found something that is no plain file"
        )
    try:
        said = tomllib.loads(Path(place).read_text(encoding="utf-8"))
    except OSError as error:
        raise NotFoundError(f"{place} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{place} is not written in TOML: {error}") from error
    tables, problems = said.pop("plugins", {}), []
    if not isinstance(tables, dict):
        tables, said = {}, {"plugins": tables, **said}
    if said:
        unknown = ", ".join(map(repr, said))
        reason = f"{place}: unknown key {unknown}: expected tables [plugins.NAME] alone"
        problems.append(Declaration(written, _origin(), problem=reason))
    plugins, facts = [], {}
    for name, table in tables.items():
        try:
            if is_path(name):
                raise InvalidArgumentError("expected a name that is no path")
            settings = configuration.settings(table)
            plugin = libraries.with_code(Declaration(name, f"{_origin()} {place}"), settings)
            if plugin.library or plugin.factory:
                plugins.append(plugin)
            facts[name] = settings
        except PjrtError as error:
            facts[name] = {**_right(table), "problem": f"[plugins.{name}] in {place}: {error.message}"}
    return _Content(tuple(plugins), facts, tuple(problems))


def _right(table: object) -> dict[str, Any]:
    """What is right in a table in which something is wrong, to be shown beside that."""
    said: dict[str, Any] = {}
    for key, value in table.items() if isinstance(table, Mapping) else ():
        with contextlib.suppress(InvalidArgumentError):
            said.update(configuration.settings({key: value}))
    return said
