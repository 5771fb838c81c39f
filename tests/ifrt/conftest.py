"""The clients under test: eight devices of each built-in device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pjrt
from pjrt import ifrt


@pytest.fixture(scope="module", params=["cpu", "reference"])
def client(request: pytest.FixtureRequest) -> Iterator[ifrt.Client]:
    with pjrt.client(request.param, num_devices=8) as made:
        yield ifrt.Client(made)


@pytest.fixture(scope="module")
def mesh(client: ifrt.Client) -> ifrt.Mesh:
    return ifrt.Mesh(client.devices, {"x": 4, "y": 2})


@pytest.fixture
def by_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have devices reshard by a program, as devices with memory of their own do."""
    monkeypatch.setattr("pjrt.ifrt.reshard._is_on_host", lambda array: False)
