"""Devices of installed packages: the entry points of the group ``pjrt.plugins``.

An entry point names a function that makes clients (or a ``pjrt.Plugin`` class). It is imported when its device is first
asked for; listing the names imports nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pjrt.api.attributes import Attributes
from pjrt.api.client import Client
from pjrt.api.errors import InternalError, PjrtError
from pjrt.api.plugin import Plugin

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "pjrt.plugins"


@functools.cache
def entry_points() -> dict[str, EntryPoint]:
    """The entry points by name; of two packages with one name, the one that the path has first counts."""
    import importlib.metadata  # here, because it takes as long to import as all else of this package

    found: dict[str, EntryPoint] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        found.setdefault(point.name, point)
    return found


@functools.cache
def plugin(name: str) -> Plugin:
    """The plugin behind an entry point; one object a name.

    Raises:
        InternalError: the package cannot be imported, or names something else.
    """
    point = entry_points()[name]
    try:
        loaded = point.load()
    except PjrtError:
        raise
    except Exception as error:
        raise InternalError(
            f"the device {name!r} of {_package(point)} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    made = loaded() if isinstance(loaded, type) and issubclass(loaded, Plugin) else loaded
    if isinstance(made, Plugin):
        return made
    if not callable(made):
        raise InternalError(
            f"the entry point {name!r} of {_package(point)} must name a function that makes clients or a pjrt.Plugin, "
            f"found {type(made).__name__}"
        )
    return FactoryPlugin(name, made)


def _package(point: EntryPoint) -> str:
    return "an unknown package" if point.dist is None else f"the package {point.dist.name}"


class FactoryPlugin(Plugin):
    """A plugin that is a function that makes clients."""

    def __init__(self, name: str, factory: Callable[..., Client]) -> None:
        self._name = name
        self._factory = factory

    @property
    def name(self) -> str:
        return self._name

    @property
    def api_version(self) -> tuple[int, int]:
        return 0, 114

    @property
    def attributes(self) -> Attributes:
        return {}

    def client(self, /, **options: Any) -> Client:
        return self._factory(**options)
