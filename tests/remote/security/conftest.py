"""Certificates and access tokens for the tests of security."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from certificates import Authority, write_secret


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return a certificate authority with the certificates ``server`` and ``alice``."""
    authority = Authority(tmp_path_factory.mktemp("certificates"), "authority")
    authority.server = authority.issue("server", "DNS:localhost", "IP:127.0.0.1")
    authority.client = authority.issue("alice", "DNS:alice")
    return authority


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return another authority, which nobody trusts."""
    stranger = Authority(tmp_path_factory.mktemp("stranger"), "stranger")
    stranger.server = stranger.issue("server", "DNS:localhost", "IP:127.0.0.1")
    stranger.client = stranger.issue("mallory", "DNS:mallory")
    return stranger


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """Return a file with the access token of a client."""
    return write_secret(tmp_path / "token", secrets.token_hex(16) + "\n")
