"""Plugins by name: how they are found, what is known of them before they are loaded, and the way from a name to a
client (floor 5: must not know any one device).
"""

from __future__ import annotations

from pjrt.plugins.declaration import Declaration, MemoryOptions, ProcessOptions, Sharing
from pjrt.plugins.local_processes import Share
from pjrt.plugins.registry import (
    assign_devices,
    at_hand,
    client,
    declaration,
    declarations,
    default,
    get,
    has_hardware,
    load_plugin,
    loaded,
    names,
    refresh,
    register,
    topology,
    unregister,
)

__all__ = [
    "Declaration",
    "MemoryOptions",
    "ProcessOptions",
    "Share",
    "Sharing",
    "assign_devices",
    "at_hand",
    "client",
    "declaration",
    "declarations",
    "default",
    "get",
    "has_hardware",
    "load_plugin",
    "loaded",
    "names",
    "refresh",
    "register",
    "topology",
    "unregister",
]
