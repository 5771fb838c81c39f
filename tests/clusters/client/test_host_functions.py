"""Functions that run in the workers of a cluster: their results, their order, and buffers that they make."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import clusters, ifrt
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.shape_spec import ShapeSpec
from pjrt.clusters.client.client import ClusterClient

SPEC = ShapeSpec((4,), ElementType.F32)


def test_each_host_gives_its_result(shared_cluster: ClusterClient) -> None:
    processes = shared_cluster.call_on_hosts("os:getpid")
    assert len(set(processes)) == 2
    assert os.getpid() not in processes
    assert shared_cluster.call_on_hosts(lambda x, y: x + y, 1, 2) == [3, 3]
    (first, second) = shared_cluster.call_on_hosts(lambda: np.arange(3))
    assert first.tolist() == second.tolist() == [0, 1, 2]


def test_a_host_gets_the_values_that_it_has(shared_cluster: ClusterClient) -> None:
    parts = [
        shared_cluster.buffer_from_host(np.full(2, device.id, np.float32), device=device)
        for device in shared_cluster.devices
    ]

    def values(named: dict[str, list[Any]]) -> list[Any]:
        return [None if part is None else part.tolist() for part in named["parts"]]

    assert shared_cluster.call_on_hosts(values, {"parts": parts}) == [
        [[0.0, 0.0], [1.0, 1.0], None, None],
        [None, None, [2048.0, 2048.0], [2049.0, 2049.0]],
    ]


def test_calls_follow_each_other(shared_cluster: ClusterClient) -> None:
    def add(number: int) -> list[int]:
        import builtins

        numbers: list[int] = builtins.__dict__.setdefault("numbers_of_test", [])
        numbers.append(number)
        return numbers

    spec = ShapeSpec((1,), ElementType.S64)
    for number in range(5):
        # The devices of a host share a call: their arguments are one object.
        shared_cluster.buffers_from_hosts(lambda n: np.array([add(n)[-1]]), spec, [(number,)] * 4)
    assert shared_cluster.call_on_hosts(add, 5) == [[0, 1, 2, 3, 4, 5]] * 2


def test_a_function_makes_the_buffers_of_its_host(shared_cluster: ClusterClient) -> None:
    def load(number: int) -> np.ndarray[Any, Any]:
        import os

        return np.array([number, os.getpid(), 0, 0], np.float32)

    processes = shared_cluster.call_on_hosts("os:getpid")
    buffers = shared_cluster.buffers_from_hosts(load, SPEC, [(number,) for number in range(4)])
    assert [buffer.device for buffer in buffers] == list(shared_cluster.devices)
    values = [np.asarray(buffer).tolist()[:2] for buffer in buffers]
    assert values == [[number, float(np.float32(processes[number // 2]))] for number in range(4)]
    (last,) = shared_cluster.buffers_from_hosts(load, SPEC, [(7,)], shared_cluster.devices[3:])
    assert last.device is shared_cluster.devices[3]
    (double,) = shared_cluster.compile(
        """func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
          %0 = stablehlo.add %x, %x : tensor<4xf32>
          return %0 : tensor<4xf32>
        }""",
        pjrt.CompileOptions(device_assignment=pjrt.DeviceAssignment(((2049,),))),
    ).execute([[last]])[0]
    assert np.asarray(double)[0] == 14.0


@pytest.mark.parametrize("axes", [("x", "y"), (None, "x"), (None, None)])
def test_an_array_is_made_by_its_hosts(shared_cluster: ClusterClient, axes: tuple[str | None, ...]) -> None:
    def part(slices: tuple[slice, ...], scale: int) -> np.ndarray[Any, Any]:
        import builtins

        builtins.__dict__.setdefault("parts_of_test", []).append(slices)
        return np.arange(32, dtype=np.float32).reshape(8, 4)[slices] * scale

    def parts_made() -> int:
        import builtins

        return len(builtins.__dict__.pop("parts_of_test"))

    client = ifrt.Client(shared_cluster)
    sharding = ifrt.Mesh(client.devices, {"x": 2, "y": 2}).sharding(*axes)
    array = clusters.array_from_hosts(client, part, (8, 4), ElementType.F32, sharding, 3)
    np.testing.assert_array_equal(np.asarray(array), np.arange(32).reshape(8, 4) * 3)
    assert [shard.buffer.device for shard in array.shards] == list(shared_cluster.devices)
    # What several devices of a host have, is made there once.
    domains = [str(shard.domain) for shard in array.shards]
    assert shared_cluster.call_on_hosts(parts_made) == [len(set(domains[:2])), len(set(domains[2:]))]


def test_a_function_makes_no_terms_of_a_sum(shared_cluster: ClusterClient) -> None:
    client = ifrt.Client(shared_cluster)
    summed = ifrt.HloSharding.from_sdy(client.devices, '<@mesh, [{}], unreduced={"x"}>', '<["x"=4]>')
    with pytest.raises(pjrt.UnimplementedError, match="4 terms of a sum"):
        clusters.array_from_hosts(client, np.zeros, (4,), np.float32, summed)


def test_only_a_cluster_has_hosts_that_make_arrays() -> None:
    with pjrt.client("cpu") as inner:
        client = ifrt.Client(inner)
        with pytest.raises(InvalidArgumentError, match="expected a cluster as the client below"):
            clusters.array_from_hosts(
                client, np.zeros, (4,), np.float32, ifrt.Mesh(client.devices, {"x": 1}).sharding()
            )


def test_errors_name_the_hosts(shared_cluster: ClusterClient) -> None:
    def fail() -> None:
        raise KeyError("no such weights")

    with pytest.raises(InternalError, match=r"KeyError: 'no such.*\[process 0 on local0, process 1 on local1\]"):
        shared_cluster.call_on_hosts(fail)
    with pytest.raises(InvalidArgumentError, match="'os:no_such' cannot be loaded on this host"):
        shared_cluster.call_on_hosts("os:no_such")
    with pytest.raises(InvalidArgumentError, match="expected a function, or its place"):
        shared_cluster.call_on_hosts("os")
    with pytest.raises(InvalidArgumentError, match="cannot be sent to the workers"):
        shared_cluster.call_on_hosts(print, sys.stdout)
    buffers = shared_cluster.buffers_from_hosts(lambda: np.zeros(3, np.float32), SPEC, [()] * 4)
    with pytest.raises(InvalidArgumentError, match=r"expected f32\[4\] of the function, found .*\[3\].*cpu:2048"):
        buffers[2].ready().result(60)
    with pytest.raises(PjrtError, match="process 0"):
        np.asarray(buffers[0])


def test_a_server_calls_nothing_by_itself() -> None:
    with pjrt.client("cpu") as client, pjrt.remote.serve(client) as server:
        with pjrt.client("remote", address=server.address) as remote:
            answer, _ = remote.call_function(b"anything")  # type: ignore[attr-defined]
            with pytest.raises(UnimplementedError, match="calls no functions"):
                answer.result(60)
