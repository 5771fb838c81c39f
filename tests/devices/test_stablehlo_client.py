"""A device that is given its programs parsed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.stablehlo import ParsedProgram
from pjrt.stablehlo.ir.sharding import Sharding

OPERATIONS = {"stablehlo.add": np.add, "stablehlo.multiply": np.multiply, "stablehlo.tanh": np.tanh}

PROGRAM = """
func.func @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = stablehlo.add %x, %y : tensor<4xf32>
  %1 = stablehlo.tanh %0 : tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}
"""


def compile_elementwise(program: ParsedProgram, options: pjrt.CompileOptions) -> Any:
    main = program.entry
    assert main.body is not None
    *steps, _ = main.body.operations

    def run(*arrays: Any) -> Any:
        values: dict[Any, Any] = dict(zip(main.arguments, arrays, strict=True))
        for step in steps:
            values[step.results[0]] = OPERATIONS[step.name](*(values[v] for v in step.operands))
        return [values[v] for v in main.body.outputs]

    return run


def client(**options: Any) -> pjrt.StableHloClient:
    return pjrt.StableHloClient("elementwise", compile=compile_elementwise, operations=OPERATIONS, **options)


def test_types_and_donation_come_from_the_program() -> None:
    with client(num_devices=2) as made:
        executable = made.compile(PROGRAM)
        assert list(executable.output_shapes) == [(4,), (4,)]
        assert list(executable.output_element_types) == [pjrt.ElementType.F32] * 2
        x, y = (made.buffer_from_host(np.full(4, v, np.float32)) for v in (1, 2))
        total, squashed = executable(x, y)
        assert x.is_deleted
        assert not y.is_deleted
        np.testing.assert_array_equal(np.asarray(total), np.full(4, 3, np.float32))
        np.testing.assert_array_equal(np.asarray(squashed), np.tanh(np.full(4, 3, np.float32)))


SHARDED = """
module attributes {mhlo.num_partitions = 2 : i32} {
  sdy.mesh @mesh = <["a"=2]>
  func.func @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>}, %y: tensor<4xf32>)
      -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>}) {
    %0 = stablehlo.add %x, %y : tensor<4xf32>
    %1 = stablehlo.tanh %0 : tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}
"""


def test_a_program_of_several_partitions_arrives_partitioned() -> None:
    with client(num_devices=2) as made:
        assert made.supports(SHARDED, effort="compile").verdict is pjrt.Verdict.YES
        executable = made.compile(SHARDED)
        assert list(executable.output_shapes) == [(2,)]
        assert [Sharding.from_proto(proto).tiles for proto in executable.parameter_shardings] == [(2,), (2,)]
        x, y = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
        rows = [
            [made.buffer_from_host(whole[half], device=device) for whole in (x, y)]
            for half, device in zip((slice(2), slice(2, 4)), made.devices, strict=True)
        ]
        halves = [np.asarray(out) for (out,) in executable.execute(rows)]
        np.testing.assert_array_equal(np.concatenate(halves), np.tanh(x + y))


def test_collectives_are_operations_like_others() -> None:
    """A device that does not name them among its operations is told which one its program needs."""
    gathered = SHARDED.replace('(tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>}) {', "(tensor<4xf32> "
                               "{sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {")  # fmt: skip
    with (
        client(num_devices=2) as made,
        pytest.raises(pjrt.UnimplementedError, match=r"does not run stablehlo\.all_gather"),
    ):
        made.compile(gathered)


def test_a_device_that_denies_partitioning_or_does_it_itself() -> None:
    text = f"module attributes {{mhlo.num_partitions = 2 : i32}} {{{PROGRAM}}}"
    denied = pjrt.Capabilities(features={pjrt.Feature.PARTITIONING: False})
    with client(num_devices=2, capabilities=denied) as made:
        with pytest.raises(
            pjrt.UnimplementedError, match="'elementwise' does not partition programs: this one is for 2"
        ):
            made.compile(text)
        support = made.supports(text)
        assert (support.verdict, support.effort) == (pjrt.Verdict.NO, pjrt.Effort.TYPES)
        assert support.reasons[0].message == "the device does not cut programs, this one is for 2 partitions"
        one = pjrt.CompileOptions(num_partitions=1)
        assert made.compile(text, one).num_partitions == 1
        # Without a partitioner the program's shapes are those of one partition.
        uncut = pjrt.CompileOptions(use_spmd_partitioning=False)
        assert made.compile(text, uncut).num_partitions == 2
    capable = pjrt.Capabilities(features={pjrt.Feature.PARTITIONING: True})
    with client(num_devices=2, capabilities=capable) as made:
        executable = made.compile(text)
        assert executable.num_partitions == 2
        assert executable.parameter_shardings is None


def test_what_it_does_not_run_is_refused_with_its_place() -> None:
    program = PROGRAM.replace("tanh", "sine")
    with client() as made, pytest.raises(pjrt.UnimplementedError, match=r"stablehlo\.sine.*:4:.*stablehlo\.add"):
        made.compile(program)


def test_it_says_which_versions_it_reads() -> None:
    with client(newest="1.5.0") as made:
        assert made.attributes["stablehlo_current_version"] == (1, 5, 0)


def test_exported_it_is_a_plugin() -> None:
    from pjrt import capi

    plugin = capi.load_capsule(pjrt.export(client, name="elementwise").capsule)
    with plugin.client(num_devices=2) as made:
        (_, squashed) = made.compile(PROGRAM)(np.zeros(4, np.float32), np.ones(4, np.float32))
        np.testing.assert_array_equal(np.asarray(squashed), np.tanh(np.ones(4, np.float32)))


def test_a_program_that_xla_does_not_partition_runs_whole(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> Any:
        raise pjrt.UnimplementedError("not by this XLA")

    monkeypatch.setattr("pjrt.devices.stablehlo_client.partition", refuse)
    caplog.set_level("INFO", logger="pjrt")
    with client(num_devices=2) as made:
        executable = made.compile(SHARDED)
        assert "runs whole on 'elementwise', on gathered arguments: not by this XLA" in caplog.text
        assert list(executable.output_shapes) == [(2,)]
        x, y = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
        assert executable.parameter_shardings is not None
        cuts = [Sharding.from_proto(proto) for proto in executable.parameter_shardings]
        rows = [
            [
                made.buffer_from_host(cut.cut(whole, number), device=device)
                for cut, whole in zip(cuts, (x, y), strict=True)
            ]
            for number, device in enumerate(made.devices)
        ]
        halves = [np.asarray(out) for (out,) in executable.execute(rows)]
        np.testing.assert_array_equal(np.concatenate(halves), np.tanh(x + y))
