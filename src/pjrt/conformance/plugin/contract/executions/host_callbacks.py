"""Checks of programs that exchange values with the host: send and receive callbacks, chunks and streams."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np

from pjrt.api.errors import StatusCode
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.executions.launch import Launch
from pjrt.conformance.plugin.contract.programs.compilation import expect_sum
from pjrt.conformance.plugin.subject import Subject

_EXECUTE = "PJRT_LoadedExecutable_Execute"
_ADD = "PJRT_CopyToDeviceStream_AddChunk"
_SEND_CHANNEL, _RECEIVE_CHANNEL = 7, 3
_X = np.arange(4, dtype=np.float32)
_PATIENCE = 10.0
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_MakeError = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t)


class _Chunk(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("deleter", ctypes.c_void_p),
        ("deleter_arg", ctypes.c_void_p),
    )


def _compiled(subject: Subject, sample: str) -> int:
    """Return the executable of a program that sends or receives; plugins may lack that."""
    answer = subject.attempt_compile(subject.program(sample))
    if answer.error is not None:
        raise Unsupported(f"programs that exchange values with the host: {answer.error}")
    return int(answer.executable)


def _begun(launch: Launch) -> Launch:
    if launch.error is not None and launch.error.code == StatusCode.UNIMPLEMENTED:
        raise Unsupported(f"programs that exchange values with the host: {launch.error}")
    return launch.succeeded()


class Sends:
    """A send callback that records what it is given, and frees each chunk.

    Attributes:
        chunks: the bytes, the total size, whether it was the last one, and the user data of each call.
    """

    def __init__(self, failure: bytes = b"") -> None:
        self._failure = failure
        self.chunks: list[tuple[bytes, int, bool, int]] = []

    def __call__(self, chunk: int, make_error: int, total: int, done: bool, user_arg: int) -> int:
        """Take a chunk; return the address of an error, or 0."""
        struct = _Chunk.from_address(chunk)
        self.chunks.append((ctypes.string_at(struct.data, struct.size), total, bool(done), user_arg))
        if struct.deleter:
            _Deleter(struct.deleter)(struct.data, struct.deleter_arg)
        if not self._failure:
            return 0
        # The plugin passes a pointer to its function.
        function = ctypes.c_uint64.from_address(make_error).value
        return int(_MakeError(function)(StatusCode.NOT_FOUND, self._failure, len(self._failure)) or 0)


def _send(subject: Subject, callback: Sends, user_arg: int = 0) -> Launch:
    info = {"channel_id": _SEND_CHANNEL, "user_arg": user_arg, "send_callback": callback}
    rows = [[subject.buffer(_X)]]
    options: dict[str, Any] = {"send_callbacks": [[info]], "num_send_ops": 1}
    return _begun(Launch(subject, _compiled(subject, "sends"), rows, with_events=True, **options))


@check(
    "send.value",
    calls=(_EXECUTE,),
    rule="A send callback is given the value in chunks; the last one is marked, and each states the size of the whole.",
)
def _value(subject: Subject) -> None:
    callback = Sends()
    launch = _send(subject, callback)
    subject.await_event(launch.events[0])
    data = b"".join(chunk for chunk, *_ in callback.chunks)
    subject.expect(data == _X.tobytes(), str(_X), f"{len(data)} bytes in {len(callback.chunks)} chunks")
    ends = [done for _, _, done, _ in callback.chunks]
    subject.expect(ends == [False] * (len(ends) - 1) + [True], "only the last chunk marked as the last", str(ends))
    totals = {total for _, total, _, _ in callback.chunks}
    subject.expect(totals == {_X.nbytes}, f"the total size {_X.nbytes}", str(totals))


@check(
    "send.user_data",
    calls=(_EXECUTE,),
    rule="user_arg is passed to the callback unchanged.",
)
def _user_data(subject: Subject) -> None:
    callback = Sends()
    subject.await_event(_send(subject, callback, (1 << 63) + 5).events[0])
    found = {user_arg for *_, user_arg in callback.chunks}
    subject.expect(found == {(1 << 63) + 5}, hex((1 << 63) + 5), str(found))


@check(
    "send.error",
    calls=(_EXECUTE, "PJRT_Event_Await"),
    rule="An error that the callback returns is the error of the execution; the client goes on.",
)
def _send_error(subject: Subject) -> None:
    launch = _send(subject, Sends(b"nobody is listening"))
    launch.expect_error((StatusCode.NOT_FOUND,), "nobody is listening")
    expect_sum(subject, subject.compile("add"))


class Receives:
    """A receive callback that adds chunks to its stream, and counts how often each is freed.

    Attributes:
        answers: what ``AddChunk`` and the questions about the stream answer.
        deleted: how often the deleter of each chunk was called.
    """

    def __init__(self, subject: Subject, pieces: list[bytes]) -> None:
        self._subject, self._pieces = subject, pieces
        self._memories = [ctypes.create_string_buffer(piece, len(piece)) for piece in pieces]
        self._function = _Deleter(self._delete)
        self.deleted = [0] * len(pieces)
        self.errors: list[Any] = []
        self.sizes: list[tuple[int, int, int]] = []
        self.done = threading.Event()

    def __call__(self, stream: int, user_arg: int) -> None:
        """Fill the stream, and destroy it."""
        try:
            self.sizes.append(self._ask(stream))
            for number, memory in enumerate(self._memories):
                chunk = _Chunk(
                    ctypes.addressof(memory),
                    len(memory),
                    ctypes.cast(self._function, ctypes.c_void_p),
                    number,
                )
                answer = self._subject.attempt(_ADD, stream=stream, chunk=ctypes.addressof(chunk))
                error = answer.error
                if error is None:
                    error = self._subject.event_error(answer.transfer_complete)
                self.errors.append(error)
                self.sizes.append(self._ask(stream))
            self._subject.attempt("PJRT_CopyToDeviceStream_Destroy", stream=stream)
        finally:
            self.done.set()

    def wait(self) -> None:
        """Wait until the callback has returned."""
        self._subject.expect(self.done.wait(_PATIENCE), "a call of the callback", f"none in {_PATIENCE:g} s")

    def _ask(self, stream: int) -> tuple[int, int, int]:
        ask = self._subject.call
        return (
            ask("PJRT_CopyToDeviceStream_TotalBytes", stream=stream).total_bytes,
            ask("PJRT_CopyToDeviceStream_GranuleSize", stream=stream).granule_size_in_bytes,
            ask("PJRT_CopyToDeviceStream_CurrentBytes", stream=stream).current_bytes,
        )

    def _delete(self, data: int | None, number: int | None) -> None:
        self.deleted[number or 0] += 1


def _receive(subject: Subject, pieces: list[bytes]) -> tuple[Launch, Receives]:
    callback = Receives(subject, pieces)
    info = {"channel_id": _RECEIVE_CHANNEL, "user_arg": 0, "recv_callback": callback}
    options: dict[str, Any] = {"recv_callbacks": [[info]], "num_recv_ops": 1}
    return _begun(Launch(subject, _compiled(subject, "receives"), [[]], with_events=True, **options)), callback


@check(
    "receive.value",
    calls=(_EXECUTE, _ADD, "PJRT_CopyToDeviceStream_Destroy"),
    over={"one_chunk": 1, "four_chunks": 4},
    rule="A receive callback fills the stream chunk by chunk; the program gets the value when all bytes are there.",
)
def _received(subject: Subject, count: int) -> None:
    data = _X.tobytes()
    size = len(data) // count
    launch, callback = _receive(subject, [data[number * size :][:size] for number in range(count)])
    launch.expect(_X)
    callback.wait()
    subject.expect(callback.errors == [None] * count, f"{count} chunks without an error", str(callback.errors))


@check(
    "receive.sizes",
    calls=(
        "PJRT_CopyToDeviceStream_TotalBytes",
        "PJRT_CopyToDeviceStream_GranuleSize",
        "PJRT_CopyToDeviceStream_CurrentBytes",
    ),
    rule="A stream states the bytes that it expects, those that it has, and of what size a chunk is a multiple.",
)
def _sizes(subject: Subject) -> None:
    data = _X.tobytes()
    launch, callback = _receive(subject, [data[:8], data[8:]])
    launch.expect(_X)
    callback.wait()
    granule = callback.sizes[0][1]
    subject.expect(granule > 0 and 8 % granule == 0, "a granule that divides 8 bytes", str(granule))
    expected = [(16, granule, current) for current in (0, 8, 16)]
    subject.expect(callback.sizes == expected, str(expected), str(callback.sizes))


@check(
    "receive.chunks_are_freed_once",
    calls=(_ADD,),
    rule="The stream takes over each chunk, and calls its deleter exactly once.",
)
def _freed(subject: Subject) -> None:
    data = _X.tobytes()
    launch, callback = _receive(subject, [data[:4], data[4:12], data[12:]])
    launch.expect(_X)
    callback.wait()
    subject.expect(callback.deleted == [1, 1, 1], "each deleter called once", str(callback.deleted))


@check(
    "receive.too_many_bytes",
    calls=(_ADD,),
    rule="A chunk with more bytes than the stream expects fails; its deleter is called all the same.",
)
def _too_many(subject: Subject) -> None:
    launch, callback = _receive(subject, [_X.tobytes() + bytes(4)])
    callback.wait()
    subject.expect(callback.errors[0] is not None, "an error", "a chunk of 20 bytes taken for 16")
    subject.expect(callback.deleted == [1], "the deleter called once", str(callback.deleted))
    launch.errors()
    expect_sum(subject, subject.compile("add"))


@check(
    "receive.stream_destroyed_early",
    calls=("PJRT_CopyToDeviceStream_Destroy", "PJRT_Event_Await"),
    rule="A stream that is destroyed before all bytes are there gives no value: the execution fails, and nothing waits "
    "for ever.",
)
def _destroyed_early(subject: Subject) -> None:
    launch, callback = _receive(subject, [_X.tobytes()[:8]])
    callback.wait()
    launch.expect_error()
    expect_sum(subject, subject.compile("add"))


@check(
    "copy_to_device_stream.destroy_null",
    calls=("PJRT_CopyToDeviceStream_Destroy",),
    rule="The stream of PJRT_CopyToDeviceStream_Destroy may be null.",
)
def _destroy_null(subject: Subject) -> None:
    subject.require("PJRT_CopyToDeviceStream_Destroy")
    subject.call("PJRT_CopyToDeviceStream_Destroy", stream=0)
