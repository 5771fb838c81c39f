"""The files of a client: environment variables, and what does not fit together."""

from __future__ import annotations

from pathlib import Path

import pytest
from certificates import Authority

import pjrt
from pjrt.remote.security.credentials import VARIABLES, ClientSecurity
from pjrt.remote.transport.addresses import parse_address


def test_environment_variables_name_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, variable in VARIABLES.items():
        monkeypatch.setenv(variable, f"/{name}")
    assert ClientSecurity.of(ca_file="/mine", token_file="") == ClientSecurity(
        Path("/mine"), Path("/certificate_file"), Path("/key_file"), None
    )


def test_an_address_without_a_scheme() -> None:
    assert str(ClientSecurity().check(parse_address("localhost:1"))) == "grpc://localhost:1"
    assert str(ClientSecurity().check(parse_address("server.example:1"))) == "grpcs://server.example:1"


def test_nothing_goes_to_other_machines_in_the_clear(token_file: Path) -> None:
    with pytest.raises(pjrt.PermissionDeniedError, match="use TLS: grpcs://server"):
        ClientSecurity(token_file=token_file).check(parse_address("grpc://server.example:1"))


def test_files_that_do_not_fit(
    authority: Authority, stranger: Authority, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encrypted, clear = parse_address("grpcs://localhost:1"), parse_address("grpc://localhost:1")
    alice = authority.client
    with pytest.raises(pjrt.InvalidArgumentError, match="belong together"):
        ClientSecurity(certificate_file=alice.certificate).check(encrypted)
    with pytest.raises(pjrt.InvalidArgumentError, match="KEY_VALUES_MISMATCH"):
        ClientSecurity(None, alice.certificate, stranger.client.key).check(encrypted)
    with pytest.raises(pjrt.InvalidArgumentError, match="in the clear, and ca_file is for TLS"):
        ClientSecurity(ca_file=authority.certificate).check(clear)
    monkeypatch.setenv(VARIABLES["ca_file"], str(authority.certificate))  # for other servers
    assert ClientSecurity.of().check(clear) == clear
    with pytest.raises(pjrt.NotFoundError):
        ClientSecurity(token_file=Path("/missing")).check(clear)
    token_file.chmod(0o644)
    with pytest.raises(pjrt.PermissionDeniedError, match="chmod 600"):
        ClientSecurity(token_file=token_file).check(clear)
