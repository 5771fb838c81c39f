"""The Python source of a plugin: which modules it is made of, whether their files have changed, and taking in what
they say now.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import linecache
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pjrt.api.errors import FailedPreconditionError, PjrtError
from pjrt.api.plugin import Plugin
from pjrt.plugins.declaration import Declaration

Signature = tuple[int, int, int] | None


def signature(path: Path) -> Signature:
    """What tells a file from the one that was there before; ``None`` where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def place_of(declaration: Declaration) -> str:
    """Where what makes a plugin's clients can be imported from, ``module:attribute`` or ``/path/of/file.py:attribute``;
    empty where it is an object that has no such place, or the plugin is a library.
    """
    factory = declaration.factory
    if factory is None or isinstance(factory, (str, Plugin)):
        return factory if isinstance(factory, str) else ""
    module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    return "" if not name or "<" in name or module in ("", "__main__") else f"{module}:{name}"


class PythonSource:
    """The modules of a plugin, as they were when this was made.

    They are those of the package that its factory's module is in, and what that imports of its neighbours: of the same
    top-level package, or for a file of its own from the same folder.
    """

    def __init__(self, place: str) -> None:
        """Notes the files of a plugin.

        Args:
            place: what makes its clients, as ``place_of`` gives it.
        """
        from pjrt.capi.export.loading import module_name

        file, _, _ = place.rpartition(":")
        self._file = Path(file).resolve() if file.endswith(".py") else None
        self._name = module_name(self._file) if self._file else place.partition(":")[0]
        self._noted_at = time.time_ns()
        self._noted = {name: (path, signature(path)) for name, path in self._candidates().items()}

    def changed(self) -> tuple[Path, ...]:
        """The files that are others than they were, or are gone."""
        known, changed = self.noted(), []
        for path in self._modules().values():
            found = signature(path)
            # One that was imported since then may have changed in between.
            same = found == known[path] if path in known else found is not None and found[2] <= self._noted_at
            if not same:
                changed.append(path)
        return tuple(sorted(set(changed)))

    def noted(self) -> dict[Path, Signature]:
        """The files as they were."""
        ours = self._modules()
        return {path: before for name, (path, before) in self._noted.items() if name in ours}

    def files(self) -> tuple[Path, ...]:
        """The files that the plugin is made of: those of its modules, or of its whole package if it is not imported."""
        found = set(self._modules().values())
        if self._file is not None:
            found.add(self._file)
        elif self._name not in sys.modules:
            for place in _places(self._name):
                found.update(place.rglob("*.py") if place.is_dir() else [place])
        return tuple(sorted(found))

    def names(self) -> frozenset[str]:
        """The names of its modules that are imported."""
        return frozenset(self._modules())

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """While it lasts the plugin's modules are imported anew; if an exception ends it the old ones are back.

        Raises:
            FailedPreconditionError: one of the files that have changed is no Python.
        """
        compiled = [path for path in self.changed() if path.suffix != ".py"]
        if compiled:
            raise FailedPreconditionError(
                f"{compiled[0]} has changed, a compiled module, which stays in a process; start a new one"
            )
        modules = {name: path for name, path in self._modules().items() if path.suffix == ".py"}
        names = modules.keys()
        bindings = _bindings(names)
        olds = {name: sys.modules.pop(name) for name in names}
        finder = _UncachedFinder(names, self._package())
        sys.meta_path.insert(0, finder)
        importlib.invalidate_caches()
        linecache.checkcache()
        # Of those that are imported later, when nobody looks to it that they are compiled.
        _remove_compiled(modules.values())
        try:
            yield
        except BaseException:
            for name in names | {name for name in sys.modules if finder.is_asked_for(name)}:
                if not isinstance(getattr(sys.modules.get(name), "__loader__", None), _COMPILED):
                    sys.modules.pop(name, None)
            sys.modules.update(olds)
            for parent, child, module in bindings:
                setattr(parent, child, module)
            raise
        finally:
            sys.meta_path.remove(finder)

    def forget(self) -> None:
        """Has the plugin's modules imported anew when they are next asked for."""
        modules = {name: path for name, path in self._modules().items() if path.suffix == ".py"}
        for name in modules:
            sys.modules.pop(name, None)
        _remove_compiled(modules.values())

    def _package(self) -> str:
        """The package whose modules are all the plugin's; empty where its module is in none."""
        package = self._name
        if not _is_package(package):
            package = package.rpartition(".")[0]
        if _is_package(package):
            return package
        return "" if self._file else self._name

    def _candidates(self) -> dict[str, Path]:
        """The files of the imported modules that may be the plugin's, by name: of its package and its neighbours."""
        package, root = self._package(), _root(self._name)
        near = "" if root is None else f"{root}{os.sep}"
        found = {}
        for name, module in tuple(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if not isinstance(file, str) or name == "__main__" or _is_within(name, "pjrt"):
                continue
            if name == self._name or _is_within(name, package) or (near and file.startswith(near)):
                found[name] = Path(file)
        return found

    def _modules(self) -> dict[str, Path]:
        """The files of the imported modules that are the plugin's, by their names."""
        package, candidates = self._package(), self._candidates()
        waiting = [name for name in candidates if name == self._name or _is_within(name, package)]
        found: dict[str, Path] = {}
        while waiting:
            name = waiting.pop()
            if name not in candidates or name in found:
                continue
            path = found[name] = candidates[name]
            holder = getattr(sys.modules.get(name), "__package__", None) or ""
            waiting += _imports(path, signature(path), holder)
        return found


_COMPILED = (importlib.machinery.ExtensionFileLoader,)


class _UncachedFinder:
    """Finds modules as the others do, and has them compiled from their source."""

    def __init__(self, names: Collection[str], package: str) -> None:
        self._names = names
        self._package = package

    def is_asked_for(self, name: str) -> bool:
        return name in self._names or _is_within(name, self._package)

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        if not self.is_asked_for(name):
            return None
        from pjrt.capi.export.loading import UncachedLoader

        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is None:
                continue
            if type(spec.loader) is importlib.machinery.SourceFileLoader:
                spec.loader = UncachedLoader(name, spec.loader.path)
            return spec
        return None


def _remove_compiled(sources: Iterable[Path]) -> None:
    """Removes what Python keeps of compiled modules: it is taken for that of a source of the same size and second."""
    for source in sources:
        with contextlib.suppress(OSError, NotImplementedError):
            os.unlink(importlib.util.cache_from_source(source))


def _is_package(name: str) -> bool:
    """Whether a name is that of an imported package, and not of one that is spread over several folders."""
    path = _file(sys.modules.get(name))
    return path is not None and path.name.startswith("__init__.")


def _is_within(name: str, package: str) -> bool:
    return bool(package) and (name == package or name.startswith(package + "."))


def _file(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if isinstance(file, str) else None


def _root(name: str) -> Path | None:
    """The folder that holds a plugin's neighbours; none for a module by itself among installed packages."""
    top = sys.modules.get(name.partition(".")[0])
    path = _file(top)
    if path is None:
        path = _file(sys.modules.get(name))
    if path is None:
        return None
    folder = path.parent
    is_package = path.name == "__init__.py"
    return folder if is_package or folder.name not in ("site-packages", "dist-packages") else None


@functools.lru_cache(maxsize=1024)
def _imports(path: Path, _signature: Signature, package: str) -> tuple[str, ...]:
    """What may be modules of what a module's source names in import statements, anywhere in it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    named: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if node.level else []
            base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
            named += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    parents = [each.rpartition(".")[0] for each in named]
    return tuple({*named, *parents})


def _places(name: str) -> list[Path]:
    """Where the top-level package or module of a name lies, found without importing it."""
    top = name.partition(".")[0]
    loaded = sys.modules.get(top)
    with contextlib.suppress(ImportError, ValueError):
        spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(top)
        if spec is None:
            return []
        below = name.split(".")[1:]
        if spec.origin is None or spec.origin == "namespace":  # the package is the first below it that is one
            return [Path(each, *below[:1]) for each in spec.submodule_search_locations or ()]
        return [Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)]
    return []


def _bindings(names: Collection[str]) -> list[tuple[ModuleType, str, ModuleType]]:
    """What of modules is an attribute of a package that stays: package, attribute, module."""
    bound = []
    for name in names:
        parent, _, child = name.rpartition(".")
        holder, module = sys.modules.get(parent), sys.modules.get(name)
        if parent not in names and holder is not None and module is not None:
            bound.append((holder, child, module))
    return bound


def reason(error: BaseException, files: Collection[Path]) -> str:
    """Why source could not be taken in, in a line, with the place in the plugin's files where it is known."""
    cause = error.__cause__ if isinstance(error, PjrtError) and error.__cause__ is not None else error
    said = f"{type(cause).__name__}: {cause}"
    if isinstance(cause, SyntaxError) and cause.filename:
        return f"{cause.filename}:{cause.lineno}: {type(cause).__name__}: {cause.msg}"
    trace, place = cause.__traceback__, ""
    ours = {os.path.realpath(file) for file in files}
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if os.path.realpath(file) in ours:
            place = f"{file}:{trace.tb_lineno}: "
        trace = trace.tb_next
    return place + said
