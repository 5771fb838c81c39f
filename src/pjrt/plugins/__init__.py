"""Plugins by name: how they are found, what is known of them before they are loaded, and the way from a name to a
client (floor 5: must not know any one device).
"""

from __future__ import annotations

from pjrt.plugins.declaration import Declaration, MemoryOptions, Sharing
from pjrt.plugins.registry import (
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
    "Sharing",
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
