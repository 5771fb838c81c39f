"""HLO and StableHLO with XLA's shardings over the axes of a mesh: they become Shardy's, on every version of XLA."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import ifrt, stablehlo
from pjrt.api.compile_options import Partitioning
from pjrt.stablehlo import partition, partitioning_of
from pjrt.stablehlo.encodings import jaxlib
from pjrt.stablehlo.encodings.hlo_proto import mesh_shardings_enabled
from pjrt.stablehlo.ir.sharding import Sharding

pytestmark = pytest.mark.skipif(jaxlib.version() < (0, 10), reason="this XLA reads no such shardings")

X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)
# What JAX 0.12 has XLA compile for a product, a constraint, results as asked for, and results as XLA likes.
PRODUCT = """
HloModule product, num_partitions=8
ENTRY main {
  x = f32[8,6] parameter(0), sharding={mesh['x'=4,'y'=2], [{'x'}, {'y'}]}
  w = f32[6,4] parameter(1), sharding={mesh['x'=4,'y'=2], [{'y'}, {}]}
  product = f32[8,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  kept = f32[8,4] custom-call(product), custom_call_target="Sharding", sharding={mesh['x'=4,'y'=2], [{'x':(1)2}, {?}]}
  asked = f32[8,4] reshape(kept), sharding={mesh['x'=4,'y'=2], [{}, {'y'}]}
  liked = f32[8,4] tanh(kept)
  ROOT results = (f32[8,4], f32[8,4]) tuple(asked, liked)
}
"""
# A part for one device, as ``jax.shard_map`` makes it: along all axes, and along one.
PART = """
HloModule part, num_partitions=8
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] add(a, b)
  ROOT d = f32[] custom-call(c), custom_call_target="Sharding", sharding={mesh['x'=4,'y'=2], replicated}
}
xla.sdy.manual_computation_body.1 {
  u = f32[2,3] parameter(0)
  ROOT v = f32[2,3] all-reduce(u), channel_id=1, replica_groups=mesh['x'=4,'y'=2] {'x'}, use_global_device_ids=true,
    to_apply=add
}
ENTRY main {
  x = f32[8,6] parameter(0), sharding={mesh['x'=4,'y'=2], [{'x'}, {'y'}]}
  cut = f32[8,6] custom-call(x), custom_call_target="Sharding", custom_call_has_side_effect=true,
    sharding={mesh['x'=4,'y'=2], [{'x'}, {'y'}]}
  in = f32[2,3] custom-call(cut), custom_call_target="xla.sdy.GlobalToLocalShape", custom_call_has_side_effect=true,
    sharding={mesh['x'=4,'y'=2], manual}
  called = f32[2,3] call(in), to_apply=xla.sdy.manual_computation_body.1, sharding={mesh['x'=4,'y'=2], manual}
  ROOT out = f32[2,6] custom-call(called), custom_call_target="xla.sdy.LocalToGlobalShape",
    custom_call_has_side_effect=true, sharding={mesh['x'=4,'y'=2], [{}, {'y'}]}
}
"""
PART_ALONG_ONE_AXIS = """
HloModule along_one, num_partitions=8
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
xla.sdy.manual_computation_body.1 {
  u = f32[8,3] parameter(0)
  v = f32[3,4] parameter(1)
  w = f32[8,4] dot(u, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  s = f32[8,4] custom-call(w), custom_call_target="Sharding", sharding={mesh['x'=4,'y'=2], [{?}, {?}]}
  ROOT r = f32[8,4] all-reduce(s), channel_id=1, replica_groups=mesh['x'=4,'y'=2] {'y'}, use_global_device_ids=true,
    to_apply=add
}
ENTRY main {
  x = f32[8,6] parameter(0), sharding={mesh['x'=4,'y'=2], [{'x'}, {'y'}]}
  w = f32[6,4] parameter(1), sharding={mesh['x'=4,'y'=2], [{'y'}, {}]}
  cut = f32[8,6] custom-call(x), custom_call_target="Sharding", custom_call_has_side_effect=true,
    sharding={mesh['x'=4,'y'=2], [{?}, {'y', ?}]}
  also = f32[6,4] custom-call(w), custom_call_target="Sharding", custom_call_has_side_effect=true,
    sharding={mesh['x'=4,'y'=2], [{'y', ?}, {?}]}
  in = (f32[8,3], f32[3,4]) custom-call(cut, also), custom_call_target="xla.sdy.GlobalToLocalShape",
    custom_call_has_side_effect=true,
    sharding={{mesh['x'=4,'y'=2], [{?}, {?}], manual={'y'}}, {mesh['x'=4,'y'=2], [{?}, {?}], manual={'y'}}}
  u = f32[8,3] get-tuple-element(in), index=0
  v = f32[3,4] get-tuple-element(in), index=1
  called = f32[8,4] call(u, v), to_apply=xla.sdy.manual_computation_body.1,
    sharding={mesh['x'=4,'y'=2], [{?}, {?}], manual={'y'}}
  ROOT out = f32[8,4] custom-call(called), custom_call_target="xla.sdy.LocalToGlobalShape",
    custom_call_has_side_effect=true, sharding={mesh['x'=4,'y'=2], [{?}, {?}]}
}
"""
LEFT = """
HloModule left, num_partitions=8
ENTRY main {
  x = f32[8,6] parameter(0), sharding={mesh['x'=4,'y'=2], [{}, {'y'}]}
  w = f32[6,4] parameter(1), sharding={mesh['x'=4,'y'=2], [{'y'}, {}]}
  product = f32[8,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  left = f32[8,4] custom-call(product), custom_call_target="Sharding", custom_call_has_side_effect=true,
    sharding={mesh['x'=4,'y'=2], [{}, {}], unreduced={'y'}}
  ROOT kept = f32[8,4] reshape(left), sharding={mesh['x'=4,'y'=2], [{}, {}], unreduced={'y'}}
}
"""


def summed() -> Any:
    return X.reshape(4, 2, 6).sum(0)


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        (PRODUCT, [X, W], [X @ W, np.tanh(X @ W)]),
        (PART, [X], [summed()]),
        (PART_ALONG_ONE_AXIS, [X, W], [X @ W]),
        (LEFT, [X, W], [X @ W]),
    ],
    ids=["product", "part", "along one axis", "left"],
)
def test_programs_of_jax_in_hlo(device: str, text: str, arguments: list[Any], expected: list[Any]) -> None:
    program = stablehlo.read(text)
    assert partitioning_of(program) == Partitioning(1, 8, True)
    with pjrt.client(device, num_devices=8) as client:
        executable = ifrt.Client(client).compile(program)
        for mine, right in zip(executable(*arguments), expected, strict=True):
            np.testing.assert_allclose(np.asarray(mine), right, rtol=1e-5, atol=1e-6)


def test_results_are_cut_as_stated() -> None:
    program = stablehlo.read(PRODUCT)
    shardings = [Sharding.from_proto(each) for each in partition(program).result_shardings]
    places = [tuple((0, device % 2) for device in range(8)), tuple((device // 4, 0) for device in range(8))]
    assert shardings[0] == Sharding((1, 2), tuple(places[0]))
    assert shardings[1].tiles[0] in (1, 2)
    (left,) = partition(stablehlo.read(LEFT)).result_shardings
    assert Sharding.from_proto(left) == Sharding((1, 1), ((0, 0),) * 8, (0, 1) * 4)


def test_the_dialect_says_the_same() -> None:
    text = stablehlo.to_text(stablehlo.read(PART_ALONG_ONE_AXIS))
    assert 'sdy.mesh @mesh = <["x"=4, "y"=2]>' in text
    assert '%arg0: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {"y"}]>}' in text
    assert 'in_shardings=[<@mesh, [{?}, {"y", ?}]>, <@mesh, [{"y", ?}, {?}]>]' in text
    assert 'out_shardings=[<@mesh, [{?}, {?}]>] manual_axes={"y"}' in text
    assert "xla.sdy" not in text
    assert "mhlo.sharding" not in text


def test_inspecting_names_the_axes() -> None:
    info = stablehlo.inspect(stablehlo.read(PRODUCT))
    assert dict(info.meshes)["mesh"].axes == {"x": 4, "y": 2}
    assert info.arguments[0].sharding == '#sdy.sharding<@mesh, [{"x"}, {"y"}]>'


MLIR = """
module @program attributes {mhlo.num_partitions = 8 : i32} {
  func.func @main(%x: tensor<8x6xf32> {mhlo.sharding = "SHARDING"}) -> tensor<8x6xf32> {
    %0 = stablehlo.custom_call @Sharding(%x) {mhlo.sharding = "{mesh['x'=4,'y'=2], [{}, {'y'}]}"}
      : (tensor<8x6xf32>) -> tensor<8x6xf32>
    return %0 : tensor<8x6xf32>
  }
}"""
ROWS = "{mesh['x'=4,'y'=2], [{'x'}, {}]}"


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize(
    "sharding",
    [
        ROWS,
        "{mesh['x'=4,'y'=2], device_ids=(7,6,5,4,3,2,1,0), [{'x'}, {}]}",
        "{mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0)), [{'x'}, {}]}",
        "{mesh['x'=4,'y'=2], [{'x':(2)2}, {'y'}], replicated={'x':(1)2}}",
        "{mesh[], replicated}",
    ],
)
def test_attributes_of_stablehlo(device: str, sharding: str) -> None:
    """As another converter of HLO leaves them. XLA is not asked to take its spelling back."""
    text = MLIR.replace("SHARDING", sharding)
    assert partitioning_of(pjrt.Program.of(text)).use_shardy_partitioner
    with pjrt.client(device, num_devices=8) as client:
        executable = ifrt.Client(client).compile(text)
        (result,) = executable(X)
        np.testing.assert_array_equal(np.asarray(result), X)
        spec = executable.parameter_specs[0].sharding
        expected = ifrt.HloSharding.from_gspmd(client.devices, sharding, 2)
        assert spec.index_domains((8, 6)) == expected.index_domains((8, 6))


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("sharding", "error", "message"),
    [
        ("{mesh['x'=4,'y'=2], [{'x'}, {'x'}]}", pjrt.InvalidArgumentError, "the axis x twice"),
        ("{mesh['x'=8], device_ids=(0,1,2,3,4,5,6,7), [{'x'}, {}]}", pjrt.InvalidArgumentError, "order of their num"),
        ("{mesh['x'=4,'y'=2], [{'x'}, {}], more={'y'}}", pjrt.UnimplementedError, r"found \{mesh.*more="),
        ("{mesh['x'=2], [{'x'}, {}]}", pjrt.InvalidArgumentError, r"states 8 partitions, found one over 2 .*\(x, -\)"),
    ],
)
def test_what_would_end_the_process_is_an_error(device: str, sharding: str, error: Any, message: str) -> None:
    with pjrt.client(device, num_devices=8) as client, pytest.raises(error, match=message):
        client.compile(MLIR.replace("SHARDING", sharding))


def test_a_border_without_a_part_is_an_error() -> None:
    text = PART.replace('custom_call_target="xla.sdy.GlobalToLocalShape"', 'custom_call_target="other"')
    with pytest.raises(pjrt.PjrtError, match=r"expected xla\.sdy\.LocalToGlobalShape of what a call of a part gives"):
        stablehlo.to_text(stablehlo.read(text))


BY_GSPMD = """
module @program attributes {mhlo.num_partitions = 8 : i32} {
  func.func @main(%x: tensor<8x6xf32> {mhlo.sharding = "{devices=[4,2]<=[8]}"}) -> RESULT {
    return %x : tensor<8x6xf32>
  }
}"""


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_shardy_is_not_given_the_shardings_of_gspmd(device: str) -> None:
    """XLA ends the process over them since jaxlib 0.12, so it is tried in another."""
    source = f"""
import numpy as np, pjrt
from pjrt import ifrt
client = pjrt.client({device!r}, num_devices=8)
options = pjrt.CompileOptions(use_shardy_partitioner=True)
x = np.arange(48.0, dtype=np.float32).reshape(8, 6)
(result,) = ifrt.Client(client).compile({BY_GSPMD.replace("RESULT", "tensor<8x6xf32>")!r}, options)(x)
print(np.array_equal(np.asarray(result), x), result.shards[0].buffer.shape)
client.close()
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=200)
    assert done.stdout.splitlines()[-1:] == ["True (2, 3)"], done.stderr[-2000:]


def test_shardings_of_both_kinds_are_refused() -> None:
    if not mesh_shardings_enabled(b""):
        pytest.skip("this XLA says itself what it makes of them")
    result = '(tensor<8x6xf32> {sdy.sharding = #sdy.sharding<mesh<["x"=8]>, [{"x"}, {}]>})'
    with (
        pjrt.client("cpu", num_devices=8) as client,
        pytest.raises(pjrt.InvalidArgumentError, match=r"one kind, found \{devices=\[4,2\].* GSPMD's beside Shardy's"),
    ):
        client.compile(BY_GSPMD.replace("RESULT", result))


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_shardings_of_both_kinds_in_the_form_for_hlo(device: str) -> None:
    """JAX 0.6 writes GSPMD's shardings beside Shardy's, and a body for each device that Shardy alone knows."""
    values = r"#sdy.sharding_per_value<[<@m, [{}, {\22d\22}]>]>"
    axes = r'xla.sdy.manual_axes = "#sdy<manual_axes{\22d\22}>"'
    into, out = (f'xla.sdy.{which}_shardings = "{values}"' for which in ("in", "out"))
    tiles = 'mhlo.sharding = "{devices=[1,2]<=[2]}"'
    text = rf"""
module attributes {{mhlo.frontend_attributes = {{xla.sdy.meshes = "{{m = #sdy.mesh<[\22d\22=2]>}}"}},
                   mhlo.num_partitions = 2 : i32}} {{
  func.func public @main(%x: tensor<2x8xf32> {{mhlo.frontend_attributes = {{xla.sdy.sharding =
      "#sdy.sharding<@m, [{{}}, {{\22d\22}}]>"}}, {tiles}}}) -> (tensor<2x8xf32> {{{tiles}}}) {{
    %0 = stablehlo.custom_call @xla.sdy.GlobalToLocalShape(%x) {{has_side_effect = true,
      mhlo.frontend_attributes = {{{into}, {axes}}}}} : (tensor<2x8xf32>) -> tensor<2x4xf32>
    %1 = call @xla.sdy.manual_computation_body(%0) {{mhlo.frontend_attributes = {{{into}, {axes}, {out}}}}}
      : (tensor<2x4xf32>) -> tensor<2x4xf32>
    %2 = stablehlo.custom_call @xla.sdy.LocalToGlobalShape(%1) {{mhlo.frontend_attributes = {{{axes}, {out}}}}}
      : (tensor<2x4xf32>) -> tensor<2x8xf32>
    return %2 : tensor<2x8xf32>
  }}
  func.func @xla.sdy.manual_computation_body(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {{
    %0 = "stablehlo.all_reduce"(%x) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
      replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>, use_global_device_ids}}> ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %s = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %s : tensor<f32>
    }}) : (tensor<2x4xf32>) -> tensor<2x4xf32>
    return %0 : tensor<2x4xf32>
  }}
}}"""
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    with pjrt.load_model(pjrt.stablehlo.read(text), device, num_devices=2) as model:
        np.testing.assert_array_equal(np.asarray(model(x)[0]), np.tile(x[:, :4] + x[:, 4:], 2))
