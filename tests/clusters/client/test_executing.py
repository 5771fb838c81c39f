"""Programs on the devices of a cluster: which hosts take part, in which order, and what is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import pjrt
from pjrt import ifrt
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError
from pjrt.api.future import Future
from pjrt.api.loaded_executable import ExecuteOptions
from pjrt.api.shape_spec import ShapeSpec
from pjrt.clusters.client.client import ClusterClient
from pjrt.stablehlo.encodings import jaxlib

LATEST = 60


def all_reduce(groups: str, count: int, donated: bool = False) -> str:
    """Return a program that sums a number over groups of replicas."""
    donor = "{tf.aliasing_output = 0 : i32}" if donated else ""
    rows = groups.count("], [") + 1
    return f"""module attributes {{mhlo.num_replicas = {count} : i32}} {{
  func.func public @main(%x: tensor<4xf32> {donor}) -> tensor<4xf32> {{
    %0 = "stablehlo.all_reduce"(%x) ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %s = stablehlo.add %a, %b : tensor<f32>
        stablehlo.return %s : tensor<f32>
    }}) {{replica_groups = dense<{groups}> : tensor<{rows}x{count // rows}xi64>}}
      : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }}
}}"""


def rows(cluster: ClusterClient, values: list[float], devices: list[int] | None = None) -> list[list[object]]:
    """Return a list with one argument for each device."""
    places = cluster.devices if devices is None else [cluster.devices[number] for number in devices]
    return [
        [cluster.buffer_from_host(np.full(4, value, np.float32), device=device)]
        for value, device in zip(values, places, strict=True)
    ]


def numbers(results: list[list[object]]) -> list[float]:
    """Return the first element of the first result on each device."""
    return [float(np.asarray(row[0])[0]) for row in results]


def test_a_sum_over_the_devices_of_all_hosts(shared_cluster: ClusterClient) -> None:
    executable = shared_cluster.compile(all_reduce("[[0, 1, 2, 3]]", 4))
    assert [device.id for device in executable.addressable_devices] == [0, 1, 2048, 2049]
    assert executable.addressable_device_logical_ids == [(0, 0), (1, 0), (2, 0), (3, 0)]
    futures: list[Future[None]] = []
    results = executable.execute(rows(shared_cluster, [1, 2, 4, 8]), returned_futures=futures)
    assert numbers(results) == [15.0] * 4
    assert [future.result(LATEST) for future in futures] == [None] * 4
    assert [row[0].device for row in results] == list(shared_cluster.devices)
    assert numbers(executable.execute(results)) == [60.0] * 4


@pytest.mark.parametrize(("devices", "hosts"), [([0, 1], 1), ([2, 3], 1), ([1, 2], 2), ([3, 0], 2)])
def test_a_program_touches_only_the_hosts_of_its_devices(
    shared_cluster: ClusterClient, devices: list[int], hosts: int
) -> None:
    ids = [shared_cluster.devices[number].id for number in devices]
    options = CompileOptions(device_assignment=DeviceAssignment(tuple((number,) for number in ids)))
    executable = shared_cluster.compile(all_reduce("[[0, 1]]", 2), options)
    assert len(executable.executables) == hosts
    assert numbers(executable.execute(rows(shared_cluster, [3, 4], devices))) == [7.0, 7.0]


def test_replicas_and_partitions(shared_cluster: ClusterClient) -> None:
    text = """module attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 2 : i32} {
  func.func public @main(%x: tensor<4xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) -> (tensor<f32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
      : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}"""
    # Each replica is cut over both hosts.
    options = CompileOptions(device_assignment=DeviceAssignment(((0, 2048), (1, 2049))))
    executable = shared_cluster.compile(text, options)
    assert [device.id for device in executable.addressable_devices] == [0, 2048, 1, 2049]
    assert executable.addressable_device_logical_ids == [(0, 0), (0, 1), (1, 0), (1, 1)]
    arguments = [
        [shared_cluster.buffer_from_host(np.full(2, value, np.float32), device=device)]
        for value, device in zip((1, 2, 10, 20), executable.addressable_devices, strict=True)
    ]
    results = executable.execute(arguments)
    assert [float(np.asarray(row[0])) for row in results] == [6.0, 6.0, 60.0, 60.0]


SHARDY = """
sdy.mesh @mesh = <["x"=2, "y"=2], device_ids=[3, 1, 2, 0]>
func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>},
                %w: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"y"}, {}]>})
    -> (tensor<8x6xf32>, tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}], unreduced={"y"}>},
        tensor<4xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  %1 = sdy.sharding_constraint %0 <@mesh, [{"x"}, {}], unreduced={"y"}> : tensor<8x6xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{"x"}, {}]> : tensor<8x6xf32>
  %3 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}, {"y"}]>] out_shardings=[<@mesh, [{"y"}]>]
      manual_axes={"x", "y"} (%u: tensor<4x2xf32>) {
    %c = stablehlo.constant dense<0.0> : tensor<f32>
    %s = stablehlo.reduce(%u init: %c) applies stablehlo.add across dimensions = [0]
      : (tensor<4x2xf32>, tensor<f32>) -> tensor<2xf32>
    %t = "stablehlo.all_reduce"(%s) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = GROUPS, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %r = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %r : tensor<f32>
    }) : (tensor<2xf32>) -> tensor<2xf32>
    sdy.return %t : tensor<2xf32>
  } : (tensor<8x4xf32>) -> tensor<4xf32>
  return %2, %1, %3 : tensor<8x6xf32>, tensor<8x6xf32>, tensor<4xf32>
}"""
LISTED = "dense<[[3, 2], [1, 0]]> : tensor<2x2xi64>"
ALONG_X = '#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>'


@pytest.mark.parametrize("groups", [LISTED, ALONG_X], ids=["listed", "along an axis"])
def test_a_program_of_shardys_over_all_hosts(shared_cluster: ClusterClient, groups: str) -> None:
    """Shardings, terms that are left to be added, and groups of devices are those of one process."""
    if groups is ALONG_X and jaxlib.version() < (0, 10):
        pytest.skip("this XLA knows no groups along the axes of a mesh")
    text, options = SHARDY.replace("GROUPS", groups), CompileOptions(num_partitions=4)
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    w = np.arange(24, dtype=np.float32).reshape(4, 6)
    with pjrt.client("cpu", num_devices=4) as local:
        here = local.compile(text, options)
        executable = ifrt.Client(shared_cluster).compile(text, options)
        assert executable.pjrt_executable.output_shardings == here.output_shardings
        assert executable.pjrt_executable.parameter_shardings == here.parameter_shardings
    product, left, columns = executable(x, w)
    assert left.sharding.tiling.num_terms == 2  # type: ignore[attr-defined]
    for value in (product, left):
        np.testing.assert_array_equal(np.asarray(value), x @ w)
    np.testing.assert_array_equal(np.asarray(columns), x.sum(0))


def test_hosts_start_programs_in_the_order_of_the_calls(shared_cluster: ClusterClient) -> None:
    """The argument on one host comes after both programs: the second must not overtake the first there."""
    cluster = shared_cluster
    first, second = (cluster.compile(all_reduce("[[0, 1, 2, 3]]", 4)) for _ in range(2))
    late = cluster.create_buffers_for_async_host_to_device(
        [ShapeSpec((4,), ElementType.F32)], memory_space=cluster.devices[0].default_memory_space
    )
    arguments = rows(cluster, [0, 2, 4, 8])
    arguments[0] = [late.retrieve_buffer(0)]
    sums = first.execute(arguments)
    others = second.execute(rows(cluster, [100, 200, 400, 800]))
    late.transfer_literal(0, np.ones(4, np.float32))
    assert numbers(sums) == [15.0] * 4
    assert numbers(others) == [1500.0] * 4


@pytest.mark.full
def test_threads_send_their_programs_to_all_hosts_in_one_order(shared_cluster: ClusterClient) -> None:
    cluster = shared_cluster
    executables = [cluster.compile(all_reduce("[[0, 1, 2, 3]]", 4)) for _ in range(2)]
    arguments = [rows(cluster, [value] * 4) for value in (1, 100)]

    def run(number: int) -> list[list[list[object]]]:
        return [executables[number].execute(arguments[number]) for _ in range(50)]

    with ThreadPoolExecutor(2) as pool:
        ones, hundreds = pool.map(run, range(2))
    assert {value for results in ones for value in numbers(results)} == {4.0}
    assert {value for results in hundreds for value in numbers(results)} == {400.0}


def test_many_programs_are_sent_ahead(shared_cluster: ClusterClient) -> None:
    executable = shared_cluster.compile(all_reduce("[[0, 2], [1, 3]]", 4))
    results = rows(shared_cluster, [0, 0, 0, 0])
    for _ in range(100):
        results = executable.execute(results)
    assert numbers(results) == [0.0] * 4


def test_what_one_host_would_refuse_reaches_none(shared_cluster: ClusterClient) -> None:
    """A host that got the program would wait for the others for ever."""
    cluster = shared_cluster
    executable = cluster.compile(all_reduce("[[0, 1, 2, 3]]", 4, donated=True))
    good = rows(cluster, [1, 2, 4, 8])
    other = cluster.buffer_from_host(np.zeros(5, np.float32), device=cluster.devices[3])
    with pytest.raises(InvalidArgumentError, match=r"argument 0 of 'main' must be f32\[4\], found f32\[5\]"):
        executable.execute([*good[:3], [other]])
    with pytest.raises(InvalidArgumentError, match="must be a buffer of this client, found ndarray"):
        executable.execute([*good[:3], [np.zeros(4, np.float32)]])
    with pytest.raises(InvalidArgumentError, match=r"must be on cpu:2049 .*, found one on cpu:0 .*copy_to"):
        executable.execute([*good[:3], good[0]])
    with pytest.raises(InvalidArgumentError, match="takes 1 arguments, found 2"):
        executable.execute([*good[:3], good[3] * 2])
    with pytest.raises(InvalidArgumentError, match="runs on 4 devices"):
        executable.execute(good[:3])
    other = cluster.buffer_from_host(np.zeros(4, np.float32), device=cluster.devices[3])
    other.delete()
    with pytest.raises(FailedPreconditionError, match=r"process 1 on local1.*deleted"):
        executable.execute([*good[:3], [other]])
    # Nothing was sent or donated.
    assert numbers(executable.execute(good)) == [15.0] * 4
    assert all(buffer.is_deleted for (buffer,) in good)


def test_a_donated_argument_that_is_another_one_too_reaches_no_host(shared_cluster: ClusterClient) -> None:
    cluster = shared_cluster
    text = """module attributes {mhlo.num_replicas = 4 : i32} {
  func.func public @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %x, %y : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}"""
    executable = cluster.compile(text)
    pairs = [[*x, *y] for x, y in zip(rows(cluster, [1, 2, 4, 8]), rows(cluster, [1, 1, 1, 1]), strict=True)]
    twice = [*pairs[:3], [pairs[3][0]] * 2]
    with pytest.raises(InvalidArgumentError, match="argument 0 of 'main' is donated"):
        executable.execute(twice)
    kept = ExecuteOptions(non_donatable_input_indices=frozenset({0}))
    assert numbers(executable.execute(twice, kept)) == [2.0, 3.0, 5.0, 16.0]
    assert numbers(executable.execute(pairs)) == [2.0, 3.0, 5.0, 9.0]


def test_one_device_after_the_other(shared_cluster: ClusterClient) -> None:
    executable = shared_cluster.compile(all_reduce("[[0, 1, 2, 3]]", 4))
    results = [
        executable.execute_sharded(row, device)
        for row, device in zip(rows(shared_cluster, [1, 2, 4, 8]), shared_cluster.devices, strict=True)
    ]
    assert numbers(results) == [15.0] * 4


def test_an_error_of_the_compiler_is_reported_once_with_all_hosts(shared_cluster: ClusterClient) -> None:
    text = """module attributes {mhlo.num_replicas = 4 : i32} {
  func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.custom_call @never(%x) {api_version = 4 : i32} : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}"""
    with pytest.raises(PjrtError) as info:
        shared_cluster.compile(text)
    message = info.value.message
    assert message.count("never") == 1
    assert message.endswith("[process 0 on local0, process 1 on local1]")


def test_an_error_of_a_program_names_the_device(shared_cluster: ClusterClient) -> None:
    error = PjrtError.of(13, "the value was lost")
    spec = ShapeSpec((4,), ElementType.F32)
    failed = shared_cluster.create_error_buffer(error, spec, memory_space=shared_cluster.devices[2].memory_spaces[0])
    assert failed.device is shared_cluster.devices[2]
    with pytest.raises(PjrtError, match=r"the value was lost.*\[cpu:2048 \(process 1 on local1\)\]"):
        failed.ready().result(LATEST)
