"""The devices of a cluster: their names, their memories, and what is asked of their hosts."""

from __future__ import annotations

import numpy as np
import pytest

import pjrt
from pjrt.api.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from pjrt.clusters.client.client import ClusterClient
from pjrt.clusters.client.member import Member


def test_devices_name_host_and_process(shared_cluster: ClusterClient) -> None:
    devices = shared_cluster.devices
    assert list(map(str, devices)) == [
        "cpu:0 (process 0 on local0)",
        "cpu:1 (process 0 on local0)",
        "cpu:2048 (process 1 on local1)",
        "cpu:2049 (process 1 on local1)",
    ]
    assert devices[2].description.debug_string == str(devices[2])
    assert [(device.attributes["host"], device.attributes["process"]) for device in devices[1:3]] == [
        ("local0", 0),
        ("local1", 1),
    ]
    # JAX takes one process for granted, whose devices are all addressable.
    assert {(device.process_index, device.is_addressable) for device in devices} == {(0, True)}
    assert [device.local_hardware_id for device in devices] == [0, 1, 2, 3]
    assert shared_cluster.addressable_devices == devices
    assert shared_cluster.lookup_device(2049) is devices[3]
    with pytest.raises(NotFoundError, match=r"no device with id 7; it has \[0, 1, 2048, 2049\]"):
        shared_cluster.lookup_device(7)


def test_memories_belong_to_devices_of_one_host(shared_cluster: ClusterClient) -> None:
    spaces = shared_cluster.memory_spaces
    assert [space.id for space in spaces] == list(range(12))
    assert len({space.kind_id for space in spaces}) == len({space.kind for space in spaces}) == 3
    for device in shared_cluster.devices:
        assert device.default_memory_space.kind == "device"
        assert all(device in space.devices for space in device.memory_spaces)
    assert str(spaces[6]).endswith("(process 1 on local1)")
    buffer = shared_cluster.buffer_from_host(np.zeros(3), memory_space=spaces[11])
    assert (buffer.memory_space, buffer.device) == (spaces[11], shared_cluster.devices[3])
    with pytest.raises(InvalidArgumentError, match="cannot address the memory space"):
        shared_cluster.buffer_from_host(np.zeros(3), device=shared_cluster.devices[0], memory_space=spaces[11])


def test_the_host_is_asked_for_the_memory_of_a_device(shared_cluster: ClusterClient) -> None:
    device = shared_cluster.devices[2]
    before = device.memory_stats().bytes_in_use
    buffer = shared_cluster.buffer_from_host(np.zeros(1 << 23, np.float32), device=device)
    buffer.ready().result(60)
    # Meanwhile the host may release small arrays of earlier tests, less than one of these 32 MiB.
    assert device.memory_stats().bytes_in_use - before > 31 << 20
    with pytest.raises(UnimplementedError, match=r"clear_memory_stats.*\[cpu:2048 \(process 1 on local1\)\]"):
        device.clear_memory_stats()


def test_members_must_fit_together(shared_cluster: ClusterClient) -> None:
    with pytest.raises(InvalidArgumentError, match="at least one member"):
        ClusterClient([])
    members = [Member(pjrt.client("cpu"), "node0", 0), Member(pjrt.client("cpu"), "node1", 1)]
    with pytest.raises(InvalidArgumentError, match=r"different ids.*found \[0, 0\]"):
        ClusterClient(members)
    members[1] = Member(pjrt.client("reference"), "node1", 1)
    with pytest.raises(InvalidArgumentError, match="one platform, found cpu, reference"):
        ClusterClient(members)


def test_a_client_of_this_process_can_be_a_member() -> None:
    """Nothing of the client depends on how members are reached."""
    with ClusterClient([Member(pjrt.client("cpu", num_devices=2), "here", 0)]) as cluster:
        executable = cluster.compile(
            "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"
        )
        saved = executable.serialize()
        (again,) = cluster.deserialize(saved)(np.ones(2, np.float32))
        assert np.asarray(again).tolist() == [1.0, 1.0]
        assert again.device is cluster.devices[0]
        with pytest.raises(UnimplementedError, match=r"a worker that calls functions.*process 0 on here"):
            cluster.call_on_hosts("os:getpid")
        with pytest.raises(InvalidArgumentError, match="found other bytes"):
            cluster.deserialize(b"other")
        with pytest.raises(InvalidArgumentError, match="found a part of one"):
            cluster.deserialize(saved[:-3])
    assert cluster.is_closed
    assert cluster.members[0].client.is_closed
