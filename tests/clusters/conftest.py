"""Fixtures of the tests of clusters: one small cluster that most of them share, because workers take time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pjrt
from pjrt.clusters.client.client import ClusterClient


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[ClusterClient]:
    """Two workers with two devices each; tests leave it as it is."""
    with pjrt.cluster(2, "cpu", num_devices=2, logs="hide", progress=False) as client:
        yield client
