"""Plugins by name: how they are found, what is known of them before they are loaded, and the way from a name to a
client (floor 5: must not know any one device).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from pjrt.plugins.reloading import reload

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
    "reload",
    "topology",
    "unregister",
]


if not TYPE_CHECKING:  # a type checker knows the names from above, and would take any other for granted here

    def __getattr__(name: str) -> Any:
        """Import ``reload`` when it is first asked for: most programs never do."""
        if name == "reload":
            from pjrt.plugins.reloading import reload

            return reload
        raise AttributeError(f"module 'pjrt.plugins' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
