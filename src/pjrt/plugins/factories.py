"""A function for each plugin that makes its clients: the library of an exported plugin imports it.

``pjrt export cpu`` writes a library for the place ``pjrt.plugins.factories:cpu``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pjrt.api.client import Client
from pjrt.api.errors import FailedPreconditionError, NotFoundError
from pjrt.api.key_value_store import KeyValueStore
from pjrt.plugins import registry
from pjrt.plugins.declaration import Declaration


def factory(name: str) -> Callable[..., Client]:
    """Return the function that makes the clients of a plugin.

    Raises:
        NotFoundError: there is no plugin of that name.
        FailedPreconditionError: the only plugin of that name is a library that exports the plugin of that name.
    """
    declaration = _exported(name)
    takes_store = declaration.library is not None

    def make(key_value_store: KeyValueStore | None = None, **options: Any) -> Client:
        if takes_store and key_value_store is not None:
            options["key_value_store"] = key_value_store
        return registry.client_of(declaration, **options)

    # The device may have no option for the name of a topology, and a client would need the devices.
    make.named_topology = functools.partial(registry.topology_of, declaration)  # type: ignore[attr-defined]
    make.__module__, make.__qualname__, make.__name__ = __name__, name, name
    return make


def _exported(name: str) -> Declaration:
    """Return the plugin that an exported library of a name stands for.

    A framework's user may give the library the name of its own device, which then leads back to the library:
    ``PJRT_NAMES_AND_LIBRARY_PATHS=reference:libreference.so``. The device is the one that the library took the name of.
    """
    declaration = registry.declaration(name)
    for plugin in (declaration, *declaration.shadowed):
        if plugin.library is None or not _exports(plugin.library, name):
            return plugin
    raise FailedPreconditionError(
        f"the library {str(declaration.library)!r} exports the plugin {name!r}, and is itself the only plugin of that "
        f"name; give it another name, such as my_{name}"
    )


def _exports(library: Path, name: str) -> bool:
    from pjrt.native.library import device_of  # here, because a built-in device does without the C API

    return device_of(library) == f"{__name__}:{name}"


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Callable[..., Client]:
        """Return the function of the plugin with this name."""
        try:
            return factory(name)
        except NotFoundError as error:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}: {error.message}") from None
