"""The registry: the catalog of plugins, the way from a name to a client, the loaded plugins, and the default device."""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pjrt import system
from pjrt.api.client import Client
from pjrt.api.errors import AlreadyExistsError, FailedPreconditionError, InvalidArgumentError, NotFoundError, PjrtError
from pjrt.api.printable import perhaps
from pjrt.plugins import builtin, env_vars, visible_devices
from pjrt.plugins.declaration import Declaration, Sharing, is_path, topology_lines
from pjrt.plugins.loader import Loader, ModuleFiles, Slot, import_place, open_plugin, place_of, translate_memory
from pjrt.plugins.visible_devices import job_options

if TYPE_CHECKING:
    from pjrt.api.plugin import Plugin
    from pjrt.api.topology import TopologyDescription
    from pjrt.plugins.visible_devices import VisibleDevices

_NAMING_PLUGINS = (env_vars.NAMES_AND_PATHS, env_vars.PLUGIN_FOLDERS, env_vars.CONFIG)
"""The variables that name plugins."""


class Catalog:
    """The plugins by name in this process.

    Attributes:
        registered: the plugins that the program registered, by name.
    """

    def __init__(self) -> None:
        self.registered: dict[str, Declaration] = {}
        self._discovered: dict[bool, tuple[object, Mapping[str, Declaration]]] = {}

    def all(self) -> Mapping[str, Declaration]:
        """Return all plugins by name, in the order of precedence."""
        discovered = self._discover(installed=True)
        registered = {name: _before(plugin, discovered.get(name)) for name, plugin in tuple(self.registered.items())}
        return {**registered, **{name: plugin for name, plugin in discovered.items() if name not in registered}}

    def find(self, name: str) -> Declaration | None:
        """Return a plugin by its name or an alias; ``None`` if there is none.

        An alias may mean a shadowed plugin. For a built-in device nothing is searched.
        """
        plugin = self.registered.get(name) or self._builtin(name)
        if plugin is not None:
            return plugin
        everything = self.all()
        if name in everything:
            return everything[name]
        for plugin in everything.values():
            if name in plugin.aliases:
                return plugin
            for hidden in plugin.shadowed:
                if name in hidden.aliases:
                    return replace(hidden, name=name, aliases=())
        return None

    def forget_discovered(self) -> None:
        """Have plugins searched for again at the next question."""
        self._discovered = {}

    def unknown(self, name: str) -> NotFoundError:
        """Return the error for a name that no plugin has, with the names that there are."""
        from pjrt.plugins.discovery import wheels

        advice = wheels.advice(name)
        if advice:
            return NotFoundError(
                f"the plugin of {name!r} is not installed: get it with {advice}, or give the path of the plugin's "
                "library"
            )
        plugins = self.all()
        names = ", ".join(sorted(name for name, plugin in plugins.items() if not plugin.problem))
        others = ", ".join(sorted(vendor for vendor in wheels.vendors() if vendor not in plugins))
        wheel = f" one from a vendor's wheel ({others})," if others else ""
        module, _, function = name.partition(":")
        file = f"a function of a module is given by its file, as {module}.py:{function}; " if function else ""
        meant = perhaps(name, (*plugins, *wheels.vendors()))
        return NotFoundError(
            f"there is no device called {name!r}{meant}: expected one of {names},{wheel} or the path of a plugin's "
            f"library; {file}run 'pjrt plugins' for details"
        )

    def _builtin(self, name: str) -> Declaration | None:
        """Return a built-in device with the user's configuration."""
        if name not in builtin.DEVICES:
            return None
        if not os.environ.get(env_vars.NAMES_AND_PATHS) and env_vars.config_state() is None:
            return builtin.DEVICES[name]
        return self._discover(installed=False)[name]

    def _discover(self, *, installed: bool) -> Mapping[str, Declaration]:
        """Return the discovered plugins by name; the search is repeated only where its result may have changed."""
        state = _state()
        last, plugins = self._discovered.get(installed, (None, {}))
        if last != state:
            # Here, because a built-in device does without this and all that it imports.
            from pjrt.plugins.discovery import precedence

            discover = precedence.discover if installed else precedence.discover_configured
            plugins = _by_name(discover())
            self._discovered[installed] = state, plugins
        return plugins


def at_path(name: str | os.PathLike[str]) -> Declaration | None:
    """Return the plugin of a library's path, or of ``FILE.py:ATTRIBUTE``; ``None`` if this is neither.

    Raises:
        NotFoundError: the Python file does not exist. A library is looked for when it is loaded.
    """
    if isinstance(name, str) and ".py:" in name:
        return _in_python_file(name)
    if isinstance(name, str) and not is_path(name):
        return None
    from pjrt.plugins.discovery import wheels

    return wheels.declare_library(Path(os.path.abspath(os.path.expanduser(name))))


WORKER = "worker:"
"""The beginning of a name: the device behind it runs in a Python process of its own."""

_lock = threading.Lock()
_workers: dict[tuple[str, str], Path] = {}
_folders: list[system.TemporaryFolder] = []  # of the libraries of workers, as long as the process


def worker_library(device: str, name: str = "", options: Mapping[str, Any] | None = None) -> Path:
    """Return a library with the runtime in C for a device whose Python runs in a process of its own.

    Args:
        device: the plugin's name, the path of its library, or ``FILE.py:ATTRIBUTE``.
        name: the platform's name that frameworks see; by default the device's own.
        options: options of all its clients, for a framework that passes none.

    Raises:
        NotFoundError: there is no such device.
        FailedPreconditionError: no library can be loaded from the temporary folder.
        InvalidArgumentError: another process cannot import the device.
        UnimplementedError: the system is not Linux.
    """
    declaration(device).check_usable()
    place = factory_place(device)
    if options:
        place = f"{FACTORIES}:{quote(device)}?{quote(json.dumps(options))}"
    with _lock:
        if (place, name) not in _workers:
            if not _folders:
                _folders.append(system.TemporaryFolder("device"))
                atexit.register(_folders[0].close)
            from pjrt import native  # here, because a built-in device does without the C API

            path = _folders[0].path / f"worker_{len(_workers)}.so"
            _workers[place, name] = native.write_library(path, place, driver="worker", name=name)
        return _workers[place, name]


def _in_worker(name: str) -> Declaration:
    """Return the plugin of a device whose Python runs in a process of its own; the errors are of ``worker_library``."""
    device = name.removeprefix(WORKER)
    library = worker_library(device)
    return Declaration(name, f"a worker of {declaration(device).name}", library=library)


def factory_place(name: str | os.PathLike[str]) -> str:
    """Return where another process can import the function that makes a plugin's clients, as ``MODULE:ATTRIBUTE``.

    Args:
        name: the plugin's name, the path of its library, or ``FILE.py:ATTRIBUTE``.

    Raises:
        NotFoundError: there is no such plugin.
        InvalidArgumentError: the plugin was registered in this process with an object, or has no fit name.
    """
    plugin = declaration(name)
    if plugin.given_options:
        raise InvalidArgumentError(f"expected the name of a device without options, found {name!r}")
    is_registered = _catalog.registered.get(plugin.name) is plugin
    place = plugin.name
    if plugin.library is None and (is_registered or ".py:" in os.fspath(name)):
        if not isinstance(plugin.factory, str):
            raise InvalidArgumentError(
                f"the plugin {plugin.name!r} was registered in this process with an object, which no other process can "
                "import; register it by the place of a function, such as 'mychip:make_client'"
            )
        return plugin.factory
    if plugin.library is not None and (is_registered or is_path(os.fspath(name))):
        if not plugin.library.is_file():
            raise NotFoundError(f"{plugin.library}: there is no such file; give the path of a plugin's library")
        place = str(plugin.library)
    if ":" in place or place.startswith("__"):
        raise InvalidArgumentError(f"a plugin called {place!r} cannot be exported by its name; give MODULE:ATTRIBUTE")
    return f"{FACTORIES}:{place}"


FACTORIES = "pjrt.plugins.factories"
"""The module with a function for each plugin that makes its clients."""


def _in_python_file(name: str) -> Declaration:
    file, _, attribute = name.rpartition(":")
    path = os.path.abspath(os.path.expanduser(file))
    if not os.path.isfile(path) or not attribute.isidentifier():
        raise NotFoundError(f"{name!r}: expected FILE.py:ATTRIBUTE with the path of a file; there is none at {path}")
    return Declaration(name, "a file", factory=f"{path}:{attribute}")


def _before(plugin: Declaration, other: Declaration | None) -> Declaration:
    return plugin if other is None else replace(plugin, shadowed=(other, *other.shadowed))


def _by_name(plugins: Iterable[Declaration]) -> Mapping[str, Declaration]:
    return {plugin.name: plugin for plugin in plugins}


def _state() -> object:
    """Return a value that changes when discovery may have another result: new variables, search paths or files."""
    return tuple(map(os.environ.get, _NAMING_PLUGINS)), tuple(sys.path), env_vars.config_state()


_catalog = Catalog()
_loader = Loader()
_layered: dict[Plugin, Plugin] = {}


def client(name: str | os.PathLike[str] | None = None, /, **options: Any) -> Client:
    """Return a new client of a device (``PJRT_Client_Create``).

    In a job (``pjrt.distributed``), a plugin in C gets the job's key-value store and the place of this process, if its
    declaration names the options.

    Args:
        name: one of ``pjrt.plugins.names()``, the path of a plugin's library, or ``FILE.py:ATTRIBUTE`` for a function
            in a file that makes clients. The default is the device that ``PJRT_DEVICE`` names, otherwise the one
            with the highest priority whose hardware this machine has, and ``cpu`` where there is none. With
            ``worker:`` before a name or ``FILE.py:ATTRIBUTE``, the device runs in a Python process of its own. Options
            may stand behind all of these: ``remote:address=HOST:PORT``, ``cpu:num_devices=2,KEY=VALUE``.
        options: the device's own options, such as ``num_devices`` of ``cpu``; and, with the same names for all plugins
            that support them, ``memory``, which is ``on-demand`` or ``preallocated``, and ``memory_fraction``. They
            override those behind the name, those of the environment variable ``PJRT_OPTIONS_NAME``, and the plugin's
            own and configured ones, in this order.

    Raises:
        NotFoundError: there is no plugin of that name, or its wheel is not installed, or the path has no file.
        FailedPreconditionError: another client has the device and does not share it; the message names the holder.
        PjrtError: the plugin cannot make a client.
    """
    return client_of(declaration(default() if name is None else name), **options)


def client_of(plugin: Declaration, /, **options: Any) -> Client:
    """Return a new client of a declared plugin, as ``client`` does."""
    loaded = _with_layers(_loader.load(plugin))
    merged: dict[str, Any] = {}
    of_environment, share = env_vars.client_options(plugin.name), visible_devices.start(plugin)
    for layer in (plugin.options, of_environment, share, plugin.given_options, options):
        merged.update(
            translate_memory(plugin, layer)
        )  # each by itself: a later layer overrides an earlier one's memory
    merged = {**job_options(plugin, merged), **merged}
    if plugin.sharing is Sharing.MANY:
        return loaded.client(**merged)
    from pjrt.plugins import device_lock

    with device_lock.held(plugin, merged) as claim:
        made = loaded.client(**merged)
        claim.keep_for(made)
    return made


NUM_DEVICES = "num_devices"
"""The option by which a device makes more devices, as ``cpu`` has it."""


def client_with_devices(
    name: str | os.PathLike[str] | Declaration | None, count: int, options: Mapping[str, Any] | None = None
) -> Client:
    """Return a new client of a device with at least a number of devices, or with its default number if it cannot.

    Args:
        name: as of ``pjrt.client``, or the declaration of the plugin.
        count: the number of devices.
        options: the options of the client. If ``num_devices`` is among them, it is followed.

    Raises:
        PjrtError: as for ``pjrt.client``.
    """
    plugin = name if isinstance(name, Declaration) else declaration(default() if name is None else name)
    make = functools.partial(client_of, plugin)
    options = {**plugin.given_options, **(options or {})}
    made = make(**options)
    if len(made.devices) >= count or NUM_DEVICES in options:
        return made
    made.close()
    try:
        larger = make(**options, **{NUM_DEVICES: count})
    except (InvalidArgumentError, TypeError):  # TypeError: a function that makes clients and takes no such option
        return make(**options)
    return larger


def _with_layers(plugin: Plugin) -> Plugin:
    """Return the plugin with the layers of ``PJRT_LAYERS``, a device in Python through its export."""
    if not os.environ.get("PJRT_LAYERS"):
        return plugin
    from pjrt.capi import LoadedPlugin, load_capsule  # here, because a built-in device does without the C API
    from pjrt.capi.environment import are_suspended
    from pjrt.native.exported import export

    if isinstance(plugin, LoadedPlugin) or are_suspended():
        return plugin
    if plugin not in _layered:
        _layered[plugin] = load_capsule(export(plugin.client, name=plugin.name).capsule, plugin.name)
    return _layered[plugin]


def assign_devices(
    name: str | os.PathLike[str], local_rank: int, local_world_size: int, *, devices: Sequence[int] | None = None
) -> VisibleDevices:
    """Assign devices of a plugin to this process, one of several on this machine, before its first client.

    All clients of the plugin in this process have these devices, also those that JAX or PyTorch/XLA make. The plugin
    declares how: by client options (``processes``) or environment variables (``partition``), which are set.

    Args:
        name: as of ``client``.
        local_rank: the number of this process among those of the machine, from 0.
        local_world_size: how many processes of this machine there are.
        devices: the numbers of the devices; the default is an equal part of all that the plugin may use.

    Raises:
        InvalidArgumentError: the rank is out of range, or the devices cannot be divided equally.
        FailedPreconditionError: a client was made already, or other devices were assigned; or the plugin declares
            neither ``processes`` nor ``partition``.
        NotFoundError: there is no plugin of that name.
    """
    plugin = declaration(name)
    return visible_devices.assign(plugin, default_options(plugin), local_rank, local_world_size, devices=devices)


def share_of_devices(name: str | os.PathLike[str], local_rank: int, local_world_size: int) -> VisibleDevices:
    """Return the equal part of a plugin's devices for a process of this machine, for the code that starts it.

    Nothing is set. The process itself may call ``assign_devices``.

    Args:
        name: as of ``client``.
        local_rank: the number of the process among those of the machine, from 0.
        local_world_size: how many processes of this machine there are.

    Raises:
        InvalidArgumentError: the rank is out of range, or the devices cannot be divided equally.
        FailedPreconditionError: the plugin declares neither ``processes`` nor ``partition``.
        NotFoundError: there is no plugin of that name.
    """
    plugin = declaration(name)
    return visible_devices.share(plugin, default_options(plugin), local_rank, local_world_size)


def topology(plugin: str | os.PathLike[str], name: str = "", /, **options: Any) -> TopologyDescription:
    """Return a topology: devices to compile for, which need not be here (``PJRT_TopologyDescription_Create``).

    Args:
        plugin: as ``name`` of ``client``.
        name: the plugin's name of the topology, such as ``v5e:2x2`` or, for ``cuda``, ``h100:1x1x4``.
        options: the plugin's own options.

    Raises:
        NotFoundError: there is no plugin of that name.
        InvalidArgumentError: the plugin has no topology of that name, or needs a name.
        UnimplementedError: the plugin has no topologies without devices.
    """
    return topology_of(declaration(plugin), name, **options)


def topology_of(known: Declaration, name: str = "", /, **options: Any) -> TopologyDescription:
    """Return a topology of the plugin of a declaration; arguments and errors are those of ``topology``."""
    described = _described(known, name)
    is_open = bool(known.topologies) and not described and not options and not known.has_hardware
    if is_open and not name and not known.topology_options:
        raise _no_topology(known, name)
    try:
        return _loader.load(known).topology(name, **{**described, **options})
    except PjrtError as error:
        generation, _, size = name.partition(":")
        if is_open and known.topology_options:  # the plugin searched for devices, and its error is about them
            raise _no_topology(known, name) from error
        if not isinstance(error, InvalidArgumentError) or not known.topologies:
            raise
        if generation in known.topologies and size:
            raise  # then the plugin knows best what is wrong with the size
        raise _no_topology(known, name) from error


def _described(plugin: Declaration, name: str) -> Mapping[str, Any]:
    """Return the options that describe the topology of a name, where the plugin has a function for them."""
    if not plugin.topology_options or not name:
        return {}
    options: Mapping[str, Any] | None = import_place(plugin.topology_options)(name)
    return options or {}


def _no_topology(plugin: Declaration, name: str) -> InvalidArgumentError:
    there = "; ".join(topology_lines(plugin.topologies))
    return InvalidArgumentError(
        f"{plugin.name}: expected the name of a topology as GENERATION:SIZE, found {name!r}. The generations and their "
        f"sizes are {there}"
    )


def load_plugin(path: str | os.PathLike[str]) -> Plugin:
    """Load a plugin by the path of a shared library with ``GetPjrtApi``, or by its name. Each is loaded once.

    Environment variables that the plugin needs, such as those of ``libtpu.so`` on a machine without a TPU, are set
    first, unless they are set already.

    Args:
        path: the library's path; or one of ``names()``.

    Raises:
        NotFoundError: there is no file at the path, or no plugin of the name.
        PjrtError: the library cannot be loaded, or is no PJRT plugin of a supported version.
    """
    return _loader.load(declaration(path))


def slot(plugin: Declaration) -> Slot:
    """Return the slot of a plugin, loaded or not."""
    return _loader.slot(plugin)


def names() -> Sequence[str]:
    """Return the names of the plugins without a known problem, in alphabetical order. Nothing is loaded.

    A plugin may be here without its hardware: see ``available``.
    """
    return tuple(sorted(name for name, plugin in _catalog.all().items() if not plugin.problem))


def loaded() -> Mapping[str, Plugin]:
    """Return the loaded plugins by name."""
    return _loader.loaded()


def declarations() -> Sequence[Declaration]:
    """Return the declarations of all plugins, also of those that cannot be used, in the order of precedence.

    Nothing is imported or loaded.
    """
    return tuple(_catalog.all().values())


def declaration(name: str | os.PathLike[str]) -> Declaration:
    """Return the declaration of a plugin, by its name or by the path of its library. Nothing is loaded.

    Raises:
        NotFoundError: there is no plugin of that name; the message lists the names.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise InvalidArgumentError(f"expected a device's name or a plugin's path, found {name!r}")
    if isinstance(name, str) and ":" in name:
        base, options = env_vars.split_options(name)
        if options:
            return replace(declaration(base), given_options=options)
        if name.startswith(WORKER):
            return _in_worker(name)
    plugin = at_path(name) or _catalog.find(str(name))
    if plugin is None:
        raise _catalog.unknown(str(name))
    return plugin


def register(
    plugin: Declaration | None = None,
    /,
    *,
    name: str = "",
    library: str | os.PathLike[str] | None = None,
    factory: str | Callable[..., Any] | Plugin | None = None,
    **facts: Any,
) -> Declaration:
    """Register a plugin in this process. It takes precedence over all others of its name. Nothing is loaded.

    Args:
        plugin: the declaration; or, instead of it, the fields of one:
        name: its name.
        library: the path of its shared library.
        factory: a function that makes clients, a ``pjrt.Plugin`` or a class of one, or the place of such as
            ``module:attribute``.
        facts: other fields of ``Declaration``.

    Returns:
        The registered declaration.

    Raises:
        AlreadyExistsError: a plugin of that name is registered; ``unregister`` it first.
        InvalidArgumentError: the plugin has no name, or not exactly one of a library and a factory.
        NotFoundError: there is no library at that path.
    """
    if plugin is None:
        path = None if library is None else Path(os.path.abspath(os.path.expanduser(library)))
        plugin = Declaration(name, facts.pop("origin", "registered"), library=path, factory=factory, **facts)
    if not plugin.name or is_path(plugin.name):
        raise InvalidArgumentError(f"expected a name that is no path, such as mychip, found {plugin.name!r}")
    if (plugin.library is None) == (plugin.factory is None):
        raise InvalidArgumentError(f"the plugin {plugin.name!r} needs a library or a factory, and not both")
    if plugin.library is not None and not plugin.library.is_file():
        raise NotFoundError(f"{plugin.library}: there is no such file; give the path of the plugin's shared library")
    if _catalog.registered.setdefault(plugin.name, plugin) is not plugin:
        raise AlreadyExistsError(f"a plugin called {plugin.name!r} is registered already; unregister it first")
    return plugin


def unregister(name: str) -> None:
    """Undo ``register``: a discovered plugin of that name has it again.

    Existing clients stay as they are.

    Raises:
        NotFoundError: no plugin of that name is registered.
    """
    plugin = _catalog.registered.pop(name, None)
    if plugin is None:
        others = ", ".join(_catalog.registered) or "none"
        raise NotFoundError(f"no plugin called {name!r} is registered; registered are: {others}")
    _loader.forget(plugin)


def available() -> Sequence[str]:
    """Return the names of the plugins that can be used on this machine, the best first.

    They are sorted by priority, then ``cpu`` comes first, then the order of precedence counts. Nothing is loaded: the
    files of the driver show whether the hardware is here. A plugin that makes no client without an option, such as
    ``remote`` without an address, is among them where a default or the environment has the option.
    """
    usable = [
        plugin
        for plugin in declarations()
        if not plugin.problem and plugin.has_hardware and _has_required_options(plugin)
    ]
    best_first = sorted(usable, key=lambda plugin: (-plugin.priority, plugin.name != builtin.DEFAULT))
    return tuple(plugin.name for plugin in best_first)


def _has_required_options(plugin: Declaration) -> bool:
    """Whether a client can be made without further options."""
    missing = [name for name, variable in plugin.required_options.items() if not os.environ.get(variable)]
    try:
        return not missing or default_options(plugin).keys() >= set(missing)
    except PjrtError:  # the making of a client reports it
        return True


def default() -> str:
    """Return the name of the default device: that of ``PJRT_DEVICE``, otherwise the first of ``available``.

    The variable is read as PyTorch/XLA writes it: ``CPU``, ``CUDA``, ``TPU``, the name that a plugin declares for
    PyTorch/XLA, ``PJRT_NAME`` for a device of this package, ``PJRT`` for the one in ``PJRT_TORCH_XLA_DEVICE``, and
    ``LIBRARY`` for the library at the path in ``PJRT_LIBRARY_PATH``; or it is one of ``names()``.

    Raises:
        NotFoundError: the variable names an unknown device, or the library's path has no file.
        InvalidArgumentError: the library's path is missing, or relative.
        PjrtError: the library is not safe to load, or is cut off.
    """
    asked = os.environ.get(env_vars.DEVICE, "").strip()
    if not asked:
        return _best()
    if asked.upper() == "LIBRARY":
        return _library_of_environment()
    if asked.upper() == "PJRT":
        named = os.environ.get(env_vars.TORCH_XLA_DEVICE) or builtin.TORCH_XLA_DEFAULT
        try:
            declaration(named)
        except NotFoundError as error:
            raise NotFoundError(
                f"{env_vars.DEVICE}={asked} and {env_vars.TORCH_XLA_DEVICE}={named}: {error.message}"
            ) from None
        return named
    # PyTorch/XLA writes devices in capitals, and those of this package as PJRT_NAME.
    for name in (asked, asked.lower(), asked.lower().removeprefix("pjrt_")):
        if _catalog.find(env_vars.split_options(name)[0]) is not None:
            return name
    for plugin in declarations():
        if str(plugin.frameworks.get("torch_xla", {}).get("name", "")).upper() == asked.upper():
            return plugin.name
    raise NotFoundError(f"{env_vars.DEVICE}={asked}: {_catalog.unknown(asked).message}")


def _best() -> str:
    """Return the first of ``available``, without a search where its result is known."""
    if not _catalog.registered and has_only_builtin():
        return builtin.DEFAULT
    best = next(iter(available()), builtin.DEFAULT)
    if best == builtin.DEFAULT and not _catalog.registered:
        note_search(declarations())
    return best


def _library_of_environment() -> str:
    path = os.environ.get(env_vars.LIBRARY_PATH, "").strip()
    if not path:
        raise InvalidArgumentError(
            f"{env_vars.DEVICE}=LIBRARY takes the plugin's library from {env_vars.LIBRARY_PATH}, which is not set: "
            "expected the library's absolute path"
        )
    from pjrt.plugins import schema

    try:
        return str(schema.library_path(path))
    except PjrtError as error:
        raise type(error)(f"{env_vars.LIBRARY_PATH}={path}: {error.message}") from None


def default_options(plugin: Declaration) -> Mapping[str, Any]:
    """Return the default options of a plugin's clients: its own and the configured ones, overridden by the environment.

    Those behind its name (``NAME:KEY=VALUE``) override all of them.

    Raises:
        InvalidArgumentError: the environment variable ``PJRT_OPTIONS_NAME`` is not of the form ``key=value;key=value``.
    """
    return {**plugin.options, **env_vars.client_options(plugin.name), **plugin.given_options}


def refresh() -> None:
    """Have plugins searched for again, for packages that were installed while this process runs.

    Changes of the environment variables, of the configuration file and of ``sys.path`` are noticed without it.
    """
    _catalog.forget_discovered()


def reload(name: str | os.PathLike[str], *, force: bool = False) -> tuple[Path, ...]:
    """Load the present library or Python source of a plugin, if a file of it has changed since it was loaded.

    New clients run the new code. Existing clients and their objects keep the old code until they are closed. Nothing is
    unloaded: a library stays in memory, and old modules stay as long as something refers to them. JAX makes a client of
    the new code after ``jax.extend.backend.clear_backends()``. A plugin that is not loaded is loaded.

    Args:
        name: the plugin's name, or its library's path.
        force: whether to load it again although no file has changed.

    Returns:
        The changed files; empty if none has changed, or the plugin was not loaded before.

    Raises:
        FailedPreconditionError: the new code cannot be loaded, and the old stays in use; or the plugin cannot be
            loaded twice in a process: a built-in device, a vendor's library that is declared ``resident``, a factory
            that is not at the top level of a module, a package with a compiled module.
        NotFoundError: there is no plugin of that name.
    """
    plugin = declaration(name)
    kept = slot(plugin)
    place = place_of(plugin)
    with kept.lock:
        if kept.plugin is not None:
            _check_reloadable(plugin, place)
            changed = kept.changed_files()
            if not changed and not force:
                return ()
        else:
            changed = ()
        if place:
            _import_anew(plugin, kept, place, changed)
        else:
            kept.fill(open_plugin)
        return changed


def files(name: str | os.PathLike[str]) -> frozenset[Path]:
    """Return the files that a plugin is loaded from: its library, or its source; none for a built-in device.

    Raises:
        NotFoundError: there is no plugin of that name.
    """
    plugin = declaration(name)
    if plugin.library is not None:
        return frozenset({plugin.library})
    place = place_of(plugin)
    return frozenset(ModuleFiles.of(place).on_disk()) if place else frozenset()


def _check_reloadable(plugin: Declaration, place: str) -> None:
    name = plugin.name
    if plugin.library is not None:
        if plugin.resident:
            raise FailedPreconditionError(
                f"{plugin.library}: the library of {name!r} cannot be loaded twice in a process, for "
                f"{plugin.resident}; start a new process for new code of it"
            )
    elif str(plugin.factory).startswith("pjrt."):
        raise FailedPreconditionError(f"the device {name!r} is built-in, a part of this package; it cannot be reloaded")
    elif not place:
        raise FailedPreconditionError(
            f"the device {name!r} was registered as an object that is not at the top level of a module, so its source "
            "is unknown; register it by its place, such as factory='mydevice:make_client'"
        )


def _import_anew(plugin: Declaration, kept: Slot, place: str, changed: tuple[Path, ...]) -> None:
    with ModuleFiles.of(place).imported_anew():
        try:
            kept.fill(lambda _: open_plugin(replace(plugin, factory=place)))
        except Exception as error:
            stays = ", and stays as it was" if kept.plugin else ""
            missing = ", ".join(str(path) for path in changed if not path.exists())
            gone = f"no longer there: {missing}; " if missing else ""
            reason = error.message if isinstance(error, PjrtError) else error
            raise FailedPreconditionError(
                f"the device {plugin.name!r} cannot be loaded as it is now{stays}: {gone}{reason}"
            ) from error


# The search cache: a process that asks for the default device has to search all installed packages, which takes as long
# as to make a client of ``cpu``. On most machines it finds nothing. So a process that finds nothing leaves a note, and
# later processes with the same folders search only where a folder has changed, or where hardware has appeared for a
# plugin that was found.

_FORMAT = "pjrt search 1"
_NAMESPACE = "jax_plugins"  # a folder with plugins inside the folders of sys.path
_SETTLED_NS = 2_000_000_000
_MOST_NOTES = 100


def has_only_builtin() -> bool:
    """Whether an earlier process has searched the same folders in the same state, and the built-in devices came first.

    No, if anything else decides: an environment variable or a configuration file that names plugins.
    """
    if _is_configured():
        return False
    folders = _search_folders()
    try:
        state, *patterns = _note_of(folders).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return False
    return state == repr(_search_state(folders)) and not system.any_file(patterns)


def note_search(plugins: Iterable[Declaration]) -> None:
    """Leave a note that a search found these plugins, of which a built-in device is the default one.

    Plugins of wheels are noted if only their hardware is missing. With any other plugin each process searches: there is
    more that can change than folders.
    """
    patterns: list[str] = []
    for plugin in plugins:
        if plugin.origin == builtin.ORIGIN:
            continue
        if plugin.problem or not plugin.hardware or not plugin.origin.startswith("wheel "):
            return
        patterns += plugin.hardware
    folders = _search_folders()
    state = _search_state(folders)
    newest = max((stamp[-1] for stamp in state[1:] if stamp is not None), default=0)
    # A folder may change once more within the resolution of its time, as it does while a package is installed.
    if _is_configured() or time.time_ns() - newest < _SETTLED_NS:
        return
    path = _note_of(folders)
    try:
        system.make_protected_folder(path.parent)
        notes = list(path.parent.iterdir())
        for old in notes if len(notes) > _MOST_NOTES else ():
            old.unlink(missing_ok=True)
        system.write_whole(path, "\n".join([repr(state), *patterns]).encode())
    except OSError:
        pass  # Without a folder for caches, each process searches.


def _is_configured() -> bool:
    return any(map(os.environ.get, _NAMING_PLUGINS)) or env_vars.config_state() is not None


def _search_folders() -> list[str]:
    places = [os.path.abspath(place) for place in dict.fromkeys(sys.path)]
    return [*places, *(os.path.join(place, _NAMESPACE) for place in places)]


def _search_state(folders: Sequence[str]) -> tuple[Any, ...]:
    """Return the state of the folders, and of all else that decides what a search finds."""
    return (_FORMAT, sys.version, __file__, *folders), *map(system.file_stamp, folders)


def _note_of(folders: Sequence[str]) -> Path:
    return system.cache_folder() / "search" / f"{zlib.crc32(repr(folders).encode()):08x}.txt"
