"""Plugins of installed packages: by entry points, for this package, for JAX or for PyTorch/XLA, and in a namespace.

No package is imported.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pjrt import system
from pjrt.api.errors import InvalidArgumentError, NotFoundError, PjrtError
from pjrt.plugins import schema
from pjrt.plugins.declaration import Declaration
from pjrt.system import elf

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint


FUNCTION = "GetPjrtApi"
"""The function that every plugin's library exports."""

_DEPTH = 2


class EntryPoints:
    """The entry points of some groups; of two packages with one name, the first on ``sys.path`` counts.

    Each package is read on its own: one with damaged metadata would break Python's own list of all of them.

    Attributes:
        broken: the packages whose entry points in one of the groups cannot be read.
    """

    def __init__(self, *groups: str) -> None:
        import importlib.metadata  # here, because it takes as long to import as all else of this package

        self.broken: list[Declaration] = []
        self._groups = groups
        self._points: list[EntryPoint] = []
        self._seen: set[str] = set()
        for package in importlib.metadata.distributions():
            self._read(package)

    def of(self, group: str) -> list[EntryPoint]:
        """Return those of one group."""
        return [point for point in self._points if point.group == group]

    def _read(self, package: Distribution) -> None:
        name = "an unknown package"
        try:
            text = package.read_text("entry_points.txt") or ""
            if not any(group in text for group in self._groups):
                return
            if not package.name:
                raise ValueError("it has no name")
            name = package.name
            if normalized(name) not in self._seen:
                self._seen.add(normalized(name))
                self._points += package.entry_points
        except Exception as error:
            reason = f"its metadata cannot be read ({type(error).__name__}: {error}); install it again"
            self.broken.append(Declaration(name, f"package {name}", problem=reason))


def or_broken(plugin: Declaration, complete: Callable[[], Declaration]) -> Declaration:
    """Return what ``complete`` returns, or the plugin with the error as its problem.

    Any error is caught: one broken package must not keep the others from being found.
    """
    try:
        return complete()
    except Exception as error:
        return replace(plugin, problem=PjrtError.wrap(error).message)


def version(name: str) -> str:
    """Return the version of a package; empty if it is not installed or has none."""
    import importlib.metadata

    try:
        return importlib.metadata.version(name) or ""
    except Exception:
        return ""


def files(package: Distribution | None) -> list[Path]:
    """Return the files of a package; none if its metadata has no list of them."""
    try:
        return [] if package is None else [Path(str(file.locate())) for file in package.files or ()]
    except Exception:
        return []


def normalized(name: str) -> str:
    """Return a package's name in the normal form of PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def find_module(name: str) -> ModuleSpec | None:
    """Return the spec of a module; neither the module nor its parent packages are imported."""
    first, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(first)
        for number, _ in enumerate(rest, 2):
            if spec is None or spec.submodule_search_locations is None:
                return None
            spec = PathFinder.find_spec(".".join(name.split(".")[:number]), list(spec.submodule_search_locations))
    except (ImportError, ValueError, AttributeError):
        return None
    return spec


def folders(spec: ModuleSpec | None) -> Iterator[Path]:
    """Return the folders of a package; none for a module that is a file."""
    return map(Path, (spec.submodule_search_locations or ()) if spec else ())


def find_library(spec: ModuleSpec | None, files: Iterable[Path] = ()) -> Path | None:
    """Return the plugin's library in a package's folder, or among the files of its distribution."""
    for folder in folders(spec):
        for path in _below(folder, _DEPTH):
            if _is_plugin(path):
                return path.resolve()
    return next((path.resolve() for path in files if _is_plugin(path)), None)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """Return the files in a folder and in its subfolders, the near ones first, sorted by name."""
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    yield from (entry for entry in entries if entry.is_file())
    if depth:
        for entry in entries:
            if entry.is_dir():
                yield from _below(entry, depth - 1)


def _is_plugin(path: Path) -> bool:
    """Whether a file is a library that exports ``GetPjrtApi``. Python's extension modules are not opened."""
    if path.suffix not in system.library_suffixes():
        return False
    if any("." in suffix[1:] and path.name.endswith(suffix) for suffix in importlib.machinery.EXTENSION_SUFFIXES):
        return False
    return path.is_file() and elf.exports(path, FUNCTION)


GROUP = "pjrt.plugins"
JAX = "jax_plugins"
PYTORCH_XLA = "torch_xla.plugins"

# This package's own entry points show devices to JAX and PyTorch/XLA; they are no devices.
_THIS_PACKAGE = "pjrt"


def read_entry_points() -> EntryPoints:
    """Return the entry points of the groups that plugins use."""
    return EntryPoints(GROUP, JAX, PYTORCH_XLA)


def find_declared(points: EntryPoints) -> Iterator[Declaration]:
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
            plugin = _plugin_of(point)
            if _identity(plugin) in own:
                yield replace(own[_identity(plugin)], origin=plugin.origin)
            elif normalized(plugin.distribution) != _THIS_PACKAGE:
                completed = or_broken(plugin, partial(_completed, plugin, point, for_framework=True))
                if completed.library or completed.factory or completed.problem:
                    yield completed


def _identity(plugin: Declaration) -> tuple[str, str]:
    return normalized(plugin.distribution), plugin.name.lower()


def _plugin_of(point: EntryPoint) -> Declaration:
    package = point.dist
    distribution, version = ("an unknown package", "") if package is None else (package.name, package.version)
    # PyTorch/XLA writes its devices in capitals.
    name = point.name.lower() if point.group == PYTORCH_XLA else point.name
    origin = f"entry point {point.group} of {distribution}"
    return Declaration(name, origin, distribution=distribution, version=version)


def _own_plugin(point: EntryPoint) -> Declaration:
    plugin = _plugin_of(point)
    return or_broken(plugin, partial(_completed, plugin, point, for_framework=False))


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
        return schema.with_code(amended, fields, schema.installed_library)
    spec = find_module(module)
    if attribute and spec is not None and not for_framework:
        return replace(amended, factory=f"{module}:{attribute}")
    library = find_library(spec, files(point.dist)) if spec is not None or for_framework else None
    if library is not None:
        return replace(amended, library=schema.installed_library(library))
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
    file = schema.manifest_name(name)
    specs = (find_module(module), find_module(module.partition(".")[0]))
    paths = [folder / file for spec in specs for folder in folders(spec)]
    paths += [path for path in files(point.dist) if path.name == file]
    path = next((path for path in paths if path.is_file()), None)
    return {} if path is None else schema.read_manifest(path)


NAMESPACE = "jax_plugins"
"""The namespace package where JAX looks for modules; only those with a library count."""


def find_in_namespace() -> Iterator[Declaration]:
    """Return the plugins, named as their modules."""
    places = map(str, folders(find_module(NAMESPACE)))
    for module in pkgutil.iter_modules(places):
        library = find_library(find_module(f"{NAMESPACE}.{module.name}"))
        if library is not None:
            plugin = Declaration(module.name, f"namespace package {NAMESPACE}.{module.name}")
            yield or_broken(plugin, partial(_with_library, plugin, library))


def _with_library(plugin: Declaration, path: Path) -> Declaration:
    return replace(plugin, library=schema.installed_library(path))
