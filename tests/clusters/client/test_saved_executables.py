"""Saved executables of a cluster: what its workers have compiled, which its workers load again."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.errors import InvalidArgumentError
from pjrt.clusters.client.client import ClusterClient
from pjrt.clusters.client.executable import packed, unpacked

SUM = """module attributes {mhlo.num_replicas = 4 : i32} {
  func.func public @main(%x: tensor<f32>) -> tensor<f32> {
    %0 = "stablehlo.all_reduce"(%x) ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
    }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32> } }"""
DOUBLE = """func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %y = stablehlo.add %x, %x : tensor<f32>
  return %y : tensor<f32> }"""


def test_workers_load_the_program_of_all_hosts_again(shared_cluster: ClusterClient) -> None:
    assert shared_cluster.attributes["supports_executable_serialization"] is True
    saved = shared_cluster.compile(SUM).executable.serialize()
    executable = shared_cluster.deserialize(saved)
    assert [device.id for device in executable.addressable_devices] == [0, 1, 2048, 2049]
    rows = [
        [shared_cluster.buffer_from_host(np.float32(value), device=device)]
        for value, device in zip((1, 2, 4, 8), shared_cluster.devices, strict=True)
    ]
    assert [float(np.asarray(row[0])) for row in executable.execute(rows)] == [15.0] * 4
    assert executable.executable.serialize() == saved


def test_options_may_name_a_device_of_another_host(shared_cluster: ClusterClient) -> None:
    saved = shared_cluster.compile(DOUBLE).executable.serialize()
    assert list(unpacked(saved)) == [0]
    there = CompileOptions(device_assignment=DeviceAssignment(((2049,),)))
    executable = shared_cluster.deserialize(saved, there)
    assert [device.id for device in executable.addressable_devices] == [2049]
    argument = shared_cluster.buffer_from_host(np.float32(3), device=shared_cluster.devices[3])
    ((result,),) = executable.execute([[argument]])
    assert float(np.asarray(result)) == 6.0
    assert result.device.id == 2049


def test_an_executable_of_a_larger_cluster_is_refused(shared_cluster: ClusterClient) -> None:
    blob = unpacked(shared_cluster.compile(DOUBLE).executable.serialize())[0]
    with pytest.raises(InvalidArgumentError, match=r"some of the 2 processes.*one of the processes \[0, 1, 2\]"):
        shared_cluster.deserialize(packed({0: blob, 1: blob, 2: blob}))


@given(st.dictionaries(st.integers(0, 5000), st.sampled_from([b"", b"one", b"another", b"1\n2"]), min_size=1))
def test_equal_executables_are_saved_once(executables: dict[int, bytes]) -> None:
    saved = packed(executables)
    assert unpacked(saved) == executables
    assert saved.endswith(b"".join(dict.fromkeys(executables.values())))


@given(st.binary(max_size=60))
def test_damaged_bytes_are_errors(damage: bytes) -> None:
    saved = packed({0: b"one", 1: b"two"})
    start, _, _ = saved.partition(b"\n")
    cuts = (saved[:size] for size in range(len(saved)))
    for wrong in itertools.chain(cuts, (damage, start + b"\n" + damage + b"\n", saved + b"x")):
        with pytest.raises(InvalidArgumentError, match="expected a saved executable of a cluster"):
            unpacked(wrong)
