"""Addresses: their forms, and which of them other machines can reach."""

from __future__ import annotations

import pytest

from pjrt import InvalidArgumentError
from pjrt.remote.transport.addresses import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address", "target"),
    [
        ("grpc://127.0.0.1:8888", Address("grpc", "127.0.0.1", 8888), "127.0.0.1:8888"),
        ("grpcs://host.example:1", Address("grpcs", "host.example", 1), "host.example:1"),
        ("localhost:0", Address("", "localhost", 0), "localhost:0"),
        ("[::1]:7", Address("", "::1", 7), "[::1]:7"),
        ("grpc://[::]:7", Address("grpc", "::", 7), "[::]:7"),
        ("unix:/run/x.sock", Address("", path="/run/x.sock"), "unix:/run/x.sock"),
        ("unix:/" + "x" * 106, Address("", path="/" + "x" * 106), "unix:/" + "x" * 106),
        ("grpc://unix:/run/x.sock", Address("grpc", path="/run/x.sock"), "unix:/run/x.sock"),
        ("grpc://unix:///run/x.sock", Address("grpc", path="/run/x.sock"), "unix:/run/x.sock"),
    ],
)
def test_forms(text: str, address: Address, target: str) -> None:
    parsed = parse_address(text)
    assert parsed == address
    assert parsed.target == target
    assert parse_address(str(parsed)) == parsed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "grpc://",
        "host",
        ":8",
        "host:",
        "host:70000",
        "host:-1",
        "host:x",
        "::1:8",
        "https://host:1",
        "grpc://me@host:1",
        "grpc://host:1/path",
        "unix:relative",
        "unix:",
        "grpcs://unix:/run/x.sock",
        "unix:/" + "x" * 107,
        "unix:/" + "é" * 54,  # 109 bytes
        "unix-abstract:x",
        "host:٣",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_address(text)


@pytest.mark.parametrize("text", ["127.0.0.1:1", "127.8.9.1:1", "[::1]:1", "localhost:1", "unix:/x"])
def test_local(text: str) -> None:
    assert parse_address(text).is_local


@pytest.mark.parametrize(
    "text",
    ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "host:1", "localhost.example:1", "127.0.0.1.example:1", "[fe80::1%lo]:1"],
)
def test_reachable_by_other_machines(text: str) -> None:
    assert not parse_address(text).is_local
