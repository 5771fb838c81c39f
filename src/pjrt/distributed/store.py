"""The key-value store of a job."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from pjrt.api.errors import DeadlineExceededError, InvalidArgumentError
from pjrt.api.key_value_store import KeyValueStore
from pjrt.distributed._jaxlib import Agent, converted
from pjrt.distributed.calls import Calls

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
