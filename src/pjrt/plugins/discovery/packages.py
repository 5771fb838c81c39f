"""Installed packages: their metadata, their files, and the libraries that they carry. No package is imported."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from pjrt import system
from pjrt.api.errors import PjrtError
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
