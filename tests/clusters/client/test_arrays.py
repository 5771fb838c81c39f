"""Arrays of ``pjrt.ifrt`` over the devices of a cluster: all their shards are of one process, the controller."""

from __future__ import annotations

import numpy as np
import pytest

from pjrt import ifrt
from pjrt.clusters.client.client import ClusterClient

VALUE = np.arange(32, dtype=np.float32).reshape(8, 4)


@pytest.fixture
def client(shared_cluster: ClusterClient) -> ifrt.Client:
    return ifrt.Client(shared_cluster)


@pytest.fixture
def mesh(client: ifrt.Client) -> ifrt.Mesh:
    return ifrt.Mesh(client.devices, {"x": 2, "y": 2})


@pytest.mark.full
@pytest.mark.parametrize("axes", [("y", "x"), (None, "y"), (None, None), (("x", "y"), None)])
def test_resharding_over_hosts(client: ifrt.Client, mesh: ifrt.Mesh, axes: tuple[str | None, ...]) -> None:
    array = client.make_array(VALUE, mesh.sharding("x", "y"))
    (there,) = client.reshard_arrays([array], [mesh.sharding(*axes)])
    np.testing.assert_array_equal(np.asarray(there), VALUE)
    (back,) = client.reshard_arrays([there], [mesh.sharding("x", "y")])
    np.testing.assert_array_equal(np.asarray(back), VALUE)


def test_copies_of_all_shards_to_other_hosts(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    array = client.make_array(VALUE, mesh.sharding("x", "y"))
    (moved,) = client.copy_arrays([array], client.devices[::-1])
    assert [shard.device.id for shard in moved.shards] == [2049, 2048, 1, 0]
    np.testing.assert_array_equal(np.asarray(moved), VALUE)
    (pinned,) = client.copy_arrays([array], memory_kind="pinned_host")
    assert {shard.buffer.memory_space.kind for shard in pinned.shards} == {"pinned_host"}
    np.testing.assert_array_equal(np.asarray(pinned), VALUE)


def test_a_sharded_program_and_its_specs(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    program = client.compile("""module attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<8x4xf32> {mhlo.sharding = "{devices=[2,2]<=[4]}"})
      -> (tensor<4xf32> {mhlo.sharding = "{devices=[2,2]<=[2,2]T(1,0) last_tile_dim_replicate}"}) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
    return %sum : tensor<4xf32>
  }
}""")
    assert program.parameter_specs[0].sharding == mesh.sharding("x", "y")
    assert program.output_specs[0].sharding == mesh.sharding("y")
    (total,) = program(VALUE)
    np.testing.assert_array_equal(np.asarray(total), VALUE.sum(0))
    # An argument in another sharding is resharded first.
    (total,) = program(client.make_array(VALUE, mesh.sharding()))
    np.testing.assert_array_equal(np.asarray(total), VALUE.sum(0))
