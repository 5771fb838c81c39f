"""Wrapping: a plugin with layers before it, in this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.plugin import Plugin
from pjrt.capi import LoadedPlugin, open_table, plugin_at
from pjrt.capi.export import ExportedPlugin, export
from pjrt.capi.layer import stack
from pjrt.plugins import registry
from pjrt.plugins.env_vars import set_environment

_lock = threading.Lock()
_exports: dict[Plugin, ExportedPlugin] = {}


def wrap(
    plugin: str | os.PathLike[str] | Plugin | ExportedPlugin,
    layers: Iterable[str],
    /,
    **options: stack.LayerOptions,
) -> LoadedPlugin:
    """Return a plugin with layers before it.

    The same plugin with the same layers and options gives the same plugin. What was made of the plugin without layers
    goes on without them.

    Args:
        plugin: a name of ``pjrt.plugins.names()``, the path of a plugin's library, a plugin, or what ``pjrt.export``
            returns. A device in Python goes through its export.
        layers: the names of layers (``layer_names``); the first is nearest to the caller.
        options: the options of each layer by its name, such as ``trace={"file": "out.json"}``.

    Raises:
        InvalidArgumentError: a layer or an option is unknown, or ``plugin`` is none of these.
        NotFoundError: there is no plugin of that name, or no such file.
        PjrtError: the plugin cannot be loaded.
    """
    names = (layers,) if isinstance(layers, str) else tuple(layers)
    stack.check_layers(names)
    unused = sorted(set(options) - set(names))
    if unused:
        raise InvalidArgumentError(f"expected options of the layers {', '.join(names)}, found some of {unused[0]!r}")
    address, path, name, owner = table_of(plugin)
    wrapped = stack.wrap_table(address, path, names, options)
    return plugin_at(wrapped, path, name, owner)


def enable(plugin: LoadedPlugin, layer: str) -> bool:
    """Turn a layer of a wrapped plugin on; return whether it was on.

    Raises:
        InvalidArgumentError: the plugin has no such layer.
    """
    return stack.enable(plugin.address, layer, True)


def disable(plugin: LoadedPlugin, layer: str) -> bool:
    """Turn a layer of a wrapped plugin off; return whether it was on. A call then costs a few nanoseconds more.

    Raises:
        InvalidArgumentError: the plugin has no such layer.
    """
    return stack.enable(plugin.address, layer, False)


def _exported(plugin: Plugin) -> ExportedPlugin:
    """Return the export of a plugin in Python: for the same plugin the same one."""
    with _lock:
        if plugin not in _exports:
            _exports[plugin] = export(plugin.client, name=plugin.name)
        return _exports[plugin]


def table_of(plugin: object) -> tuple[int, str, str, object]:
    """Return the address of a plugin's table, its path, its name, and what keeps the table alive.

    Args:
        plugin: a plugin, as for ``wrap``.

    Raises:
        InvalidArgumentError: ``plugin`` is none.
        NotFoundError: there is no plugin of that name, or no such file.
        PjrtError: the plugin cannot be loaded.
    """
    if isinstance(plugin, (str, os.PathLike)):
        declaration = registry.declaration(plugin)
        declaration.check_usable()
        if declaration.library is not None:
            set_environment(declaration)
            return *open_table(Path(declaration.library)), None
        plugin = registry.load_plugin(plugin)
    if isinstance(plugin, LoadedPlugin):
        return plugin.address, plugin.path, plugin.name, plugin
    if isinstance(plugin, Plugin):
        plugin = _exported(plugin)
    if isinstance(plugin, ExportedPlugin):
        return plugin.address, f"<{plugin.name}>", plugin.name, plugin
    raise InvalidArgumentError(
        f"expected a plugin's name, the path of its library, a plugin, or what pjrt.export returns; "
        f"found {type(plugin).__name__}"
    )
