"""Stated shardings: what a program says about the parts of its arguments, human-readable."""

from __future__ import annotations

import pytest

from pjrt.stablehlo.ir.sharding_parser import StatedSharding, parse_mesh

MESHES = {"mesh": parse_mesh('#sdy.mesh<["data"=4, "model"=2]>')}


@pytest.mark.parametrize(
    ("text", "spelled", "shard"),
    [
        ('#sdy.sharding<@mesh, [{"data"}, {"model"}]>', "data, model", [2, 8]),
        ('#sdy.sharding<@mesh, [{"data", "model"}, {}]>', "data+model, -", [1, 16]),
        ('#sdy.sharding<@mesh, [{}, {"data":(1)2}]>', "-, data:(1)2", [8, 8]),
        ('#sdy.sharding<@mesh, [{?}, {"model", ?}]>', "-, model", [8, 8]),
        ("#sdy.sharding<@mesh, [{}, {}]>", "replicated", [8, 16]),
        ("{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "2 × 1 parts, 4 copies", [4, 16]),
        ("{devices=[2,4]<=[8]}", "2 × 4 parts", [4, 4]),
        ("{replicated}", "replicated", [8, 16]),
    ],
)
def test_axes_and_parts(text: str, spelled: str, shard: list[int]) -> None:
    sharding = StatedSharding.of(text, 2, MESHES)
    assert str(sharding) == spelled
    assert list(sharding.shard_shape((8, 16))) == shard
    assert sharding.is_even((8, 16))


@pytest.mark.parametrize(
    "text",
    ['#sdy.sharding<@other, [{"data"}, {}]>', '#sdy.sharding<@mesh, [{"z"}, {}]>', "{devices=[2,3]<=[8]}", "odd"],
)
def test_what_cannot_be_read_is_shown_as_it_is(text: str) -> None:
    sharding = StatedSharding.of(text, 2, MESHES)
    assert sharding.tiling is None
    assert str(sharding) == text
    assert sharding.shard_shape((8, 16)) == (8, 16)


def test_symbolic_sizes_are_divided() -> None:
    sharding = StatedSharding.of('#sdy.sharding<@mesh, [{"data"}, {}, {"model"}]>', 3, MESHES)
    assert sharding.shard_shape(("b", "s", "2*b + 1")) == ("b/4", "s", "(2*b + 1)/2")
    assert sharding.shard_shape((None, 3, 5)) == ("?/4", 3, 3)
    assert not sharding.is_even((4, 3, 5))
