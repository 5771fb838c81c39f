"""The first difference: its cause, its values and its case, for devices that are wrong on purpose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wrong_device import CHAIN, WrongClient, X, at, find

import pjrt
from pjrt.models import Cause


@pytest.mark.parametrize("name", ["multiply", "tanh", "add", "cosine", "convert"])
def test_the_operation_is_named(name: str) -> None:
    first = find(CHAIN, at(f"stablehlo.{name}", lambda values: values + 1))
    assert (first.cause, first.name, first.function) == (Cause.OPERATION, f"stablehlo.{name}", "main")
    assert (first.device, first.judge) == ("wrong", "reference")
    (result,) = first.results
    assert result.difference.mismatches == 3
    assert f"stablehlo.{name}" in first.operation
    assert f"stablehlo.{name} differs: wrong and reference give different results on the same inputs" in str(first)


def test_the_report_has_the_place_the_type_and_the_values() -> None:
    first = find(CHAIN, at("tanh", lambda values: values * 2), X, X)
    report = str(first)
    assert first.location == "layer at model.py:7:3"
    for part in ("%1 = stablehlo.tanh %0 : tensor<3xf32>", "at layer at model.py:7:3", "3 of 3 elements differ"):
        assert part in report
    assert first.results[0].type == "tensor<3xf32>"
    difference = first.results[0].difference
    assert difference.worst is not None
    assert float(difference.value) == 2 * float(difference.expected)
    assert first.as_dict()["cause"] == "operation"
    assert 0 < first.compilations < 20


def test_a_case_shows_the_difference_again(tmp_path: Path) -> None:
    first = find(CHAIN, at("tanh", lambda values: values * 2), X, X)
    first.save_case(tmp_path / "case")
    program = (tmp_path / "case" / "program.mlir").read_text()
    assert "tanh" in program
    assert "multiply" not in program
    given = np.load(tmp_path / "case" / "0.npy")
    np.testing.assert_array_equal(given, X * X)
    with np.load(tmp_path / "case" / "expected.npz") as expected, np.load(tmp_path / "case" / "results.npz") as found:
        np.testing.assert_array_equal(found["result_0"], 2 * expected["result_0"])
    again = find(program, at("tanh", lambda values: values * 2), given)
    assert again.cause is Cause.OPERATION
    assert (
        tmp_path / "case" / "command.txt"
    ).read_text() == "pjrt compare program.mlir -d wrong -d reference -i 0=0.npy\n"


def test_a_fault_of_one_type_only() -> None:
    program = """
    func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %0 = stablehlo.add %x, %x : tensor<3xf32> loc("f32")
      %1 = stablehlo.convert %0 : (tensor<3xf32>) -> tensor<3xbf16>
      %2 = stablehlo.add %1, %1 : tensor<3xbf16> loc("bf16")
      %3 = stablehlo.convert %2 : (tensor<3xbf16>) -> tensor<3xf32>
      return %3 : tensor<3xf32>
    }"""

    def spoil(step: Any, inputs: Any, outputs: Any) -> None:
        if step.name == "stablehlo.add" and outputs[0].dtype.itemsize == 2:
            outputs[0] += outputs[0]

    assert find(program, spoil).location == "bf16"


def test_rounding_that_is_amplified_is_no_wrong_operation() -> None:
    program = """
    func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %0 = stablehlo.tanh %x : tensor<3xf32> loc("rounds")
      %1 = stablehlo.negate %0 : tensor<3xf32>
      %2 = stablehlo.tanh %x : tensor<3xf32> loc("exact")
      %3 = stablehlo.add %2, %1 : tensor<3xf32> loc("cancels")
      %big = stablehlo.constant dense<1.0e6> : tensor<3xf32>
      %4 = stablehlo.multiply %big, %3 : tensor<3xf32> loc("amplifies")
      return %4 : tensor<3xf32>
    }"""
    first = find(program, at("rounds", lambda values: values * np.float32(1 + 1e-6)), X)
    assert (first.cause, first.location) == (Cause.ROUNDING, "amplifies")
    assert [value.index for value in first.inputs] == [1]  # the operand 0 is a constant
    assert first.inputs[0].difference.agrees
    assert not first.results[0].difference.agrees
    assert first.suspects[0].location == "rounds"
    assert "first beyond the tolerance, by rounding" in str(first)


def test_rounding_that_hides_a_wrong_operation() -> None:
    """The search meets rounding first; running every operation alone finds the one that is wrong behind it."""
    program = """
    func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %0 = stablehlo.tanh %x : tensor<3xf32> loc("rounds")
      %1 = stablehlo.tanh %x : tensor<3xf32> loc("exact")
      %2 = stablehlo.subtract %1, %0 : tensor<3xf32>
      %big = stablehlo.constant dense<1.0e6> : tensor<3xf32>
      %3 = stablehlo.multiply %2, %big : tensor<3xf32> loc("amplifies")
      %4 = stablehlo.cosine %3 : tensor<3xf32> loc("wrong")
      %5 = stablehlo.abs %4 : tensor<3xf32>
      return %5 : tensor<3xf32>
    }"""

    def spoil(step: Any, inputs: Any, outputs: Any) -> None:
        if step.location == "rounds":
            outputs[0] *= np.float32(1 + 1e-6)
        elif step.location == "wrong":
            outputs[0] += 1

    first = find(program, spoil, X)
    assert (first.cause, first.location) == (Cause.OPERATION, "wrong")


class FusingClient(WrongClient):
    """A device whose compiler is wrong about ``tanh`` where the program has a ``cosine``, too."""

    def __init__(self) -> None:
        super().__init__(self._spoil)
        self._is_wrong = False

    def _spoil(self, step: Any, inputs: Any, outputs: Any) -> None:
        if self._is_wrong and step.name == "stablehlo.tanh":
            outputs[0] += 1

    def compile(self, program: Any, *rest: Any, **options: Any) -> Any:
        code = pjrt.Program.of(program).code
        self._is_wrong = b"tanh" in code and b"cosine" in code
        return super().compile(program, *rest, **options)


def test_an_operation_that_is_wrong_in_its_context_only() -> None:
    with FusingClient() as client:
        first = pjrt.compare(CHAIN, [client, "reference"], [X, X]).first_difference
    assert first is not None
    assert (first.cause, first.name) == (Cause.CONTEXT, "stablehlo.cosine")
    assert first.case is not None
    assert b"tanh" in first.case.program.code


def test_an_operation_that_the_device_does_not_compile() -> None:
    class Small(WrongClient):
        def compile(self, program: Any, *rest: Any, **options: Any) -> Any:
            if b"cosine" in pjrt.Program.of(program).code:
                raise pjrt.UnimplementedError("this device does not run stablehlo.cosine")
            return super().compile(program, *rest, **options)

    with Small(lambda *_: None) as client:
        comparison = pjrt.compare(CHAIN, [client, "reference"])
    assert "does not run stablehlo.cosine" in comparison.errors["wrong"].message
    first = comparison.first_difference
    assert first is not None
    assert (first.cause, first.name) == (Cause.FAILURE, "stablehlo.cosine")
    assert "does not run stablehlo.cosine" in first.error


def test_results_that_vary_from_run_to_run() -> None:
    runs = []

    def spoil(step: Any, inputs: Any, outputs: Any) -> None:
        if step.name == "stablehlo.cosine":
            outputs[0] += not runs
            runs.append(step)

    first = find(CHAIN, spoil, X, X)
    assert first.cause is Cause.UNKNOWN
    assert "the difference is gone in a second run" in first.notes[0]


def test_sharded_programs_are_searched_on_whole_arrays() -> None:
    program = """
    module attributes {mhlo.num_partitions = 4 : i32} {
      sdy.mesh @mesh = <["a"=4]>
      func.func @main(%x: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>})
          -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>}) {
        %0 = stablehlo.tanh %x : tensor<8x4xf32>
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [1]
          : (tensor<8x4xf32>, tensor<f32>) -> tensor<8xf32>
        %2 = stablehlo.exponential %1 : tensor<8xf32>
        return %2 : tensor<8xf32>
      }
    }"""
    with WrongClient(at("reduce", lambda values: values + 1), num_devices=4) as client:
        first = pjrt.compare(program, [client, "reference"]).first_difference
    assert first is not None
    assert (first.cause, first.name) == (Cause.OPERATION, "stablehlo.reduce")
    assert first.results[0].difference.shape == (8,)


def test_replicas_have_values_of_their_own() -> None:
    program = """
    module attributes {mhlo.num_replicas = 2 : i32} {
      func.func @main(%x: tensor<2xui32>) -> tensor<2xui32> {
        %0 = stablehlo.replica_id : tensor<ui32>
        %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<ui32>) -> tensor<2xui32>
        %2 = stablehlo.add %1, %x : tensor<2xui32>
        %3 = stablehlo.multiply %2, %2 : tensor<2xui32>
        return %3 : tensor<2xui32>
      }
    }"""

    def spoil(step: Any, inputs: Any, outputs: Any) -> None:
        if step.name == "stablehlo.multiply" and inputs[0][0] == 6:  # on the replica 1
            outputs[0] += 1

    with WrongClient(spoil, num_devices=2) as client:
        comparison = pjrt.compare(program, [client, "reference"], [np.array([5, 5], np.uint32)])
    assert [each.result for each in comparison.disagreements] == ["result_0_of_replica_1"]
    first = comparison.first_difference
    assert first is not None
    assert (first.cause, first.name) == (Cause.OPERATION, "stablehlo.multiply")


@pytest.mark.full
def test_a_wrong_device_behind_the_c_api(tmp_path: Path) -> None:
    """The same fault in an exported plugin that is loaded by its path."""
    source = tmp_path / "wrong.py"
    source.write_text(
        "import numpy as np\n"
        "from pjrt.devices.reference.client import ReferenceClient\n"
        "class Wrong(ReferenceClient):\n"
        "    platform_name = property(lambda self: 'wrong')\n"
        "def spoil(step, inputs, outputs):\n"
        "    if step.name == 'stablehlo.tanh':\n"
        "        outputs[0][...] *= np.float32(1.01)\n"
        "def make_client(**options):\n"
        "    return Wrong(trace=spoil, **options)\n"
    )
    library = tmp_path / "libwrong.so"
    command = [sys.executable, "-m", "pjrt", "export", f"{source}:make_client", "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    comparison = pjrt.compare(CHAIN, [str(library), "reference"])
    first = comparison.first_difference
    assert first is not None
    assert (first.cause, first.name, first.device) == (Cause.OPERATION, "stablehlo.tanh", str(library))
