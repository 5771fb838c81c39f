"""The catalog: the plugins by name, which are the registered ones, the built-in devices and the discovered ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from pjrt.api.errors import NotFoundError
from pjrt.plugins import builtin, env_vars
from pjrt.plugins.declaration import Declaration, is_path


class Catalog:
    """The plugins by name in this process.

    Attributes:
        registered: the plugins that the program registered, by name.
    """

    def __init__(self) -> None:
        self.registered: dict[str, Declaration] = {}
        self._discovered: dict[bool, tuple[object, Mapping[str, Declaration]]] = {}

    def all(self) -> Mapping[str, Declaration]:
        """Return all plugins by name, in the order of precedence."""
        discovered = self._discover(installed=True)
        registered = {name: _before(plugin, discovered.get(name)) for name, plugin in tuple(self.registered.items())}
        return {**registered, **{name: plugin for name, plugin in discovered.items() if name not in registered}}

    def find(self, name: str) -> Declaration | None:
        """Return a plugin by its name or an alias; ``None`` if there is none.

        An alias may mean a shadowed plugin. For a built-in device nothing is searched.
        """
        plugin = self.registered.get(name) or self._builtin(name)
        if plugin is not None:
            return plugin
        everything = self.all()
        if name in everything:
            return everything[name]
        for plugin in everything.values():
            if name in plugin.aliases:
                return plugin
            for hidden in plugin.shadowed:
                if name in hidden.aliases:
                    return replace(hidden, name=name, aliases=())
        return None

    def forget_discovered(self) -> None:
        """Have plugins searched for again at the next question."""
        self._discovered = {}

    def unknown(self, name: str) -> NotFoundError:
        """Return the error for a name that no plugin has, with the names that there are."""
        from pjrt.plugins.discovery import wheels

        advice = wheels.advice(name)
        if advice:
            return NotFoundError(
                f"the plugin of {name!r} is not installed: get it with {advice}, or give the path of the plugin's "
                "library"
            )
        plugins = self.all()
        names = ", ".join(sorted(name for name, plugin in plugins.items() if not plugin.problem))
        others = ", ".join(sorted(vendor for vendor in wheels.vendors() if vendor not in plugins))
        wheel = f" one from a vendor's wheel ({others})," if others else ""
        module, _, function = name.partition(":")
        file = f"a function of a module is given by its file, as {module}.py:{function}; " if function else ""
        return NotFoundError(
            f"there is no device called {name!r}: expected one of {names},{wheel} or the path of a plugin's library; "
            f"{file}run 'pjrt plugins' for details"
        )

    def _builtin(self, name: str) -> Declaration | None:
        """Return a built-in device with the user's configuration."""
        if name not in builtin.DEVICES:
            return None
        if not os.environ.get(env_vars.NAMES_AND_PATHS) and env_vars.config_state() is None:
            return builtin.DEVICES[name]
        return self._discover(installed=False)[name]

    def _discover(self, *, installed: bool) -> Mapping[str, Declaration]:
        """Return the discovered plugins by name; the search is repeated only where its result may have changed."""
        state = _state()
        last, plugins = self._discovered.get(installed, (None, {}))
        if last != state:
            # Here, because a built-in device does without this and all that it imports.
            from pjrt.plugins.discovery import precedence

            discover = precedence.discover if installed else precedence.discover_configured
            plugins = _by_name(discover())
            self._discovered[installed] = state, plugins
        return plugins


def at_path(name: str | os.PathLike[str]) -> Declaration | None:
    """Return the plugin of a library's path, or of ``FILE.py:ATTRIBUTE``; ``None`` if this is neither.

    Raises:
        NotFoundError: the Python file does not exist. A library is looked for when it is loaded.
    """
    if isinstance(name, str) and ".py:" in name:
        return _in_python_file(name)
    if isinstance(name, str) and not is_path(name):
        return None
    from pjrt.plugins.discovery import wheels

    return wheels.declare_library(Path(os.path.abspath(os.path.expanduser(name))))


def _in_python_file(name: str) -> Declaration:
    file, _, attribute = name.rpartition(":")
    path = os.path.abspath(os.path.expanduser(file))
    if not os.path.isfile(path) or not attribute.isidentifier():
        raise NotFoundError(f"{name!r}: expected FILE.py:ATTRIBUTE with the path of a file; there is none at {path}")
    return Declaration(name, "a file", factory=f"{path}:{attribute}")


def _before(plugin: Declaration, other: Declaration | None) -> Declaration:
    return plugin if other is None else replace(plugin, shadowed=(other, *other.shadowed))


def _by_name(plugins: Iterable[Declaration]) -> Mapping[str, Declaration]:
    return {plugin.name: plugin for plugin in plugins}


def _state() -> object:
    """Return a value that changes when discovery may have another result: new variables, search paths or files."""
    variables = (env_vars.NAMES_AND_PATHS, env_vars.PLUGIN_FOLDERS, env_vars.CONFIG)
    return tuple(map(os.environ.get, variables)), tuple(sys.path), env_vars.config_state()
