"""Executables of a session, with the functions of the client that they call: its host callbacks.

A running program sends the operands of a call to the host and receives the results (``RemoteLoadedHostCallback``). The
client asks for the next call with a poll, and sends the results, or an error, with a return.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from pjrt.api.buffer import CopyToDeviceStream
from pjrt.api.errors import CancelledError, InvalidArgumentError, PjrtError
from pjrt.api.future import Future, Promise
from pjrt.api.loaded_executable import ExecuteOptions, RecvCallback, SendCallback
from pjrt.ifrt.array import Array
from pjrt.ifrt.loaded_executable import ExecuteResult, LoadedExecutable
from pjrt.remote.protocol.programs import CallbackSignature


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a host callback by a running program.

    Attributes:
        operands: the values' bytes, one after the other.
        results: the results' bytes, one after the other; the client supplies them, or an error.
    """

    operands: bytes
    results: Promise[bytes]


class HostCallback:
    """A function of the client: the calls that wait for a poll, and the polls that wait for a call.

    Its users are its executable and the executions under way, which may outlive the executable. When the last one is
    gone, the polls end.

    Args:
        signature: the operands and results.
    """

    def __init__(self, signature: CallbackSignature) -> None:
        self.signature = signature
        self._lock = threading.Lock()
        self._calls: deque[Call] = deque()
        self._polls: deque[Promise[Call | None]] = deque()
        self._users = 1
        self._closed: PjrtError | None = None

    def call(self, operands: bytes) -> Future[bytes]:
        """Have the client call the function; return a future of the results' bytes."""
        call = Call(operands, Promise())
        with self._lock:
            if self._closed is not None:
                return Future.failed(self._closed)
            poll = self._polls.popleft() if self._polls else None
            if poll is None:
                self._calls.append(call)
        if poll is not None:
            poll.set_result(call)
        return call.results.future

    def poll(self) -> Future[Call | None]:
        """Return a future of the next call; of ``None`` if no more calls come."""
        promise: Promise[Call | None] = Promise()
        with self._lock:
            call = self._calls.popleft() if self._calls else None
            waits = call is None and self._closed is None
            if waits:
                self._polls.append(promise)
        if not waits:
            promise.set_result(call)
        return promise.future

    def add_user(self) -> None:
        """Keep the polls until ``remove_user`` is called once more."""
        with self._lock:
            self._users += 1

    def remove_user(self) -> None:
        """Note that a user is gone; the last one ends the polls."""
        with self._lock:
            self._users -= 1
            is_last = self._users == 0
        if is_last:
            self.close(CancelledError("the host callback was cancelled: its executable is gone"))

    def close(self, error: PjrtError) -> None:
        """End the polls, and give an error to the calls that wait for one."""
        with self._lock:
            self._closed = error
            calls, self._calls = self._calls, deque()
            polls, self._polls = self._polls, deque()
        for poll in polls:
            poll.set_result(None)
        for call in calls:
            call.results.set_error(error)


class DeviceCalls:
    """The calls of a host callback by one device in one execution (``xla::HostCallbackContext``).

    Args:
        callback: the callback.
    """

    def __init__(self, callback: HostCallback) -> None:
        self._callback = callback
        self._lock = threading.Lock()
        self._chunks: list[list[bytes]] = [[] for _ in callback.signature.operands]
        self._operands: list[deque[bytes]] = [deque() for _ in callback.signature.operands]
        self._results: list[deque[bytes]] = [deque() for _ in callback.signature.results]
        self._streams: list[deque[CopyToDeviceStream]] = [deque() for _ in callback.signature.results]

    def send_callbacks(self) -> list[SendCallback]:
        """Return the receivers of the operands."""
        return [
            SendCallback(channel.channel_id, partial(self._send, number))
            for number, channel in enumerate(self._callback.signature.operands)
        ]

    def recv_callbacks(self) -> list[RecvCallback]:
        """Return the suppliers of the results."""
        return [
            RecvCallback(channel.channel_id, partial(self._receive, number))
            for number, channel in enumerate(self._callback.signature.results)
        ]

    def _send(self, number: int, chunk: bytes, total: int, is_last: bool) -> None:
        """Take a chunk of an operand. The last one of a call waits for the client: its error fails the execution."""
        with self._lock:
            chunks = self._chunks[number]
            chunks.append(chunk)
            if not is_last:
                return
            self._operands[number].append(b"".join(chunks))
            chunks.clear()
            if not all(self._operands):
                return
            operands = b"".join(values.popleft() for values in self._operands)
        self._supply(self._callback.call(operands).result())

    def _supply(self, results: bytes) -> None:
        sizes = [channel.size for channel in self._callback.signature.results]
        if len(results) != sum(sizes):
            raise InvalidArgumentError(
                f"expected {sum(sizes)} bytes as the results of a host callback, found {len(results)}"
            )
        view, begin = memoryview(results), 0
        for number, size in enumerate(sizes):
            value = bytes(view[begin : begin + size])
            begin += size
            with self._lock:
                stream = self._streams[number].popleft() if self._streams[number] else None
                if stream is None:
                    self._results[number].append(value)
            if stream is not None:
                stream.add_chunk(value)

    def _receive(self, number: int, stream: CopyToDeviceStream) -> None:
        """Fill a stream with the next result; a program may ask for it before it has sent the operands."""
        with self._lock:
            value = self._results[number].popleft() if self._results[number] else None
            if value is None:
                self._streams[number].append(stream)
        if value is not None:
            stream.add_chunk(value)


class SessionExecutable:
    """An executable of a session.

    Args:
        executable: the executable.
        callbacks: the functions of the client that the program calls.
        size: the bytes of the program that the client sent.
    """

    __slots__ = ("_callbacks", "executable", "size")

    def __init__(self, executable: LoadedExecutable, callbacks: Sequence[HostCallback] = (), *, size: int = 0) -> None:
        self.executable = executable
        self.size = size
        self._callbacks = tuple(callbacks)

    def launch(self, arguments: Sequence[Array], options: ExecuteOptions) -> list[Array]:
        """Run the program without a future of its completion; raise the errors of ``LoadedExecutable.execute``."""
        if not self._callbacks:
            return self.executable.launch(arguments, options)
        return self.execute(arguments, options).outputs

    def execute(self, arguments: Sequence[Array], options: ExecuteOptions) -> ExecuteResult:
        """Run the program; raise the errors of ``LoadedExecutable.execute``."""
        if not self._callbacks:
            return self.executable.execute(arguments, options)
        rows = [[DeviceCalls(callback) for callback in self._callbacks] for _ in self.executable.addressable_devices]
        options = replace(
            options,
            send_callbacks=[[entry for calls in row for entry in calls.send_callbacks()] for row in rows],
            recv_callbacks=[[entry for calls in row for entry in calls.recv_callbacks()] for row in rows],
            use_major_to_minor_data_layout_for_callbacks=any(
                callback.signature.is_row_major for callback in self._callbacks
            ),
        )
        for callback in self._callbacks:
            callback.add_user()
        try:
            result = self.executable.execute(arguments, options)
        except BaseException:
            self.release()
            raise
        result.status.add_done_callback(lambda _: self.release())
        return result

    def release(self) -> None:
        """Note that a user of the callbacks is gone: the session, which forgets the executable, or an execution."""
        for callback in self._callbacks:
            callback.remove_user()

    def delete(self) -> None:
        """Unload the executable; executions under way end first."""
        self.executable.delete()
