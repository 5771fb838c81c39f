"""From a plugin's name and options to a client: what all plugins have in common when one is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pjrt.api.client import Client
from pjrt.api.plugin import Plugin
from pjrt.plugins.declaration import Declaration, Sharing

_MEMORY = frozenset({"memory", "memory_fraction"})


def new_client(declaration: Declaration, plugin: Plugin, *layers: Mapping[str, Any]) -> Client:
    """A new client.

    Args:
        declaration: what is known of the plugin.
        plugin: the plugin.
        layers: options; what later ones say counts.

    Raises:
        FailedPreconditionError: somebody has the device, who does not share it.
        PjrtError: as ``Plugin.client``.
    """
    options: dict[str, Any] = {}
    for layer in layers:
        options.update(_in_its_own_words(declaration, layer))
    make = _shared if declaration.sharing is Sharing.MANY else _alone
    return make(declaration, plugin, options)


def _in_its_own_words(declaration: Declaration, options: Mapping[str, Any]) -> Mapping[str, Any]:
    if _MEMORY.isdisjoint(options):
        return options
    from pjrt.plugins import memory

    return memory.translated(declaration, options)


def _shared(declaration: Declaration, plugin: Plugin, options: Mapping[str, Any]) -> Client:
    return plugin.client(**options)


def _alone(declaration: Declaration, plugin: Plugin, options: Mapping[str, Any]) -> Client:
    from pjrt.plugins import client_lock

    with client_lock.claimed(declaration, options) as claim:
        client = plugin.client(**options)
        client_lock.keep(claim, client)
    return client
