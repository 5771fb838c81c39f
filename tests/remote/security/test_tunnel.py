"""Tunnels: who reaches them, and what they pass on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from certificates import Authority
from message_client import MessageClient

import pjrt
from pjrt import remote
from pjrt.remote import Tunnel
from pjrt.remote.security.credentials import ClientSecurity
from pjrt.remote.security.tunnel import TunnelProcess


@pytest.fixture(scope="module")
def client() -> Iterator[pjrt.Client]:
    with pjrt.client("reference") as client:
        yield client


def test_arrays_pass_through_a_tunnel(client: pjrt.Client, authority: Authority, token_file: Path) -> None:
    server_files = {"tls_certificate": authority.server.certificate, "tls_key": authority.server.key}
    with remote.serve(client, **server_files, token_file=token_file) as server:
        security = ClientSecurity(authority.certificate, token_file=token_file)
        with Tunnel(server.address, security) as tunnel:
            path = Path(tunnel.address.removeprefix("grpc://unix:"))
            assert path.parent.stat().st_mode & 0o777 == 0o700
            value = np.arange(1 << 19)
            with MessageClient(tunnel.address) as speaker, MessageClient(tunnel.address) as other:
                speaker.put(1, value)
                other.put(1, value[:5])
                assert speaker.get(1, 2) == value.tobytes()
            server.stop()
            with pytest.raises(pjrt.UnavailableError):
                MessageClient(tunnel.address)
        assert not path.parent.exists()
        tunnel.close()


def test_other_protocols_do_not_pass(authority: Authority, token_file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"grpc://127.0.0.1:{listener.getsockname()[1]}"
        with Tunnel(address, ClientSecurity(token_file=token_file)) as tunnel:
            with socket.socket(socket.AF_UNIX) as local:
                local.settimeout(60)
                local.connect(tunnel.address.removeprefix("grpc://unix:"))
                local.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert local.recv(1) == b""


def test_places_that_other_users_reach_are_refused(tmp_path: Path) -> None:
    folder, security, address = tmp_path / "folder", ClientSecurity(), "grpc://127.0.0.1:1"
    folder.mkdir(mode=0o755)
    with pytest.raises(pjrt.PermissionDeniedError, match="mkdir -m 700"):
        Tunnel(address, security, socket_path=folder / "socket")
    folder.chmod(0o700)
    (folder / "file").touch()
    with pytest.raises(pjrt.AlreadyExistsError, match="something is already at"):
        Tunnel(address, security, socket_path=folder / "file")
    with pytest.raises(pjrt.InvalidArgumentError, match="expected a folder"):
        Tunnel(address, security, socket_path=folder / "missing" / "socket")
    with pytest.raises(pjrt.InvalidArgumentError, match="leads to a host and a port"):
        Tunnel("unix:/x", security)
    with Tunnel(address, security, socket_path=folder / "socket"):
        assert (folder / "socket").stat().st_mode & 0o777 == 0o600
    assert not (folder / "socket").exists()


def test_a_tunnel_in_a_subprocess(client: pjrt.Client, authority: Authority) -> None:
    alice, server = authority.client, authority.server
    with remote.serve(
        client, tls_certificate=server.certificate, tls_key=server.key, client_ca=authority.certificate
    ) as served:
        tunnel = TunnelProcess(served.address, ClientSecurity(authority.certificate, alice.certificate, alice.key))
        with MessageClient(tunnel.address) as speaker:
            speaker.put(1, np.arange(3))
        path = Path(tunnel.address.removeprefix("grpc://unix:"))
        assert path.exists()
        tunnel.close()
        assert not path.parent.exists()
