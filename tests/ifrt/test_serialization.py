"""Serialized device lists, shardings, array specs and remap plans: round trips, and bytes that are refused."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import pjrt
from pjrt import ifrt
from pjrt.ifrt import ArraySpec, IndexDomain, Interval, Mapping, RemapPlan, serialization
from pjrt.stablehlo.ir.sharding import Sharding as Tiling

F32 = pjrt.ElementType.F32
KINDS = st.sampled_from([None, "device", "pinned_host"])
SIZES = st.integers(0, 9)
DEVICES = st.permutations(range(8)).flatmap(lambda ids: st.integers(1, 8).map(lambda count: ids[:count]))


@st.composite
def shardings(draw: st.DrawFn, client: ifrt.Client) -> ifrt.Sharding:
    devices = [client.lookup_device(number) for number in draw(DEVICES)]
    memory, count = draw(KINDS), len(devices)
    match draw(st.integers(0, 6)):
        case 0:
            return ifrt.SingleDeviceSharding(devices[0], memory)
        case 1:
            return ifrt.OpaqueSharding(devices, memory)
        case 2:
            shape = draw(st.lists(SIZES, max_size=3))
            shards = [[draw(st.integers(0, size)) for size in shape] for _ in devices]
            domains = [IndexDomain((0,) * len(shape), tuple(shard)) for shard in shards]
            return ifrt.ConcreteSharding(devices, shape, shards, draw(st.sampled_from([domains, None])), memory)
        case 3:
            shape, replicated = draw(st.lists(SIZES, max_size=3)), draw(st.booleans())
            shard = shape if replicated else [draw(SIZES) for _ in shape]
            return ifrt.ConcreteEvenSharding(devices, shape, shard, memory, is_fully_replicated=replicated)
        case 4:
            mesh = ifrt.Mesh(client.devices, {"x": 2, "y": 4})
            return mesh.sharding(*draw(st.sampled_from([(), ("x",), (None, "y"), (("y", "x"),)])), memory_kind=memory)
        case 5:
            return ifrt.HloSharding(devices, Tiling((count,), tuple((n,) for n in range(count)), tuple(range(count))))
        case _:
            text = draw(st.sampled_from(["4x2x1 to [1,0] on 2x4", "4x2 to [1,0] on 2x4", "1x1 to [0] on 8"]))
            return ifrt.ShardingParamSharding(client.devices, text, memory)


@st.composite
def specs(draw: st.DrawFn, client: ifrt.Client) -> ArraySpec:
    layout: Any = draw(
        st.sampled_from(
            [
                None,
                pjrt.TiledLayout(()),
                pjrt.TiledLayout((1, 0), ((8, 128), (-1, 1))),
                pjrt.StridedLayout(()),
                pjrt.StridedLayout((-4, 0)),
            ]
        )
    )
    types = st.sampled_from([each for each in pjrt.ElementType if each is not pjrt.ElementType.INVALID])
    return ArraySpec(tuple(draw(st.lists(SIZES, max_size=3))), draw(types), draw(shardings(client)), layout)


@st.composite
def values(draw: st.DrawFn, client: ifrt.Client) -> Any:
    intervals = st.builds(Interval, st.integers(-3, 9), st.integers(-3, 9), st.integers(-3, 9))
    match draw(st.integers(0, 3)):
        case 0:
            return client.make_device_list([client.lookup_device(number) for number in draw(DEVICES)])
        case 1:
            return draw(shardings(client))
        case 2:
            return draw(specs(client))
        case _:
            several = st.lists(intervals, max_size=2).map(tuple)
            mappings = st.builds(Mapping, st.integers(0, 3), st.integers(-1, 3), several, several)
            rows = st.lists(specs(client), max_size=2).map(tuple)
            return RemapPlan(draw(rows), draw(rows), tuple(draw(st.lists(mappings, max_size=2))))


def examples(client: ifrt.Client) -> list[Any]:
    """Return an object of each kind."""
    devices, mesh = client.devices, ifrt.Mesh(client.devices, {"x": 4, "y": 2})
    halves = [IndexDomain((0,), (3,)), IndexDomain((3,), (1,))]
    kinds = [
        ifrt.SingleDeviceSharding(devices[3], "pinned_host"),
        ifrt.OpaqueSharding(devices[::2]),
        ifrt.ConcreteSharding(devices[:2], (4,), [(3,), (1,)], halves),
        ifrt.ConcreteSharding(devices[:2], (4,), [(3,), (1,)]),
        ifrt.ConcreteEvenSharding(devices, (8, 2), (1, 2)),
        ifrt.ConcreteEvenSharding(devices, (8, 2), (8, 2), is_fully_replicated=True),
        ifrt.HloSharding(devices),
        mesh.sharding("y", None, "x"),
        ifrt.HloSharding(devices[:2], Tiling((1,), ((0,), (0,)), (0, 1))),
        ifrt.HloSharding(devices[:2], Tiling((1,), ((0,), (0,)), (0, 1), "max")),
        ifrt.ShardingParamSharding(devices, "2x1x4 to [1,0] on 4x2"),
    ]
    spec = ArraySpec((8, 3), F32, mesh.sharding("x"), pjrt.TiledLayout((0, 1), ((2,),)))
    plan = RemapPlan((spec,), (spec,), (Mapping(0, 0, (Interval(0, 8, 2), Interval(1, 8, 2)), (Interval(0, 8),)),))
    return [devices, *kinds, spec, ArraySpec((), pjrt.ElementType.PRED, kinds[0], pjrt.StridedLayout(())), plan]


def seal(message: bytes) -> bytes:
    """Return bytes whose checksum is right, whatever the message is."""
    return b"IFRT" + zlib.crc32(message).to_bytes(4, "little") + message


def outer(serialized: bytes) -> Any:
    """Return the message in serialized bytes, to change it."""
    return serialization._parse("Serialized", serialized[8:])


def test_each_kind_makes_the_round_trip(client: ifrt.Client) -> None:
    for value in examples(client):
        again = ifrt.deserialize(client, ifrt.serialize(value))
        assert again == value
        assert type(again) is type(value)
        assert repr(again) == repr(value)


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_any_value_makes_the_round_trip(client: ifrt.Client, data: st.DataObject) -> None:
    value = data.draw(values(client))
    serialized = ifrt.serialize(value)
    again = ifrt.deserialize(client, serialized)
    assert again == value
    assert repr(again) == repr(value)
    assert ifrt.serialize(again) == serialized, "equal objects give equal bytes"


def test_a_sharding_of_a_restored_spec_cuts_arrays_alike(client: ifrt.Client) -> None:
    for value in examples(client):
        if isinstance(value, ifrt.HloSharding) and value.tiling.tiles != (1,):
            again = ifrt.deserialize(client, ifrt.serialize(value))
            assert again.index_domains((8, 4, 8)) == value.index_domains((8, 4, 8))


GOLDEN = (
    "494652542a27dafb0a0941727261795370656310011a4b0a020406100b1a3d0a0b486c6f5368617264696e6710011a2c0a130a0400010203"
    "120b70696e6e65645f686f73741201021a030a01001a030a01011a030a01001a030a010122040a020100"
)


def test_the_format_of_version_1_stays(client: ifrt.Client) -> None:
    """These bytes were written by the first version of the format: every later one must read them."""
    written = bytes.fromhex(GOLDEN)
    mesh = ifrt.Mesh(client.devices[:4], {"x": 2, "y": 2})
    spec = ArraySpec((4, 6), F32, mesh.sharding("y", memory_kind="pinned_host"), pjrt.TiledLayout((1, 0)))
    assert ifrt.serialize(spec) == written
    assert ifrt.deserialize(client, written) == spec


def test_any_damaged_byte_is_found(client: ifrt.Client) -> None:
    for value in examples(client):
        serialized = ifrt.serialize(value)
        for place in range(len(serialized)):
            for mask in (0x01, 0x80, 0xFF):
                damaged = bytearray(serialized)
                damaged[place] ^= mask
                with pytest.raises(pjrt.DataLossError, match=r"is damaged|which begin with b'IFRT'"):
                    ifrt.deserialize(client, bytes(damaged))
        for end in range(len(serialized)):
            with pytest.raises(pjrt.DataLossError):
                ifrt.deserialize(client, serialized[:end])
        with pytest.raises(pjrt.DataLossError, match=f"expected {len(serialized) - 7} bytes of the checksum"):
            ifrt.deserialize(client, serialized + b"\0")


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_wrong_bytes_with_a_right_checksum_are_an_error_or_an_object(client: ifrt.Client, data: st.DataObject) -> None:
    """Bytes that a hostile or mistaken writer made: pjrt's errors are raised, no other exception."""
    serialized = ifrt.serialize(data.draw(st.sampled_from(examples(client))))
    message = outer(serialized)
    inner = bytearray(message.data)
    for _ in range(data.draw(st.integers(1, 3))):
        if inner:
            inner[data.draw(st.integers(0, len(inner) - 1))] = data.draw(st.integers(0, 255))
    message.data = bytes(inner)
    try:
        again = ifrt.deserialize(client, seal(message.SerializeToString()))
    except pjrt.PjrtError:
        return
    assert ifrt.deserialize(client, ifrt.serialize(again)) == again


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=60))
@example(b"")
def test_arbitrary_bytes_are_an_error(client: ifrt.Client, content: bytes) -> None:
    with pytest.raises(pjrt.DataLossError, match=r"expected bytes from pjrt\.ifrt\.serialize"):
        ifrt.deserialize(client, content)
    with pytest.raises((pjrt.DataLossError, pjrt.InvalidArgumentError)):
        ifrt.deserialize(client, seal(content))


def test_other_types_and_versions_are_refused(client: ifrt.Client) -> None:
    spec = ArraySpec((8, 3), F32, ifrt.HloSharding(client.devices))
    message = outer(ifrt.serialize(spec))
    message.version = 2
    with pytest.raises(
        pjrt.InvalidArgumentError, match=r"ArraySpec in a format up to version 1, found version 2; read"
    ):
        ifrt.deserialize(client, seal(message.SerializeToString()))
    message.version, message.type_name = 1, "StringSharding"
    with pytest.raises(pjrt.InvalidArgumentError, match=r"one of the types DeviceList, .*, found .* 'StringSharding'"):
        ifrt.deserialize(client, seal(message.SerializeToString()))
    outside = outer(ifrt.serialize(spec))
    inside = serialization._parse("ArraySpec", outside.data)
    inside.sharding.type_name = "DeviceList"
    outside.data = inside.SerializeToString()
    with pytest.raises(pjrt.InvalidArgumentError, match=r"types SingleDeviceSharding, .* found .* 'DeviceList'"):
        ifrt.deserialize(client, seal(outside.SerializeToString()))
    inside.sharding.CopyFrom(outer(ifrt.serialize(spec.sharding)))
    inside.element_type = 99
    outside.data = inside.SerializeToString()
    with pytest.raises(pjrt.DataLossError, match=r"expected an element type .* found the number 99"):
        ifrt.deserialize(client, seal(outside.SerializeToString()))
    with pytest.raises(pjrt.InvalidArgumentError, match=r"types DeviceList, .*, found 5 of type int"):
        ifrt.serialize(5)  # type: ignore[arg-type]  # what a user may do
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected a pjrt\.ifrt\.Client"):
        ifrt.deserialize(client.pjrt_client, ifrt.serialize(spec))  # type: ignore[arg-type]  # what a user may do


def test_tiles_that_contradict_each_other_are_refused(client: ifrt.Client) -> None:
    message = outer(ifrt.serialize(ifrt.Mesh(client.devices, {"x": 8}).sharding("x")))
    inside = serialization._parse("HloSharding", message.data)
    inside.places[3].values[0] = 8
    message.data = inside.SerializeToString()
    with pytest.raises(pjrt.DataLossError, match=r"places of 8 partitions among \(8,\) tiles .*, found .*\(8,\)"):
        ifrt.deserialize(client, seal(message.SerializeToString()))


def test_devices_and_memories_that_the_reader_lacks_are_named(client: ifrt.Client) -> None:
    with pjrt.client(client.platform_name, num_devices=2) as small:
        reader = ifrt.Client(small)
        for value in examples(client)[:3]:
            with pytest.raises(pjrt.NotFoundError, match=r"id|device"):
                ifrt.deserialize(reader, ifrt.serialize(value))
        single = ifrt.SingleDeviceSharding(client.devices[1])
        assert ifrt.deserialize(reader, ifrt.serialize(single)).devices[0] is small.devices[1]
        message = outer(ifrt.serialize(single))
        inside = serialization._parse("SingleDeviceSharding", message.data)
        inside.placement.memory_kind = "tape"
        message.data = inside.SerializeToString()
        with pytest.raises(pjrt.NotFoundError, match="tape"):
            ifrt.deserialize(reader, seal(message.SerializeToString()))
