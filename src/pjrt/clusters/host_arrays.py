"""Arrays over the devices of a cluster whose shards are made on their own hosts: data is loaded where it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pjrt import ifrt
from pjrt.api.checks import unexpected
from pjrt.api.element_type import AnyDType, ElementType
from pjrt.api.errors import UnimplementedError
from pjrt.api.shape_spec import ShapeSpec, expect_shape
from pjrt.clusters.client.client import ClusterClient
from pjrt.clusters.host_calls import Function
from pjrt.ifrt.array import reduction_of


def array_from_hosts(
    client: ifrt.Client,
    function: Function,
    shape: Sequence[int],
    element_type: ElementType | AnyDType,
    sharding: ifrt.Sharding,
    *arguments: Any,
) -> ifrt.Array:
    """Return an array whose shards are made by a function, in the worker of each host for the devices of that host.

    The values do not pass this process. The call returns at once: programs that use the array wait for it.

    Args:
        client: the client of the arrays of a cluster.
        function: as for ``ClusterClient.call_on_hosts``. It is called with the slices of the whole array that a shard
            has, and the further arguments, and returns the shard as a numpy array. A host that has the same shard on
            several devices calls it once.
        shape: the shape of the whole array.
        element_type: the type of its elements; a numpy dtype is taken too.
        sharding: the devices and the part of each.
        arguments: further arguments of the function.

    Raises:
        InvalidArgumentError: the client is not of a cluster, or the function or an argument cannot be sent.
        UnimplementedError: the sharding does not know the places of its shards, or they are terms of a sum.
    """
    cluster = client.pjrt_client
    if not isinstance(cluster, ClusterClient):
        raise unexpected(cluster, "a cluster as the client below: ifrt.Client(pjrt.cluster(…))")
    if reduction_of(sharding) == "sum":
        raise UnimplementedError(f"expected a sharding that a function can make the shards of, found {sharding}")
    spec = ifrt.ArraySpec(expect_shape(shape), ElementType.of(element_type), sharding)
    shard = ShapeSpec(sharding.shard_shape(spec.shape), spec.element_type)
    domains = sharding.index_domains(spec.shape)
    calls = {domain: (domain.slices, *arguments) for domain in domains}
    kind = sharding.memory_kind
    buffers = cluster.buffers_from_hosts(function, shard, [calls[domain] for domain in domains], sharding.devices)
    if kind is not None:
        buffers = [
            buffer if buffer.memory_space.kind == kind else buffer.copy_to(buffer.device.memory_space(kind))
            for buffer in buffers
        ]
    return ifrt.Array(client, spec, buffers)
