"""Key-value stores, by which the processes of one job find each other (``KeyValueStoreInterface``).

Here are also the states of these processes, and the job of a framework for which a client is being made.
"""

from __future__ import annotations

import abc
import contextlib
import contextvars
import enum
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from pjrt.api.errors import DeadlineExceededError, NotFoundError, PjrtError


class KeyValueStore(abc.ABC):
    """Bytes by name, visible to all processes of a job; a client of a plugin that spans processes is made with one."""

    @abc.abstractmethod
    def get(self, key: str, timeout: float) -> bytes:
        """Return the value of a key; wait until it is put (``PJRT_KeyValueGetCallback``).

        Args:
            key: the name.
            timeout: the longest time to wait, in seconds.

        Raises:
            DeadlineExceededError: the key was not put in time.
        """

    @abc.abstractmethod
    def try_get(self, key: str) -> bytes:
        """Return the value of a key without waiting (``PJRT_KeyValueTryGetCallback``).

        Raises:
            NotFoundError: the key has no value yet.
        """

    @abc.abstractmethod
    def put(self, key: str, value: bytes) -> None:
        """Set the value of a key (``PJRT_KeyValuePutCallback``)."""


class InMemoryKeyValueStore(KeyValueStore):
    """A store for the threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def get(self, key: str, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        with self._changed:
            while key not in self._values:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    if key in self._values:
                        break
                    raise DeadlineExceededError(
                        f"the key {key!r} was not put into the key-value store within {timeout} s"
                    )
            return self._values[key]

    def try_get(self, key: str) -> bytes:
        with self._changed:
            try:
                return self._values[key]
            except KeyError:
                raise NotFoundError(f"the key {key!r} is not in the key-value store") from None

    def put(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = bytes(value)
            self._changed.notify_all()


class PrefixedStore(KeyValueStore):
    """A store whose keys are those of another store that begin with a prefix."""

    def __init__(self, store: KeyValueStore, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def get(self, key: str, timeout: float) -> bytes:
        return self._store.get(f"{self._prefix}/{key}", timeout)

    def try_get(self, key: str) -> bytes:
        return self._store.try_get(f"{self._prefix}/{key}")

    def put(self, key: str, value: bytes) -> None:
        self._store.put(f"{self._prefix}/{key}", value)


class ProcessState(enum.IntEnum):
    """The state of a process of a job (``PJRT_ProcessState``)."""

    UNSPECIFIED = 0
    UNINITIALIZED = 1
    DISCONNECTED = 2
    CONNECTED = 3
    ERROR = 4


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process of a job (``PJRT_ProcessInfo``).

    Attributes:
        task_id: its number.
        incarnation_id: a number that is new each time the process is started.
        state: its state.
        error: why it failed, if ``state`` is ``ERROR``.
    """

    task_id: int
    incarnation_id: int
    state: ProcessState
    error: PjrtError | None = None


@contextlib.contextmanager
def job_of_framework(
    store: KeyValueStore | None, process_index: int | None, process_count: int | None
) -> Iterator[None]:
    """Let the clients that are made meanwhile be members of a framework's job, such as that of ``jax.distributed``.

    Args:
        store: the framework's store; without one, there is no job.
        process_index: the number of this process.
        process_count: the number of processes.
    """
    if store is None or process_index is None or process_count is None:
        yield
        return
    token = _of_framework.set((store, process_index, process_count))
    try:
        yield
    finally:
        _of_framework.reset(token)


_of_framework: contextvars.ContextVar[tuple[KeyValueStore, int, int] | None] = contextvars.ContextVar(
    "pjrt_job_of_framework", default=None
)


def job_of_caller() -> tuple[KeyValueStore, int, int] | None:
    """Return the framework's job for which a client is being made: its store, the number of this process, and how many
    processes there are; ``None`` if no framework has asked for the client, or it has no job.
    """
    return _of_framework.get()
