"""The addresses of a gRPC server: free and taken ports, and local sockets."""

from __future__ import annotations

import contextlib
import gc
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pjrt import UnavailableError
from pjrt.remote.transport.channel import Channel
from pjrt.remote.transport.grpc_server import GrpcServer, Unary

METHODS = {"/test/Same": Unary(lambda request, context: request)}


@contextlib.contextmanager
def served(address: str) -> Iterator[Channel]:
    """A channel to a server at an address."""
    server = GrpcServer(address, METHODS)
    server.start()
    channel = Channel(server.address)
    try:
        yield channel
    finally:
        channel.close()
        server.stop()


def test_bad_addresses_are_errors() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(UnavailableError, match="in use"):
            GrpcServer(f"127.0.0.1:{taken.getsockname()[1]}", METHODS)
    gc.collect()


def test_a_unix_socket_is_an_address(tmp_path: Path) -> None:
    with served(f"unix:{tmp_path}/socket") as channel:
        assert channel.unary("/test/Same", b"x") == b"x"


def test_a_unix_socket_is_not_taken_from_its_server(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/socket"
    with served(address) as channel:
        with pytest.raises(UnavailableError, match="another server"):
            GrpcServer(address, METHODS)
        assert channel.unary("/test/Same", b"x") == b"x"
    gc.collect()


def test_a_unix_socket_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with served(f"unix:{path}") as channel:
        assert channel.unary("/test/Same", b"x") == b"x"


def test_a_file_is_not_replaced_by_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"data")
    with pytest.raises(UnavailableError, match="something else than a socket"):
        GrpcServer(f"unix:{path}", METHODS)
    assert path.read_bytes() == b"data"
    gc.collect()
