"""The job of a framework, such as that of ``jax.distributed``, for which a client is being made."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from pjrt.api.key_value_store import KeyValueStore


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
