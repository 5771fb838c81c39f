"""What of a plugin that is written in Python is alive: its clients, and what was made from them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection

from pjrt.api.buffer import Buffer
from pjrt.api.client import Client
from pjrt.api.errors import PjrtError
from pjrt.api.loaded_executable import LoadedExecutable

_clients: weakref.WeakKeyDictionary[Client, str] = weakref.WeakKeyDictionary()


def made(name: str, client: Client) -> None:
    """Notes that a client was made of the plugin with a name."""
    _clients[client] = name


def alive(name: str, modules: Collection[str]) -> dict[str, int]:
    """Kinds of things of a plugin that are alive, and how many there are.

    A client counts until it is closed; what was made from it counts for as long as the client does. Counted are clients
    that were asked for by the plugin's name, those that frameworks have of it, and those whose class is the plugin's.

    Args:
        name: the plugin's name.
        modules: the names of its modules.
    """
    clients = {id(client) for client in _open_clients(name, modules)}
    if not clients:
        return {}
    gc.collect()  # what is left may be garbage that nobody has found yet
    clients = {id(client) for client in _open_clients(name, modules)}
    counts = {"client": len(clients), "buffer": 0, "executable": 0}
    for thing in gc.get_objects() if clients else ():
        kind = type(thing)
        if issubclass(kind, Buffer) and _client_of(thing) in clients and not thing.is_deleted:
            counts["buffer"] += 1
        elif issubclass(kind, LoadedExecutable) and _client_of(thing) in clients and not thing.is_deleted:
            counts["executable"] += 1
    return {kind: number for kind, number in counts.items() if number}


def _open_clients(name: str, modules: Collection[str]) -> list[Client]:
    from pjrt.capi.export.exported import exported_from

    found = {id(client): client for client, plugin in list(_clients.items()) if plugin == name}
    for exported in exported_from(modules):
        found.update({id(client): client for client in exported.open_clients()})
    for thing in gc.get_objects():
        if issubclass(type(thing), Client) and type(thing).__module__ in modules:
            found[id(thing)] = thing
    return [client for client in found.values() if not client.is_closed]


def _client_of(thing: Buffer | LoadedExecutable) -> int:
    try:
        return id(thing.client)
    except (PjrtError, AttributeError):  # it is half made, or half gone
        return 0
