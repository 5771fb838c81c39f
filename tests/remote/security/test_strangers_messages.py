"""The messages of callers without an access token: they fill no memory, and known clients are served beside them."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import grpc
import numpy as np
import pytest
from certificates import write_secret
from message_client import MessageClient
from remote_fixtures import Serve

import pjrt
from pjrt import remote
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.versions import NEWEST
from pjrt.remote.security.credentials import TOKEN_ATTRIBUTE, ClientSecurity
from pjrt.remote.server.service import SERVICE
from pjrt.remote.transport import grpc_server
from pjrt.remote.transport.grpc_server import Bidirectional, CallContext, FirstMessages, GrpcServer, Refusal

HEALTH = "/grpc.health.v1.Health/Check"
TIMEOUT = 120
LONG = 32 << 20
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


@pytest.fixture(scope="module")
def client() -> Iterator[pjrt.Client]:
    with pjrt.client("reference") as client:
        yield client


@pytest.fixture
def guarded(client: pjrt.Client, token_file: Path) -> Iterator[str]:
    """The address of a server that lets only clients with a token in."""
    with remote.serve(client, token_file=token_file) as server:
        yield server.address


def call(address: str, method: str, message: bytes, *, compressed: bool = False) -> grpc.StatusCode:
    """Call a method of one request or of many as a stranger, and return the status."""
    compression = grpc.Compression.Gzip if compressed else None
    with grpc.insecure_channel(address.partition("://")[2], options=OPTIONS) as channel:
        try:
            if method == "IfrtSession":
                list(channel.stream_stream(SERVICE + method)(iter([message]), TIMEOUT, compression=compression))
            else:
                path = method if method.startswith("/") else SERVICE + method
                channel.unary_unary(path)(message, TIMEOUT, compression=compression)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "callers", "compressed"),
    [("GetVersion", 32, False), ("HostBufferDelete", 32, False), ("IfrtSession", 32, False), ("GetVersion", 12, True)],
)
def test_long_messages_of_strangers_are_not_held(
    serving: Serve, tmp_path: Path, method: str, callers: int, compressed: bool
) -> None:
    """The server could be asked for as much memory as there are callers times the longest message."""
    token_file = write_secret(tmp_path / "token", secrets.token_hex(16) + "\n")
    served = serving("reference", "--address", "127.0.0.1:0", "--token-file", str(token_file))
    before = peak_memory(served.process.pid)
    message, found = bytes(LONG), []
    threads = [
        threading.Thread(target=lambda: found.append(call(served.address, method, message, compressed=compressed)))
        for _ in range(callers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == callers
    assert grpc.StatusCode.OK not in found
    assert peak_memory(served.process.pid) - before < callers * LONG // 2
    with MessageClient(served.address, ClientSecurity(token_file=token_file)) as known:
        known.put(1, np.arange(3))


def peak_memory(process: int) -> int:
    (size,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(size) << 10


@pytest.mark.parametrize("method", ["GetVersion", "HostBufferDelete", "HostBufferReadFromDisk", HEALTH])
def test_a_request_that_only_names_things_is_short(client: pjrt.Client, method: str) -> None:
    """A client that is known, too: nothing of such a request is worth the memory."""
    with remote.serve(client) as server:
        assert call(server.address, method, bytes(1 << 17)) is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_compressed_messages_are_refused(client: pjrt.Client) -> None:
    with remote.serve(client) as server:
        request = wire.GrpcGetVersionRequest(min_version=NEWEST.to_proto(), max_version=NEWEST.to_proto())
        request = request.SerializeToString() + bytes([0x7A]) + b"\x80\x20" + bytes(4096)  # a field to be skipped
        assert call(server.address, "GetVersion", request) is grpc.StatusCode.OK
        assert call(server.address, "GetVersion", request, compressed=True) is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("method", ["GetVersion", "HostBufferDelete", "HostBufferReadFromDisk", HEALTH])
def test_a_damaged_request(client: pjrt.Client, method: str) -> None:
    with remote.serve(client) as server:
        assert call(server.address, method, b"\xff\xff") is not grpc.StatusCode.INTERNAL


def test_a_stranger_is_told_why_it_gets_no_session(guarded: str) -> None:
    with pytest.raises(pjrt.UnauthenticatedError, match="access token"):
        MessageClient(guarded)


def test_a_client_whose_session_alone_shows_the_token(guarded: str, token_file: Path) -> None:
    """As those of a stock jaxlib: their other calls come from the host of a session."""
    token = token_file.read_text().strip()
    with MessageClient(guarded, initialization_data={TOKEN_ATTRIBUTE: token}) as speaker:
        speaker.put(1, np.zeros(1 << 20, np.uint8))
        assert speaker.get(1, 2) == bytes(1 << 20)


def test_a_stranger_without_a_message_is_given_up(guarded: str) -> None:
    request = wire.GrpcGetVersionRequest(min_version=NEWEST.to_proto(), max_version=NEWEST.to_proto())
    done = threading.Event()

    def silent() -> Iterator[bytes]:
        done.wait(TIMEOUT)
        yield b""

    with grpc.insecure_channel(guarded.partition("://")[2], options=OPTIONS) as channel:
        waiting = channel.stream_unary(f"{SERVICE}GetVersion").future(silent(), TIMEOUT)
        assert waiting.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "access token" in waiting.details()
        done.set()
    assert call(guarded, "GetVersion", request.SerializeToString()) is grpc.StatusCode.OK


def test_the_call_of_a_refused_stranger_ends_before_the_next_one_is_received() -> None:
    """The core takes in more of a message until the call has ended: of eight at once, most were held as a whole."""
    ended, found = threading.Event(), []

    def refuse(context: CallContext, send: Callable[[bytes], None]) -> NoReturn:
        error = pjrt.UnauthenticatedError("expected an access token")
        raise Refusal(error, send, lambda: found.append(ended.wait(TIMEOUT)))

    server = GrpcServer("127.0.0.1:0", {"/Session": Bidirectional(refuse)})
    server.start()
    try:
        with grpc.insecure_channel(server.address, options=OPTIONS) as channel:
            done = threading.Event()
            silent = channel.stream_stream("/Session")(iter(lambda: done.wait(TIMEOUT) and b"", b""), TIMEOUT)
            assert silent.code() is grpc.StatusCode.UNAUTHENTICATED
            ended.set()
            done.set()
    finally:
        server.stop()
    assert found == [True]


class Caller:
    """A call that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def receive_first(self) -> None:
        self.told.append("receive")

    def give_up(self) -> None:
        self.told.append("give up")


def test_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "FIRST_MESSAGE_SECONDS", -1.0)  # every turn is over as soon as it begins
    turns, callers = FirstMessages(), [Caller() for _ in range(2 + grpc_server.MOST_FIRST_MESSAGES)]
    assert turns.deadline() is None
    *taken, last = [turns.request(caller) for caller in callers]
    assert all(taken)
    assert not last
    assert [caller.told for caller in callers[:3]] == [["receive"], [], []]
    assert not turns.leave(callers[0])  # its message has come
    assert callers[1].told == ["receive"]
    assert turns.leave(callers[2])  # it is gone
    turns.expire()
    assert callers[1].told == ["receive", "give up"]
    assert [callers[2].told, callers[3].told] == [[], ["receive"]]
