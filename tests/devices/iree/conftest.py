"""Fixtures of the tests of the ``iree`` device. Compiled modules are kept in a folder: each takes half a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pjrt.devices.iree.client import IreeClient
from pjrt.devices.iree.plugin import IreePlugin


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of compiled modules."""
    return tmp_path_factory.mktemp("modules")


@pytest.fixture
def new_client(cache: Path) -> Iterator[Callable[..., IreeClient]]:
    """Make clients, which are closed after the test."""
    clients: list[IreeClient] = []

    def make(**options: Any) -> IreeClient:
        clients.append(IreePlugin().client(**{"driver": "local-sync", "cache": cache, **options}))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(new_client: Callable[..., IreeClient]) -> IreeClient:
    """A client of one device that computes on the thread of its caller."""
    return new_client()
