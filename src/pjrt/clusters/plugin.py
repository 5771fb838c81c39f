"""The plugin of the ``cluster`` device: makes clients of clusters."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pjrt.abi.generated.version import API_VERSION
from pjrt.api.device import Attributes
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.plugin import Plugin

if TYPE_CHECKING:
    from pjrt.clusters.client.client import ClusterClient

HOSTS_VARIABLE = "PJRT_CLUSTER_HOSTS"
"""The environment variable with the hosts, for programs that cannot pass options to their device."""

_NOT_HERE = ("progress",)
"""The arguments of ``pjrt.cluster`` that are no options of a device."""


class ClusterPlugin(Plugin):
    """The plugin of devices that workers have, on this machine or others."""

    @property
    def name(self) -> str:
        return "cluster"

    @property
    def api_version(self) -> tuple[int, int]:
        return API_VERSION

    @property
    def attributes(self) -> Attributes:
        from pjrt.devices.stablehlo_client import stablehlo_versions

        return {"xla_version": 2, **stablehlo_versions()}

    def client(self, /, **options: Any) -> ClusterClient:
        """Start a cluster, and return its client, whose end is that of the workers.

        Args:
            options: those of ``pjrt.cluster``: ``hosts``, which may be a string such as ``node1,node2:4``, by default
                that of the environment variable ``PJRT_CLUSTER_HOSTS``; ``device``; ``launcher``; those of the
                launcher; and those of the device, such as ``num_devices``.

        Raises:
            PjrtError: as ``pjrt.cluster`` does.
        """
        from pjrt.clusters.cluster import cluster

        hosts = options.pop("hosts", None) or os.environ.get(HOSTS_VARIABLE)
        if not hosts:
            raise InvalidArgumentError(
                "the device 'cluster' needs the option hosts, a number of workers such as hosts=2, or names such as "
                "hosts=node1,node2:4 with launcher=ssh; or these in the environment variable "
                f"{HOSTS_VARIABLE}"
            )
        for name in _NOT_HERE:
            if name in options:
                raise InvalidArgumentError(f"the device 'cluster' has no option {name!r}; call pjrt.cluster() for it")
        return cluster(int(hosts) if isinstance(hosts, str) and hosts.isdecimal() else hosts, **options)
