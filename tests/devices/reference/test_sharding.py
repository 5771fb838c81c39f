"""Shardings: how they are read, and programs that nobody partitioned, on eight devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import ifrt
from pjrt.stablehlo.ir.sharding import Sharding
from pjrt.stablehlo.ir.sharding_parser import Mesh, parse_gspmd, parse_mesh, parse_sdy

X = np.arange(32, dtype=np.float32).reshape(8, 4)
Y = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize("text", ["{replicated}", "{manual}", "{maximal device=3}", ""])
def test_gspmd_without_tiles(text: str) -> None:
    sharding = parse_gspmd(text, 2)
    assert sharding.is_replicated
    assert sharding.shard_shape((3, 5)) == (3, 5)
    assert sharding.cut(X, 1) is X


@pytest.mark.parametrize(
    ("text", "tiles", "places"),
    [
        ("{devices=[2,2]<=[4]}", (2, 2), ((0, 0), (0, 1), (1, 0), (1, 1))),
        ("{devices=[2,2]0,2,1,3}", (2, 2), ((0, 0), (1, 0), (0, 1), (1, 1))),
        ("{devices=[2,2]<=[2,2]T(1,0)}", (2, 2), ((0, 0), (1, 0), (0, 1), (1, 1))),
        ("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", (2, 1), ((0, 0), (0, 0), (1, 0), (1, 0))),
        ("{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}", (2, 1), ((0, 0), (1, 0), (0, 0), (1, 0))),
        ("{devices=[1,2,2]<=[4] last_tile_dims={manual}}", (1, 2), ((0, 0), (0, 0), (0, 1), (0, 1))),
    ],
)
def test_gspmd_with_tiles(text: str, tiles: Any, places: Any) -> None:
    assert parse_gspmd(text, 2) == Sharding(tiles, places)


def test_gspmd_that_is_not_known() -> None:
    with pytest.raises(pjrt.UnimplementedError, match=r"expected a sharding such as .*found \{spiral\}"):
        parse_gspmd("{spiral}", 1)


def test_meshes() -> None:
    assert parse_mesh('#sdy.mesh<["x"=2, "y"=3]>') == Mesh({"x": 2, "y": 3}, (0, 1, 2, 3, 4, 5))
    turned = parse_mesh('#sdy.mesh<["x"=2], device_ids=[1, 0]>')
    assert turned.coordinates() == [{"x": 1}, {"x": 0}]


MESH = Mesh({"x": 2, "y": 4}, tuple(range(8)))


@pytest.mark.parametrize(
    ("dims", "tiles", "third"),
    [
        ('{"x"}, {}', (2, 1), (0, 0)),
        ('{"y"}, {"x"}', (4, 2), (3, 0)),
        ('{"x", "y"}, {}', (8, 1), (3, 0)),
        ('{"y", "x"}, {?}', (8, 1), (6, 0)),
        ('{"y":(1)2}, {"y":(2)2, ?}', (2, 2), (1, 1)),
        ('{}, {"y":(2)2}p1', (1, 2), (0, 1)),
    ],
)
def test_shardy(dims: str, tiles: Any, third: Any) -> None:
    """Device 3 is at x = 0, y = 3."""
    (sharding,) = parse_sdy(f"#sdy.sharding<@mesh, [{dims}], replicated={{}}>", lambda name: MESH)
    assert sharding.tiles == tiles
    assert sharding.places[3] == third


def test_shardy_by_some_axes_only() -> None:
    text = '#sdy.sharding_per_value<[<@m, [{"x", "y"}]>, <@m, [{"y"}]>]>'
    assert [s.tiles for s in parse_sdy(text, lambda name: MESH, {"x"})] == [(2,), (1,)]
    with pytest.raises(pjrt.InvalidArgumentError, match="expected a sharding of Shardy"):
        parse_sdy("#sdy.nothing", lambda name: MESH)


def test_shardy_with_the_mesh_written_out() -> None:
    (sharding,) = parse_sdy('#sdy.sharding<mesh<["z"=2]>, [{"z"}]>', lambda name: MESH)
    assert sharding == Sharding((2,), ((0,), (1,)))


@pytest.mark.parametrize("shape", [(8, 4), (7, 3), (3, 1)])
@pytest.mark.parametrize("text", ["{devices=[4,2]<=[8]}", "{devices=[2,2,2]<=[2,4]T(1,0) last_tile_dim_replicate}"])
def test_cut_and_put_together(shape: Any, text: str) -> None:
    value = np.arange(np.prod(shape)).reshape(shape)
    sharding = parse_gspmd(text, 2)
    shards = [sharding.cut(value, device) for device in range(8)]
    assert {shard.shape for shard in shards} == {sharding.shard_shape(shape)}
    assert np.array_equal(sharding.put_together(shards, shape), value)


@pytest.mark.parametrize(
    ("text", "tiles", "terms"),
    [
        ('[{}, {}], unreduced={"x"}', (1, 1), (0, 0, 0, 0, 1, 1, 1, 1)),
        ('[{"x"}, {}], replicated={}, unreduced={"y"}', (2, 1), (0, 1, 2, 3) * 2),
        ('[{}, {"y":(1)2}], unreduced={"y":(2)2}', (1, 2), (0, 1) * 4),
    ],
)
def test_terms_of_a_sum(text: str, tiles: Any, terms: Any) -> None:
    (sharding,) = parse_sdy(f"#sdy.sharding<@mesh, {text}>", lambda name: MESH)
    assert (sharding.tiles, sharding.terms) == (tiles, terms)
    assert not sharding.is_replicated
    value = np.arange(32.0).reshape(8, 4)
    assert np.array_equal(sharding.put_together([sharding.cut(value, d) for d in range(8)], (8, 4)), value)
    ones = [np.ones(sharding.shard_shape((8, 4)), np.float32)] * 8
    assert np.array_equal(sharding.put_together(ones, (8, 4)), np.full((8, 4), max(terms) + 1))


def test_terms_of_a_sum_by_gspmd() -> None:
    text = "{devices=[1,1,2,4]<=[8] last_tile_dims={unreduced, replicated}}"
    assert parse_gspmd(text, 2) == parse_sdy('<@mesh, [{}, {}], unreduced={"x"}>', lambda name: MESH)[0]
    with pytest.raises(pjrt.UnimplementedError, match=r"found \{unreduced\}"):
        parse_gspmd("{unreduced}", 2)


def test_as_a_proto() -> None:
    """The bytes that XLA writes, by its own definition of ``OpSharding``."""
    assert Sharding().to_proto() == bytes.fromhex("0800")
    tiled = parse_gspmd("{devices=[2,2]0,2,1,3}", 2).to_proto()
    assert tiled == bytes([0x08, 3, 0x1A, 2, 2, 2, 0x22, 4, 0, 2, 1, 3])
    copied = parse_gspmd("{devices=[2,1,2]<=[4] last_tile_dim_replicate}", 2).to_proto()
    assert copied == bytes([0x08, 3, 0x1A, 3, 2, 1, 2, 0x22, 4, 0, 1, 2, 3, 0x30, 1])
    assert Sharding((1, 1), ((0, 0), (0, 0)), (0, 1)).to_proto() == bytes.fromhex("0806")
    summed = parse_gspmd("{devices=[1,1,2,2]<=[2,2]T(1,0) last_tile_dims={unreduced, replicated}}", 2).to_proto()
    assert summed == bytes([0x08, 3, 0x1A, 4, 1, 1, 2, 2, 0x22, 4, 0, 2, 1, 3, 0x42, 2, 6, 0])
    whole = parse_gspmd("{devices=[2,1,2]<=[4] last_tile_dims={unreduced}}", 2).to_proto()
    assert whole == bytes([0x08, 3, 0x1A, 3, 2, 1, 2, 0x22, 4, 0, 1, 2, 3, 0x42, 1, 6])


@pytest.fixture(scope="module")
def client() -> Any:
    with pjrt.client("reference", num_devices=8, collective_timeout=100.0) as made:
        yield made


def launch(client: Any, text: str, shards: list[list[Any]]) -> list[list[Any]]:
    """The shards of all results on each device, from those of all arguments."""
    exe = client.compile(text, pjrt.CompileOptions(num_partitions=8))
    rows = [
        [client.buffer_from_host(value, device=device) for value in values]
        for values, device in zip(shards, client.devices, strict=True)
    ]
    return [[np.asarray(out) for out in row] for row in exe.execute(rows)]


def launch_whole(client: Any, text: str, values: list[Any]) -> tuple[list[Any], list[Sharding]]:
    """The whole results from whole arguments, and the results' shardings."""
    results = ifrt.Client(client).compile(text, pjrt.CompileOptions(num_partitions=8))(*values)
    return [np.asarray(result) for result in results], [result.sharding.tiling for result in results]


def test_shardings_that_are_stated_as_messages(client: Any) -> None:
    message = "".join(f"\\{byte:02X}" for byte in parse_gspmd("{devices=[8]7,6,5,4,3,2,1,0}", 1).to_proto())
    text = f"""module attributes {{mhlo.num_partitions = 8 : i32}} {{
      func.func @main(%x: tensor<8xf32> {{mhlo.sharding = "{message}"}}) -> tensor<8xf32> {{
        %0 = stablehlo.negate %x : tensor<8xf32>
        %1 = stablehlo.custom_call @Sharding(%0) {{mhlo.sharding = "{message}"}} : (tensor<8xf32>) -> tensor<8xf32>
        return %1 : tensor<8xf32> }} }}"""
    (result,), _ = launch_whole(client, text, [np.arange(8, dtype=np.float32)])
    assert result.tolist() == [-i for i in range(8)]


GSPMD_X, GSPMD_Y = "{devices=[4,2]<=[8]}", "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}"
ROWS = "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"
BODY = """
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
    : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  %1 = stablehlo.tanh %0 : tensor<8x6xf32>"""
BY_GSPMD = f"""
func.func @main(%x: tensor<8x4xf32> {{mhlo.sharding = "{GSPMD_X}"}},
                %y: tensor<4x6xf32> {{mhlo.sharding = "{GSPMD_Y}"}})
    -> (tensor<8x6xf32> {{mhlo.sharding = "{ROWS}"}}, tensor<8x6xf32>) {{{BODY}
  return %0, %1 : tensor<8x6xf32>, tensor<8x6xf32>
}}"""
BY_SHARDY = f"""
sdy.mesh @mesh = <["a"=4, "b"=2]>
func.func @main(%x: tensor<8x4xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"a"}}, {{"b"}}]>}},
                %y: tensor<4x6xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"b"}}, {{}}]>}})
    -> (tensor<8x6xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"a"}}, {{}}]>}}, tensor<8x6xf32>) {{{BODY}
  %2 = sdy.sharding_constraint %0 <@mesh, [{{"a"}}, {{"b"}}]> : tensor<8x6xf32>
  return %2, %1 : tensor<8x6xf32>, tensor<8x6xf32>
}}"""


def arguments() -> list[list[Any]]:
    x, y = parse_gspmd(GSPMD_X, 2), parse_gspmd(GSPMD_Y, 2)
    return [[x.cut(X, d), y.cut(Y, d)] for d in range(8)]


@pytest.mark.parametrize("text", [BY_GSPMD, BY_SHARDY], ids=["gspmd", "shardy"])
def test_a_program_with_shardings(client: Any, text: str) -> None:
    """Each device gives its part of the first result as the program states it, and of the second as XLA chooses."""
    rows = launch(client, text, arguments())
    for device, (product, _) in enumerate(rows):
        assert np.array_equal(product, parse_gspmd(ROWS, 2).cut(X @ Y, device))
    (product, squashed), shardings = launch_whole(client, text, [X, Y])
    assert shardings[0] == parse_gspmd(ROWS, 2)
    assert np.array_equal(product, X @ Y)
    assert np.allclose(squashed, np.tanh(X @ Y), rtol=1e-6)


@pytest.mark.parametrize("text", [BY_GSPMD, BY_SHARDY], ids=["gspmd", "shardy"])
def test_an_executable_has_the_shardings_that_xla_has(client: Any, text: str) -> None:
    options = pjrt.CompileOptions(num_partitions=8)
    exe = client.compile(text, options)
    with pjrt.client("cpu", num_devices=8) as cpu:
        judge = cpu.compile(text, options)
        assert list(exe.parameter_shardings) == list(judge.parameter_shardings)
        assert list(exe.output_shardings) == list(judge.output_shardings)
        assert list(exe.output_shapes) == list(judge.output_shapes)


ADD = """({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
  })"""
PAIRS = """{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids,
    replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>}"""
MANUAL_SHARDY = f"""
sdy.mesh @mesh = <["a"=4, "b"=2]>
func.func @main(%x: tensor<8x4xf32>, %y: tensor<4x6xf32>) -> tensor<8x6xf32> {{
  %0 = sdy.manual_computation(%x, %y) in_shardings=[<@mesh, [{{"a"}}, {{"b"}}]>, <@mesh, [{{"b"}}, {{}}]>]
      out_shardings=[<@mesh, [{{"a"}}, {{}}]>] manual_axes={{"a", "b"}} (%u: tensor<2x2xf32>, %v: tensor<2x6xf32>) {{
    %1 = stablehlo.dot_general %u, %v, contracting_dims = [1] x [0]
      : (tensor<2x2xf32>, tensor<2x6xf32>) -> tensor<2x6xf32>
    %2 = "stablehlo.all_reduce"(%1) {ADD} {PAIRS} : (tensor<2x6xf32>) -> tensor<2x6xf32>
    sdy.return %2 : tensor<2x6xf32>
  }} : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  return %0 : tensor<8x6xf32>
}}"""
MANUAL_GSPMD = f"""
func.func @main(%x: tensor<8x4xf32>, %y: tensor<4x6xf32>) -> tensor<8x6xf32> {{
  %0 = stablehlo.custom_call @Sharding(%x) {{mhlo.sharding = "{GSPMD_X}"}} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %u = stablehlo.custom_call @SPMDFullToShardShape(%0) {{mhlo.sharding = "{{manual}}"}}
    : (tensor<8x4xf32>) -> tensor<2x2xf32>
  %1 = stablehlo.custom_call @Sharding(%y) {{mhlo.sharding = "{GSPMD_Y}"}} : (tensor<4x6xf32>) -> tensor<4x6xf32>
  %v = stablehlo.custom_call @SPMDFullToShardShape(%1) {{mhlo.sharding = "{{manual}}"}}
    : (tensor<4x6xf32>) -> tensor<2x6xf32>
  %2 = stablehlo.dot_general %u, %v, contracting_dims = [1] x [0]
    : (tensor<2x2xf32>, tensor<2x6xf32>) -> tensor<2x6xf32>
  %3 = "stablehlo.all_reduce"(%2) {ADD} {PAIRS} : (tensor<2x6xf32>) -> tensor<2x6xf32>
  %4 = stablehlo.custom_call @Sharding(%3) {{mhlo.sharding = "{{manual}}"}} : (tensor<2x6xf32>) -> tensor<2x6xf32>
  %5 = stablehlo.custom_call @SPMDShardToFullShape(%4) {{mhlo.sharding = "{ROWS}"}}
    : (tensor<2x6xf32>) -> tensor<8x6xf32>
  return %5 : tensor<8x6xf32>
}}"""


@pytest.mark.parametrize("text", [MANUAL_SHARDY, MANUAL_GSPMD], ids=["shardy", "gspmd"])
def test_parts_that_are_written_for_one_shard(client: Any, text: str) -> None:
    (product,), (sharding,) = launch_whole(client, text, [X, Y])
    assert sharding == parse_gspmd(ROWS, 2)
    assert np.array_equal(product, X @ Y)


BORDER_AT_ARGUMENT = f"""
func.func @main(%x: tensor<8x4xf32> {{mhlo.sharding = "{GSPMD_X}"}})
    -> (tensor<8x4xf32> {{mhlo.sharding = "{GSPMD_X}"}}) {{
  %0 = stablehlo.custom_call @SPMDFullToShardShape(%x) {{mhlo.sharding = "{{manual}}"}}
    : (tensor<8x4xf32>) -> tensor<2x2xf32>
  %1 = stablehlo.tanh %0 : tensor<2x2xf32>
  %2 = stablehlo.custom_call @SPMDShardToFullShape(%1) {{mhlo.sharding = "{GSPMD_X}"}}
    : (tensor<2x2xf32>) -> tensor<8x4xf32>
  return %2 : tensor<8x4xf32>
}}"""


def test_a_border_at_an_argument(client: Any) -> None:
    """The argument's own sharding is the one that it is cut by."""
    sharding = parse_gspmd(GSPMD_X, 2)
    rows = launch(client, BORDER_AT_ARGUMENT, [[sharding.cut(X, device)] for device in range(8)])
    for device, (shard,) in enumerate(rows):
        np.testing.assert_allclose(shard, np.tanh(sharding.cut(X, device)), rtol=1e-6)


def test_a_border_without_a_sharding_is_refused(client: Any) -> None:
    text = BORDER_AT_ARGUMENT.replace(f'%x: tensor<8x4xf32> {{mhlo.sharding = "{GSPMD_X}"}}', "%x: tensor<8x4xf32>")
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected a sharding \(mhlo.sharding\) that cuts \[8, 4\]"):
        client.compile(text, pjrt.CompileOptions(num_partitions=8))
    ranks = BORDER_AT_ARGUMENT.replace("(tensor<8x4xf32>) -> tensor<2x2xf32>", "(tensor<8x4xf32>) -> tensor<2xf32>")
    reshape = "stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<2xf32>) -> tensor<2x2xf32>"
    ranks = ranks.replace("stablehlo.tanh %0 : tensor<2x2xf32>", reshape)
    with pytest.raises(pjrt.InvalidArgumentError, match="found tensor<8x4xf32> and tensor<2xf32>"):
        client.compile(ranks, pjrt.CompileOptions(num_partitions=8))


def test_the_wrong_number_of_partitions(client: Any) -> None:
    exe = client.compile(MANUAL_SHARDY)
    with pytest.raises(pjrt.InvalidArgumentError, match="expected 8 partitions, found 1"):
        exe(X, Y)[0].to_host().result()


SIZE_AT_RUN_TIME = """
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [0, 1]
    : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  %i = stablehlo.convert %s : (tensor<f32>) -> tensor<i64>
  %n = stablehlo.reshape %i : (tensor<i64>) -> tensor<1xi64>
  %d = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi64>) -> tensor<?xf32>
  %t = stablehlo.reduce(%d init: %c) applies stablehlo.add across dimensions = [0]
    : (tensor<?xf32>, tensor<f32>) -> tensor<f32>
  %u = stablehlo.broadcast_in_dim %t, dims = [] : (tensor<f32>) -> tensor<8x6xf32>
  %1 = stablehlo.multiply %0, %u : tensor<8x6xf32>"""
UNKNOWN_TO_XLA = BY_GSPMD.replace("%1 = stablehlo.tanh %0 : tensor<8x6xf32>", SIZE_AT_RUN_TIME)


def test_a_program_that_xla_does_not_partition(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It runs whole, on the gathered arguments, and the log says so; what it does not state is replicated."""
    with caplog.at_level("INFO", logger="pjrt"):
        rows = launch(client, UNKNOWN_TO_XLA, arguments())
    assert "runs whole on each device, on gathered arguments: XLA does not partition" in caplog.text
    for device, (product, scaled) in enumerate(rows):
        assert np.array_equal(product, parse_gspmd(ROWS, 2).cut(X @ Y, device))
        assert np.allclose(scaled, X @ Y * np.arange(X.sum()).sum(), rtol=1e-6)


def test_a_result_without_a_sharding_has_that_of_its_operation(client: Any) -> None:
    """Of a program that XLA does not partition: a part for one shard, a constraint, an argument that is returned."""
    text = """
sdy.mesh @mesh = <["a"=4, "b"=2]>
func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>}, %y: tensor<8xi32>)
    -> (tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8xf32>) {
  %0 = call @part(%x) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %1 = stablehlo.tanh %x : tensor<8x4xf32>
  %2 = sdy.sharding_constraint %1 <@mesh, [{"b"}, {}]> : tensor<8x4xf32>
  %n = stablehlo.slice %y [0:1] : (tensor<8xi32>) -> tensor<1xi32>
  %d = stablehlo.dynamic_iota %n, dim = 0 : (tensor<1xi32>) -> tensor<?xf32>
  %c = stablehlo.constant dense<0.0> : tensor<f32>
  %t = stablehlo.reduce(%d init: %c) applies stablehlo.add across dimensions = [0]
    : (tensor<?xf32>, tensor<f32>) -> tensor<f32>
  %3 = stablehlo.broadcast_in_dim %t, dims = [] : (tensor<f32>) -> tensor<8xf32>
  return %0, %2, %x, %1, %3 : tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8x4xf32>, tensor<8xf32>
}
func.func private @part(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a"}, {}]>]
      out_shardings=[<@mesh, [{"a"}, {}], unreduced={"b"}>] manual_axes={"a", "b"} (%u: tensor<2x4xf32>) {
    sdy.return %u : tensor<2x4xf32>
  } : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}"""
    exe = client.compile(text, pjrt.CompileOptions(num_partitions=8))
    tiles = [Sharding.from_proto(proto).tiles for proto in exe.output_shardings]
    assert tiles == [(4, 1), (2, 1), (4, 2), (), ()]
    values, _ = launch_whole(client, text, [X, np.full(8, 4, np.int32)])
    for value, expected in zip(values, [2 * X, np.tanh(X), X, np.tanh(X), np.full(8, 6)], strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6)


def test_a_sharding_over_another_number_of_partitions_is_an_error(client: Any) -> None:
    """Also where XLA does not look at it."""
    text = UNKNOWN_TO_XLA.replace(GSPMD_X, "{devices=[2,2]<=[4]}")
    with pytest.raises(pjrt.InvalidArgumentError, match="found one over 4"):
        client.compile(text, pjrt.CompileOptions(num_partitions=8))


def test_an_error_in_the_one_that_works_for_all_reaches_all(client: Any) -> None:
    assertion = """%f = stablehlo.constant dense<0> : tensor<i32>
  stablehlo.custom_call @shape_assertion(%f) : (tensor<i32>) -> ()
  %c ="""
    with pytest.raises(pjrt.PjrtError, match="shape assertion"):
        launch(client, UNKNOWN_TO_XLA.replace("%c =", assertion), arguments())


UNREDUCED = """
sdy.mesh @mesh = <["a"=4, "b"=2]>
func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}], unreduced={"a"}>},
                %y: tensor<4x6xf32>)
    -> (tensor<8x6xf32>, tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}], unreduced={"b"}>}) {
  %0 = sdy.manual_computation(%x, %y) in_shardings=[<@mesh, [{"a"}, {"b"}]>, <@mesh, [{"b"}, {}]>]
      out_shardings=[<@mesh, [{"a"}, {}], unreduced={"b"}>] manual_axes={"a", "b"}
      (%u: tensor<2x2xf32>, %v: tensor<2x6xf32>) {
    %1 = stablehlo.dot_general %u, %v, contracting_dims = [1] x [0]
      : (tensor<2x2xf32>, tensor<2x6xf32>) -> tensor<2x6xf32>
    sdy.return %1 : tensor<2x6xf32>
  } : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
  return %0, %0 : tensor<8x6xf32>, tensor<8x6xf32>
}"""


def test_sums_that_are_left_to_be_taken(client: Any) -> None:
    """An argument, a part for one shard, and a result that are unreduced: each device has a term."""
    exe = client.compile(UNREDUCED, pjrt.CompileOptions(num_partitions=8))
    unreduced = parse_gspmd("{devices=[1,1,2,4]<=[4,2]T(1,0) last_tile_dims={unreduced, replicated}}", 2)
    assert [Sharding.from_proto(proto) for proto in exe.output_shardings] == [parse_gspmd(ROWS, 2), unreduced]
    cut = Sharding.from_proto(exe.parameter_shardings[1])
    x = [X * (device // 2 == 1) + (device // 2 == 2) for device in range(8)]
    rows = launch(client, UNREDUCED, [[term, cut.cut(Y, device)] for device, term in enumerate(x)])
    expected = (X + 1) @ Y
    assert np.array_equal(parse_gspmd(ROWS, 2).put_together([row[0] for row in rows], (8, 6)), expected)
    assert np.array_equal(unreduced.put_together([row[1] for row in rows], (8, 6)), expected)
    for copies in (rows[0::2], rows[1::2]):
        assert all(np.array_equal(term, copies[0][1]) for _, term in copies)
