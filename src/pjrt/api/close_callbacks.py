"""Close callbacks: functions that are called once, when a client is closed or garbage-collected."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pjrt.api.client import Client

_finalizers: weakref.WeakKeyDictionary[Client, list[weakref.finalize[[], Client]]] = weakref.WeakKeyDictionary()


def add(client: Client, callback: Callable[[], object]) -> None:
    """Add a callback of a client; the end of the process does not call it."""
    finalizer = weakref.finalize(client, callback)
    finalizer.atexit = False
    _finalizers.setdefault(client, []).append(finalizer)


def call_all(client: Client) -> None:
    """Call the callbacks of a client that was closed."""
    for finalizer in _finalizers.pop(client, ()):
        finalizer()
