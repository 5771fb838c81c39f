"""Layers before a plugin: in this process, and in a library for others; and what they inject."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.plugin import Plugin
from pjrt.capi import LoadedPlugin, check_library_file, open_table, plugin_at
from pjrt.layers import stack
from pjrt.layers.stack import LayerOptions, check_layers, write_layer_library
from pjrt.native.exported import ExportedPlugin, export, write_exported
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


# What the layer ``inject`` does.


@dataclass(frozen=True, slots=True)
class InjectionRule:
    """A rule of the layer ``inject``, and how often it was used.

    Attributes:
        text: the rule, as in the options of the layer.
        calls: the number of calls that it is for.
        faults: the number of these calls to which its fault happened.
    """

    text: str
    calls: int
    faults: int


def injections(plugin: LoadedPlugin) -> tuple[InjectionRule, ...]:
    """Return the rules of a wrapped plugin's layer ``inject``, in order, with what they did up to now.

    Raises:
        InvalidArgumentError: the plugin has no such layer.
    """
    return tuple(InjectionRule(*rule) for rule in stack.injected_faults(plugin.address))


def inject(plugin: LoadedPlugin, rules: stack.LayerOptions) -> None:
    """Replace the rules of a wrapped plugin's layer ``inject`` from the next call on. No rules make no faults.

    Events that are never ready stay so until their end. A rule for a client knows the clients that were made since
    the layer has followed clients: since its first rule with ``client``, ``ready``, ``flip`` or ``memory``.

    Args:
        plugin: what ``pjrt.layers.wrap(plugin, ["inject"], inject=…)`` returned.
        rules: a rule, several, or their text, as for ``wrap``.

    Raises:
        InvalidArgumentError: the plugin has no such layer, or a rule is wrong.
    """
    stack.replace_rules(plugin.address, rules)


# A library for other programs.


@dataclass(frozen=True, slots=True)
class WrittenLibrary:
    """A library that was written.

    Attributes:
        path: its file.
        target: the library of the plugin behind it.
        layers: its layers in order.
    """

    path: Path
    target: Path
    layers: tuple[str, ...]


def write_library(
    path: str | os.PathLike[str],
    plugin: str | os.PathLike[str],
    layers: Sequence[str],
    options: Mapping[str, LayerOptions] | None = None,
) -> WrittenLibrary:
    """Write a shared library with ``GetPjrtApi`` that puts layers before a plugin; needs no compiler.

    Args:
        path: the file to write.
        plugin: a name of ``pjrt.plugins.names()``, or the path of a plugin's library. A device in Python is exported to
            a library of its own, beside the file.
        layers: the names of layers; the first is nearest to the framework.
        options: the options of layers, by name. Others have those of the environment of the program, such as
            ``PJRT_TRACE``.

    Raises:
        InvalidArgumentError: a layer is unknown, or the file cannot be written.
        NotFoundError: there is no such plugin, or no folder for the file.
        FailedPreconditionError: the plugin cannot be used, or its file is no shared library.
        DataLossError: the file of the plugin is cut off.
    """
    names = (layers,) if isinstance(layers, str) else tuple(layers)
    check_layers(names)
    values = options or {}
    unused = sorted(set(values) - set(names))
    if unused:
        raise InvalidArgumentError(f"expected options of the layers {', '.join(names)}, found some of {unused[0]!r}")
    declaration = registry.declaration(plugin)
    declaration.check_usable()
    if declaration.library is None:
        beside = Path(path).with_name(f"{Path(path).stem}-{declaration.name}{Path(path).suffix}")
        target = write_exported(beside, registry.factory_place(declaration.name))
    else:
        target = Path(declaration.library)
        check_library_file(target)
    return WrittenLibrary(write_layer_library(path, target, names, values), target, names)
