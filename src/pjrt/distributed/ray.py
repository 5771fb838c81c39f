"""Ray: the store of a Ray cluster, through which actors and tasks meet."""

from __future__ import annotations

import importlib
import time
from typing import Any

from pjrt.api.errors import AlreadyExistsError, DeadlineExceededError, FailedPreconditionError, NotFoundError
from pjrt.api.key_value_store import KeyValueStore

_PAUSE_SECONDS = 0.05


class RayStore(KeyValueStore):
    """The key-value store of the Ray cluster of this process: ``join(RayStore("my job"), rank, count)``.

    Args:
        name: a name that no other job of the cluster has.

    Raises:
        FailedPreconditionError: Ray is not installed, or this process is not in a cluster.
    """

    def __init__(self, name: str) -> None:
        try:
            ray = importlib.import_module("ray")
            self._store: Any = importlib.import_module("ray.experimental.internal_kv")
        except ImportError as error:
            raise FailedPreconditionError(f"Ray is needed for a RayStore ({error}): pip install ray") from None
        if not ray.is_initialized():
            raise FailedPreconditionError(
                "this process is not in a Ray cluster; call ray.init(), or start it as an actor"
            )
        self._prefix = f"pjrt/{name}/"

    def get(self, key: str, timeout: float) -> bytes:
        """Return the value of a key; wait until it is put. Ray has no function that waits, so it is asked again."""
        deadline = time.monotonic() + timeout
        while True:
            value: bytes | None = self._store._internal_kv_get(self._prefix + key)
            if value is not None:
                return value
            if time.monotonic() > deadline:
                raise DeadlineExceededError(f"the key {key!r} was not put into Ray's store within {timeout:g} s")
            time.sleep(_PAUSE_SECONDS)

    def try_get(self, key: str) -> bytes:
        """Return the value of a key without waiting."""
        value: bytes | None = self._store._internal_kv_get(self._prefix + key)
        if value is None:
            raise NotFoundError(f"the key {key!r} is not in Ray's store")
        return value

    def put(self, key: str, value: bytes) -> None:
        """Set the value of a key."""
        if self._store._internal_kv_put(self._prefix + key, value, overwrite=False):
            raise AlreadyExistsError(f"the key {key!r} is in Ray's store already; give each job a name of its own")
