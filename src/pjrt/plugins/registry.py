"""The registry: what a name means."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

from pjrt.api.client import Client
from pjrt.api.errors import InvalidArgumentError, NotFoundError
from pjrt.api.plugin import Plugin
from pjrt.api.topology import TopologyDescription
from pjrt.plugins import _builtin, _installed, _wheels

FALLBACK = "cpu"
"""The device that is always at hand."""


def client(name: str | os.PathLike[str] | None = None, /, **options: Any) -> Client:
    """A new client of a device (``PJRT_Client_Create``).

    Args:
        name: one of ``pjrt.plugins.names()``; ``cuda``, ``rocm`` or ``tpu``, where the vendor's wheel is installed; or
            the path of a plugin's library. If not said it is the accelerator that this machine has and whose wheel is
            installed, and ``cpu`` where there is none.
        options: the device's own options, such as ``num_devices`` of ``cpu``.

    Raises:
        NotFoundError: there is no plugin of that name, or its wheel is not installed, or no file is at that path.
        PjrtError: the plugin says why it cannot make a client.
    """
    return find(default() if name is None else name).client(**options)


def topology(plugin: str | os.PathLike[str], name: str = "", /, **options: Any) -> TopologyDescription:
    """Devices that need not be here, to compile for (``PJRT_TopologyDescription_Create``).

    Args:
        plugin: as ``name`` of ``client``.
        name: the topology's name, as the plugin knows it, such as ``v5e:2x2``.
        options: the plugin's own options.

    Raises:
        NotFoundError: there is no such plugin.
        UnimplementedError: the plugin has no topologies without devices.
    """
    return find(plugin).topology(name, **options)


def load_plugin(path: str | os.PathLike[str]) -> Plugin:
    """Loads a vendor's plugin, a shared library with ``GetPjrtApi``; the same library is loaded once.

    For ``libtpu.so`` on a machine without a TPU, environment variables that keep it from looking for one are set first,
    unless they are set already.

    Args:
        path: the library's path; or ``cuda``, ``rocm`` or ``tpu`` for the one in the vendor's wheel.

    Raises:
        NotFoundError: there is no such file, or the wheel is not installed.
        PjrtError: it cannot be loaded, or is no PJRT plugin that this package can speak to.
    """
    found = _wheels.library(path) if isinstance(path, str) and path in _wheels.WHEELS else path
    _wheels.prepare(found)
    loaded: Plugin = importlib.import_module("pjrt.capi").load_plugin(found)
    return loaded


def names() -> Sequence[str]:
    """The names of the devices in the box, of those that installed packages bring, and of vendors' plugins that have
    their hardware here, in alphabetical order.
    """
    return tuple(sorted({*_builtin.PLACES, *_installed.entry_points(), *_wheels.at_hand()}))


def default() -> str:
    """The name of the best device at hand."""
    return next(iter(_wheels.at_hand()), FALLBACK)


def find(name: str | os.PathLike[str]) -> Plugin:
    """The plugin with a name, or in the library at a path.

    Raises:
        NotFoundError: there is none; the message lists the names there are.
    """
    if isinstance(name, os.PathLike):
        return load_plugin(name)
    if not isinstance(name, str):
        raise InvalidArgumentError(f"expected a device's name or a plugin's path, found {name!r}")
    if name in _builtin.PLACES:
        return _builtin.plugin(name)
    if name in _installed.entry_points():
        return _installed.plugin(name)
    if name in _wheels.WHEELS or _is_path(name):
        return load_plugin(name)
    raise NotFoundError(
        f"there is no device called {name!r}: expected one of {', '.join(names())}, one from a vendor's wheel "
        f"({', '.join(sorted(_wheels.WHEELS))}), or the path of a plugin's library"
    )


def _is_path(name: str) -> bool:
    return os.sep in name or name.endswith((".so", ".dylib", ".dll"))
