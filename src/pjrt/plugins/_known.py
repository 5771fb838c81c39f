"""The plugins that names stand for: those that were registered, those in the box, and those that are found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from pjrt.api.errors import NotFoundError
from pjrt.plugins import _builtin
from pjrt.plugins.declaration import Declaration, is_path
from pjrt.plugins.discovery import settings


class Known:
    """What is known by name in this process.

    Attributes:
        registered: the plugins that were registered, by name.
    """

    def __init__(self) -> None:
        self.registered: dict[str, Declaration] = {}
        self._everything = _Found()
        self._named_by_user = _Found()

    def all(self) -> Mapping[str, Declaration]:
        """All plugins by name, in the order of precedence."""
        found = self._everything.plugins(_discover)
        registered = {name: _before(plugin, found.get(name)) for name, plugin in tuple(self.registered.items())}
        return {**registered, **{name: plugin for name, plugin in found.items() if name not in registered}}

    def find(self, name: str) -> Declaration | None:
        """A plugin by its name or another that it was found under; that may be one whose name a different plugin has.

        For a device in the box nothing is searched.
        """
        first = self.registered.get(name) or self._in_the_box(name)
        if first is not None:
            return first
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

    def forget_found(self) -> None:
        """Has plugins looked for when they are next asked for."""
        self._everything = _Found()
        self._named_by_user = _Found()

    def unknown(self, name: str) -> NotFoundError:
        """The error that there is no plugin of a name, with what there is instead."""
        from pjrt.plugins.discovery import wheels

        advice = wheels.advice(name)
        if advice:
            return NotFoundError(
                f"the plugin of {name!r} is not installed: get it with {advice}, or give the path of the plugin's "
                "library"
            )
        here = self.all()
        names = ", ".join(sorted(name for name, plugin in here.items() if not plugin.problem))
        others = ", ".join(sorted(vendor for vendor in wheels.vendors() if vendor not in here))
        wheel = f" one from a vendor's wheel ({others})," if others else ""
        return NotFoundError(
            f"there is no device called {name!r}: expected one of {names},{wheel} or the path of a plugin's library; "
            "'pjrt plugins' tells more of them"
        )

    def _in_the_box(self, name: str) -> Declaration | None:
        """A device in the box as the user configures it."""
        if name not in _builtin.DEVICES:
            return None
        if not settings.is_configured():
            return _builtin.DEVICES[name]
        return self._named_by_user.plugins(_discover_configured)[name]


class _Found:
    """What discovery found, kept until there may be something else to find."""

    def __init__(self) -> None:
        self._found: tuple[object, Mapping[str, Declaration]] = (None, {})

    def plugins(self, discover: Callable[[], Iterable[Declaration]]) -> Mapping[str, Declaration]:
        """The plugins by name; they are looked for if what they depend on is in another state than it was."""
        state = settings.state()
        found = self._found
        if found[0] != state:
            found = self._found = (state, {plugin.name: plugin for plugin in discover()})
        return found[1]


def at_place(name: str | os.PathLike[str]) -> Declaration | None:
    """The plugin whose library is at a path, or that is in a file, ``FILE.py:ATTRIBUTE``; ``None`` if this is a name.

    Raises:
        NotFoundError: there is no such file with Python source. A library is looked for when it is loaded.
    """
    if isinstance(name, str) and ".py:" in name:
        return _in_a_file(name)
    if isinstance(name, str) and not is_path(name):
        return None
    from pjrt.plugins.discovery import wheels

    return wheels.known_library(Path(os.path.abspath(os.path.expanduser(name))))


def _in_a_file(place: str) -> Declaration:
    file, _, attribute = place.rpartition(":")
    path = os.path.abspath(os.path.expanduser(file))
    if not os.path.isfile(path) or not attribute.isidentifier():
        raise NotFoundError(f"{place!r}: expected FILE.py:ATTRIBUTE with the path of a file; there is none at {path}")
    return Declaration(place, "a file", factory=f"{path}:{attribute}")


def _before(plugin: Declaration, other: Declaration | None) -> Declaration:
    return plugin if other is None else replace(plugin, shadowed=(other, *other.shadowed))


def _discover() -> Iterable[Declaration]:
    from pjrt.plugins.discovery import precedence  # here and below: a device in the box does without

    return precedence.discover()


def _discover_configured() -> Iterable[Declaration]:
    from pjrt.plugins.discovery import precedence

    return precedence.discover_configured()
