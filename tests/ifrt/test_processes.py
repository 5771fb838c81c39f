"""A client that is one of two processes: it lists four devices, and has two of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import ifrt
from pjrt.ifrt import ArrayCopySemantics, ArraySpec, Interval, Mapping, RemapPlan
from pjrt.stablehlo.ir.sharding import Sharding as Tiling

F32 = pjrt.ElementType.F32
ALL = ifrt.SingleDeviceShardSemantics.ALL_SHARDS
X = np.arange(24, dtype=np.float32).reshape(8, 3)


def process(index: int) -> pjrt.Client:
    return pjrt.client("reference", num_devices=2, process_index=index, process_count=2)


@pytest.fixture(scope="module", params=[0, 1])
def client(request: pytest.FixtureRequest) -> Iterator[ifrt.Client]:
    with process(request.param) as made:
        yield ifrt.Client(made)


@pytest.fixture
def mesh(client: ifrt.Client) -> ifrt.Mesh:
    return ifrt.Mesh(client.devices, {"x": 4})


@pytest.fixture
def here(client: ifrt.Client) -> ifrt.Mesh:
    return ifrt.Mesh(client.addressable_devices, {"x": 2})


@pytest.fixture
def there(client: ifrt.Client) -> ifrt.Mesh:
    return ifrt.Mesh([device for device in client.devices if not device.is_addressable], {"x": 2})


def rows_of(client: ifrt.Client) -> np.ndarray[Any, Any]:
    """Return the rows that this process has of an array whose rows lie on all devices."""
    return X[4 * client.process_index :][:4]


def test_devices(client: ifrt.Client) -> None:
    assert client.devices.ids == (0, 1, 2, 3)
    assert client.addressable_devices.ids == ((0, 1), (2, 3))[client.process_index]
    assert not client.devices.is_fully_addressable
    assert client.addressable_devices.is_fully_addressable


def test_an_array_has_the_shards_of_its_process(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    array = client.make_array(X, mesh.sharding("x"))
    assert [shard.device for shard in array.shards] == list(client.addressable_devices)
    np.testing.assert_array_equal(np.concatenate([np.asarray(buffer) for buffer in array.buffers]), rows_of(client))
    parts = array.disassemble()
    assert [part.sharding.devices[0] for part in parts] == list(client.addressable_devices)
    again = client.assemble_array_from_single_device_arrays(X.shape, mesh.sharding("x"), parts)
    assert again.buffers == array.buffers
    assert len(mesh.sharding("x").disassemble(X.shape, ALL)) == 4
    assert len(mesh.sharding("x").memory_spaces) == 2


def test_shards_of_other_processes_cannot_be_had(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    array = client.make_array(X, mesh.sharding("x"))
    with pytest.raises(pjrt.InvalidArgumentError, match=r"all in this process, for ALL_SHARDS, found HloSharding\(4"):
        array.disassemble(shard_semantics=ALL)
    with pytest.raises(pjrt.InvalidArgumentError, match="all in this process, for ALL_SHARDS"):
        client.assemble_array_from_single_device_arrays(
            X.shape, array.sharding, array.disassemble(), shard_semantics=ALL
        )
    remote = r"\[4:6, 0:3\], \[6:8, 0:3\]" if client.process_index == 0 else r"\[0:2, 0:3\], \[2:4, 0:3\]"
    with pytest.raises(
        pjrt.InvalidArgumentError, match=rf"expected all parts of the array f32\[8,3\].* found {remote}"
    ):
        np.asarray(array)


def test_all_shards_of_a_local_array(client: ifrt.Client, here: ifrt.Mesh) -> None:
    array = client.make_array(X, here.sharding("x"))
    parts = array.disassemble(shard_semantics=ALL)
    again = client.assemble_array_from_single_device_arrays(X.shape, array.sharding, parts, shard_semantics=ALL)
    np.testing.assert_array_equal(np.asarray(again), X)


def test_what_each_process_has_whole_can_be_read(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    np.testing.assert_array_equal(np.asarray(client.make_array(X, mesh.sharding())), X)
    halves = ifrt.Mesh(client.devices, {"process": 2, "device": 2}).sharding("device")
    array = client.make_array(X, halves)
    assert [shard.domain.shape for shard in array.shards] == [(4, 3), (4, 3)]
    np.testing.assert_array_equal(np.asarray(array), X)
    across = ifrt.Mesh(client.devices, {"process": 2, "device": 2}).sharding("process")
    with pytest.raises(pjrt.InvalidArgumentError, match="only in others"):
        np.asarray(client.make_array(X, across))


def test_a_sum_with_terms_elsewhere_cannot_be_read(client: ifrt.Client) -> None:
    places = ((0, 0),) * 4
    within, across = (Tiling((1, 1), places, terms) for terms in ((0, 1, 0, 1), (0, 0, 1, 1)))
    ones = np.ones((2, 2), np.float32)
    spec = ArraySpec((2, 2), F32, ifrt.HloSharding(client.devices, within))
    array = client.make_array_from_host_buffer_shards(spec, [ones, 2 * ones])
    np.testing.assert_array_equal(np.asarray(array), 3 * ones)
    spec = ArraySpec((2, 2), F32, ifrt.HloSharding(client.devices, across))
    with pytest.raises(pjrt.InvalidArgumentError, match="only in others"):
        np.asarray(client.make_array_from_host_buffer_shards(spec, [ones, ones]))


def test_an_array_without_shards_here(client: ifrt.Client, here: ifrt.Mesh, there: ifrt.Mesh) -> None:
    sharding = there.sharding("x")
    with pytest.raises(pjrt.InvalidArgumentError, match="expected an element_type, because this process has no shard"):
        client.assemble_array_from_single_device_arrays(X.shape, sharding, [])
    array = client.assemble_array_from_single_device_arrays(X.shape, sharding, [], element_type=F32)
    assert (array.spec, array.dtype) == (ArraySpec(X.shape, F32, sharding), np.float32)
    assert array.shards == array.buffers == sharding.memory_spaces == ()
    assert array.disassemble() == []
    assert array.layout == client.make_array(X, here.sharding("x")).layout
    array.ready().result(60)
    with pytest.raises(pjrt.InvalidArgumentError, match="only in others"):
        np.asarray(array)
    with pytest.raises(pjrt.InvalidArgumentError, match="expected a shard in this process"):
        client.make_array(X, there.sharding()).fully_replicated_shard()
    array.delete()
    assert array.is_deleted


def test_memory_kinds_are_the_same_in_all_processes(here: ifrt.Mesh, there: ifrt.Mesh) -> None:
    assert there.sharding("x").memory_kind == here.sharding("x").memory_kind == "device"
    assert there.sharding("x", memory_kind="pinned_host").memory_kind == "pinned_host"
    with pytest.raises(pjrt.NotFoundError, match="tape"):
        there.sharding("x", memory_kind="tape")


def test_copies_stay_in_their_process(client: ifrt.Client, mesh: ifrt.Mesh, here: ifrt.Mesh, there: ifrt.Mesh) -> None:
    array = client.make_array(X, mesh.sharding("x"))
    (copy,) = client.copy_arrays([array], [client.devices[i] for i in (1, 0, 3, 2)])
    assert [buffer.device for buffer in copy.buffers] == list(client.addressable_devices)[::-1]
    np.testing.assert_array_equal(np.concatenate([np.asarray(buffer) for buffer in copy.buffers]), rows_of(client))
    with pytest.raises(pjrt.UnimplementedError, match=r"of f32\[8,3\] .*: shards are copied within a process only"):
        client.copy_arrays([array], [client.devices[i] for i in (2, 3, 0, 1)])
    local = client.make_array(X, here.sharding("x"))
    with pytest.raises(pjrt.UnimplementedError, match="shards are copied within a process only"):
        client.copy_arrays([local], there.devices)
    with pytest.raises(pjrt.UnimplementedError, match="shards are copied within a process only"):
        client.copy_arrays([local], [here.devices[0], there.devices[1]])


def test_resharding_needs_the_values_in_each_process(
    client: ifrt.Client, mesh: ifrt.Mesh, here: ifrt.Mesh, there: ifrt.Mesh
) -> None:
    local = client.make_array(X, here.sharding("x"))
    for target in (there.sharding("x"), mesh.sharding("x"), mesh.sharding()):
        with pytest.raises(pjrt.UnimplementedError, match=r"expected the whole array f32\[8,3\] .* in process [01]"):
            client.reshard_arrays([local], [target])
    spread = client.make_array(X, mesh.sharding("x"))
    with pytest.raises(pjrt.InvalidArgumentError, match="expected all parts of the array"):
        client.reshard_arrays([spread], [here.sharding("x")])
    assert not spread.is_deleted
    replicated = client.make_array(X, mesh.sharding())
    backwards = ifrt.Mesh(client.devices[::-1], {"x": 4}).sharding("x")
    (rows, turned, locals_) = client.reshard_arrays(
        [replicated] * 3, [mesh.sharding("x"), backwards, here.sharding("x")]
    )
    np.testing.assert_array_equal(np.concatenate([np.asarray(buffer) for buffer in rows.buffers]), rows_of(client))
    np.testing.assert_array_equal(
        np.concatenate([np.asarray(buffer) for buffer in turned.buffers]), X[4 * (1 - client.process_index) :][:4]
    )
    np.testing.assert_array_equal(np.asarray(locals_), X)


def test_remaps_use_the_shards_of_their_process(
    client: ifrt.Client, mesh: ifrt.Mesh, here: ifrt.Mesh, there: ifrt.Mesh
) -> None:
    whole = ArraySpec(X.shape, F32, mesh.sharding("x"))
    first = 2 * client.process_index
    for half, begin in ((here, first), (there, 2 - first)):
        output = ArraySpec((4, 3), F32, half.sharding("x"))
        plan = RemapPlan((whole,), (output,), (Mapping(0, 0, (Interval(begin, begin + 2),), (Interval(0, 2),)),))
        array = client.make_array(X, whole.sharding)
        (part,) = client.remap_arrays(plan, [array], ArrayCopySemantics.REUSE_INPUT)
        assert part.buffers == (array.buffers if half is here else ())
    plan = RemapPlan((whole,), (whole,), (Mapping(0, 0, (Interval(0, 4),), (Interval(0, 4),)),))
    array = client.make_array(X, whole.sharding)
    assert client.remap_arrays(plan, [array], ArrayCopySemantics.REUSE_INPUT)[0].buffers == array.buffers


def test_a_program_runs_on_the_devices_of_the_process(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    rows = 'tensor<8x3xf32> {mhlo.sharding = "{devices=[4,1]0,1,2,3}"}'
    executable = client.compile(
        f"""module @twice attributes {{mhlo.num_partitions = 4 : i32}} {{
  func.func @main(%x: {rows}) -> ({rows}) {{
    %y = stablehlo.add %x, %x : tensor<8x3xf32>
    return %y : tensor<8x3xf32>
  }}
}}"""
    )
    (twice,) = executable(client.make_array(X, mesh.sharding("x")))
    np.testing.assert_array_equal(np.concatenate([np.asarray(b) for b in twice.buffers]), 2 * rows_of(client))
    (twice,) = executable(X)
    assert twice.sharding.devices == client.devices
    np.testing.assert_array_equal(np.concatenate([np.asarray(b) for b in twice.buffers]), 2 * rows_of(client))


def test_shardings_travel_from_one_process_to_the_other(client: ifrt.Client) -> None:
    with process(1 - client.process_index) as made:
        other = ifrt.Client(made)
        for mesh in (ifrt.Mesh(client.devices, {"x": 4}), ifrt.Mesh(client.devices[:2], {"x": 2})):
            written = ifrt.serialize(mesh.sharding("x"))
            again = ifrt.deserialize(other, written)
            assert again.devices.ids == mesh.devices.ids
            assert again.memory_kind == "device"
            assert ifrt.serialize(again) == written


def test_arrays_of_another_client(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    with pjrt.client("reference", num_devices=2) as made:
        array = ifrt.Client(made).make_array(X)
        with pytest.raises(
            pjrt.InvalidArgumentError, match=r"expected arrays of <ReferenceClient .*, found f32\[8,3\]"
        ):
            client.reshard_arrays([array], [mesh.sharding("x")])
        with pytest.raises(pjrt.InvalidArgumentError, match="expected arrays of"):
            client.copy_arrays([array], [client.devices[0]])
        with pytest.raises(pjrt.InvalidArgumentError, match="expected devices of"):
            client.copy_arrays([client.make_array(X)], [made.devices[0]])
        with pytest.raises(pjrt.InvalidArgumentError, match="expected devices of"):
            client.assemble_array_from_single_device_arrays(X.shape, array.sharding, [array])
