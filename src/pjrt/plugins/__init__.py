"""Plugins by name: discovery, declarations, and the way from a name to a client.

This package must not know any one device: the facts of each are data.
"""

from __future__ import annotations

from pjrt.plugins.declaration import Declaration, MemoryOptions, ProcessOptions, Sharing
from pjrt.plugins.registry import (
    assign_devices,
    available,
    client,
    declaration,
    declarations,
    default,
    load_plugin,
    loaded,
    names,
    refresh,
    register,
    reload,
    share_of_devices,
    topology,
    unregister,
)
from pjrt.plugins.visible_devices import VisibleDevices

__all__ = [
    "Declaration",
    "MemoryOptions",
    "ProcessOptions",
    "Sharing",
    "VisibleDevices",
    "assign_devices",
    "available",
    "client",
    "declaration",
    "declarations",
    "default",
    "load_plugin",
    "loaded",
    "names",
    "refresh",
    "register",
    "reload",
    "share_of_devices",
    "topology",
    "unregister",
]
