"""Plugins by name: the devices in the box and the libraries of vendors, and the way from a name to a client (floor 5:
must not know any one device).
"""

from __future__ import annotations

from pjrt.plugins.registry import client, find, load_plugin, names, topology

__all__ = ["client", "find", "load_plugin", "names", "topology"]
