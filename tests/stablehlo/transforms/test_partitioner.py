"""XLA's partitioner: the program of one device, its collectives, and the shardings of arguments and results."""

from __future__ import annotations

import concurrent.futures
import contextlib
import tempfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt
from pjrt import ifrt
from pjrt.api.program import for_stranger
from pjrt.capi import load_capsule
from pjrt.stablehlo import Partitioned, partition, to_text
from pjrt.stablehlo.ir.sharding import Sharding

MATMUL = """
module @product attributes {mhlo.num_partitions = 4 : i32} {
  sdy.mesh @mesh = <["a"=2, "b"=2]>
  func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>},
                  %y: tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b"}, {}]>, tf.aliasing_output = 0 : i32})
      -> (tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>, jax.result_info = "product"}) {
    %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]
      : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
    return %0 : tensor<8x6xf32>
  }
}
"""
BY_GSPMD = """
func.func @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[2]<=[2]}"}) -> tensor<8xf32> {
  %0 = stablehlo.tanh %x : tensor<8xf32>
  %1 = stablehlo.custom_call @Sharding(%0) {mhlo.sharding = "{devices=[2]<=[2]}"} : (tensor<8xf32>) -> tensor<8xf32>
  return %1 : tensor<8xf32>
}
"""


def partitioned(text: str, **options: Any) -> Partitioned:
    return partition(text, pjrt.CompileOptions(**options))


def text_of(program: Partitioned) -> str:
    with program.module as module:
        return str(module)


def run(text: str, values: list[Any], count: int) -> list[Any]:
    """The whole results of a program on devices of ``reference``, from whole arguments."""
    with pjrt.client("reference", num_devices=count) as client:
        return [np.asarray(result) for result in ifrt.Client(client).compile(text)(*values)]


def test_the_program_of_one_device() -> None:
    text = text_of(partitioned(MATMUL))
    assert "tensor<4x2xf32>" in text
    assert "tensor<2x6xf32>" in text
    assert "8x4" not in text
    assert text.count("stablehlo.all_reduce") == 1
    assert "mhlo.num_partitions = 4" in text
    assert "pjrt_no_code" not in text


def test_shardings_of_arguments_and_results() -> None:
    program = partitioned(MATMUL)
    assert [Sharding.from_proto(proto).tiles for proto in program.parameter_shardings] == [(2, 2), (2, 1)]
    assert [Sharding.from_proto(proto).tiles for proto in program.result_shardings] == [(2, 1)]


def test_no_sharding_is_left_that_would_be_applied_once_more() -> None:
    for text in (text_of(partitioned(MATMUL)), text_of(partitioned(BY_GSPMD, num_partitions=2))):
        assert "sdy.sharding" not in text
        assert "mhlo.sharding" not in text


def test_donations_and_names_stay() -> None:
    text = text_of(partitioned(MATMUL))
    assert "tf.aliasing_output = 0" in text
    assert 'jax.result_info = "product"' in text
    assert "module @product" in text


def test_one_result_by_gspmd_keeps_the_sharding_that_its_operation_has() -> None:
    program = partitioned(BY_GSPMD, num_partitions=2)
    assert [Sharding.from_proto(proto).tiles for proto in program.result_shardings] == [(2,)]
    assert "pjrt_no_code" not in text_of(program)


@pytest.mark.parametrize(("flags", "tiles"), [((), (2,)), ((False,), ()), ((True,), (2,)), ((True, False), (2,))])
def test_where_shardings_may_be_propagated_to(flags: Any, tiles: Any) -> None:
    """As XLA has it for the CPU: the stop, a further result by Shardy, changes nothing."""
    text = """
    sdy.mesh @mesh = <["a"=2]>
    func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>})
        -> (tensor<8xf32>, tensor<8xf32>) {
      %0 = stablehlo.tanh %x : tensor<8xf32>
      return %0, %0 : tensor<8xf32>, tensor<8xf32>
    }"""
    options = pjrt.CompileOptions(num_partitions=2, allow_spmd_sharding_propagation_to_output=flags)
    with pjrt.client("cpu", num_devices=2) as cpu:
        judge = cpu.compile(text, options)
        program = partition(text, options)
        assert list(program.parameter_shardings) == list(judge.parameter_shardings)
        assert list(program.result_shardings) == list(judge.output_shardings)


def test_replicas_and_partitions() -> None:
    text = MATMUL.replace("mhlo.num_partitions = 4", "mhlo.num_replicas = 2 : i32, mhlo.num_partitions = 4")
    assert "mhlo.num_replicas = 2" in text_of(partitioned(text))


SORT = """
module attributes {mhlo.num_partitions = 8 : i32} {
  sdy.mesh @mesh = <["a"=4, "b"=2]>
  func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>})
      -> (tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>}) {
    %0 = "stablehlo.sort"(%x) <{dimension = 0 : i64}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %1 = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    }) : (tensor<8x16xf32>) -> tensor<8x16xf32>
    return %0 : tensor<8x16xf32>
  }
}
"""


def test_devices_in_another_order_than_their_numbers() -> None:
    """Collectives along the axis that varies slowest name the devices that lie along it."""
    assert "mesh_axes" not in text_of(partitioned(SORT))
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    assert np.array_equal(run(SORT, [x], 8)[0], np.sort(x, 0))


def test_the_results_of_a_custom_call_that_hlo_has_as_a_tuple() -> None:
    text = """
    module attributes {mhlo.num_partitions = 2 : i32} {
      sdy.mesh @mesh = <["a"=2]>
      func.func @main(%x: tensor<4x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) -> tensor<4x4xf32> {
        %0:2 = stablehlo.custom_call @lapack_spotrf_ffi(%x) {
            mhlo.backend_config = {uplo = 76 : ui8}, api_version = 4 : i32,
            operand_layouts = [dense<[0, 1]> : tensor<2xindex>],
            result_layouts = [dense<[0, 1]> : tensor<2xindex>, dense<> : tensor<0xindex>]}
          : (tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<i32>)
        return %0#0 : tensor<4x4xf32>
      }
    }"""
    factor = np.tril(np.arange(1, 17, dtype=np.float32).reshape(4, 4))
    assert np.allclose(np.tril(run(text, [factor @ factor.T], 2)[0]), factor, rtol=1e-4)


@settings(deadline=None, max_examples=20)
@given(
    rows=st.integers(1, 9), columns=st.integers(1, 9), inner=st.integers(1, 5),
    left=st.sampled_from(["{}", '{"a"}', '{"b"}', '{"a", "b"}']), right=st.sampled_from(["{}", '{"a"}', '{"b"}']),
)  # fmt: skip
def test_any_shape_cut_in_any_way(rows: int, columns: int, inner: int, left: str, right: str) -> None:
    """Also where the shards of a dimension are not all of one size."""
    x, y, z = f"{rows}x{inner}", f"{inner}x{columns}", f"{rows}x{columns}"
    text = f"""
    module attributes {{mhlo.num_partitions = 4 : i32}} {{
      sdy.mesh @mesh = <["a"=2, "b"=2]>
      func.func @main(%x: tensor<{x}xf32>, %y: tensor<{y}xf32>) -> (tensor<{z}xf32>, tensor<{columns}xf32>) {{
        %c = stablehlo.constant dense<0.0> : tensor<f32>
        %u = sdy.sharding_constraint %x <@mesh, [{left}, {{}}]> : tensor<{x}xf32>
        %v = sdy.sharding_constraint %y <@mesh, [{{}}, {right}]> : tensor<{y}xf32>
        %0 = stablehlo.dot_general %u, %v, contracting_dims = [1] x [0]
          : (tensor<{x}xf32>, tensor<{y}xf32>) -> tensor<{z}xf32>
        %1 = sdy.sharding_constraint %0 <@mesh, [{{}}, {{}}]> : tensor<{z}xf32>
        %2 = stablehlo.reduce(%0 init: %c) applies stablehlo.add across dimensions = [0]
          : (tensor<{z}xf32>, tensor<f32>) -> tensor<{columns}xf32>
        %3 = sdy.sharding_constraint %2 <@mesh, [{{}}]> : tensor<{columns}xf32>
        return %1, %3 : tensor<{z}xf32>, tensor<{columns}xf32>
      }}
    }}"""
    generator = np.random.default_rng(rows)
    values = [generator.integers(-8, 8, shape).astype(np.float32) for shape in ((rows, inner), (inner, columns))]
    product, total = run(text, values, 4)
    assert np.array_equal(product, values[0] @ values[1])
    assert np.array_equal(total, (values[0] @ values[1]).sum(0))


def test_a_program_that_xla_cannot_partition() -> None:
    text = BY_GSPMD.replace(
        "%0 = stablehlo.tanh %x", "%p = stablehlo.partition_id : tensor<ui32>\n  %0 = stablehlo.tanh %x"
    )
    text = text.replace("-> tensor<8xf32> {\n", "-> (tensor<8xf32>, tensor<ui32>) {\n").replace(
        "return %1 : tensor<8xf32>", "return %1, %p : tensor<8xf32>, tensor<ui32>"
    )
    with pytest.raises(pjrt.UnimplementedError, match=r"XLA does not partition this program: .*PartitionId"):
        partitioned(text, num_partitions=2)


def test_shardings_for_another_number_of_devices() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"XLA cannot partition this program: INVALID_ARGUMENT"):
        partitioned(MATMUL.replace("num_partitions = 4", "num_partitions = 2"))


def test_a_program_without_a_main_function() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="a program with a function 'main', found none"):
        partitioned(MATMUL.replace("@main", "@other"))


def test_nothing_is_left_on_disk(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    partitioned(MATMUL)
    assert not list(tmp_path.iterdir())


def test_the_callers_own_overrides_are_not_used() -> None:
    assert partitioned(MATMUL, option_overrides={"no_such_option_of_xla": 1}).result_shardings


def test_several_threads() -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        texts = set(pool.map(lambda _: text_of(partitioned(MATMUL)), range(8)))
    assert len(texts) == 1


def test_other_encodings_are_partitioned_alike() -> None:
    artifact = pjrt.stablehlo.serialize(pjrt.Program.of(MATMUL), pjrt.stablehlo.current_version())
    assert "stablehlo.all_reduce" in text_of(partition(artifact))
    assert "tensor<8x4xf32>" in to_text(artifact)


@pytest.mark.parametrize("through", ["the device API", "a server", "a library"])
@pytest.mark.parametrize("target", ["CustomSPMDPartitioning", "InspectSharding", "pjrt_inspected_sharding"])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_functions_of_another_process(device: str, target: str, through: str) -> None:
    """XLA would follow an address of the process that wrote the program, also where JAX is loaded in this one."""
    pytest.importorskip("jax")
    text = f"""module attributes {{mhlo.num_partitions = 2 : i32}} {{
      func.func @main(%x: tensor<8xf32> {{mhlo.sharding = "{{devices=[2]<=[2]}}"}}) -> tensor<8xf32> {{
        %0 = call @inner(%x) : (tensor<8xf32>) -> tensor<8xf32>
        return %0 : tensor<8xf32>
      }}
      func.func private @inner(%x: tensor<8xf32>) -> tensor<8xf32> {{  // XLA inlines it
        %0 = stablehlo.custom_call @{target}(%x) {{backend_config = "nowhere"}} : (tensor<8xf32>) -> tensor<8xf32>
        return %0 : tensor<8xf32>
      }}
    }}"""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(pjrt.client(device, num_devices=2))
        if through == "a library":
            exported = pjrt.export(client, name="partitioned")
            client = stack.enter_context(load_capsule(exported.capsule, "partitioned").client())
        if through == "a server":
            stack.enter_context(for_stranger())
        with pytest.raises(
            pjrt.InvalidArgumentError, match=f"no Python of another process, found a call of '{target}'"
        ):
            client.compile(text)
