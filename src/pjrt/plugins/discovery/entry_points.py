"""Plugins of installed packages that say so in their metadata: entry points of this package, JAX and PyTorch/XLA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import InvalidArgumentError, NotFoundError
from pjrt.plugins import configuration
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.discovery import libraries, manifest
from pjrt.plugins.discovery.packages import EntryPoints, files, normalized

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "pjrt.plugins"
JAX = "jax_plugins"
PYTORCH_XLA = "torch_xla.plugins"

# Its entry points show devices of this package to JAX and PyTorch/XLA; it is no device.
_OURSELVES = "pjrt"


def read() -> EntryPoints:
    """The entry points that may be of plugins."""
    return EntryPoints(GROUP, JAX, PYTORCH_XLA)


def found(points: EntryPoints) -> Iterator[Declaration]:
    """The plugins of the group ``pjrt.plugins``, each with what its manifest says.

    An entry point names a function that makes clients or a ``pjrt.Plugin`` class, or the package that carries a
    library.
    """
    yield from points.broken
    yield from (_of_this_package(point) for point in points.of(GROUP))


def found_for_frameworks(points: EntryPoints) -> Iterator[Declaration]:
    """The plugins that packages register with JAX or PyTorch/XLA, if they carry a library or are known here too."""
    ours = {_identity(plugin): plugin for plugin in map(_of_this_package, points.of(GROUP))}
    for group in (JAX, PYTORCH_XLA):
        for point in points.of(group):
            plugin = _declared(point)
            if _identity(plugin) in ours:
                yield replace(ours[_identity(plugin)], origin=plugin.origin)
            elif normalized(plugin.distribution) != _OURSELVES:
                completed = libraries.or_broken(plugin, partial(_of_framework, plugin, point))
                if completed.library or completed.factory or completed.problem:
                    yield completed


def _identity(plugin: Declaration) -> tuple[str, str]:
    return normalized(plugin.distribution), plugin.name.lower()


def _declared(point: EntryPoint) -> Declaration:
    package = point.dist
    name, version = ("an unknown package", "") if package is None else (package.name, package.version)
    # PyTorch/XLA writes its devices in capitals.
    called = point.name.lower() if point.group == PYTORCH_XLA else point.name
    return Declaration(called, f"entry point {point.group} of {name}", distribution=name, version=version)


def _of_this_package(point: EntryPoint) -> Declaration:
    plugin = _declared(point)
    return libraries.or_broken(plugin, partial(_of_group, plugin, point))


def _of_group(plugin: Declaration, point: EntryPoint) -> Declaration:
    """A plugin of the group ``pjrt.plugins`` with what its entry point and its manifest name.

    Raises:
        PjrtError: they name nothing that can be loaded.
    """
    module, attribute = _target(point)
    said = _manifest(plugin.name, module, point)
    if "library" in said or "factory" in said:
        return libraries.with_code(configuration.amended(plugin, said), said, libraries.installed)
    plugin = configuration.amended(plugin, said)
    spec = libraries.find_module(module)
    if spec is None:
        raise NotFoundError(_not_there(module))
    if attribute:
        return replace(plugin, factory=f"{module}:{attribute}")
    library = libraries.in_package(spec, files(point.dist))
    if library is None:
        raise NotFoundError(
            f"its entry point names the module {module!r} and nothing in it, and the package has no plugin's library; "
            "an entry point is written module:attribute"
        )
    return replace(plugin, library=libraries.installed(str(library)))


def _of_framework(plugin: Declaration, point: EntryPoint) -> Declaration:
    """A plugin that was made for others, with its library if its package carries one.

    Raises:
        PjrtError: its entry point or its manifest names nothing that is there.
    """
    module, _ = _target(point)
    said = _manifest(plugin.name, module, point)
    if "library" in said or "factory" in said:
        return libraries.with_code(configuration.amended(plugin, said), said, libraries.installed)
    spec = libraries.find_module(module)
    library = libraries.in_package(spec, files(point.dist))
    if library is not None:
        return replace(configuration.amended(plugin, said), library=libraries.installed(str(library)))
    if spec is None:
        raise NotFoundError(_not_there(module))
    return plugin


def _target(point: EntryPoint) -> tuple[str, str]:
    """The module and the attribute that an entry point names."""
    try:
        return point.module, point.attr
    except AttributeError:  # of the pattern that did not match
        raise InvalidArgumentError(f"its entry point is written {point.value!r}; expected module:attribute") from None


def _not_there(module: str) -> str:
    return f"its entry point names the module {module!r}, which is not there; install it again"


def _manifest(name: str, module: str, point: EntryPoint) -> dict[str, Any]:
    """What the manifest in a plugin's package says; nothing if there is none."""
    file = manifest.file_name(name)
    specs = (libraries.find_module(module), libraries.find_module(module.partition(".")[0]))
    places = [folder / file for spec in specs for folder in libraries.folders(spec)]
    places += [path for path in files(point.dist) if path.name == file]
    path = next((path for path in places if path.is_file()), None)
    return {} if path is None else manifest.read(path)
