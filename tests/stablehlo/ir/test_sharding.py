"""Shardings from and to XLA's protos, and what they cut."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protobuf_fields import bytes_field, packed_field, varint_field

import pjrt
from pjrt import DataLossError
from pjrt.stablehlo.ir.sharding import REPLICATED, Sharding
from pjrt.stablehlo.ir.sharding_parser import parse_mesh, parse_sdy


@st.composite
def shardings(draw: st.DrawFn) -> Sharding:
    """Tiles in any order of the partitions, each held by one or more of them."""
    tiles = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    copies = draw(st.integers(1, 2))
    order = draw(st.permutations(range(math.prod(tiles) * copies)))
    return Sharding.of_grid(np.array(order).reshape(*tiles, copies), len(tiles))


@given(sharding=shardings(), data=st.data())
def test_what_is_cut_is_put_together_again(sharding: Sharding, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.integers(0, 7)) for _ in sharding.tiles)
    whole = np.arange(math.prod(shape)).reshape(shape)
    shards = [sharding.cut(whole, partition) for partition in range(len(sharding.places))]
    assert {shard.shape for shard in shards} == {sharding.shard_shape(shape)}
    np.testing.assert_array_equal(shards[0] if sharding.is_replicated else sharding.put_together(shards, shape), whole)


def test_a_sum_is_put_together_from_its_terms() -> None:
    # Two tiles, each the sum of two terms, each of those on two partitions.
    sharding = Sharding.of_grid(np.arange(8).reshape(2, 2, 2), 1, summed=[1])
    whole = np.arange(4.0)
    shards = [sharding.cut(whole, partition) for partition in range(8)]
    np.testing.assert_array_equal(sharding.put_together(shards, (4,)), whole)
    assert Sharding.from_proto(sharding.to_proto()) == sharding


@given(sharding=shardings())
def test_a_proto_says_the_same(sharding: Sharding) -> None:
    read = Sharding.from_proto(sharding.to_proto())
    assert read == (REPLICATED if sharding.is_replicated else sharding)


def test_a_grid_in_short_form() -> None:
    # devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate: two tiles, each on every other partition.
    proto = varint_field(1, 3) + varint_field(6, 1)
    for field, numbers in ((3, (2, 1, 4)), (9, (4, 2)), (10, (1, 0))):
        proto += packed_field(field, numbers)
    read = Sharding.from_proto(proto)
    assert (read.tiles, read.places) == ((2, 1), tuple((n % 2, 0) for n in range(8)))
    last = proto.replace(varint_field(6, 1), b"") + packed_field(8, (0,))
    assert Sharding.from_proto(last) == read


@pytest.mark.parametrize("kind", [1, 2, 4, 5, 6])
def test_other_kinds_are_refused(kind: int) -> None:
    devices = packed_field(4, (0,)) if kind == 1 else b""  # that of a value on one device
    with pytest.raises(pjrt.UnimplementedError, match=f"of kind {kind}"):
        Sharding.from_proto(varint_field(1, kind) + devices)


def test_those_of_xla_are_read() -> None:
    text = """
module attributes {mhlo.num_partitions = 4 : i32} {
  func.func public @main(%x: tensor<8x2xf32> {mhlo.sharding = "{devices=[2,2]<=[2,2]T(1,0)}"}) -> tensor<8x2xf32> {
    return %x : tensor<8x2xf32>
  }
}
"""
    with pjrt.client("cpu", num_devices=4) as cpu, pjrt.client("reference", num_devices=4) as reference:
        (of_xla,), (ours,) = (each.compile(text).parameter_shardings or () for each in (cpu, reference))
    assert Sharding.from_proto(of_xla) == Sharding.from_proto(ours)
    assert Sharding.from_proto(ours).places == tuple((b, a) for a, b in itertools.product(range(2), range(2)))


def proto_of(
    tiles: tuple[int, ...], iota: tuple[int, ...] = (), order: tuple[int, ...] = (), devices: Any = ()
) -> bytes:
    """Return a serialized ``xla.OpSharding`` of tiles."""
    fields = packed_field(3, tiles) + packed_field(4, devices) + packed_field(9, iota) + packed_field(10, order)
    return varint_field(1, 3) + fields


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (proto_of((4, 2)), r"a grid of \(4, 2\) tiles for partitions in a grid of \(0,\)"),
        (proto_of((4, 2), (4, 4)), "a grid of"),
        (proto_of((4, 2), (2, 4), (1, 5)), "axis 5"),
        (proto_of((4, 2), (2, 4), (1, 1)), "repeated axis"),
        (proto_of((4, 2), (2, 4), (1,)), "axes don't match"),
        (proto_of((1 << 31, 4), (1 << 33,)), "a grid of"),
        (proto_of((0, 2), (0, 2)), "a grid of"),
        (proto_of((4, 2), devices=range(7)), "a grid of"),
        (proto_of((4, 2), devices=(0, 1, 2, 3, 4, 5, 6, 6)), "expected each of 8 partitions once"),
        (proto_of((8,), (8,)) + packed_field(8, (0, 0)), "1 dimensions, 2 of which are no tiles"),
    ],
)
def test_a_corrupt_proto_is_an_error(proto: bytes, message: str) -> None:
    with pytest.raises(DataLossError, match=message):
        Sharding.from_proto(proto)


Part = tuple[int, int, int]
"""An axis of a mesh, and the part of it that is meant: how many places before it, and its size."""


def named_proto(
    sizes: list[int],
    dimensions: list[list[Part]],
    summed: list[Part] = [],  # noqa: B006 never changed
    *,
    devices: Any = (),
    transform: tuple[Any, Any] | None = None,
    more: bytes = b"",
) -> bytes:
    """Return a serialized ``xla.OpSharding`` that has a ``NamedShardingProto`` over the axes of a mesh."""

    def axis(part: Part) -> bytes:
        index, before, size = part
        whole = before == 1 and index < len(sizes) and size == sizes[index]
        return varint_field(1, index) + (
            b"" if whole else bytes_field(2, varint_field(1, before) + varint_field(2, size))
        )

    mesh = b"".join(
        bytes_field(1, bytes_field(1, b"abcd"[n : n + 1]) + varint_field(2, s)) for n, s in enumerate(sizes)
    )
    mesh += packed_field(2, devices)
    if transform is not None:
        mesh += bytes_field(3, packed_field(1, transform[0]) + packed_field(2, transform[1]))
    named = bytes_field(2, mesh)
    named += b"".join(bytes_field(3, b"".join(bytes_field(1, axis(part)) for part in parts)) for parts in dimensions)
    named += b"".join(bytes_field(5, axis(part)) for part in summed)
    return bytes_field(14, named + more)


@given(data=st.data())
def test_a_named_sharding_says_what_shardy_writes(data: st.DataObject) -> None:
    """Of a mesh of three axes, whole or in two parts, each part cuts a dimension, makes terms, or repeats."""
    sizes = [data.draw(st.sampled_from([1, 2, 4, 6])) for _ in range(3)]
    parts: list[Part] = []
    for index, size in enumerate(sizes):
        first = data.draw(st.sampled_from([f for f in range(1, size + 1) if size % f == 0]))
        parts += [(index, 1, first), (index, first, size // first)] if 1 < first < size else [(index, 1, size)]
    dimensions: list[list[Part]] = [[], []]
    summed: list[Part] = []
    for part in data.draw(st.permutations(parts)):
        data.draw(st.sampled_from([*dimensions, summed, []])).append(part)
    devices = data.draw(st.permutations(range(math.prod(sizes))))

    def text(axes: list[Part]) -> str:
        return "{" + ", ".join(f'"{"abc"[n]}":({before}){size}' for n, before, size in axes) + "}"

    mesh = "<[" + ", ".join(f'"{"abc"[n]}"={size}' for n, size in enumerate(sizes)) + f"], device_ids={list(devices)}>"
    written = f"<@mesh, [{', '.join(map(text, dimensions))}], unreduced={text(summed)}>"
    (expected,) = parse_sdy(written, lambda _: parse_mesh(mesh))
    read = Sharding.from_proto(named_proto(sizes, dimensions, summed, devices=devices))
    assert read == (REPLICATED if expected.is_replicated else expected)


def test_a_mesh_may_be_a_transposed_range() -> None:
    # The partitions 0 to 5 in a grid of 2 × 3, transposed: 0, 3, 1, 4, 2, 5 in a mesh of 3 × 2.
    proto = named_proto([3, 2], [[(0, 1, 3)], [(1, 1, 2)]], transform=((2, 3), (1, 0)))
    assert Sharding.from_proto(proto).places == ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1))


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (named_proto([4, 0], []), "a mesh of"),
        (named_proto([1 << 20, 4], []), "a mesh of"),
        (named_proto([4], [], devices=(0, 1, 2)), "expected each of 4 partitions once"),
        (named_proto([4], [], devices=(0, 1, 2, 2)), "expected each of 4 partitions once"),
        (named_proto([4], [], transform=((2, 3), (1, 0))), "from a grid of"),
        (named_proto([4], [], transform=((2, 2), (1, 1))), "repeated axis"),
        (named_proto([4], [[(1, 1, 4)]]), "axis 1 of a mesh of 1 axes"),
        (named_proto([4], [[(0, 2, 4)]]), "a part of 4 after 2 of an axis of 4"),
        (named_proto([4], [[(0, 0, 2)]]), "a part of 2 after 0"),
    ],
)
def test_a_corrupt_named_sharding_is_an_error(proto: bytes, message: str) -> None:
    with pytest.raises(DataLossError, match=message):
        Sharding.from_proto(proto)


@pytest.mark.parametrize(
    "more", [bytes_field(7, varint_field(1, 0)), varint_field(8, 1)], ids=["manual axes", "a maximum"]
)
def test_named_shardings_of_other_kinds_are_refused(more: bytes) -> None:
    with pytest.raises(pjrt.UnimplementedError, match="replicates or tiles"):
        Sharding.from_proto(named_proto([2], [], more=more))
