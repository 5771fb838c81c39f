"""Fixtures of the client's tests: a server in this process, its client, and the server's session of that client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import pjrt
from pjrt import remote


@pytest.fixture
def server() -> Iterator[remote.Server]:
    """A server of two devices in this process."""
    with pjrt.client("cpu", num_devices=2) as local, remote.serve(local) as server:
        yield server


@pytest.fixture
def client(server: remote.Server) -> Iterator[Any]:
    """A client of the server."""
    with pjrt.client("remote", address=server.address) as client:
        yield client


@pytest.fixture
def session(server: remote.Server, client: Any) -> Any:
    """The server's session of the client, with what it holds."""
    return server.session(client.connection.session.session_id)
