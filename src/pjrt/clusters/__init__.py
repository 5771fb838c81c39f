"""Clusters: the devices of workers on many hosts as one client, which one process controls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.lazy_names import lazy_names

if TYPE_CHECKING:
    from pjrt.clusters.client.client import ClusterClient, array_from_hosts
    from pjrt.clusters.workers.worker import host_client

__all__ = ["ClusterClient", "array_from_hosts", "host_client"]

_HOMES = {
    ".client.client": "ClusterClient array_from_hosts",
    ".workers.worker": "host_client",
}


if not TYPE_CHECKING:  # a type checker has the names from above; with these functions it would accept any other
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
