"""Shardings over the axes of a mesh, XLA's third kind, against XLA's own objects."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import pjrt
from pjrt.stablehlo.encodings import hlo_proto, jaxlib
from pjrt.stablehlo.ir.sharding import REPLICATED, Axis, Mesh, MeshSharding, Sharding
from pjrt.stablehlo.ir.sharding_parser import parse_gspmd, parse_mesh_sharding, parse_shardy
from pjrt.stablehlo.transforms.partitioner import as_tiles

XLA = """
import json, sys
from jaxlib import _hlo, version
for line in sys.stdin:
    sharding = _hlo.HloSharding.from_string(json.loads(line))
    tiles = _hlo.HloSharding.v3_to_v2_sharding(sharding)
    protos = [each.to_proto().SerializeToString().hex() for each in (sharding, tiles)]
    print(json.dumps([str(sharding), *protos]), flush=True)
"""
Ask = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def xla() -> Iterator[Ask]:
    """XLA in a process of its own, which ends over shardings that contradict themselves.

    For a text it returns how XLA spells the sharding, its proto, and the proto of the same in tiles.
    """
    if jaxlib.version() < (0, 10):
        pytest.skip("this XLA does not give tiles for such shardings")
    process = subprocess.Popen([sys.executable, "-c", XLA], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(text: str) -> list[str]:
        process.stdin.write(json.dumps(text) + "\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        answer: list[str] = json.loads(process.stdout.readline())  # type: ignore[union-attr]
        return answer

    with process:
        yield ask
        process.stdin.close()


REDUCTIONS = ["sum", "max", "min"] if jaxlib.version() >= (0, 12) else ["sum"]


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    """One to three axes, over devices in their order, in a transposed one, or in any."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), min_size=1, max_size=3))
    axes = dict(zip(draw(st.permutations(["x", "y", "model axis"])), sizes, strict=False))
    count = math.prod(sizes)
    order = draw(st.sampled_from(["plain", "grid", "any"]))
    if order == "grid":
        return Mesh.of(axes, (), tuple(reversed(sizes)), tuple(draw(st.permutations(range(len(sizes))))))
    return Mesh(axes, tuple(draw(st.permutations(range(count))) if order == "any" else range(count)))


@st.composite
def shardings(draw: st.DrawFn) -> MeshSharding:
    """Each axis, or each of two parts of it, cuts a dimension, is one of the other kinds, or is left out."""
    mesh, uses = draw(meshes()), [[] for _ in range(6)]  # type: ignore[var-annotated]
    parts: list[Axis] = []
    for name, size in mesh.axes.items():
        first = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
        parts += [Axis(name, 1, first), Axis(name, first, size // first)] if 1 < first < size else [Axis(name)]
    for part in draw(st.permutations(parts)):
        draw(st.sampled_from([*uses, []])).append(part)
    names = list(mesh.axes)
    for use in uses[3:]:
        use.sort(key=lambda axis: (names.index(axis.name), axis.before))
    *dimensions, replicated, unreduced, manual = map(tuple, uses)
    sharding = MeshSharding(
        mesh,
        tuple(dimensions),
        frozenset(draw(st.sets(st.integers(0, 2)))),
        replicated,
        unreduced,
        draw(st.sampled_from(REDUCTIONS)) if unreduced else "sum",
        manual,
    )
    assume(is_spelled_so(sharding))
    return sharding


def is_spelled_so(sharding: MeshSharding) -> bool:
    """Whether no two parts of an axis are one: XLA spells them as one."""
    try:
        sharding.check_spelling()
    except ValueError:
        return False
    return True


def proto_of(serialized: str) -> Any:
    return hlo_proto.parse_message("OpSharding", bytes.fromhex(serialized))


@settings(deadline=None, max_examples=300)
@given(sharding=shardings())
def test_what_is_written_is_read_again(sharding: MeshSharding) -> None:
    assert parse_mesh_sharding(str(sharding)) == sharding
    assert parse_mesh_sharding(str(sharding).replace(",", " , ").replace("[", "[ ")) == sharding


@pytest.mark.full
@settings(deadline=None, max_examples=300)
@given(sharding=shardings())
def test_it_means_what_xla_says(xla: Ask, sharding: MeshSharding) -> None:
    """XLA reads what we write, we read what XLA writes, and both have the same tiles."""
    spelled, over_mesh, in_tiles = xla(str(sharding))
    assert parse_mesh_sharding(spelled) == sharding
    assert MeshSharding.of_proto(proto_of(over_mesh).named_sharding) == sharding
    assert as_tiles(bytes.fromhex(over_mesh)).hex() == in_tiles
    assert as_tiles(bytes.fromhex(in_tiles)).hex() == in_tiles
    rank, count = len(sharding.dimensions), len(sharding.mesh.devices)
    if sharding.manual:
        if math.prod(map(sharding.mesh.size_of, sharding.manual)) > 1:
            for each in (over_mesh, in_tiles):
                with pytest.raises(pjrt.UnimplementedError, match="expected a sharding that replicates or tiles"):
                    Sharding.from_proto(bytes.fromhex(each), count)
        return
    ours = Sharding.from_proto(bytes.fromhex(over_mesh))
    theirs = Sharding.from_proto(bytes.fromhex(in_tiles), count)
    assert ours.of_rank(rank) == theirs.of_rank(rank)
    tiles = parse_gspmd(spelled, rank)
    assert (REPLICATED if tiles.is_replicated else tiles) == ours.of_rank(rank)
    assert Sharding.from_proto(ours.to_proto(), count).of_rank(rank) == ours.of_rank(rank)


@settings(deadline=None, max_examples=100)
@given(sharding=shardings())
def test_shardy_spells_the_same(sharding: MeshSharding) -> None:
    def axes(of: tuple[Axis, ...], *more: str) -> str:
        return "{" + ", ".join([*(str(axis).replace("'", '"') for axis in of), *more]) + "}"

    cuts = ", ".join(axes(cut, *["?"] * (n in sharding.open)) for n, cut in enumerate(sharding.dimensions))
    more = f", replicated={axes(sharding.replicated)}" if sharding.replicated else ""
    kind = "" if sharding.reduction == "sum" else sharding.reduction
    more += f", unreduced={kind}{axes(sharding.unreduced)}" if sharding.unreduced else ""
    (read,) = parse_shardy(f"#sdy.sharding<@mesh, [{cuts}]{more}>", lambda _: sharding.mesh)
    assert read == MeshSharding(
        sharding.mesh, sharding.dimensions, sharding.open, sharding.replicated, sharding.unreduced, sharding.reduction
    )


MESH = Mesh({"x": 4, "y": 2}, tuple(range(8)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{mesh[], replicated}", MeshSharding(Mesh({}, (0,)))),
        ("{mesh['x'=4,'y'=2], replicated}", MeshSharding(MESH)),
        ("{mesh['x'=4,'y'=2], []}", MeshSharding(MESH)),
        ("{mesh['x'=4,'y'=2], manual}", MeshSharding(MESH, manual=(Axis("x"), Axis("y")))),
        ("{mesh['x'=4,'y'=2], unreduced}", MeshSharding(MESH, unreduced=(Axis("x"), Axis("y")))),
        (
            "{mesh['x'=4,'y'=2], unreduced=max}",
            MeshSharding(MESH, unreduced=(Axis("x"), Axis("y")), reduction="max"),
        ),
        ("{mesh['x'=4,'y'=2], [], unreduced={'y'}}", MeshSharding(MESH, unreduced=(Axis("y"),))),
        ("{single_device[device_id=3]}", MeshSharding(Mesh({}, (3,)), device=3)),
        ("{maximal_mesh[device_id=3]}", MeshSharding(Mesh({}, (3,)), device=3)),
        (
            "{mesh['x'=4,'y'=2], [{'x', ?}, {?}], metadata={op_name=\"a}'\"}}",
            MeshSharding(MESH, ((Axis("x"),), ()), frozenset((0, 1))),
        ),
        (
            "{mesh['x'=4,'y'=2], [{'x'}], metadata={{op_name=\"a\"}, {op_name=\"b\" source_line=3}}}",
            MeshSharding(MESH, ((Axis("x"),),)),
        ),
    ],
)
def test_forms_of_their_own(text: str, expected: MeshSharding) -> None:
    assert parse_mesh_sharding(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "{mesh['x'=4,'y'=2], [{'x'}, {'x'}]}",
        "{mesh['x'=4,'y'=2], [{'x'}], manual={'x'}}",
        "{mesh['x'=4,'y'=2], [{'x'}], replicated={'y'}, unreduced={'y'}}",
        "{mesh['x'=4,'y'=2], [{'z'}, {}]}",
        "{mesh['x'=4,'x'=2], [{'x'}, {}]}",
        "{mesh['x'=4], device_ids=(0,1,2), [{'x'}]}",
        "{mesh['x'=4], device_ids=(0,1,2,2), [{'x'}]}",
        "{mesh['x'=4], device_ids=(4,5,6,7), [{'x'}]}",
        "{mesh['x'=4], device_ids=(0,1,2,3), [{'x'}]}",
        "{mesh['x'=4], device_ids=([2,3]T(1,0)), [{'x'}]}",
        "{mesh['x'=4], [{'x':(1)4}]}",
        "{mesh['x'=4,'y'=2], [], replicated={'y', 'x'}}",
        "{mesh['x'=4], [{'x':(3)2}]}",
        "{mesh['x'=4], [{'x':(1)2, 'x':(2)2}]}",
        "{mesh['x'=6], [{'x':(1)2}, {'x':(3)2}]}",
        "{mesh['x'=0], [{'x'}]}",
        "{mesh['x'=1048576,'y'=1048576], [{'x'}]}",
    ],
)
def test_numbers_that_contradict_each_other_are_an_error(text: str) -> None:
    """XLA ends the process over most of them."""
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected a sharding such as .*, found \{mesh\['x'=.*\}: "):
        parse_mesh_sharding(text)


@pytest.mark.parametrize(
    "text",
    [
        "{mesh['x'=4], [{'x'}], extra={}}",
        "{mesh['x'=4], [{'x'}], unreduced=prod{'x'}}",
        "{mesh['x'=4], [{'x'}], replicated=max{}}",
        "{mesh['x'=4], [{'x'}], unreduced={}, unreduced={}}",
        "{mesh['x'=4], [{'x'}]",
        "{mesh['x'=4], [{'x'}]} more",
        "{mesh['x'=4] [{'x'}]}",
        "{mesh[x=4], [{x}]}",
        "{mesh['x'=4]}",
        "{single_device[3]}",
        "{mesh['x'=4], [{'x'}], metadata={",
    ],
)
def test_what_is_written_otherwise_is_an_error_with_the_text(text: str) -> None:
    with pytest.raises(pjrt.UnimplementedError, match=r"expected a sharding such as .*, found") as caught:
        parse_mesh_sharding(text)
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{mesh['x'=4], [{'x'}]}", "1 dimensions of a value that has 2"),
        ("{devices=[2,2,2]<=[8]}", "in tiles of 2 dimensions"),
        ("{devices=[2,2]0,1,2,2}", "expected each of 4 partitions once"),
        ("{devices=[2,2]<=[2,2]T(1,1)}", "repeated axis"),
        (
            '{devices=[1,1,4]<=[4] last_tile_dims={unreduced} metadata={op_type="sdy::reduction_op" op_name="MUL"}}',
            "a reduction by mul",
        ),
    ],
)
def test_the_rank_and_the_tiles_fit(text: str, message: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        parse_gspmd(text, 2)


@pytest.mark.parametrize("more", ["", " shard_as 3", " shard_like 7", ' metadata={op_name="a" source_line=2}',
                                  ' shard_as 1 metadata={{op_name="a"}, {op_name="}"}}'])  # fmt: skip
def test_notes_of_tiles_change_nothing(more: str) -> None:
    assert parse_gspmd("{devices=[2,2]<=[4]" + more + "}", 2) == parse_gspmd("{devices=[2,2]<=[4]}", 2)
    assert parse_gspmd("{replicated" + more + "}", 2) == REPLICATED
    with pytest.raises(pjrt.UnimplementedError, match=r"spiral"):
        parse_gspmd("{devices=[2,2]<=[4] spiral" + more + "}", 2)


def test_a_message_in_place_of_a_text() -> None:
    """JAX states shardings over more than 100 devices so, if they are in no order."""
    tiles = parse_gspmd(f"{{devices=[67,2]{','.join(map(str, range(133, -1, -1)))}}}", 2)
    assert parse_gspmd(tiles.to_proto(), 2) == tiles
    pair = Sharding((2,), ((1,), (0,)))
    assert parse_gspmd(pair.to_proto().decode(), 2) == pair.of_rank(2)
    with pytest.raises(pjrt.DataLossError, match="corrupt sharding: a grid"):
        parse_gspmd("\x08\x03", 1)


def test_a_maximum_is_no_sum() -> None:
    """In Shardy's spelling, in XLA's two, and in both protos."""
    noted = ' metadata={op_type="sdy::reduction_op" op_name="MAX"}'
    tiles = parse_gspmd("{devices=[1,1,4,2]<=[8] last_tile_dims={unreduced, replicated}" + noted + "}", 2)
    (of_shardy,) = parse_shardy('#sdy.sharding<@mesh, [{}, {}], unreduced=max{"x"}>', lambda _: MESH)
    assert tiles == Sharding.of_axes(of_shardy) == parse_gspmd("{mesh['x'=4,'y'=2], [{}, {}], unreduced=max{'x'}}", 2)
    assert tiles.reduction == "max"
    assert Sharding.from_proto(tiles.to_proto()) == tiles
    assert tiles != parse_gspmd("{devices=[1,1,4,2]<=[8] last_tile_dims={unreduced, replicated}}", 2)
