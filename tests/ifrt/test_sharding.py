"""Kinds of sharding: shard shapes, index domains, equality, other devices, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import ifrt
from pjrt.ifrt import IndexDomain
from pjrt.stablehlo.ir.sharding import Sharding as Tiling

ALL = ifrt.SingleDeviceShardSemantics.ALL_SHARDS


def test_one_device(client: ifrt.Client) -> None:
    sharding = ifrt.SingleDeviceSharding(client.devices[3])
    assert sharding.is_fully_replicated
    assert sharding.shard_shape((2, 3)) == (2, 3)
    assert sharding.index_domains((2, 3)) == (IndexDomain((0, 0), (2, 3)),)
    assert sharding == ifrt.SingleDeviceSharding(client.devices[3])
    assert sharding != ifrt.SingleDeviceSharding(client.devices[4])
    assert sharding.has_same_partitioning(ifrt.SingleDeviceSharding(client.devices[4]))
    assert sharding.with_device_assignment([client.devices[4]]) == ifrt.SingleDeviceSharding(client.devices[4])
    assert sharding.memory_kind == client.devices[3].default_memory_space.kind


def test_opaque(client: ifrt.Client) -> None:
    sharding = ifrt.OpaqueSharding(client.devices)
    assert not sharding.is_fully_replicated
    assert sharding == sharding.with_device_assignment()
    for ask in (sharding.shard_shape, sharding.index_domains, sharding.disassemble):
        with pytest.raises(pjrt.UnimplementedError, match="does not know the shapes and places of its shards"):
            ask((2, 3))


def test_concrete(client: ifrt.Client) -> None:
    devices = client.devices[:3]
    shapes = [(2, 4), (1, 4), (5, 4)]
    domains = [IndexDomain((0, 0), (2, 4)), IndexDomain((2, 0), (1, 4)), IndexDomain((3, 0), (5, 4))]
    sharding = ifrt.ConcreteSharding(devices, (8, 4), shapes, domains)
    assert sharding.index_domains((8, 4), ALL) == tuple(domains)
    assert [shape for shape, _ in sharding.disassemble((8, 4))] == shapes
    value = np.arange(32.0, dtype=np.float32).reshape(8, 4)
    array = client.make_array(value, sharding)
    np.testing.assert_array_equal(np.asarray(array), value)
    assert [part.shape for part in array.disassemble()] == shapes
    assert sharding.with_device_assignment(client.devices[3:6]).has_same_partitioning(sharding)
    with pytest.raises(pjrt.InvalidArgumentError, match=r"is for arrays of shape \[8, 4\], found \[4, 8\]"):
        sharding.index_domains((4, 8))
    with pytest.raises(pjrt.InvalidArgumentError, match="differ in shape"):
        sharding.shard_shape((8, 4))
    with pytest.raises(pjrt.InvalidArgumentError, match="a shard shape for each of 3 devices, found 2"):
        ifrt.ConcreteSharding(devices, (8, 4), shapes[:2])
    with pytest.raises(pjrt.InvalidArgumentError, match=r"index domains of the shards' shapes"):
        ifrt.ConcreteSharding(devices, (8, 4), shapes, domains[::-1])
    with pytest.raises(pjrt.InvalidArgumentError, match=r"index domains inside \[7, 4\]"):
        ifrt.ConcreteSharding(devices, (7, 4), shapes, domains)
    with pytest.raises(pjrt.UnimplementedError, match="does not know the index domains"):
        ifrt.ConcreteSharding(devices, (8, 4), shapes).index_domains((8, 4))


def test_concrete_even(client: ifrt.Client) -> None:
    sharding = ifrt.ConcreteEvenSharding(client.devices, (8, 4), (2, 2))
    assert sharding.shard_shape((8, 4)) == (2, 2)
    assert [shape for shape, _ in sharding.disassemble((8, 4))] == [(2, 2)] * 8
    with pytest.raises(pjrt.UnimplementedError, match="does not know the index domains"):
        sharding.index_domains((8, 4))
    copied = ifrt.ConcreteEvenSharding(client.devices, (8, 4), (8, 4), is_fully_replicated=True)
    assert copied.index_domains((8, 4)) == (IndexDomain.whole((8, 4)),) * 8
    assert copied != sharding
    with pytest.raises(pjrt.InvalidArgumentError, match=r"shards of the whole shape \[8, 4\]"):
        ifrt.ConcreteEvenSharding(client.devices, (8, 4), (2, 2), is_fully_replicated=True)


def test_hlo_shardings_are_read_from_protos(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    for spec in ((), ("x",), ("y", "x"), (None, ("x", "y"))):
        sharding = mesh.sharding(*spec)
        again = ifrt.HloSharding.from_proto(client.devices, sharding.tiling.to_proto())
        assert again == sharding
        assert hash(again) == hash(sharding)


def test_tilings_and_their_devices(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    sharding = mesh.sharding("x", "y")
    assert sharding.shard_shape((8, 6)) == (2, 3)
    assert sharding.shard_shape((7, 5)) == (2, 3)
    assert [d.shape for d in sharding.index_domains((7, 5))][-2:] == [(1, 3), (1, 2)]
    with pytest.raises(pjrt.InvalidArgumentError, match="arrays of 2 dimensions or more, found one of 1"):
        sharding.shard_shape((8,))
    with pytest.raises(pjrt.InvalidArgumentError, match="a tiling for 4 devices, found one for 8"):
        ifrt.HloSharding(client.devices[:4], sharding.tiling)
    with pytest.raises(pjrt.DataLossError):
        ifrt.HloSharding.from_proto(client.devices, b"\xff\xff")


@pytest.mark.parametrize(
    ("axes", "dimensions", "message"),
    [
        ({"x": 3}, (), "expected axes for 8 devices, found .* for 3"),
        ({"x": 8}, ("z",), r"each of the axes \['x'\] at most once, found \['z'\]"),
        ({"x": 8}, ("x", "x"), r"at most once, found \['x', 'x'\]"),
    ],
)
def test_meshes_that_are_none(client: ifrt.Client, axes: Any, dimensions: Any, message: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        ifrt.Mesh(client.devices, axes).sharding(*dimensions)


def test_device_lists(client: ifrt.Client) -> None:
    assert ifrt.DeviceList(client.devices) == client.devices
    assert hash(ifrt.DeviceList(client.devices)) == hash(client.devices)
    assert client.devices.is_fully_addressable
    assert client.devices.ids == tuple(range(8))
    with pytest.raises(pjrt.InvalidArgumentError, match="at least one device"):
        ifrt.DeviceList([])
    with pytest.raises(pjrt.InvalidArgumentError, match=r"each device once, found the ids \[0, 0\]"):
        ifrt.DeviceList([client.devices[0]] * 2)
    with pytest.raises(pjrt.InvalidArgumentError, match="expected a device of a client, found 3"):
        ifrt.DeviceList([3])  # type: ignore[list-item]


def test_memory_kinds(client: ifrt.Client) -> None:
    with pytest.raises(pjrt.NotFoundError, match="no memory space of kind 'attic'"):
        ifrt.SingleDeviceSharding(client.devices[0], "attic")
    kinds = [space.kind for space in client.devices[0].memory_spaces]
    array = client.make_array(np.ones(3, np.float32), ifrt.SingleDeviceSharding(client.devices[0], kinds[-1]))
    assert array.buffers[0].memory_space.kind == kinds[-1]


def test_spellings_that_xla_reads() -> None:
    from jaxlib import xla_client

    grid = np.arange(8).reshape(2, 2, 2).transpose(1, 0, 2)
    for tiling in (Tiling(), Tiling.of_grid(grid, 2), Tiling.of_grid(grid, 3)):
        proto = xla_client.OpSharding()
        proto.ParseFromString(tiling.to_proto())
        spelled = str(xla_client.HloSharding.from_proto(proto))
        assert (
            Tiling.from_proto(xla_client.HloSharding.from_string(tiling.to_text()).to_proto().SerializeToString())
            == tiling
        ), spelled


def test_index_domains() -> None:
    a, b = IndexDomain((0, 2), (4, 4)), IndexDomain((2, 0), (4, 4))
    assert a.intersection(b) == IndexDomain((2, 2), (2, 2))
    assert a.intersection(IndexDomain((4, 0), (1, 9))) is None
    assert b.within(IndexDomain((1, 0), (9, 9))).origin == (1, 0)
    assert (a.size, str(a), a.slices) == (16, "[0:4, 2:6]", (slice(0, 4), slice(2, 6)))
    with pytest.raises(pjrt.InvalidArgumentError, match="an origin and a shape of the same number of dimensions"):
        IndexDomain((0,), (1, 2))


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("2x1x3 to [1,0] on 3x2", [0, 3, 1, 4, 2, 5]),
        ("2x1 to [0,1] on 2x3", [0, 1, 2, 3, 4, 5]),
        ("4 to [1,0] on 2x2", [0, 2, 1, 3]),
        ("1x1 to [0] on 2", [0, 1]),
    ],
)
def test_sharding_parameters(text: str, devices: list[int]) -> None:
    """The examples of IFRT's own header."""
    param = ifrt.ShardingParam.parse(text)
    assert str(param) == text
    assert param.to_device_list() == devices


@pytest.mark.parametrize(
    "text", ["1x1 to [0,1] on 2", "2x2 to [0] on 2", "1x2 to [0,1] on 3x2", "2 by 3", "0 to [0] on 2"]
)
def test_sharding_parameters_that_are_none(text: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError):
        ifrt.ShardingParam.parse(text)


def test_arrays_by_sharding_parameters(client: ifrt.Client) -> None:
    sharding = ifrt.ShardingParamSharding(client.devices, "2x1 to [0,1] on 2x4")
    value = np.arange(24, dtype=np.float32).reshape(4, 6)
    array = client.make_array(value, sharding)
    np.testing.assert_array_equal(np.asarray(array), value)
    assert sharding.shard_shape((4, 6)) == (2, 6)
    assert sharding == sharding.with_device_assignment(client.devices)
    with pytest.raises(pjrt.InvalidArgumentError, match=r"cannot cut arrays of shape \[3, 6\] into even shards"):
        client.make_array(value[:3], sharding)
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected 4 devices for .*, found 8"):
        ifrt.ShardingParamSharding(client.devices, "2x1 to [0,1] on 2x2")


def test_shards_of_another_rank_are_refused(client: ifrt.Client) -> None:
    devices = client.devices[:2]
    with pytest.raises(pjrt.InvalidArgumentError, match=r"shard shapes of 1 dimensions, as \[4\] has, found .*2, 1"):
        ifrt.ConcreteSharding(devices, (4,), [(2, 1), (2,)])
    with pytest.raises(pjrt.InvalidArgumentError, match=r"a shard shape of 1 dimensions, as \[4\] has, found \[2, 1\]"):
        ifrt.ConcreteEvenSharding(devices, (4,), (2, 1))


def test_dimensions_that_are_not_cut_may_be_left_out(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    assert mesh.sharding("x") == mesh.sharding("x", None)
    assert mesh.sharding() == mesh.sharding(None, None)
    assert mesh.sharding("x") != mesh.sharding(None, "x")


def test_tilings_that_differ_look_different(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    turned = ifrt.Mesh(client.devices, {"y": 2, "x": 4}).sharding("x", "y")
    assert turned != mesh.sharding("x", "y")
    assert "4×2 tiles in the order 0,4,1,5,2,6,3,7 on" in repr(turned)
    assert "4×2 tiles on" in repr(mesh.sharding("x", "y"))


def test_hlo_shardings_are_read_from_text(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    shapes = '<["x"=4, "y"=2]>'
    read, sdy = ifrt.HloSharding.from_gspmd, ifrt.HloSharding.from_sdy
    assert read(client.devices, "{devices=[4,2]<=[8]}", 2) == mesh.sharding("x", "y")
    assert read(client.devices, "{replicated}", 2) == mesh.sharding()
    assert sdy(client.devices, '#sdy.sharding<@mesh, [{"y"}, {}]>', shapes) == mesh.sharding("y")
    assert sdy(client.devices, '#sdy.sharding<@mesh, [{}, {"y", "x"}]>', shapes) == mesh.sharding(None, ("y", "x"))
    summed = sdy(client.devices, '#sdy.sharding<@mesh, [{"y"}], unreduced={"x"}>', shapes)
    assert summed.tiling.terms
    with pytest.raises(pjrt.UnimplementedError, match=r"found \{spiral\}"):
        read(client.devices, "{spiral}", 2)
    for text in ('#sdy.sharding<@mesh, [{"z"}]>', "#sdy.nothing", '[<@mesh, [{"x"}]>, <@mesh, [{"y"}]>]'):
        with pytest.raises(pjrt.InvalidArgumentError, match="sharding"):
            sdy(client.devices, text, shapes)
    with pytest.raises(pjrt.InvalidArgumentError, match="a tiling for 8 devices, found one for 4"):
        sdy(client.devices, '#sdy.sharding<@mesh, [{"x"}]>', '<["x"=4]>')
