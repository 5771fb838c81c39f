"""The registry: what a name means, what is loaded, and which device is the default."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pjrt import system
from pjrt.api.client import Client
from pjrt.api.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, PjrtError
from pjrt.api.plugin import Plugin
from pjrt.api.topology import TopologyDescription
from pjrt.plugins import local_processes
from pjrt.plugins._builtin import FALLBACK
from pjrt.plugins._known import Known, at_place
from pjrt.plugins._loading import Loader, Slot
from pjrt.plugins._making import new_client
from pjrt.plugins.declaration import Declaration, is_path
from pjrt.plugins.local_processes import Share

DEFAULT_VARIABLE = "PJRT_DEVICE"
"""The environment variable that names the default device, as PyTorch/XLA knows it."""

_LIBRARY = "LIBRARY"
_LIBRARY_VARIABLE = "PJRT_LIBRARY_PATH"
_OURS = "PJRT"
_OURS_VARIABLE = "PJRT_TORCH_XLA_DEVICE"


_known = Known()
_loader = Loader()


def client(name: str | os.PathLike[str] | None = None, /, **options: Any) -> Client:
    """A new client of a device (``PJRT_Client_Create``).

    Args:
        name: one of ``pjrt.plugins.names()``, the path of a plugin's library, or ``FILE.py:ATTRIBUTE`` for a function
            in a file that makes clients. If not said it is the device that ``PJRT_DEVICE`` names, otherwise the one
            with the highest priority of those that this machine has, and ``cpu`` where there is none.
        options: the device's own options, such as ``num_devices`` of ``cpu``; and, spelled alike for all plugins that
            can be told, ``memory``, which is ``on-demand`` or ``preallocated``, and ``memory_fraction``. They come
            before those of the environment variable ``PJRT_OPTIONS_NAME``, and those before the plugin's own and the
            configured ones.

    Raises:
        NotFoundError: there is no plugin of that name, or its wheel is not installed, or no file is at that path.
        FailedPreconditionError: somebody has the device who does not share it; the message says who.
        PjrtError: the plugin says why it cannot make a client.
    """
    plugin = declaration(default() if name is None else name)
    found = _loader.load(plugin)
    return new_client(plugin, found, *_default_layers(plugin), local_processes.start(plugin), options)


def assign_devices(
    name: str | os.PathLike[str], local_rank: int, local_world_size: int, *, devices: Sequence[int] | None = None
) -> Share:
    """Says which devices of a plugin are for this process, one of several on this machine; before its first client.

    All clients of the plugin in this process have these devices, also those that JAX or PyTorch/XLA make. The plugin
    declares how it is told: by options (``processes``) or environment variables (``partition``), which are set.

    Args:
        name: as of ``client``.
        local_rank: the number of this process among those of the machine, from 0 on.
        local_world_size: how many processes of this machine there are.
        devices: the numbers of the devices; an equal share of all that the plugin may use, if not said.

    Raises:
        InvalidArgumentError: there is no such process, or the devices cannot be shared equally.
        FailedPreconditionError: a client was made already, or another share assigned; or the plugin cannot be told.
        NotFoundError: there is no such plugin.
    """
    plugin = declaration(name)
    return local_processes.assign(plugin, default_options(plugin), local_rank, local_world_size, devices=devices)


def topology(plugin: str | os.PathLike[str], name: str = "", /, **options: Any) -> TopologyDescription:
    """Devices that need not be here, to compile for (``PJRT_TopologyDescription_Create``).

    Args:
        plugin: as ``name`` of ``client``.
        name: the topology's name, as the plugin knows it, such as ``v5e:2x2``.
        options: the plugin's own options.

    Raises:
        NotFoundError: there is no such plugin.
        InvalidArgumentError: the plugin has no topology of that name; or it needs one and has got none.
        UnimplementedError: the plugin has no topologies without devices.
    """
    known = declaration(plugin)
    if known.topologies and not name and not options and not has_hardware(known):
        raise _no_topology(known, name)
    try:
        return load(known).topology(name, **options)
    except InvalidArgumentError as error:
        generation, _, size = name.partition(":")
        if not known.topologies or (generation in known.topologies and size):
            raise  # then the plugin knows best what is wrong with the size
        raise _no_topology(known, name) from error


def _no_topology(plugin: Declaration, name: str) -> InvalidArgumentError:
    there = "; ".join(f"{generation}: {sizes}" for generation, sizes in plugin.topologies.items())
    return InvalidArgumentError(
        f"{plugin.name}: expected the name of a topology as GENERATION:SIZE, found {name!r}. The generations and their "
        f"sizes are {there}"
    )


def load_plugin(path: str | os.PathLike[str]) -> Plugin:
    """Loads a plugin, by the path of a shared library with ``GetPjrtApi`` or by its name; the same one is loaded once.

    For ``libtpu.so`` on a machine without a TPU, environment variables that keep it from looking for one are set first,
    unless they are set already.

    Args:
        path: the library's path; or one of ``names()``.

    Raises:
        NotFoundError: there is no such file, or no such plugin.
        PjrtError: it cannot be loaded, or is no PJRT plugin that this package can speak to.
    """
    return get(path)


def get(name: str | os.PathLike[str]) -> Plugin:
    """The plugin with a name, or in the library at a path. It is loaded now if it is not yet, once.

    Raises:
        NotFoundError: there is none; the message lists the names there are.
        PjrtError: it cannot be loaded.
    """
    return _loader.load(declaration(name))


def slot(plugin: Declaration) -> Slot:
    """Where a plugin is kept, loaded or not."""
    return _loader.slot(plugin)


def load(plugin: Declaration) -> Plugin:
    """The plugin of a declaration; it is loaded now if it is not yet."""
    return _loader.load(plugin)


def names() -> Sequence[str]:
    """The names of the plugins that nothing is known against, in alphabetical order. Nothing is loaded.

    That a plugin is here does not mean that its hardware is: see ``at_hand``.
    """
    return tuple(sorted(name for name, plugin in _known.all().items() if not plugin.problem))


def loaded() -> Mapping[str, Plugin]:
    """The plugins that are loaded, by the names that they were asked for by."""
    return _loader.loaded()


def declarations() -> Sequence[Declaration]:
    """All that is known of every plugin, also of those that cannot be used, in the order of precedence.

    Nothing is imported or loaded for it.
    """
    return tuple(_known.all().values())


def declaration(name: str | os.PathLike[str]) -> Declaration:
    """What is known of a plugin, by its name or by the path of its library. Nothing is loaded.

    Raises:
        NotFoundError: there is none of that name; the message lists the names there are.
    """
    if not isinstance(name, (str, os.PathLike)):
        raise InvalidArgumentError(f"expected a device's name or a plugin's path, found {name!r}")
    found = at_place(name) or _known.find(str(name))
    if found is None:
        raise _known.unknown(str(name))
    return found


def register(
    plugin: Declaration | None = None,
    /,
    *,
    name: str = "",
    library: str | os.PathLike[str] | None = None,
    factory: str | Callable[..., Any] | Plugin | None = None,
    **facts: Any,
) -> Declaration:
    """Makes a plugin known by a name in this process. Nothing is loaded. It comes before any other of that name.

    Args:
        plugin: the plugin; or, instead of it, by name:
        name: what to call it.
        library: the path of its shared library.
        factory: a function that makes clients, a ``pjrt.Plugin`` or a class of one, or the place of such as
            ``module:attribute``.
        facts: other fields of ``Declaration``.

    Returns:
        What was registered.

    Raises:
        AlreadyExistsError: one of that name is registered; ``unregister`` it first.
        InvalidArgumentError: it has no name, or not just one of a library and a factory.
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
    if _known.registered.setdefault(plugin.name, plugin) is not plugin:
        raise AlreadyExistsError(f"a plugin called {plugin.name!r} is registered already; unregister it first")
    return plugin


def unregister(name: str) -> None:
    """Takes back what ``register`` did; what was found by that name elsewhere has it again.

    Clients that were made of it stay as they are.

    Raises:
        NotFoundError: none of that name is registered.
    """
    plugin = _known.registered.pop(name, None)
    if plugin is None:
        others = ", ".join(_known.registered) or "none"
        raise NotFoundError(f"no plugin called {name!r} is registered; registered are: {others}")
    _loader.forget(plugin)


def at_hand() -> Sequence[str]:
    """The names of the plugins that can be used on this machine, the best first: by priority, then ``cpu``, then in the
    order of precedence.

    Nothing is loaded to find out: the driver's files say that the hardware is here.
    """
    here = [plugin for plugin in declarations() if not plugin.problem and has_hardware(plugin)]
    return tuple(plugin.name for plugin in sorted(here, key=lambda each: (-each.priority, each.name != FALLBACK)))


def has_hardware(plugin: Declaration) -> bool:
    """Whether this machine has the hardware that a plugin is for; also where it needs none."""
    return not plugin.hardware or system.any_file(plugin.hardware)


def default() -> str:
    """The name of the device that ``pjrt.client()`` takes when none is named: what ``PJRT_DEVICE`` says, otherwise the
    first of ``at_hand``.

    The variable is read as PyTorch/XLA writes it: ``CPU``, ``CUDA``, ``TPU``, the name that a plugin declares for
    PyTorch/XLA, ``PJRT_NAME`` for a device of this package, ``PJRT`` for the one that ``PJRT_TORCH_XLA_DEVICE`` says,
    and ``LIBRARY`` for the library at the path in ``PJRT_LIBRARY_PATH``; or it is one of ``names()``.

    Raises:
        NotFoundError: it names one that is not known, or no file is at the library's path.
        InvalidArgumentError: the library's path is not said, or is not a whole path.
        PjrtError: the library is not safe to be loaded, or cut off.
    """
    asked = os.environ.get(DEFAULT_VARIABLE, "").strip()
    if not asked:
        return next(iter(at_hand()), FALLBACK)
    if asked.upper() == _LIBRARY:
        return _library_of_environment()
    if asked.upper() == _OURS:
        named = os.environ.get(_OURS_VARIABLE) or "reference"
        try:
            declaration(named)
        except NotFoundError as error:
            raise NotFoundError(f"{DEFAULT_VARIABLE}={asked} and {_OURS_VARIABLE}={named}: {error.message}") from None
        return named
    # PyTorch/XLA writes devices in capitals, and those of this package as PJRT_NAME.
    for name in (asked, asked.lower(), asked.lower().removeprefix("pjrt_")):
        if _known.find(name) is not None:
            return name
    for plugin in declarations():
        if str(plugin.frameworks.get("torch_xla", {}).get("name", "")).upper() == asked.upper():
            return plugin.name
    raise NotFoundError(f"{DEFAULT_VARIABLE}={asked}: {_known.unknown(asked).message}")


def _library_of_environment() -> str:
    path = os.environ.get(_LIBRARY_VARIABLE, "").strip()
    if not path:
        raise InvalidArgumentError(
            f"{DEFAULT_VARIABLE}={_LIBRARY} takes the plugin's library from {_LIBRARY_VARIABLE}, which is not set: "
            "expected the library's path, written from the root on"
        )
    from pjrt.plugins.discovery import libraries

    try:
        return str(libraries.written(path))
    except PjrtError as error:
        raise type(error)(f"{_LIBRARY_VARIABLE}={path}: {error.message}") from None


def default_options(plugin: Declaration) -> Mapping[str, Any]:
    """The options of a plugin's clients where nobody says otherwise: its own, those of the configuration, and before
    them those of the environment variable ``PJRT_OPTIONS_NAME``, written ``key=value;key=value``.

    Raises:
        InvalidArgumentError: the variable is written in another way.
    """
    own, said = _default_layers(plugin)
    return {**own, **said} if said else own


def _default_layers(plugin: Declaration) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The plugin's own options with those of the configuration, and those of the environment, before them."""
    from pjrt.plugins import configuration

    if configuration.options_variable(plugin.name) not in os.environ:
        return plugin.options, {}
    return plugin.options, configuration.environment_options(plugin.name)


def refresh() -> None:
    """Looks again for plugins that were installed while this process runs.

    What changes in the environment variables, the configuration file and ``sys.path`` is seen without it.
    """
    _known.forget_found()
