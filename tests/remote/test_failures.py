"""Servers and clients that fail, on connections that fail: errors within seconds, and everyone else goes on."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
from message_client import PATIENCE, MessageClient, array_fields
from remote_fixtures import Serve
from slow_network import slow_network
from waiting import wait_until

import pjrt
from pjrt import remote
from pjrt.api.errors import PjrtError
from pjrt.remote.server.server import Server
from pjrt.system.processes import reserved_port


@pytest.fixture(scope="module")
def client() -> Iterator[pjrt.Client]:
    with pjrt.client("reference") as client:
        yield client


@contextmanager
def served(client: pjrt.Client, **options: object) -> Iterator[Server]:
    with remote.serve(client, **options) as server:  # type: ignore[arg-type]
        yield server


def target(address: str) -> tuple[str, int]:
    host, _, port = address.partition("://")[2].rpartition(":")
    return host, int(port)


def until_ended(server: Server) -> None:
    wait_until(lambda: not server._open_sessions(), "the end of all sessions")


def test_a_client_that_closes_leaves_nothing(client: pjrt.Client) -> None:
    with served(client) as server:
        with MessageClient(server.address) as speaker:
            speaker.put(7, np.arange(5))
            assert speaker.get(7, 8) == np.arange(5).tobytes()
            (session,) = server._open_sessions()
            array = session.arrays.get(7)
        until_ended(server)
        assert array.is_deleted
        assert not session.usage.bytes


@pytest.mark.full
def test_a_server_that_ends_fails_every_waiting_call(serving: Serve) -> None:
    """Another one may be started in its place."""
    with reserved_port() as port:
        end_a_server(serving, f"127.0.0.1:{port}")


def end_a_server(serving: Serve, address: str) -> None:
    server = serving("reference", "--address", address)
    with MessageClient(server.address) as speaker:
        numbers = [
            speaker.send(
                "make_array_from_host_buffer",
                **array_fields(np.arange(3)),
                host_buffer_handle=number,
                array_handle=number,
            )
            for number in range(1, 4)  # they wait for host buffers that never come
        ]
        server.stop(signal.SIGKILL)
        for number in numbers:
            with pytest.raises(PjrtError) as raised:
                speaker.wait(number)
            assert raised.value.code.name == "UNAVAILABLE"
    again = serving("reference", "--address", address)
    with MessageClient(again.address) as speaker:
        speaker.put(1, np.arange(4))


CLIENT_THAT_DIES = """
import sys
import numpy as np
sys.path[:0] = sys.argv[2:]
from message_client import MessageClient, array_fields

speaker = MessageClient(sys.argv[1])
speaker.put(1, np.arange(1 << 16))
import message_client

def begin_and_stop(data):
    yield next(pieces(data))
    print("sending", flush=True)
    sys.stdin.read()

pieces, message_client.pieces = message_client.pieces, begin_and_stop
speaker.store(2, bytes(1 << 22))
"""


def test_a_client_that_dies_in_the_middle_of_a_transfer_leaves_nothing(client: pjrt.Client) -> None:
    with served(client) as server, MessageClient(server.address) as witness:
        witness.put(1, np.arange(6))
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT_THAT_DIES, server.address, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "sending\n"
        dying = next(session for session in server._open_sessions() if len(session.arrays) and session.usage.bytes > 48)
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        wait_until(lambda: dying not in server._open_sessions(), "the end of the session")
        assert not dying.usage.bytes
        assert witness.get(1, 2) == np.arange(6).tobytes()


CLIENT_THAT_DIES_COMPUTING = """
import sys
import numpy as np
import pjrt

client = pjrt.client("remote", address=sys.argv[1])
executable = client.compile(sys.argv[2])
results = executable(np.ones(1 << 16, np.float32))
sys.stdin.read()
"""

TANH = """func.func @main(%x: tensor<65536xf32>) -> tensor<65536xf32> {
  %0 = stablehlo.tanh %x : tensor<65536xf32>
  return %0 : tensor<65536xf32>
}"""


@pytest.mark.full
def test_a_client_that_dies_in_the_middle_of_an_execution_leaves_nothing() -> None:
    begun, gate = threading.Event(), threading.Event()

    def held_tanh(_: object, x: np.ndarray) -> np.ndarray:
        begun.set()
        gate.wait(PATIENCE)
        return np.tanh(x)

    device = pjrt.StableHloClient("gated", kernels={"stablehlo.tanh": held_tanh}, fallback="reference")
    with device, served(device) as server, MessageClient(server.address) as witness:
        witness.put(1, np.arange(6))
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT_THAT_DIES_COMPUTING, server.address, TANH], stdin=subprocess.PIPE
        )
        try:
            assert begun.wait(PATIENCE)
            (dying,) = (session for session in server._open_sessions() if len(session.executables))
            process.kill()
            process.wait()
            wait_until(lambda: dying not in server._open_sessions(), "the end of the session")
        finally:
            gate.set()
            process.kill()
            process.communicate()
        assert not dying.usage.bytes
        assert not len(dying.arrays)
        assert witness.get(1, 2) == np.arange(6).tobytes()
        with pjrt.client("remote", address=server.address) as other:
            (result,) = other.compile(TANH)(np.ones(1 << 16, np.float32))
            np.testing.assert_allclose(np.asarray(result), np.tanh(1), rtol=1e-6)


def test_sixteen_clients_at_once(client: pjrt.Client) -> None:
    with served(client) as server:

        def work(number: int) -> None:
            with MessageClient(server.address) as speaker:
                for step in range(5):
                    value = np.full(1000, number * 100 + step)
                    handle, buffer = 2 * step + 1, 2 * step + 2
                    speaker.put(handle, value)
                    assert speaker.get(handle, buffer) == value.tobytes()

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(work, range(16)))
        until_ended(server)


def test_no_session_reaches_another(client: pjrt.Client) -> None:
    with served(client) as server, MessageClient(server.address) as owner, MessageClient(server.address) as other:
        owner.put(1, np.arange(3))
        owner.store(5, b"secret")
        with pytest.raises(pjrt.NotFoundError):
            other.ask("copy_to_host_buffer", array_handle=1, host_buffer_handle=2)
        with pytest.raises(pjrt.NotFoundError):
            other.lookup(5)
        for guess in (0, 1, 2, 1 << 63, owner.session_id ^ 1):
            with pytest.raises(pjrt.NotFoundError, match="the number of an open session"):
                other.lookup(5, session_id=guess)
        assert owner.session_id.bit_length() > 32
        assert owner.lookup(5) == b"secret"


def test_a_slow_network_is_only_slow(client: pjrt.Client) -> None:
    with served(client) as server, slow_network(target(server.address), bytes_per_second=2e6, latency=0.02) as network:
        value = np.arange(1 << 16)
        with MessageClient(f"grpc://{network.address}") as speaker:
            speaker.put(1, value)
            assert speaker.get(1, 2) == value.tobytes()


def test_a_connection_cut_in_the_middle_of_a_transfer_is_an_error(client: pjrt.Client) -> None:
    with served(client) as server, slow_network(target(server.address), cut_after=300_000) as network:
        with MessageClient(f"grpc://{network.address}") as speaker:
            with pytest.raises(PjrtError) as raised:
                speaker.store(1, bytes(1 << 22))
            assert raised.value.code.name == "UNAVAILABLE"
            assert speaker.wait_for_end().code.name == "UNAVAILABLE"
        until_ended(server)


@pytest.mark.full
def test_both_ends_notice_a_network_that_stalls(client: pjrt.Client) -> None:
    with served(client) as server, slow_network(target(server.address)) as network:
        with MessageClient(f"grpc://{network.address}") as speaker:
            network.stall()
            assert speaker.wait_for_end().code.name == "UNAVAILABLE"  # by pings: the system itself waits for minutes
            until_ended(server)


def test_a_client_that_opens_a_session_and_is_silent_is_hung_up_on(client: pjrt.Client) -> None:
    limits = remote.Limits(open_seconds=120)  # it is looked at each second
    with served(client, limits=limits) as server, MessageClient(server.address) as speaker:
        object.__setattr__(limits, "open_seconds", 0.2)  # now that the other client has opened its session
        with MessageClient(server.address, begins=False) as silent:
            assert silent.wait_for_end().code.name == "DEADLINE_EXCEEDED"
            speaker.put(1, np.arange(3))


def test_a_host_buffer_that_never_comes_fails_its_request(client: pjrt.Client) -> None:
    limits = remote.Limits(host_buffer_seconds=0.2)
    with served(client, limits=limits) as server:
        with MessageClient(server.address) as speaker:
            with pytest.raises(pjrt.DeadlineExceededError, match=r"did not come within 0\.2 s"):
                speaker.ask(
                    "make_array_from_host_buffer", **array_fields(np.arange(3)), host_buffer_handle=9, array_handle=9
                )
            with pytest.raises(pjrt.DeadlineExceededError):
                speaker.ask("copy_to_host_buffer", array_handle=9, host_buffer_handle=10)
            object.__setattr__(limits, "host_buffer_seconds", PATIENCE)  # what comes may take its time
            speaker.put(1, np.arange(3))


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(200), bytes(5000)])
def test_bytes_that_are_no_grpc_harm_nobody(client: pjrt.Client, data: bytes) -> None:
    with served(client) as server, MessageClient(server.address) as speaker:
        with socket.create_connection(target(server.address), timeout=PATIENCE) as connection:
            connection.sendall(data)
        speaker.put(1, np.arange(3))


def test_a_message_that_is_no_request_ends_its_connection_alone(client: pjrt.Client) -> None:
    with served(client) as server, MessageClient(server.address) as other:
        with MessageClient(server.address) as speaker:
            speaker._stream.send(b"\xff\xff\xff")
            assert speaker.wait_for_end().code.name == "INVALID_ARGUMENT"
        other.put(1, np.arange(3))
