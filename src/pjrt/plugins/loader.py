"""From a declaration to a plugin: its module is imported or its library opened, once, when it is first asked for.

Its options of memory are those of all plugins, and are translated here to its own.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import linecache
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pjrt.abi.generated.version import API_VERSION
from pjrt.api.client import Client
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError, UnimplementedError, unimplemented
from pjrt.api.plugin import Plugin
from pjrt.plugins.declaration import Declaration, MemoryOptions
from pjrt.plugins.env_vars import set_environment
from pjrt.system import FileStamp, file_stamp

if TYPE_CHECKING:
    from pjrt.api.device import Attributes
    from pjrt.api.topology import TopologyDescription


class Loader:
    """The loaded plugins. Each is loaded once, whichever thread asks first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[tuple[str, str], Slot] = {}

    def load(self, declaration: Declaration) -> Plugin:
        """Return the plugin of a declaration, loaded if it is not yet. Other plugins can be loaded meanwhile.

        Raises:
            FailedPreconditionError: the declaration has a problem, whether the plugin is loaded or not.
            PjrtError: the plugin cannot be loaded. The next call tries again.
        """
        declaration.check_usable()
        slot = self.slot(declaration)
        with slot.lock:
            return slot.plugin or slot.fill(open_plugin)

    def slot(self, declaration: Declaration) -> Slot:
        """Return the slot of a plugin, loaded or not."""
        with self._lock:
            return self._slots.setdefault(_key(declaration), Slot(declaration))

    def loaded(self) -> dict[str, Plugin]:
        """Return the loaded plugins by name."""
        with self._lock:
            slots = tuple(self._slots.values())
        return {slot.declaration.name: slot.plugin for slot in slots if slot.plugin}

    def forget(self, declaration: Declaration) -> None:
        """Have a plugin loaded anew when it is next asked for."""
        with self._lock:
            self._slots.pop(_key(declaration), None)


class Slot:
    """The place of one plugin, loaded or not.

    Attributes:
        declaration: its declaration.
        plugin: the plugin, if it is loaded.
        files: the files that it was loaded from, with their stamps after that.
        loaded_at: when its loading began, in nanoseconds since the epoch.
        lock: held while it is loaded. The thread that loads it may take it again: a plugin may ask for itself.
    """

    __slots__ = ("declaration", "files", "loaded_at", "lock", "plugin")

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.plugin: Plugin | None = None
        self.files: dict[Path, FileStamp | None] = {}
        self.loaded_at = 0
        self.lock = threading.RLock()

    def fill(self, load: Callable[[Declaration], Plugin]) -> Plugin:
        """Load the plugin, note its files, and return it. If the loading fails the slot stays as it is."""
        begin = time.time_ns()
        self.plugin = plugin = load(self.declaration)
        self.files, self.loaded_at = _stamps(self.declaration), begin
        return plugin

    def changed_files(self) -> tuple[Path, ...]:
        """Return the files that are others than those that the plugin was loaded from, or are gone."""
        now = {**dict.fromkeys(self.files), **_stamps(self.declaration)}
        return tuple(sorted(path for path, stamp in now.items() if self._is_other(path, stamp)))

    def _is_other(self, path: Path, stamp: FileStamp | None) -> bool:
        # A file that was saved while it was loaded, or before a module was imported late, may be either.
        return stamp is None or stamp != self.files.get(path, stamp) or stamp[-1] > self.loaded_at


def _key(declaration: Declaration) -> tuple[str, str]:
    factory = declaration.factory
    place = factory if isinstance(factory, str) else f"object {id(factory)}"
    return declaration.name, str(declaration.library or place)


def open_plugin(declaration: Declaration) -> Plugin:
    """Load the library or import the factory of a declaration, and return the plugin.

    Raises:
        FailedPreconditionError: the factory cannot be imported, or is neither a function nor a plugin.
        PjrtError: the library cannot be loaded, or is no PJRT plugin of a supported version.
    """
    set_environment(declaration)
    if declaration.library is not None:
        from pjrt import capi  # here, because a built-in device does without the C API

        return capi.load_plugin(declaration.library)
    return _from_factory(declaration)


def _stamps(declaration: Declaration) -> dict[Path, FileStamp | None]:
    """Return the files of a loaded plugin with their stamps; none for a built-in device."""
    if declaration.library is not None:
        return {declaration.library: file_stamp(declaration.library)}
    if str(declaration.factory).startswith("pjrt."):
        return {}

    place = place_of(declaration)
    return ModuleFiles.of(place).stamps() if place else {}


def _from_factory(declaration: Declaration) -> Plugin:
    factory: Any = declaration.factory
    try:
        if isinstance(factory, str):
            factory = import_place(factory)
        if isinstance(factory, type) and issubclass(factory, Plugin):
            factory = factory()
    except PjrtError:
        raise
    except (Exception, SystemExit) as error:
        from pjrt.capi.import_spec import located

        raise FailedPreconditionError(
            f"the device {declaration.name!r} ({declaration.origin}) cannot be loaded: {located(error)}"
        ) from error
    if isinstance(factory, Plugin):
        return factory
    if not callable(factory):
        raise FailedPreconditionError(
            f"the device {declaration.name!r} ({declaration.origin}) must be a function that makes clients or a "
            f"pjrt.Plugin, found {type(factory).__name__}"
        )
    return FactoryPlugin(declaration.name, factory)


def import_place(place: str) -> Any:
    """Import and return the object at ``module:attribute`` or ``/path/of/file.py:attribute``."""
    if ".py:" in place:
        from pjrt.capi.import_spec import find_attribute

        return find_attribute(place)
    module, _, attributes = place.partition(":")
    value: Any = importlib.import_module(module)
    for attribute in filter(None, attributes.split(".")):
        value = getattr(value, attribute)
    return value


class FactoryPlugin(Plugin):
    """A plugin that is a function that makes clients."""

    def __init__(self, name: str, factory: Callable[..., Client]) -> None:
        self._name = name
        self._factory = factory

    @property
    def name(self) -> str:
        return self._name

    @property
    def api_version(self) -> tuple[int, int]:
        return API_VERSION

    @property
    def attributes(self) -> Attributes:
        return {}

    def client(self, /, **options: Any) -> Client:
        client: object = self._factory(**options)
        if not isinstance(client, Client):
            raise FailedPreconditionError(
                f"the function that makes clients of {self._name!r} must return a pjrt.Client, "
                f"found {type(client).__name__}"
            )
        return client

    def topology(self, name: str = "", /, **options: Any) -> TopologyDescription:
        """Return the topology of a number of devices, where the function makes clients of ``pjrt.host.HostClient``.

        Args:
            name: the number, such as ``8``, which the function gets as ``num_devices``; may be left out.
            options: those of ``client``.
        """
        from pjrt.host.device import named_topology

        if name and not _accepts(self._factory, "num_devices"):
            raise unimplemented(self._name, f"the topology {name!r}", "what makes its clients takes no num_devices")
        return named_topology(self._name, self.client, name, options)


def _accepts(function: Callable[..., Any], option: str) -> bool:
    """Whether a function accepts an option of that name; true for a function without a signature."""
    try:
        inspect.signature(function).bind_partial(**{option: None})
    except TypeError:
        return False
    except ValueError:  # a compiled function without a signature
        return True
    return True


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
    """The Python modules of one plugin, imported or not.

    They are the modules of the package that the factory's module is in; for a file that is in no package, the modules
    of its folder.

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
        from pjrt.capi.import_spec import module_name

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
        from pjrt.capi.import_spec import UncachedLoader

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


MEMORY = "memory"
"""The option for when a client allocates memory: ``on-demand`` or ``preallocated``."""

FRACTION = "memory_fraction"
"""The option for the part of each device's memory that a client may allocate, more than 0 and up to 1."""

ON_DEMAND, PREALLOCATED = "on-demand", "preallocated"


def translate_memory(declaration: Declaration, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return client options in which those of memory are replaced by the plugin's own.

    Args:
        declaration: the plugin. If it declares no options of memory, a factory with parameters of these names gets
            them as they are.
        options: the options of a client.

    Raises:
        UnimplementedError: the plugin does not support the option; the message names those that it supports.
        InvalidArgumentError: a value is invalid, or contradicts one of the plugin's own options.
    """
    if MEMORY not in options and FRACTION not in options:
        return dict(options)
    supported = declaration.memory
    if supported is None:
        _check_parameters(declaration, options)
        return dict(options)
    result = {name: value for name, value in options.items() if name not in (MEMORY, FRACTION)}
    own: dict[str, tuple[str, Any]] = {}
    if MEMORY in options:
        text = f"{MEMORY}={options[MEMORY]!r}"
        own |= {name: (text, value) for name, value in _way(declaration, supported, options[MEMORY]).items()}
    if FRACTION in options:
        text = f"{FRACTION}={options[FRACTION]!r}"
        own[_fraction_option(declaration, supported)] = (text, _fraction(options[FRACTION]))
    for name, (text, value) in own.items():
        if name in result and result[name] != value:
            raise InvalidArgumentError(
                f"{text} means {name}={value!r} to {declaration.name!r}, but {name}={result[name]!r} is set as well; "
                "set one of them"
            )
        result[name] = value
    return result


def _ways(supported: MemoryOptions) -> dict[str, Mapping[str, Any] | None]:
    return {ON_DEMAND: supported.on_demand, PREALLOCATED: supported.preallocated}


def _way(declaration: Declaration, supported: MemoryOptions, value: Any) -> Mapping[str, Any]:
    ways = _ways(supported)
    if value not in ways:
        raise InvalidArgumentError(f"{MEMORY} must be {ON_DEMAND!r} or {PREALLOCATED!r}, found {value!r}")
    options = ways[value]
    if options is None:
        raise UnimplementedError(f"{declaration.name!r} has no memory {value}: it has {_names_of_ways(supported)}")
    return options


def _fraction_option(declaration: Declaration, supported: MemoryOptions) -> str:
    if not supported.fraction:
        raise UnimplementedError(f"{declaration.name!r} has no {FRACTION}: it has {_names_of_ways(supported)}")
    return supported.fraction


def _fraction(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise InvalidArgumentError(f"{FRACTION} must be more than 0 and up to 1, such as 0.5; found {value!r}")
    return float(value)


def _names_of_ways(supported: MemoryOptions) -> str:
    names = [f"{MEMORY}={name!r}" for name, way in _ways(supported).items() if way is not None]
    return ", ".join([*names, *([FRACTION] if supported.fraction else [])]) or "no options of memory"


def _check_parameters(declaration: Declaration, options: Mapping[str, Any]) -> None:
    """Raise for options that the factory would ignore: many plugins accept options that they do not know."""
    parameters = _parameters(declaration.factory)
    for name in (MEMORY, FRACTION):
        if name in options and name not in parameters:
            raise UnimplementedError(
                f"{declaration.name!r} has no option {name!r}, and no options of memory are declared for it; use its "
                "own options, or declare 'memory' in its manifest or in the configuration"
            )


def _parameters(factory: Any) -> frozenset[str]:
    """Return the names of a factory's parameters, without ``*args`` and ``**kwargs``."""
    if isinstance(factory, str):
        factory = import_place(factory)
    if not callable(factory) or isinstance(factory, type):
        return frozenset()
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return frozenset(each.name for each in parameters if each.kind not in variable)
