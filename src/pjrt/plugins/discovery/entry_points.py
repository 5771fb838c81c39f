"""Plugins that installed packages declare by entry points, for this package, for JAX or for PyTorch/XLA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import InvalidArgumentError, NotFoundError
from pjrt.plugins import schema
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.discovery import manifest, packages, safe_paths
from pjrt.plugins.discovery.packages import EntryPoints, normalized

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "pjrt.plugins"
JAX = "jax_plugins"
PYTORCH_XLA = "torch_xla.plugins"

# This package's own entry points show devices to JAX and PyTorch/XLA; they are no devices.
_THIS_PACKAGE = "pjrt"


def read() -> EntryPoints:
    """Return the entry points of the groups that plugins use."""
    return EntryPoints(GROUP, JAX, PYTORCH_XLA)


def find(points: EntryPoints) -> Iterator[Declaration]:
    """Return the plugins of the group ``pjrt.plugins``, each with the facts of its manifest.

    An entry point names a function that makes clients or a ``pjrt.Plugin`` class, or the package that carries a
    library.
    """
    yield from points.broken
    yield from map(_own_plugin, points.of(GROUP))


def find_for_frameworks(points: EntryPoints) -> Iterator[Declaration]:
    """Return the plugins that packages register with JAX or PyTorch/XLA.

    Only those count that carry a library, or that have an entry point of this package as well.
    """
    own = {_identity(plugin): plugin for plugin in map(_own_plugin, points.of(GROUP))}
    for group in (JAX, PYTORCH_XLA):
        for point in points.of(group):
            plugin = _declared(point)
            if _identity(plugin) in own:
                yield replace(own[_identity(plugin)], origin=plugin.origin)
            elif normalized(plugin.distribution) != _THIS_PACKAGE:
                completed = packages.or_broken(plugin, partial(_completed, plugin, point, for_framework=True))
                if completed.library or completed.factory or completed.problem:
                    yield completed


def _identity(plugin: Declaration) -> tuple[str, str]:
    return normalized(plugin.distribution), plugin.name.lower()


def _declared(point: EntryPoint) -> Declaration:
    package = point.dist
    distribution, version = ("an unknown package", "") if package is None else (package.name, package.version)
    # PyTorch/XLA writes its devices in capitals.
    name = point.name.lower() if point.group == PYTORCH_XLA else point.name
    origin = f"entry point {point.group} of {distribution}"
    return Declaration(name, origin, distribution=distribution, version=version)


def _own_plugin(point: EntryPoint) -> Declaration:
    plugin = _declared(point)
    return packages.or_broken(plugin, partial(_completed, plugin, point, for_framework=False))


def _completed(plugin: Declaration, point: EntryPoint, *, for_framework: bool) -> Declaration:
    """Return a plugin with the code and the facts that its entry point, its manifest and its package have.

    A framework's entry point names a function of that framework, so only a library counts; without one the plugin is
    returned as it is.

    Raises:
        PjrtError: the entry point or the manifest names nothing that can be loaded.
    """
    module, attribute = _target(point)
    fields = _manifest(plugin.name, module, point)
    amended = schema.amend(plugin, fields)
    if "library" in fields or "factory" in fields:
        return manifest.with_code(amended, fields, safe_paths.installed_library)
    spec = packages.find_module(module)
    if attribute and spec is not None and not for_framework:
        return replace(amended, factory=f"{module}:{attribute}")
    library = packages.find_library(spec, packages.files(point.dist)) if spec is not None or for_framework else None
    if library is not None:
        return replace(amended, library=safe_paths.installed_library(library))
    if spec is None:
        raise NotFoundError(f"its entry point names the module {module!r}, which is not there; install it again")
    if for_framework:
        return plugin
    raise NotFoundError(
        f"its entry point names the module {module!r} without an attribute, and the package has no plugin's library; "
        "write an entry point as module:attribute"
    )


def _target(point: EntryPoint) -> tuple[str, str]:
    """Return the module and the attribute that an entry point names."""
    try:
        return point.module, point.attr
    except (AttributeError, AssertionError, ValueError):  # from importlib.metadata, each from some versions of Python
        raise InvalidArgumentError(f"its entry point is written {point.value!r}; expected module:attribute") from None


def _manifest(name: str, module: str, point: EntryPoint) -> dict[str, Any]:
    """Return the fields of the manifest in a plugin's package; empty if there is none."""
    file = manifest.file_name(name)
    specs = (packages.find_module(module), packages.find_module(module.partition(".")[0]))
    paths = [folder / file for spec in specs for folder in packages.folders(spec)]
    paths += [path for path in packages.files(point.dist) if path.name == file]
    path = next((path for path in paths if path.is_file()), None)
    return {} if path is None else manifest.read(path)
