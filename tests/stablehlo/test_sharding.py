"""Shardings from and to XLA's protos, and what they cut."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protobuf_fields import packed_field, varint_field

import pjrt
from pjrt import DataLossError
from pjrt.stablehlo.shardings.sharding import REPLICATED, Sharding


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
    with pytest.raises(pjrt.UnimplementedError, match=f"of kind {kind}"):
        Sharding.from_proto(varint_field(1, kind))


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
