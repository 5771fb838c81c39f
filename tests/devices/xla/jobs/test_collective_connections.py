"""The end of connections between processes: each end takes what the other has sent before it sees the break."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pjrt.devices.xla.peers import CollectiveConnections

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """The two ends of a TCP connection: the one that listened, and its peer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        own, _ = listener.accept()
    with own, peer:
        for end in (own, peer):
            end.settimeout(120)
        yield own, peer


def test_an_answer_to_what_was_sent_before_is_taken(ends: Ends) -> None:
    """gloo loses the operation, and its caller waits for half an hour, if its thread cannot write the answer."""
    own, peer = ends
    connections = CollectiveConnections()
    connections.begin([own.getsockname()])
    peer.sendall(b"ready")
    connections.shut_down()  # it shuts both ends, for both are in this process
    assert (own.recv(10), own.recv(10)) == (b"ready", b"")
    own.sendall(b"the answer")
    assert (peer.recv(20), peer.recv(20)) == (b"the answer", b"")


READER = "import socket, sys; print(socket.create_connection((sys.argv[1], int(sys.argv[2]))).recv(10))"


def test_another_process_sees_the_break() -> None:
    connections = CollectiveConnections()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        connections.begin([(host, port)])
        command = [sys.executable, "-c", READER, host, str(port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
            own, _ = listener.accept()
            connections.shut_down()
            own.close()  # as gloo does when it has read to the end
            assert reader.communicate(timeout=120)[0] == "b''\n"


def test_other_connections_stay(ends: Ends) -> None:
    own, peer = ends
    connections = CollectiveConnections()
    connections.begin([("127.0.0.1", 1)])
    connections.shut_down()
    own.sendall(b"data")
    assert peer.recv(10) == b"data"
