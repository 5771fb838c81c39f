"""jaxlib's coordination service and its agent: the one file of this package that touches them.

XLA's agent ends the process (``LOG(FATAL)``) when its service is lost, refuses a call or reports an error, and the
callback that should replace this cannot be used from Python: jaxlib cannot convert the callback's argument, which ends
the process, too. So an agent must never see an error before it is stopped:

- Both sides get time limits that never pass. The limits of callers are kept in ``calls``, and lost processes are
  found by ``hub`` and ``link``.
- The agent of another process than the leader is connected to a relay in its own process (``relay``), which stays open
  when the leader is lost.
- ``Agent.stop`` ends the agent without a call of the service. The calls that wait in it then return an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pjrt.api.errors import InternalError, PjrtError, StatusCode
from pjrt.stablehlo.jaxlib import load, version

_NEVER_SECONDS = 100_000_000  # three years; more would overflow in XLA, which counts in nanoseconds
_RECOVERABLE_IS_OF_THE_SERVICE = (0, 10)  # before, an option of the agent


def _jax() -> Any:
    """Return jaxlib's module; programs outside of a job do without it."""
    return load("_jax", "coordinate the processes of a job")


class Service:
    """XLA's coordination service, in the process that leads the job.

    Args:
        address: the address on which it listens, as gRPC spells it, such as ``unix:PATH``.
        process_count: the number of the job's processes.
        recoverable: whether a process may join again.
    """

    def __init__(self, address: str, process_count: int, recoverable: bool) -> None:
        options: dict[str, Any] = {}
        if recoverable and version() >= _RECOVERABLE_IS_OF_THE_SERVICE:
            options["recoverable"] = True
        self._service = _jax().get_distributed_runtime_service(
            address,
            process_count,
            heartbeat_timeout=_NEVER_SECONDS,
            cluster_register_timeout=_NEVER_SECONDS,
            shutdown_timeout=0,
            **options,
        )

    def stop(self) -> None:
        """Stop the service; it waits for at most 5 seconds for calls that are under way."""
        self._service.shutdown()


class Agent:
    """XLA's coordination agent (``DistributedRuntimeClient``) of one process.

    Its methods block, and have no time limit but the one they are given. They are called through ``Calls``.

    Attributes:
        runtime_client: jaxlib's object, which other functions of jaxlib take.
    """

    def __init__(self, address: str, process_index: int, recoverable: bool) -> None:
        options: dict[str, Any] = {}
        if recoverable and version() < _RECOVERABLE_IS_OF_THE_SERVICE:
            options["recoverable"] = True
        self.runtime_client = _jax().get_distributed_runtime_client(
            address,
            process_index,
            init_timeout=_NEVER_SECONDS,
            heartbeat_timeout=_NEVER_SECONDS,
            shutdown_timeout=0,
            shutdown_on_destruction=False,
            use_compression=False,
            **options,
        )

    def connect(self) -> None:
        """Register with the service; wait until all processes have done so."""
        self.runtime_client.connect()

    def stop(self) -> None:
        """End the agent in this process alone; calls that wait in it return an error."""
        self.runtime_client.shutdown()

    def get(self, key: str, milliseconds: int) -> bytes:
        """Return a value of the store; wait for it."""
        value: bytes = self.runtime_client.blocking_key_value_get_bytes(key, milliseconds)
        return value

    def try_get(self, key: str) -> bytes:
        """Return a value of the store, without waiting."""
        value: bytes = self.runtime_client.key_value_try_get_bytes(key)
        return value

    def set(self, key: str, value: bytes, overwrite: bool) -> None:
        """Set a value of the store."""
        self.runtime_client.key_value_set_bytes(key, value, overwrite)

    def delete(self, key: str) -> None:
        """Delete a value of the store, or a directory."""
        self.runtime_client.key_value_delete(key)

    def directory(self, prefix: str) -> list[tuple[str, bytes]]:
        """Return the values of the store whose keys are in a directory."""
        entries: list[tuple[str, bytes]] = self.runtime_client.key_value_dir_get_bytes(prefix)
        return entries

    def increment(self, key: str, amount: int) -> int:
        """Add to an integer of the store, and return the sum."""
        total: int = self.runtime_client.key_value_increment(key, amount)
        return total

    def barrier(self, name: str, milliseconds: int, processes: Sequence[int] | None) -> None:
        """Wait until processes have called this with the same name."""
        self.runtime_client.wait_at_barrier(name, milliseconds, None if processes is None else list(processes))

    def incarnation(self, process_index: int) -> int:
        """Return the incarnation of this process itself."""
        incarnations: dict[int, int] = self.runtime_client.get_live_nodes([process_index])
        return incarnations[process_index]


# What gRPC and absl append to a message: where the error came from, and payloads in their own notation.
_TAIL = re.compile(r"\s*(Additional GRPC error information|RPC: /|\[type\.googleapis\.com/).*", re.DOTALL)


def converted(error: BaseException) -> PjrtError:
    """Return an exception of jaxlib as the ``PjrtError`` of its status code."""
    if isinstance(error, PjrtError):
        return error
    name, separator, message = str(error).partition(": ")
    message = _TAIL.sub("", message).strip()
    if not separator or name not in StatusCode.__members__:
        return InternalError(str(error)) if isinstance(error, RuntimeError) else PjrtError.wrap(error)
    result = PjrtError.of(StatusCode[name], message)
    result.__cause__ = error.with_traceback(None)
    return result
