"""Admission to a server: addresses, certificates and access tokens, right and wrong, over real connections."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certificates import Authority, Pair, write_secret
from message_client import MessageClient

import pjrt
from pjrt import remote
from pjrt.remote.client.plugin import check_token
from pjrt.remote.security.credentials import ClientSecurity, ServerSecurity, why_unreachable
from pjrt.remote.transport.addresses import parse_address

A, B = "abcdefgh" * 4, "ijklmnop" * 4


@pytest.fixture(scope="module")
def client() -> Iterator[pjrt.Client]:
    with pjrt.client("reference") as client:
        yield client


def tls(pair: Pair) -> dict[str, Any]:
    return {"tls_certificate": pair.certificate, "tls_key": pair.key}


def check_works(address: str, security: ClientSecurity) -> None:
    with MessageClient(address, security) as speaker:
        speaker.put(1, np.arange(3))
        assert speaker.get(1, 2) == np.arange(3).tobytes()


def check_fails(address: str, security: ClientSecurity, reason: str) -> None:
    """Check that there is no connection, and that the diagnosis names the reason."""
    with pytest.raises(pjrt.PjrtError) as raised:
        MessageClient(address, security)
    assert raised.value.code.name == "UNAVAILABLE"
    assert reason in why_unreachable(parse_address(address), security)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "10.0.0.1:8", "[::]:0", "server.example:1"])
def test_other_machines_need_tls_and_clients_that_are_known(
    address: str, authority: Authority, token_file: Path
) -> None:
    place = parse_address(address)
    with pytest.raises(pjrt.PermissionDeniedError, match="not served in the clear"):
        ServerSecurity().check(place)
    with pytest.raises(pjrt.PermissionDeniedError, match="not served in the clear"):
        ServerSecurity(token_file=token_file).check(place)
    encrypted = tls(authority.server)
    with pytest.raises(pjrt.PermissionDeniedError, match="TLS alone lets all of them"):
        ServerSecurity(**encrypted).check(place)
    for known in ({"token_file": token_file}, {"client_ca": authority.certificate}):
        assert ServerSecurity(**encrypted, **known).check(place).is_encrypted


def test_files_that_do_not_fit(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    place, server = parse_address("127.0.0.1:0"), authority.server
    with pytest.raises(pjrt.InvalidArgumentError, match="certificate was given without its key"):
        ServerSecurity(tls_certificate=server.certificate).check(place)
    with pytest.raises(pjrt.InvalidArgumentError, match="client certificates need TLS"):
        ServerSecurity(client_ca=authority.certificate).check(place)
    with pytest.raises(pjrt.InvalidArgumentError, match="KEY_VALUES_MISMATCH"):
        ServerSecurity(server.certificate, stranger.server.key).check(place)
    with pytest.raises(pjrt.NotFoundError, match="No such file"):
        ServerSecurity(server.certificate, tmp_path / "missing").check(place)
    with pytest.raises(pjrt.InvalidArgumentError, match="cannot use the CA certificates"):
        ServerSecurity(**tls(server), client_ca=write_secret(tmp_path / "empty", "")).check(place)
    with pytest.raises(pjrt.InvalidArgumentError, match="is encrypted: give a TLS certificate"):
        ServerSecurity().check(parse_address("grpcs://127.0.0.1:0"))
    with pytest.raises(pjrt.InvalidArgumentError, match="a local socket is not encrypted"):
        ServerSecurity(**tls(server)).check(parse_address(f"unix:{tmp_path}/s"))
    open_key = write_secret(tmp_path / "key", server.key.read_text())
    open_key.chmod(0o644)
    with pytest.raises(pjrt.PermissionDeniedError, match="everyone may read"):
        ServerSecurity(server.certificate, open_key).check(place)


@pytest.mark.full
def test_access_tokens_over_tls(client: pjrt.Client, authority: Authority, tmp_path: Path) -> None:
    valid = write_secret(tmp_path / "valid", f"alice {A}\nbob {B}\n")
    with remote.serve(client, **tls(authority.server), token_file=valid) as server:
        assert server.address.startswith("grpcs://127.0.0.1:")
        mine = write_secret(tmp_path / "mine", B)
        check_works(server.address, ClientSecurity(authority.certificate, token_file=mine))
        with pytest.raises(pjrt.UnauthenticatedError, match="the client sent none; give its file as token_file"):
            MessageClient(server.address, ClientSecurity(authority.certificate))
        wrong = write_secret(tmp_path / "wrong", "qrstuvwx" * 4)
        with pytest.raises(pjrt.UnauthenticatedError, match="not valid on this server"):
            MessageClient(server.address, ClientSecurity(authority.certificate, token_file=wrong))
        valid.write_text(f"alice {A}\n")
        with pytest.raises(pjrt.UnauthenticatedError):
            MessageClient(server.address, ClientSecurity(authority.certificate, token_file=mine))


@pytest.mark.full
def test_access_tokens_in_the_clear(client: pjrt.Client, token_file: Path) -> None:
    token = token_file.read_text().strip()
    with remote.serve(client, token_file=token_file) as server:
        check_works(server.address, ClientSecurity(token_file=token_file))
        for name in ("pjrt.token", "pjrt.other"):
            if name == "pjrt.token":
                MessageClient(server.address, initialization_data={name: token}).close()
            else:
                with pytest.raises(pjrt.UnauthenticatedError):
                    MessageClient(server.address, initialization_data={name: token})
        with pytest.raises(pjrt.UnauthenticatedError):
            MessageClient(server.address, initialization_data={"pjrt.token": 7})


@pytest.mark.full
def test_a_client_without_a_token_learns_before_its_session_that_it_needs_one(
    client: pjrt.Client, token_file: Path, tmp_path: Path
) -> None:
    with remote.serve(client, token_file=token_file) as server:
        place = parse_address(server.address)
        for _ in range(30):  # it is no guess
            with pytest.raises(pjrt.UnauthenticatedError, match="the client sent none; give its file as token_file"):
                check_token(place, ClientSecurity(), 10)
        with pytest.raises(pjrt.UnauthenticatedError, match="not valid on this server"):
            check_token(place, ClientSecurity(token_file=write_secret(tmp_path / "wrong", B)), 10)
        check_token(place, ClientSecurity(token_file=token_file), 10)
    with remote.serve(client) as server:
        check_token(parse_address(server.address), ClientSecurity(), 10)


def test_certificates_of_clients(client: pjrt.Client, authority: Authority, stranger: Authority) -> None:
    with remote.serve(client, **tls(authority.server), client_ca=authority.certificate) as server:
        alice, mallory = authority.client, stranger.client
        expired = authority.issue("late", "DNS:late", expired=True)
        ca = authority.certificate
        check_works(server.address, ClientSecurity(ca, alice.certificate, alice.key))
        check_fails(server.address, ClientSecurity(ca), "give certificate_file and key_file")
        check_fails(
            server.address, ClientSecurity(ca, mallory.certificate, mallory.key), "of a CA that the server trusts?"
        )
        check_fails(server.address, ClientSecurity(ca, expired.certificate, expired.key), "refused the certificate")


@pytest.mark.full
def test_certificates_of_servers(client: pjrt.Client, authority: Authority, stranger: Authority) -> None:
    trusting = ClientSecurity(authority.certificate)
    with remote.serve(client, **tls(stranger.server)) as server:
        check_fails(server.address, trusting, "give the CA of the server's certificate as ca_file")
    with remote.serve(client, **tls(authority.issue("old", "IP:127.0.0.1", expired=True))) as server:
        check_fails(server.address, trusting, "certificate has expired")
    with remote.serve(client, **tls(authority.issue("elsewhere", "DNS:elsewhere"))) as server:
        check_fails(server.address, trusting, "it is not for 127.0.0.1")
        check_works(server.address, ClientSecurity(authority.certificate, server_name="elsewhere"))


def test_the_clear_and_tls_do_not_meet(client: pjrt.Client, authority: Authority) -> None:
    with remote.serve(client, **tls(authority.server)) as server:
        check_fails(server.address.replace("grpcs", "grpc"), ClientSecurity(), "if the server uses TLS, write grpcs://")
    with remote.serve(client) as server:
        check_fails(server.address.replace("grpc", "grpcs"), ClientSecurity(authority.certificate), "write grpc://")
    check_fails(server.address, ClientSecurity(), "nothing listens")


def test_changed_certificates_are_read_again(
    client: pjrt.Client, authority: Authority, stranger: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Pair(tmp_path / "server.pem", write_secret(tmp_path / "server.key", ""))

    def install(pair: Pair) -> None:
        files.key.write_bytes(pair.key.read_bytes())
        files.certificate.write_bytes(pair.certificate.read_bytes())

    install(stranger.server)
    trusting = ClientSecurity(authority.certificate)
    with remote.serve(client, **tls(files)) as server:
        check_fails(server.address, trusting, "ca_file")
        install(authority.server)
        check_works(server.address, trusting)
        with caplog.at_level(logging.ERROR, "pjrt.remote"):
            files.certificate.write_text("nonsense")
            check_works(server.address, trusting)
        assert "changed TLS files are not used" in caplog.text


def test_a_local_socket_is_for_this_user_alone(client: pjrt.Client, tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    with remote.serve(client, f"unix:{path}") as server:
        assert server.address == f"grpc://unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o600
        check_works(server.address, ClientSecurity())
    check_fails(server.address, ClientSecurity(), "there is no local socket")
