"""Connections of strangers: few at a time, for a short time, and with few guesses of a token."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from certificates import write_secret
from message_client import MessageClient
from waiting import wait_until

import pjrt
from pjrt import remote
from pjrt.remote import Limits
from pjrt.remote.security import strangers
from pjrt.remote.security.credentials import TOKEN_ATTRIBUTE, ClientSecurity
from pjrt.remote.security.strangers import FREE_GUESSES, Strangers
from pjrt.remote.server.server import Server
from pjrt.remote.transport.addresses import Address
from pjrt.system.connection_filter import drop_attempts

WRONG = "qrstuvwx" * 4
HERE = ("127.0.0.1", 0)

pytestmark = pytest.mark.skipif(not Path("/dev/fd").exists(), reason="this system does not show the open files")


@pytest.fixture(scope="module")
def client() -> Iterator[pjrt.Client]:
    with pjrt.client("reference") as client:
        yield client


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(strangers, "time", SimpleNamespace(monotonic=lambda: self.now))


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1 << 16))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def connect(server: Server, host: str = "127.0.0.1") -> socket.socket:
    """Return a connection that a server has taken, as its first bytes show, and on which nothing is said."""
    connection = socket.create_connection(("127.0.0.1", server._address.port), 60, (host, 0))
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
    assert connection.recv(9)
    return connection


def test_the_oldest_connections_of_the_host_with_the_most_are_ended(client: pjrt.Client, token_file: Path) -> None:
    limits = Limits(strangers=3, open_seconds=120)
    with (
        remote.serve(client, limits=limits, token_file=token_file) as server,
        MessageClient(server.address, ClientSecurity(token_file=token_file)) as known,
    ):
        other = connect(server, "127.0.0.2")
        first = [connect(server) for _ in range(2)]
        wait_until(lambda: len(_since(server)) == 3, "a look at the connections")
        later = [connect(server) for _ in range(2)]
        wait_until(lambda: not any(map(is_open, first)), "the end of the oldest connections")
        assert all(map(is_open, [other, *later]))
        known.put(1, np.arange(3))
        for connection in (other, *first, *later):
            connection.close()
        wait_until(lambda: not _since(server), "that nothing of strangers is remembered")


def test_a_connection_on_which_nothing_is_said_is_ended(client: pjrt.Client, token_file: Path) -> None:
    with remote.serve(client, limits=Limits(open_seconds=120), token_file=token_file) as server:
        token = token_file.read_text().strip()
        with (
            MessageClient(server.address, initialization_data={TOKEN_ATTRIBUTE: token}) as known,
            connect(server) as silent,
        ):
            _strangers(server)._seconds = 0.2
            wait_until(lambda: not is_open(silent), "the end of the connection")
            known.put(1, np.arange(3))


def test_a_server_for_everyone_knows_who_has_called(client: pjrt.Client) -> None:
    with remote.serve(client, limits=Limits(open_seconds=120)) as server, MessageClient(server.address) as known:
        _strangers(server)._seconds = 0.2
        with connect(server) as silent:
            wait_until(lambda: not is_open(silent), "the end of the connection")
        known.put(1, np.arange(3))


def _strangers(server: Server) -> Strangers:
    return server._reception._strangers


def _since(server: Server) -> dict[tuple[str, int], float]:
    return _strangers(server)._since


def test_sockets_of_others_are_left_alone() -> None:
    """Leave alone connections of another port, from the port, and to another server with the same port."""
    with socket.create_server(HERE) as listener, socket.create_server(("127.0.0.2", 0)) as other:
        ends = [socket.create_connection(each.getsockname()) for each in (listener, other)]
        taken = [each.accept()[0] for each in (listener, other)]
        turned_away = Strangers(Limits(strangers=1, open_seconds=1))
        for now in (0.0, 100.0):
            turned_away.drop(Address("grpc", "127.0.0.2", listener.getsockname()[1]), now)
        assert all(map(is_open, [*ends, *taken]))
        for now in (0.0, 100.0):
            turned_away.drop(Address("grpc", "127.0.0.1", listener.getsockname()[1]), now)
        assert [is_open(each) for each in ends] == [False, True]
        for each in (*ends, *taken):
            each.close()


needs_filter = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has filters of sockets")


def attempt(address: tuple[str, int], host: str) -> socket.socket:
    """Return a connection from a host that is not waited for."""
    connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    source = host, 0  # any port of that host
    connection.bind(source)
    connection.setblocking(False)
    connection.connect_ex(address)
    return connection


def take(listener: socket.socket) -> list[socket.socket]:
    """Return the connections that wait to be taken: on this machine they are there before the attempts return."""
    found = []
    listener.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(listener.accept()[0])
    return found


def taken(listener: socket.socket) -> list[str]:
    """Return the hosts of the connections that wait to be taken, and close these."""
    found = []
    for connection in take(listener):
        found.append(connection.getpeername()[0])
        connection.close()
    return found


@needs_filter
def test_the_kernel_drops_attempts_of_some_networks_alone() -> None:
    with socket.create_server(HERE) as listener, contextlib.ExitStack() as stack:

        def attempts() -> list[str]:
            for host in ("127.0.0.2", "127.0.0.3", "127.0.0.4"):
                stack.enter_context(attempt(listener.getsockname(), host))
            return taken(listener)

        before = socket.create_connection(listener.getsockname(), 60, ("127.0.0.2", 0))
        other = listener.accept()[0]
        drop_attempts(listener.fileno(), {"127.0.0.2": 0.0, "2001" * 4: 0.0, "127.0.0.4": 0.0})
        assert attempts() == ["127.0.0.3"]
        before.sendall(b"as before")
        assert other.recv(9) == b"as before"
        drop_attempts(listener.fileno(), {})
        assert attempts() == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
        number = before.fileno()
        before.close()
        other.close()
        drop_attempts(number, {"127.0.0.2": 0.0})  # it is closed by now


@needs_filter
def test_the_kernel_drops_attempts_of_networks_of_ipv6() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this system has no IPv6")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener, contextlib.ExitStack() as stack:
        for network, expected in (("0" * 15 + "1", ["::1"]), ("0" * 16, [])):
            drop_attempts(listener.fileno(), {network: 0.0})
            stack.enter_context(attempt(listener.getsockname(), "::1"))
            assert taken(listener) == expected


@needs_filter
def test_attempts_of_a_crowd_are_dropped_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "MOST_NEW", 3)
    monkeypatch.setattr(strangers, "_LEAST_SHARE", 0.0)
    monkeypatch.setattr(strangers, "_FEWER", 1e9)
    monkeypatch.setattr(strangers, "_taken_connections", lambda: 0)
    guarded = Strangers(Limits())
    with socket.create_server(HERE) as listener, contextlib.ExitStack() as stack:
        address = Address("grpc", "127.0.0.1", listener.getsockname()[1])

        def come(host: str, count: int) -> int:
            for _ in range(count):
                stack.enter_context(attempt(listener.getsockname(), host))
            return len([stack.enter_context(connection) for connection in take(listener)])

        assert not guarded.drop(address, 10.0)
        assert (come("127.0.0.2", 3), come("127.0.0.3", 4)) == (3, 4)
        assert guarded.drop(address, 11.0)
        assert (come("127.0.0.2", 1), come("127.0.0.3", 4)) == (1, 0)
        for now in range(12, 42):  # each second twice as many pass
            assert guarded.drop(address, float(now)) == (now < 41)
        assert come("127.0.0.3", 1) == 1


def test_many_connections_that_are_closed_at_once_have_the_next_look_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = iter([0, strangers.MOST_NEW, 3 * strangers.MOST_NEW])
    monkeypatch.setattr(strangers, "_taken_connections", lambda: next(counted))
    guarded, nowhere = Strangers(Limits()), Address("grpc", "127.0.0.1", 1)
    assert [guarded.drop(nowhere, now) for now in (10.0, 11.0, 12.0)] == [False, False, True]


@needs_filter
def test_the_system_counts_the_connections_that_it_takes() -> None:
    before = strangers._taken_connections()
    with socket.create_server(HERE) as listener, socket.create_connection(listener.getsockname()):
        assert strangers._taken_connections() > before > 0


def test_a_number_that_is_another_file_s_by_now_is_left_alone() -> None:
    pair = socket.socketpair()
    with pair[0], pair[1]:
        strangers._end(pair[0].fileno(), ("127.0.0.1", 1))
        assert is_open(pair[1])
    with open("/dev/null") as file:
        strangers._end(file.fileno(), ("127.0.0.1", 1))


def test_guesses_are_slowed_down(
    client: pjrt.Client, token_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    wrong = ClientSecurity(token_file=write_secret(tmp_path / "wrong", WRONG))
    right = ClientSecurity(token_file=token_file)
    with remote.serve(client, token_file=token_file) as server, MessageClient(server.address, right) as known:
        for _ in range(FREE_GUESSES + 1):
            with pytest.raises(pjrt.UnauthenticatedError):
                MessageClient(server.address, wrong)
        for security in (wrong, right):
            with pytest.raises(pjrt.ResourceExhaustedError, match=r"too many wrong access tokens .* in 1\.0 s"):
                MessageClient(server.address, security)
        known.put(1, np.arange(3))  # each of its calls shows its token
        clock.now += 1.0
        MessageClient(server.address, right).close()


def test_the_pace_of_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, guarded = Clock(monkeypatch), Strangers(Limits())
    peer, known, elsewhere = "ipv4:10.0.0.1:1", "ipv4:10.0.0.1:2", "ipv4:10.0.0.2:1"
    guarded.is_known(known, by_token=True)
    guarded.is_known(peer, by_token=False)
    for _ in range(FREE_GUESSES + 1):
        guarded.check_guess(peer)
        guarded.guessed_wrong(peer)
    with pytest.raises(pjrt.ResourceExhaustedError, match=r"in 1\.0 s"):
        guarded.check_guess(peer)
    guarded.check_guess(elsewhere)
    guarded.check_guess(known)
    guarded.guessed_wrong(known)  # a holder of a token guesses another one
    with pytest.raises(pjrt.ResourceExhaustedError, match=r"in 2\.0 s"):
        guarded.check_guess(known)
    clock.now += 2.0
    guarded.check_guess(peer)


def test_the_addresses_of_guesses_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "MOST_ADDRESSES", 2)
    Clock(monkeypatch)
    guarded = Strangers(Limits())
    for last in (1, 2, 1, 3):
        guarded.guessed_wrong(f"ipv4:10.0.0.{last}:1")
    assert list(guarded._guesses) == ["10.0.0.1", "10.0.0.3"]
    for peer in ("ipv6:%5B2001:db8::1%5D:1", "ipv6:%5B2001:db8::ffff:2%5D:1", "unix:", "unix:/tmp/socket"):
        guarded.guessed_wrong(peer)
    assert len(guarded._guesses) == 2  # a user of IPv6 has as many addresses as it likes
