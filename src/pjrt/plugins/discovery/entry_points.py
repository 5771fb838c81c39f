"""Plugins of installed packages that say so in their metadata: entry points of this package, JAX and PyTorch/XLA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import InvalidArgumentError, NotFoundError
from pjrt.plugins import configuration
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.discovery import libraries, manifest
from pjrt.plugins.discovery.merging import normalized

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from importlib.metadata import EntryPoint

GROUP = "pjrt.plugins"
FRAMEWORK_GROUPS = ("jax_plugins", "torch_xla.plugins")

# Its entry points show devices of this package to JAX and PyTorch/XLA; it is no device.
_OURSELVES = "pjrt"


def found() -> Iterator[Declaration]:
    """The plugins of the group ``pjrt.plugins``, each with what its manifest says.

    An entry point names a function that makes clients or a ``pjrt.Plugin`` class, or the package that carries a
    library.
    """
    for point in _points(GROUP):
        plugin = _of_entry_point(point, GROUP)
        yield libraries.or_broken(plugin, lambda plugin=plugin, point=point: _complete(plugin, point))  # type: ignore[misc]


def found_for_frameworks() -> Iterator[Declaration]:
    """The plugins that packages register with JAX or PyTorch/XLA, if they carry a library or are known here too."""
    ours = {(normalized(plugin.distribution), plugin.name.lower()): plugin for plugin in found()}
    for group in FRAMEWORK_GROUPS:
        for point in _points(group):
            plugin = _of_entry_point(point, group)
            twin = ours.get((normalized(plugin.distribution), plugin.name.lower()))
            if twin is not None:
                yield replace(twin, origin=plugin.origin)
            elif normalized(plugin.distribution) != _OURSELVES:
                yield from _with_library(plugin, point)


def _points(group: str) -> tuple[EntryPoint, ...]:
    import importlib.metadata  # here, because it takes as long to import as all else of this package

    return tuple(importlib.metadata.entry_points(group=group))


def _of_entry_point(point: EntryPoint, group: str) -> Declaration:
    distribution = "" if point.dist is None else point.dist.name
    version = "" if point.dist is None else point.dist.version
    # PyTorch/XLA writes its devices in capitals.
    name = point.name if group != "torch_xla.plugins" else point.name.lower()
    origin = f"entry point {group} of {distribution or 'an unknown package'}"
    return Declaration(name, origin, distribution=distribution, version=version)


def _complete(plugin: Declaration, point: EntryPoint) -> Declaration:
    """A plugin with what its entry point and its manifest name.

    Raises:
        PjrtError: they name nothing that can be loaded.
    """
    module, attribute = _target(point)
    spec = libraries.find_module(module)
    said = _manifest(plugin.name, module, point)
    plugin = configuration.amended(plugin, said)
    if "library" in said or "factory" in said:
        return libraries.with_code(plugin, said, libraries.installed)
    if spec is None:
        raise NotFoundError(f"its entry point names the module {module!r}, which is not there; install it again")
    if attribute:
        return replace(plugin, factory=f"{module}:{attribute}")
    library = libraries.in_package(spec, _files(point))
    if library is None:
        raise NotFoundError(
            f"its entry point names the module {module!r} and nothing in it, and the package has no plugin's library; "
            "an entry point is written module:attribute"
        )
    return replace(plugin, library=library)


def _with_library(plugin: Declaration, point: EntryPoint) -> Iterator[Declaration]:
    """A plugin that was made for others, if its package carries a library; or if it is broken."""
    try:
        module, _ = _target(point)
        said = _manifest(plugin.name, module, point)
    except (InvalidArgumentError, NotFoundError) as error:
        yield replace(plugin, problem=error.message)
        return
    plugin = configuration.amended(plugin, said)
    if "library" in said or "factory" in said:
        yield libraries.or_broken(plugin, lambda: libraries.with_code(plugin, said, libraries.installed))
        return
    spec = libraries.find_module(module)
    library = libraries.in_package(spec, _files(point))
    if library is not None:
        yield libraries.or_broken(plugin, lambda: replace(plugin, library=libraries.installed(str(library))))
    elif spec is None:
        reason = f"its entry point names the module {module!r}, which is not there; install it again"
        yield replace(plugin, problem=reason)


def _target(point: EntryPoint) -> tuple[str, str]:
    """The module and the attribute that an entry point names."""
    try:
        return point.module, point.attr
    except AttributeError:  # of the pattern that did not match
        raise InvalidArgumentError(f"its entry point is written {point.value!r}; expected module:attribute") from None


def _manifest(name: str, module: str, point: EntryPoint) -> dict[str, Any]:
    """What the manifest in a plugin's package says; nothing if there is none."""
    file = manifest.file_name(name)
    top: ModuleSpec | None = libraries.find_module(module.partition(".")[0])
    own: ModuleSpec | None = libraries.find_module(module)
    places = [folder / file for spec in (own, top) for folder in libraries.folders(spec)]
    places += [path for path in _files(point) if path.name == file]
    path = next((path for path in places if path.is_file()), None)
    return {} if path is None else manifest.read(path)


def _files(point: EntryPoint) -> list[Path]:
    """The files of the package that an entry point is of."""
    if point.dist is None or point.dist.files is None:
        return []
    return [Path(str(file.locate())) for file in point.dist.files]
