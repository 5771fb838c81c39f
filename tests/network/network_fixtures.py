"""The fixture of the tests on a network of hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hosts import Hosts

MakeHosts = Callable[..., Hosts]


@pytest.fixture
def make_hosts() -> Iterator[MakeHosts]:
    """Make networks of hosts: ``make_hosts(3, delay=0.05)``; they end after the test."""
    made: list[Hosts] = []

    def make(count: int, **wires: float) -> Hosts:
        made.append(Hosts(count, **wires))
        return made[-1]

    yield make
    for hosts in made:
        hosts.close()
