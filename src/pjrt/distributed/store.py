"""The key-value stores of jobs."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pjrt.api.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from pjrt.api.key_value_store import KeyValueStore
from pjrt.distributed.agent import Agent, Calls, converted

T = TypeVar("T")

LONGEST_SECONDS = 1_000_000.0
"""The longest time that XLA's agent is asked to wait."""


class CoordinationStore(KeyValueStore):
    """Bytes by name, in the process that leads a job, for all of its processes.

    Keys are like paths: ``a/b`` is in the directory ``a``. Slashes at the ends, and doubled ones, do not count. The
    values live as long as the leader. Any thread may use a store.
    """

    def __init__(self, agent: Agent, calls: Calls) -> None:
        self._agent = agent
        self._calls = calls

    def get(self, key: str, timeout: float = LONGEST_SECONDS) -> bytes:
        """Return the value of a key; wait until it is put.

        Args:
            key: the name.
            timeout: the longest time to wait, in seconds.

        Raises:
            DeadlineExceededError: the key was not put in time.
            UnavailableError: a process of the job was lost, or the leader.
        """
        _check(key)
        timeout = min(max(timeout, 0.0), LONGEST_SECONDS)
        deadline = time.monotonic() + timeout
        try:
            return self._run(self._agent.get, key, max(1, int(timeout * 1000)), deadline=deadline + 1)
        except (TimeoutError, DeadlineExceededError):
            raise DeadlineExceededError(
                f"the key {key!r} was not put into the job's key-value store within {timeout:g} s"
            ) from None

    def try_get(self, key: str) -> bytes:
        """Return the value of a key without waiting.

        Raises:
            NotFoundError: the key has no value.
            UnavailableError: a process of the job was lost, or the leader.
        """
        return self._run(self._agent.try_get, _check(key))

    def put(self, key: str, value: bytes, *, overwrite: bool = True) -> None:
        """Set the value of a key.

        Args:
            key: the name.
            value: the bytes.
            overwrite: whether a value that is there may be replaced.

        Raises:
            AlreadyExistsError: the key has a value, and ``overwrite`` is false.
            UnavailableError: a process of the job was lost, or the leader.
        """
        self._run(self._agent.set, _check(key), bytes(value), overwrite)

    def delete(self, key: str) -> None:
        """Delete the value of a key, and all values in the directory of this name; it is no error if there are none."""
        self._run(self._agent.delete, _check(key))

    def directory(self, key: str) -> dict[str, bytes]:
        """Return the values whose keys are in a directory, at any depth, by their whole keys."""
        return dict(self._run(self._agent.directory, _check(key)))

    def increment(self, key: str, amount: int = 1) -> int:
        """Add to an integer, which begins as 0, and return the sum; processes that do this at the same time get sums
        of their own.

        Raises:
            FailedPreconditionError: the value is no integer.
        """
        return self._run(self._agent.increment, _check(key), amount)

    def _run(self, function: Callable[..., T], *arguments: Any, deadline: float | None = None) -> T:
        try:
            return self._calls.run(function, *arguments, deadline=deadline)
        except RuntimeError as error:
            raise converted(error) from None


def _check(key: str) -> str:
    if not isinstance(key, str) or not key.strip("/"):
        raise InvalidArgumentError(f"expected a key with at least one character besides slashes, found {key!r}")
    return key


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
