"""The gRPC server and the gRPC channel, against each other and against grpcio's own."""

import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from waiting import wait_until

from pjrt import (
    CancelledError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    PjrtError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
)
from pjrt.remote.transport.channel import Channel
from pjrt.remote.transport.grpc_server import (
    Bidirectional,
    CallContext,
    ClientStreaming,
    Conversation,
    GrpcServer,
    ServerStreaming,
    Unary,
)

TIMEOUT = 120


class Sum:
    """A sink that adds up the lengths of messages, and notes its end."""

    def __init__(self, context: CallContext) -> None:
        self.total = 0
        self.ended = threading.Event()

    def receive(self, message: bytes) -> None:
        if message == b"bad":
            raise InvalidArgumentError("expected a good message, found a bad one")
        self.total += len(message)

    def finish(self) -> bytes:
        self.ended.set()
        return str(self.total).encode()

    def cancel(self) -> None:
        self.ended.set()


class Echo:
    """A receiver that answers each message by itself, and notes the reason of its end."""

    def __init__(self, context: CallContext, send) -> None:
        self.send = send
        self.received = 0
        self.waits = threading.Event()
        self.gate = threading.Event()
        self.ended: queue.Queue[str] = queue.Queue()
        self.failure: PjrtError | None = None

    def receive(self, message: bytes) -> None:
        self.received += 1
        if message == b"fail":
            raise NotFoundError("expected another message")
        if message == b"wait":
            self.waits.set()
            assert self.gate.wait(TIMEOUT)
        self.send(message)

    def close(self, reason: str, failure: PjrtError | None) -> None:
        self.failure = failure
        self.ended.put(reason)


def fail(request: bytes, context: CallContext) -> bytes:
    raise NotFoundError(f"expected the key é, found {request.decode()}")


def count(request: bytes, context: CallContext) -> Iterator[bytes]:
    for number in range(int(request)):
        yield str(number).encode()


def describe(request: bytes, context: CallContext) -> bytes:
    return repr((context.method, context.metadata["key"], context.metadata["key-bin"], context.peer[:4])).encode()


METHODS = {
    "/test/Echo": Bidirectional(Echo),
    "/test/Same": Unary(lambda request, context: request),
    "/test/Fail": Unary(fail),
    "/test/Bug": Unary(lambda request, context: request.missing),
    "/test/Describe": Unary(describe),
    "/test/Sum": ClientStreaming(Sum),
    "/test/Count": ServerStreaming(count),
}


def kept(open_call: Callable[..., Any], calls: "queue.Queue[Any]") -> Callable[..., Any]:
    """Return the function that opens a call, made to keep what it returns."""

    def open_and_keep(*arguments: Any) -> Any:
        call = open_call(*arguments)
        calls.put(call)
        return call

    return open_and_keep


# They hold the calls of one test: of a queue for all tests, a test whose own call begins late would get an earlier one.


@pytest.fixture
def echoes() -> "queue.Queue[Echo]":
    return queue.Queue()


@pytest.fixture
def sums() -> "queue.Queue[Sum]":
    return queue.Queue()


@pytest.fixture
def server(echoes: "queue.Queue[Echo]", sums: "queue.Queue[Sum]") -> Iterator[GrpcServer]:
    calls = {"/test/Echo": Bidirectional(kept(Echo, echoes)), "/test/Sum": ClientStreaming(kept(Sum, sums))}
    server = GrpcServer("127.0.0.1:0", METHODS | calls)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def channel(server: GrpcServer) -> Iterator[Channel]:
    channel = Channel(server.address)
    yield channel
    channel.close()


def test_unary_calls_return_the_response(channel: Channel) -> None:
    assert channel.unary("/test/Same", b"") == b""
    assert channel.unary("/test/Same", b"x" * 5_000_000) == b"x" * 5_000_000


def test_the_context_has_the_headers(channel: Channel) -> None:
    found = channel.unary("/test/Describe", b"", metadata=(("key", "word"), ("key-bin", b"\0\xff")))
    assert found.decode() == repr(("/test/Describe", "word", b"\0\xff", "ipv4"))


def test_errors_keep_their_code_and_message(channel: Channel) -> None:
    with pytest.raises(NotFoundError, match=r"^NOT_FOUND: expected the key é, found x$"):
        channel.unary("/test/Fail", b"x")
    with pytest.raises(UnimplementedError, match="no method /test/None"):
        channel.unary("/test/None", b"x")


def test_a_bug_of_a_method_is_an_error_of_one_call(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Exception, match="AttributeError"):
        channel.unary("/test/Bug", b"x")
    assert "/test/Bug failed in an unexpected way" in caplog.text
    assert channel.unary("/test/Same", b"x") == b"x"


def test_client_streaming(channel: Channel) -> None:
    assert channel.client_streaming("/test/Sum", (bytes(n) for n in range(1000))) == b"499500"
    assert channel.client_streaming("/test/Sum", ()) == b"0"


def test_an_error_in_the_middle_of_a_client_stream_ends_it(channel: Channel) -> None:
    def endless() -> Iterator[bytes]:
        yield b"bad"
        while True:
            yield bytes(1 << 20)

    with pytest.raises(InvalidArgumentError, match="found a bad one"):
        channel.client_streaming("/test/Sum", endless())


def test_an_abandoned_client_stream_ends_the_sink(channel: Channel, sums: "queue.Queue[Sum]") -> None:
    def broken() -> Iterator[bytes]:
        yield bytes(1 << 20)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        channel.client_streaming("/test/Sum", broken())
    assert sums.get(timeout=TIMEOUT).ended.wait(TIMEOUT)  # the end of the client may look like that of the messages


def test_server_streaming(channel: Channel) -> None:
    assert [int(n) for n in channel.server_streaming("/test/Count", b"300")] == list(range(300))
    assert list(channel.server_streaming("/test/Count", b"0")) == []
    with pytest.raises(InvalidArgumentError, match="ValueError"):
        list(channel.server_streaming("/test/Count", b"x"))
    numbers = channel.server_streaming("/test/Count", b"1000000")
    assert next(numbers) == b"0"
    numbers.close()


class Conversing:
    """A stream whose messages and end are kept."""

    def __init__(self, channel: Channel, path: str = "/test/Echo") -> None:
        self.messages: queue.Queue[bytes] = queue.Queue()
        self.end: queue.Queue[Exception] = queue.Queue()
        self.stream = channel.stream(path, self.messages.put, self.end.put)

    def get(self, number: int) -> list[bytes]:
        return [self.messages.get(timeout=TIMEOUT) for _ in range(number)]


def test_streams_keep_the_order(channel: Channel) -> None:
    conversing = Conversing(channel)
    messages = [str(n).encode() for n in range(5000)]
    for message in messages:
        conversing.stream.send(message)
    assert conversing.get(5000) == messages


def test_responses_may_come_from_any_thread(channel: Channel, echoes: "queue.Queue[Echo]") -> None:
    conversing = Conversing(channel)
    conversing.stream.send(b"hello")
    conversing.get(1)
    echo = echoes.get(timeout=TIMEOUT)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: echo.send(str(n).encode()), range(2000)))
    assert sorted(int(m) for m in conversing.get(2000)) == list(range(2000))


def test_an_error_of_a_receiver_ends_the_stream(channel: Channel, echoes: "queue.Queue[Echo]") -> None:
    conversing = Conversing(channel)
    conversing.stream.send(b"a")
    conversing.stream.send(b"fail")
    assert isinstance(conversing.end.get(timeout=TIMEOUT), NotFoundError)
    assert conversing.get(1) == [b"a"]
    echo = echoes.get(timeout=TIMEOUT)
    assert echo.ended.get(timeout=TIMEOUT)
    assert isinstance(echo.failure, NotFoundError)
    conversing.stream.send(b"dropped")
    conversing.stream.close()


def test_the_end_of_a_client_reaches_the_receiver(server: GrpcServer, echoes: "queue.Queue[Echo]") -> None:
    program = (
        "import os, sys, threading\n"
        "from pjrt.remote.transport.channel import Channel\n"
        "stream = Channel(sys.argv[1]).stream('/test/Echo', lambda m: os._exit(1), print)\n"
        "stream.send(b'x')\n"
        "threading.Event().wait()\n"
    )
    child = subprocess.run([sys.executable, "-c", program, server.address], timeout=120, check=False)
    assert child.returncode == 1
    echo = echoes.get(timeout=TIMEOUT)
    assert "ended" in echo.ended.get(timeout=TIMEOUT)
    assert echo.failure is None


def test_stop_ends_streams_and_later_calls() -> None:
    earlier = set(threading.enumerate())  # one thread serves all clients of the process, and stays
    server = GrpcServer("127.0.0.1:0", METHODS)
    server.start()
    channel = Channel(server.address)
    conversing = Conversing(channel)
    conversing.stream.send(b"a")
    conversing.get(1)
    server.stop()
    server.stop()
    assert server.wait(TIMEOUT)
    assert isinstance(conversing.end.get(timeout=TIMEOUT), (CancelledError, UnavailableError))
    with pytest.raises(UnavailableError):
        channel.unary("/test/Same", b"x", timeout=TIMEOUT)
    channel.close()
    channel.close()
    with pytest.raises(CancelledError, match="closed"):
        channel.unary("/test/Same", b"x")

    def left() -> list[threading.Thread]:
        return [each for each in set(threading.enumerate()) - earlier if each.name.startswith("pjrt-remote")]

    wait_until(lambda: not left(), "the end of the threads")  # a reader has told the end before it ends itself


def test_a_client_that_sends_too_fast_is_held_back(channel: Channel, echoes: "queue.Queue[Echo]") -> None:
    conversing = Conversing(channel)
    conversing.stream.send(b"wait")
    for _ in range(2000):
        conversing.stream.send(bytes(100_000))
    echo = echoes.get(timeout=TIMEOUT)
    assert echo.waits.wait(TIMEOUT)
    # One message is handled, one is asked for, and the rest stays on the other side, beyond what HTTP/2 lets through.
    assert channel.unary("/test/Same", b"other calls go on") == b"other calls go on"
    assert conversing.stream.waiting > 1000
    assert echo.received == 1
    echo.gate.set()
    assert sum(map(len, conversing.get(2001))) == 2000 * 100_000 + 4


def test_a_client_that_does_not_read_is_held_back(
    server: GrpcServer, echoes: "queue.Queue[Echo]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Conversation, "MAX_WAITING", 8)
    stop = threading.Event()

    def requests() -> Iterator[bytes]:
        for _ in range(3000):
            yield bytes(100_000)
        stop.wait()

    # The other call has a connection of its own: the flow control of a connection is shared by its calls.
    alone = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(server.address, alone) as slow, grpc.insecure_channel(server.address, alone) as other:
        responses = slow.stream_stream("/test/Echo")(requests())
        echo = echoes.get(timeout=TIMEOUT)
        # At 8 it takes no more, then some of the 8 may still go out: from 4 on it stays at rest.
        while len(echo.send.__self__._outbox) < 4:  # type: ignore[attr-defined]
            stop.wait(0.01)
        for _ in range(50):  # without a limit, far more messages come meanwhile
            assert other.unary_unary("/test/Same")(b"x", timeout=TIMEOUT) == b"x"
        assert echo.received < 2000
        assert len(echo.send.__self__._outbox) <= 9  # type: ignore[attr-defined]
        assert sum(len(next(responses)) for _ in range(3000)) == 300_000_000
        stop.set()


def test_many_clients_at_once(server: GrpcServer) -> None:
    def converse(number: int) -> bool:
        channel = Channel(server.address)
        conversing = Conversing(channel)
        messages = [f"{number}/{n}".encode() for n in range(200)]
        for message in messages:
            conversing.stream.send(message)
        right = conversing.get(200) == messages
        conversing.stream.close()
        channel.close()
        return right

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(converse, range(16)))


def test_grpcio_clients_are_served(server: GrpcServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        assert channel.unary_unary("/test/Same")(b"x", timeout=TIMEOUT) == b"x"
        assert channel.stream_unary("/test/Sum")(iter([b"abc", b"de"])) == b"5"
        assert list(channel.unary_stream("/test/Count")(b"3")) == [b"0", b"1", b"2"]
        assert list(channel.stream_stream("/test/Echo")(iter([b"a", b"b"]))) == [b"a", b"b"]
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/test/Fail")(b"x")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_calls_can_be_refused() -> None:
    def authorize(context: CallContext) -> None:
        if context.metadata.get("token") != "right":
            raise PermissionDeniedError("expected the right token")

    server = GrpcServer("127.0.0.1:0", METHODS, authorize=authorize)
    server.start()
    stranger, friend = Channel(server.address), Channel(server.address, metadata=(("token", "right"),))
    try:
        with pytest.raises(PermissionDeniedError, match="right token"):
            stranger.unary("/test/Same", b"x")
        refused = Conversing(stranger)
        assert isinstance(refused.end.get(timeout=TIMEOUT), PermissionDeniedError)
        assert friend.unary("/test/Same", b"x") == b"x"
        friendly = Conversing(friend)
        friendly.stream.send(b"x")
        assert friendly.get(1) == [b"x"]
    finally:
        stranger.close()
        friend.close()
        server.stop()


def test_long_messages_are_refused() -> None:
    server = GrpcServer("127.0.0.1:0", METHODS, max_message_bytes=1000)
    server.start()
    channel = Channel(server.address)
    try:
        assert len(channel.unary("/test/Same", bytes(1000))) == 1000
        with pytest.raises(ResourceExhaustedError):
            channel.unary("/test/Same", bytes(1001))
    finally:
        channel.close()
        server.stop()


def test_thousands_of_calls_may_wait() -> None:
    """By default gRPC cancels calls from the 1,001st that waits for the server, and all from the 3,001st."""
    go_on = threading.Event()

    def wait(request: bytes, context: CallContext) -> bytes:
        assert go_on.wait(TIMEOUT)
        return request

    server = GrpcServer("127.0.0.1:0", {"/test/Wait": Unary(wait)})
    server.start()
    try:
        with grpc.insecure_channel(server.address) as channel:
            method = channel.unary_unary("/test/Wait")
            calls = [method.future(b"x", timeout=3 * TIMEOUT) for _ in range(3200)]
            go_on.set()
            assert {call.result() for call in calls} == {b"x"}
    finally:
        go_on.set()
        server.stop()


def test_a_server_ends_although_clients_left_their_calls() -> None:
    """The end of a call may come before its beginning; counted twice, the server never had all ends, and waited."""
    for _ in range(2):
        go_on = threading.Event()
        server = GrpcServer("127.0.0.1:0", {"/test/Wait": Unary(lambda request, context, go=go_on: go.wait() and b"")})
        server.start()
        with grpc.insecure_channel(server.address) as channel:
            method = channel.unary_unary("/test/Wait")
            calls = [method.future(b"x", timeout=TIMEOUT) for _ in range(2000)]
            go_on.set()
        assert len(calls) == 2000
        stop = threading.Thread(target=server.stop, daemon=True)
        stop.start()
        stop.join(TIMEOUT)
        assert not stop.is_alive()


STOP_AT_THE_BEGINNING_OF_A_CALL = """
import threading
from pjrt import PjrtError
from pjrt.remote.transport import grpc_server
from pjrt.remote.transport.grpc_server import Unary
from pjrt.remote.transport.channel import Channel

server = grpc_server.GrpcServer("127.0.0.1:0", {"/test/Same": Unary(lambda request, context: request)})
context_of = grpc_server.context_of
stop = threading.Thread(target=server.stop)

def context_of_slowly(event, method):
    stop.start()
    while not server._shut:  # the other thread sees the end before this call has begun
        threading.Event().wait(0.005)
    return context_of(event, method)

grpc_server.context_of = context_of_slowly
server.start()
try:
    Channel(server.address).unary("/test/Same", b"x", timeout=120)
except PjrtError as error:
    print(type(error).__name__)
stop.join(60)
print("stopped" if server.wait(0) else "not stopped")
"""


def test_a_server_may_stop_while_a_call_begins() -> None:
    program = [sys.executable, "-c", STOP_AT_THE_BEGINNING_OF_A_CALL]
    child = subprocess.run(program, capture_output=True, text=True, timeout=200, check=False)
    assert (child.returncode, child.stdout.split()) == (0, ["UnavailableError", "stopped"]), child.stderr
