"""XLA's coordination service and its agents, through jaxlib, and calls of them that can be abandoned.

XLA's agent ends the process (``LOG(FATAL)``) when its service is lost, refuses a call or reports an error, and the
callback that should replace this cannot be used from Python: jaxlib cannot convert the callback's argument, which ends
the process, too. So an agent must never see an error before it is stopped:

- Both sides get time limits that never pass. The limits of callers are kept in ``Calls``, and lost processes are
  found by the hub and the links.
- The agent of another process than the leader is connected to a relay in its own process (``relay``), which stays open
  when the leader is lost.
- ``Agent.stop`` ends the agent without a call of the service. The calls that wait in it then return an error.
"""

from __future__ import annotations

import functools
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from pjrt.api.errors import InternalError, PjrtError, StatusCode, UnavailableError
from pjrt.stablehlo.encodings.jaxlib import load, version

# The functions of XLA's agent block in native code, some of them without a time limit. The caller waits for a result
# here, in Python, where a lost process, a time limit and Ctrl-C can end the wait.

T = TypeVar("T")

_end_lock = threading.Lock()

# A signal that comes just before a thread begins to wait for a lock does not interrupt the wait: Python would notice
# Ctrl-C only at its end.
_SIGNAL_SECONDS = 0.5


class _Call:
    """One call: a function, and its result or error when it has ended."""

    __slots__ = ("_ended", "arguments", "error", "function", "needs", "result")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], needs: Collection[int]) -> None:
        self.function = function
        self.arguments = arguments
        self.needs = needs
        self.result: Any = None
        self.error: BaseException | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def run(self) -> None:
        try:
            result = self.function(*self.arguments)
        except BaseException as error:
            self.end(None, error)
        else:
            self.end(result, None)

    def end(self, result: Any, error: BaseException | None) -> None:
        """Set the result or the error; only the first one counts."""
        with _end_lock:
            if not self._ended.locked():
                return
            self.result, self.error = result, error
            self._ended.release()

    def wait(self, deadline: float | None) -> bool:
        """Wait for the end; return False if the deadline, on the monotonic clock, has passed."""
        while True:
            left = _SIGNAL_SECONDS if deadline is None else deadline - time.monotonic()
            if self._ended.acquire(timeout=max(0.0, min(left, _SIGNAL_SECONDS))):
                break
            if left <= 0:
                return False
        with _end_lock:
            return True  # result and error are set


class Calls:
    """The calls of one agent, and the threads that they run in.

    The threads are daemons, because a call may never return. A thread is used again when its call has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[_Call | None]] = []
        self._pending: set[_Call] = set()
        self._threads: set[threading.Thread] = set()
        self._failure: Callable[[], PjrtError] | None = None

    def run(
        self,
        function: Callable[..., T],
        *arguments: Any,
        needs: Collection[int] = (),
        deadline: float | None = None,
    ) -> T:
        """Return the result of a function, which runs in another thread.

        Args:
            function: the function.
            arguments: its arguments.
            needs: the processes without which it would not end.
            deadline: when to stop waiting for it, on the monotonic clock.

        Raises:
            TimeoutError: the deadline has passed.
            PjrtError: a needed process, or the whole job, was lost.
        """
        call = _Call(function, arguments, needs)
        with self._lock:
            if self._failure is not None:
                raise self._failure()
            self._pending.add(call)
            tasks = self._idle.pop() if self._idle else None
        if tasks is None:
            tasks = queue.SimpleQueue()
            thread = threading.Thread(target=self._work, args=(tasks,), name="pjrt-job-call", daemon=True)
            with self._lock:
                self._threads.add(thread)
            thread.start()
        tasks.put(call)
        try:
            if not call.wait(deadline):
                raise TimeoutError
        finally:
            with self._lock:
                self._pending.discard(call)
        if call.error is not None:
            raise call.error
        result: T = call.result
        return result

    def _work(self, tasks: queue.SimpleQueue[_Call | None]) -> None:
        while (call := tasks.get()) is not None:
            call.run()
            del call  # with its arguments and its result
            with self._lock:
                if self._failure is not None:
                    break
                self._idle.append(tasks)
        with self._lock:
            self._threads.discard(threading.current_thread())

    def fail(self, error: Callable[[], PjrtError]) -> None:
        """End all calls, and those that come later, with an error."""
        with self._lock:
            if self._failure is None:
                self._failure = error
            pending = list(self._pending)
            idle, self._idle = self._idle, []
        for call in pending:
            call.end(None, error())
        for tasks in idle:
            tasks.put(None)

    def fail_those_that_need(self, process_index: int, error: Callable[[], PjrtError]) -> None:
        """End the calls that wait for a process with an error."""
        with self._lock:
            pending = [call for call in self._pending if process_index in call.needs]
        for call in pending:
            call.end(None, error())

    def join(self, timeout: float) -> None:
        """Wait for the threads to end, after ``fail``; give up after ``timeout`` seconds.

        A thread that comes back from native code while the interpreter ends would abort the process.
        """
        deadline = time.monotonic() + timeout
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def forget(self, error: Callable[[], PjrtError]) -> None:
        """End all later calls with an error, in the child of a fork, where the threads do not exist."""
        self._lock = threading.Lock()
        self._failure = error


_NEVER_SECONDS = 100_000_000  # three years; more would overflow in XLA, which counts in nanoseconds
_RECOVERABLE_IS_OF_THE_SERVICE = (0, 10)  # before, an option of the agent


@functools.cache
def _jax() -> Any:
    """Return jaxlib's module; programs outside of a job do without it.

    jaxlib ends the process where the port of a service is in use, such as by this job. So JAX gets an error for it.
    """
    jaxlib = load("_jax", "coordinate the processes of a job")
    start = jaxlib.get_distributed_runtime_service

    def get_distributed_runtime_service(address: str, *arguments: Any, **options: Any) -> Any:
        _check_free(address)
        return start(address, *arguments, **options)

    jaxlib.get_distributed_runtime_service = get_distributed_runtime_service
    return jaxlib


def _check_free(address: str) -> None:
    """Check that a service can listen on the port of an address, as gRPC spells it.

    Raises:
        UnavailableError: the port is in use.
    """
    port = address.rpartition(":")[2]
    if not port.isdecimal():  # a socket of this machine
        return
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    reuse = hasattr(socket, "SO_REUSEPORT")  # as gRPC does
    try:
        socket.create_server(("", int(port)), family=family, dualstack_ipv6=both, reuse_port=reuse).close()
    except OSError as error:
        raise UnavailableError(
            f"the job of jax.distributed cannot listen on port {port} ({os.strerror(error.errno or 0)}); a job of "
            "pjrt.distributed may use it: give each of the two an address of its own"
        ) from None


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
