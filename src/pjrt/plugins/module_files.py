"""The Python modules of a plugin: their files, and a second import of them.

They are the modules of the package that the factory's module is in; for a file that is in no package, the modules of
its folder.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pjrt.api.errors import FailedPreconditionError
from pjrt.api.plugin import Plugin
from pjrt.plugins.declaration import Declaration
from pjrt.system import FileStamp, file_stamp

_INSTALLED = ("site-packages", "dist-packages")


def place_of(declaration: Declaration) -> str:
    """Return the place of a plugin's factory, ``module:attribute`` or ``/path/file.py:attribute``.

    It is empty for a library, for a built-in device, and for an object that is not at the top level of a module.
    """
    factory = declaration.factory
    if isinstance(factory, str):
        place = factory
    elif factory is None or isinstance(factory, Plugin):
        return ""
    else:
        module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
        place = "" if not name or "<" in name or module in ("", "__main__") else f"{module}:{name}"
    return "" if place.startswith("pjrt.") else place


@dataclass(frozen=True)
class ModuleFiles:
    """The modules of one plugin, imported or not.

    Attributes:
        name: the name of the module that holds the factory.
        package: the package whose modules all belong to the plugin; empty for a module that is in no package.
        folder: the folder of the package, or else of the file. ``None`` if the module is not found, and for a file
            directly among the installed packages, whose neighbours belong to other packages.
    """

    name: str
    package: str
    folder: Path | None

    @staticmethod
    def of(place: str) -> ModuleFiles:
        """Return the modules of the plugin whose factory is at a place, as ``place_of`` returns it."""
        from pjrt.capi.export.import_spec import module_name

        holder = place.rpartition(":")[0]
        if holder.endswith(".py"):
            file = Path(holder).resolve()
            return ModuleFiles(module_name(file), "", file.parent)
        package, folder = _home(holder)
        alone = not package and folder is not None and folder.name in _INSTALLED
        return ModuleFiles(holder, package, None if alone else folder)

    def stamps(self) -> dict[Path, FileStamp | None]:
        """Return the stamps of the files of those modules that are imported."""
        return {path: file_stamp(path) for path in self._imported().values()}

    def on_disk(self) -> set[Path]:
        """Return the source files below the package's folder, or beside the plugin's file. Nothing is imported."""
        if self.folder is None:
            return set()
        return set(self.folder.rglob("*.py") if self.package else self.folder.glob("*.py"))

    @contextlib.contextmanager
    def imported_anew(self) -> Iterator[None]:
        """Have the modules imported again from their source while the block runs.

        Other modules of the same folder that the block does not import are put back: they do not belong to the plugin.
        If the block raises an error, all old modules are put back.

        Raises:
            FailedPreconditionError: a module of the plugin is compiled (``.so``); it cannot be imported twice.
        """
        imported = self._imported()
        compiled = [path for path in imported.values() if path.suffix != ".py"]
        if compiled:
            raise FailedPreconditionError(
                f"{compiled[0]} is a compiled module, which cannot be imported twice; start a new process for new code"
            )
        bindings = _bindings_in_parents(imported)
        old = {name: sys.modules.pop(name) for name in imported}
        finder = _SourceFinder(self._owns)
        sys.meta_path.insert(0, finder)
        importlib.invalidate_caches()
        linecache.checkcache()
        try:
            yield
        except BaseException:
            for name in [name for name in sys.modules if name in old or self._owns(name)]:
                del sys.modules[name]
            sys.modules.update(old)
            for bind in bindings:
                bind()
            raise
        finally:
            sys.meta_path.remove(finder)
        for name, module in old.items():
            if not self._owns(name):
                sys.modules.setdefault(name, module)

    def _owns(self, name: str) -> bool:
        return name == self.name or (bool(self.package) and f"{name}.".startswith(f"{self.package}."))

    def _imported(self) -> dict[str, Path]:
        """Return the files of the imported modules: the plugin's own, and without a package those of its folder."""
        folder = None if self.package else self.folder
        files = {}
        for name, module in tuple(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or name == "__main__":
                continue
            path = Path(file)
            if self._owns(name) or (folder is not None and path.parent == folder):
                files[name] = path
        return files


def _home(name: str) -> tuple[str, Path | None]:
    """Return the package of a module, which may be the module itself, and its folder, without importing the module."""
    top, *below = name.split(".")
    spec = getattr(sys.modules.get(top), "__spec__", None)
    if spec is None:
        with contextlib.suppress(ImportError, ValueError):
            spec = importlib.util.find_spec(top)
    if spec is None:
        return "", None
    for location in spec.submodule_search_locations or ():
        place = Path(location, *below)
        if place.is_dir():
            return name, place
        if place.with_name(f"{place.name}.py").is_file():
            return name.rpartition(".")[0], place.parent
    return "", Path(spec.origin).parent if spec.origin else None


class _SourceFinder:
    """Finds modules like the other finders, but has the plugin's modules compiled from their source.

    Python reuses the cached code of a module if size and second of its last write agree; two versions of a source may
    have both in common.
    """

    def __init__(self, owns: Callable[[str], bool]) -> None:
        self._owns = owns

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        from pjrt.capi.export.import_spec import UncachedLoader

        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is None:
                continue
            if type(spec.loader) is importlib.machinery.SourceFileLoader and self._is_ours(name, spec.loader.path):
                spec.loader = UncachedLoader(name, spec.loader.path)
            return spec
        return None

    def _is_ours(self, name: str, path: str) -> bool:
        return self._owns(name) or not any(part in _INSTALLED for part in Path(path).parts)


def _bindings_in_parents(names: dict[str, Path]) -> list[Callable[[], None]]:
    """Return functions that put modules back as attributes of packages that are not imported anew."""

    def binding(holder: ModuleType, child: str, module: ModuleType) -> Callable[[], None]:
        return lambda: setattr(holder, child, module)

    bindings = []
    for name in names:
        parent, _, child = name.rpartition(".")
        if parent in sys.modules and parent not in names:
            bindings.append(binding(sys.modules[parent], child, sys.modules[name]))
    return bindings
