"""Paths of plugins' libraries as users and packages write them: which are safe to be loaded, and where packages keep
theirs.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from pjrt import system
from pjrt.api.errors import DataLossError, InvalidArgumentError, NotFoundError, PermissionDeniedError, PjrtError
from pjrt.plugins.declaration import Declaration
from pjrt.system import library_file

FUNCTION = "GetPjrtApi"
"""What every plugin's library exports."""

_DEPTH = 2


def written(path: str) -> Path:
    """A library's path that a variable or the configuration file gives, with links resolved.

    Raises:
        InvalidArgumentError: it is not a whole path, or leads to no file.
        NotFoundError: there is nothing.
        PermissionDeniedError: anyone on the machine could put another library in its place.
        DataLossError: the file is cut off.
    """
    found = safe(path)
    if not found.is_file():
        kind = "a folder" if found.is_dir() else "something that is no plain file"
        raise InvalidArgumentError(f"{path}: expected the file of a library, found {kind}")
    check_whole(found)
    return found


def installed(path: str) -> Path:
    """The path of a library that an installed package names, with links resolved; it is as safe as the package is.

    Raises:
        NotFoundError: there is no such file.
        DataLossError: the file is cut off.
    """
    try:
        found = Path(path).resolve()
    except RuntimeError as error:  # how pathlib before Python 3.13 says that links go round in circles
        raise NotFoundError(f"{path}: its links lead back to themselves; install the package again") from error
    if not found.is_file():
        raise NotFoundError(f"{path}: there is no such file; install the package again")
    check_whole(found)
    return found


def safe(path: str) -> Path:
    """A whole path, with links resolved, of something that only its owner can replace.

    Raises:
        InvalidArgumentError: it is not a whole path.
        NotFoundError: there is nothing.
        PermissionDeniedError: anyone on the machine could put something else there.
    """
    expanded = os.path.expanduser(path)
    if not os.path.isabs(expanded):
        raise InvalidArgumentError(
            f"{path!r} is a relative path, which means something else in every folder; write it from the root on"
        )
    try:
        reason = system.writable_by_everyone(expanded)
        resolved = Path(expanded).resolve(strict=True)
    except OSError as error:
        raise NotFoundError(f"{path}: {error.strerror or error}".replace("No such", "there is no such")) from error
    except RuntimeError as error:  # how pathlib before Python 3.13 says that links go round in circles
        raise NotFoundError(f"{path}: its links lead back to themselves") from error
    if reason:
        raise PermissionDeniedError(f"{path} is not safe: {reason}; take that right away, or move it")
    return resolved


def check_whole(path: Path) -> None:
    """Raises DataLossError if the file of a library ends too early."""
    missing = library_file.missing_bytes(path)
    if missing is not None:
        has, needs = missing
        raise DataLossError(f"{path} is cut off: it has {has} bytes, its header speaks of at least {needs}")


def find_module(name: str) -> ModuleSpec | None:
    """Where a module is; neither it nor the packages around it are imported."""
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
    """The folders of a package; none for a module that is a file."""
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(place)


def in_package(spec: ModuleSpec | None, files: Iterable[Path] = ()) -> Path | None:
    """The plugin's library that a package carries, in the package's folder or among the files of its distribution."""
    for folder in folders(spec):
        for path in _below(folder, _DEPTH):
            if _is_plugin(path):
                return path.resolve()
    return next((path.resolve() for path in files if _is_plugin(path)), None)


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """The files in a folder and in those below it, the near ones first, each by name."""
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
    """Whether a file is a library that exports what a plugin does; modules for Python are not looked at."""
    if path.suffix not in system.library_suffixes():
        return False
    if any("." in suffix[1:] and path.name.endswith(suffix) for suffix in importlib.machinery.EXTENSION_SUFFIXES):
        return False
    return path.is_file() and library_file.exports(path, FUNCTION)


def with_code(plugin: Declaration, said: Mapping[str, Any], check: Callable[[str], Path] = written) -> Declaration:
    """A plugin with the library or the factory that a manifest or the configuration file names, if it names one.

    Args:
        plugin: what else is known of it.
        said: what was read.
        check: what holds the library's path to the rules of where it is written.

    Raises:
        PjrtError: it names both, or a library that cannot be loaded; the message is the reason.
    """
    if "library" in said and "factory" in said:
        raise InvalidArgumentError("expected a library or a factory, found both")
    if "library" in said:
        return replace(plugin, library=check(said["library"]), factory=None)
    return replace(plugin, library=None, factory=said["factory"]) if "factory" in said else plugin


def or_broken(plugin: Declaration, complete: Callable[[], Declaration]) -> Declaration:
    """What ``complete`` makes of a plugin, or the plugin with the reason why it cannot be used, whatever that is: what
    others installed must not keep the rest from being found.
    """
    try:
        return complete()
    except Exception as error:
        return replace(plugin, problem=PjrtError.wrap(error).message)
