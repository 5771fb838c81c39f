"""The first difference: devices that are wrong on purpose, and the operation that the search names."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import pjrt
from pjrt.devices.reference.client import ReferenceClient
from pjrt.models import Cause, FirstDifference, SearchLimits

Spoil = Callable[[Any, Any, Any], object]


class WrongClient(ReferenceClient):
    """The interpreter with a fault: a function may change the results of each step in place."""

    platform_name = property(lambda self: "wrong")  # type: ignore[assignment]

    def __init__(self, spoil: Spoil, **options: Any) -> None:
        def trace(step: Any, inputs: Any, outputs: Any) -> None:
            # A result of rank 0 may be a scalar of numpy, which cannot be changed.
            if all(isinstance(each, np.ndarray) for each in outputs):
                spoil(step, inputs, outputs)

        super().__init__(trace=trace, **options)


def at(place: str, change: Callable[[Any], Any]) -> Spoil:
    """A fault in the operation whose name or location contains a text."""

    def spoil(step: Any, inputs: Any, outputs: Any) -> None:
        if place in step.name or place in step.location:
            outputs[0][...] = change(outputs[0])

    return spoil


def find(program: str, spoil: Spoil, *inputs: Any, **options: Any) -> FirstDifference:
    with WrongClient(spoil) as client, pjrt.client("reference") as reference:
        comparison = pjrt.compare(program, [client, reference], inputs or ("random:0",), **options)
    assert not comparison.agrees
    assert comparison.first_difference is not None
    return comparison.first_difference


X = np.array([1.0, -2.0, 3.0], np.float32)
CHAIN = """
func.func @main(%x: tensor<3xf32>, %w: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xi32>) {
  %0 = stablehlo.multiply %x, %w : tensor<3xf32>
  %1 = stablehlo.tanh %0 : tensor<3xf32> loc("layer"("model.py":7:3))
  %2 = stablehlo.add %1, %x : tensor<3xf32>
  %3 = stablehlo.cosine %2 : tensor<3xf32>
  %4 = stablehlo.convert %0 : (tensor<3xf32>) -> tensor<3xi32>
  return %3, %4 : tensor<3xf32>, tensor<3xi32>
}
"""


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


NESTED = """
module {
  func.func @main(%x: tensor<3xf32>, %n: tensor<i32>, %p: tensor<i1>) -> tensor<3xf32> {
    %half = stablehlo.constant dense<0.5> : tensor<3xf32>
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %y = stablehlo.tanh %x : tensor<3xf32> loc("before")
    %r:2 = stablehlo.while(%i = %zero, %s = %y) : tensor<i32>, tensor<3xf32>
      cond { %less = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
             stablehlo.return %less : tensor<i1> }
      do { %a = stablehlo.add %s, %half : tensor<3xf32> loc("in loop")
           %b = func.call @double(%a) : (tensor<3xf32>) -> tensor<3xf32>
           %next = stablehlo.add %i, %one : tensor<i32>
           stablehlo.return %next, %b : tensor<i32>, tensor<3xf32> }
    %z = "stablehlo.if"(%p) ({
      %t = stablehlo.negate %r#1 : tensor<3xf32> loc("in branch")
      stablehlo.return %t : tensor<3xf32>
    }, {
      %t = stablehlo.abs %x : tensor<3xf32> loc("in other branch")
      stablehlo.return %t : tensor<3xf32>
    }) : (tensor<i1>) -> tensor<3xf32>
    %k = stablehlo.composite "my.twice" %z {decomposition = @twice} : (tensor<3xf32>) -> tensor<3xf32>
    return %k : tensor<3xf32>
  }
  func.func private @double(%a: tensor<3xf32>) -> tensor<3xf32> {
    %0 = stablehlo.add %a, %a : tensor<3xf32> loc("in call")
    return %0 : tensor<3xf32>
  }
  func.func private @twice(%a: tensor<3xf32>) -> tensor<3xf32> {
    %0 = stablehlo.add %a, %a : tensor<3xf32> loc("in composite")
    return %0 : tensor<3xf32>
  }
}
"""
NESTED_INPUTS = X, np.int32(5), np.bool_(True)


@pytest.mark.parametrize(
    ("place", "function", "path"),
    [
        ("before", "main", []),
        ("in loop", "main", ["iteration 1 of 5 of stablehlo.while"]),
        ("in call", "double", ["iteration 1 of 5 of stablehlo.while", "func.call of double"]),
        ("in branch", "main", ["branch 0 of stablehlo.if"]),
        ("in composite", "twice", ["stablehlo.composite of twice"]),
    ],
)
def test_operations_inside_of_others_are_found(place: str, function: str, path: list[str]) -> None:
    first = find(NESTED, at(place, lambda values: values + 1), *NESTED_INPUTS)
    assert (first.cause, first.location, first.function) == (Cause.OPERATION, place, function)
    assert [step.partition(" at ")[0] for step in first.path] == path


def test_the_first_wrong_iteration_of_a_loop() -> None:
    def spoil(step: Any, inputs: Any, outputs: Any) -> None:
        if "in loop" in step.location and inputs[0].max() > 10:
            outputs[0] += 1

    first = find(NESTED, spoil, X, np.int32(40), np.bool_(True))
    assert (first.cause, first.location) == (Cause.OPERATION, "in loop")
    # The largest element is 2 s + 1 of tanh(3): 0.995, 2.99, 6.98, 14.96: the fourth addition is the first above 10.
    assert first.path[0].startswith("iteration 4 of 40 of stablehlo.while")


def test_a_wrong_end_of_a_loop() -> None:
    program = """
    func.func @main(%x: tensor<2xi32>) -> tensor<2xi32> {
      %r = stablehlo.while(%s = %x) : tensor<2xi32>
        cond { %limit = stablehlo.constant dense<9> : tensor<2xi32>
               %less = stablehlo.compare LT, %s, %limit : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
               %first = stablehlo.slice %less [0:1] : (tensor<2xi1>) -> tensor<1xi1>
               %go = stablehlo.reshape %first : (tensor<1xi1>) -> tensor<i1>
               stablehlo.return %go : tensor<i1> }
        do { %n = stablehlo.add %s, %s : tensor<2xi32>
             stablehlo.return %n : tensor<2xi32> }
      return %r : tensor<2xi32>
    }"""
    first = find(program, at("compare", lambda values: values & False), np.array([1, 1], np.int32))
    assert (first.cause, first.name) == (Cause.OPERATION, "stablehlo.compare")
    assert first.path[0].startswith("the condition behind iteration 0 of stablehlo.while")


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


def test_an_operation_in_a_loop_that_the_device_does_not_compile() -> None:
    class Small(WrongClient):
        def compile(self, program: Any, *rest: Any, **options: Any) -> Any:
            if "in call" in pjrt.stablehlo.to_text(pjrt.stablehlo.read(program), locations=True, trusted=True):
                raise pjrt.UnimplementedError("no doubling here")
            return super().compile(program, *rest, **options)

    with Small(lambda *_: None) as client:
        first = pjrt.compare(NESTED, [client, "reference"], NESTED_INPUTS).first_difference
    assert first is not None
    assert (first.cause, first.location) == (Cause.FAILURE, "in call")
    assert len(first.path) == 2


def test_results_that_vary_from_run_to_run() -> None:
    runs = []

    def spoil(step: Any, inputs: Any, outputs: Any) -> None:
        if step.name == "stablehlo.cosine":
            outputs[0] += not runs
            runs.append(step)

    first = find(CHAIN, spoil, X, X)
    assert first.cause is Cause.UNKNOWN
    assert "the difference is gone in a second run" in first.notes[0]


def test_a_search_without_end_is_stopped() -> None:
    first = find(CHAIN, at("tanh", lambda values: values + 1), limits=SearchLimits(compilations=2))
    assert first.cause is Cause.UNKNOWN
    assert "the search ended at its limit" in first.notes[-1]
    assert "stablehlo.tanh" in first.operation
    assert first.compilations <= 3
    with pytest.raises(pjrt.InvalidArgumentError, match="no case to save"):
        first.save_case("nowhere")


def test_a_cut_that_fails_is_left_out_with_a_note() -> None:
    class Picky(WrongClient):
        def compile(self, program: Any, *rest: Any, **options: Any) -> Any:
            code = pjrt.Program.of(program).code
            if b"tanh" in code and b"cosine" not in code:
                raise pjrt.UnimplementedError("no tanh without a cosine")
            return super().compile(program, *rest, **options)

    with Picky(at("multiply", lambda values: values + 1)) as client:
        first = pjrt.compare(CHAIN, [client, "reference"], [X, X]).first_difference
    assert first is not None
    assert (first.cause, first.name) == (Cause.OPERATION, "stablehlo.multiply")


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


_UNARY = ["tanh", "negate", "abs", "cosine"]
_BINARY = ["add", "subtract", "multiply", "maximum"]


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, int]:
    """A program of elementwise operations and calls, and the number of its operations."""
    count = draw(st.integers(1, 10))
    lines, values = [], ["%x", "%y"]
    for number in range(count):
        name = draw(st.sampled_from([*_UNARY, *_BINARY, "call"]))
        operands = [draw(st.sampled_from(values)) for _ in range(2 if name in _BINARY else 1)]
        if name == "call":
            lines.append(f'%{number} = func.call @f(%y) : (tensor<4xf32>) -> tensor<4xf32> loc("op {number}.")')
        else:
            lines.append(f'%{number} = stablehlo.{name} {", ".join(operands)} : tensor<4xf32> loc("op {number}.")')
        values.append(f"%{number}")
    chosen = draw(st.lists(st.sampled_from(values[2:]), min_size=1, max_size=3))
    types = ", ".join(["tensor<4xf32>"] * len(chosen))
    body = "\n".join(lines)
    text = f"""
    module {{
      func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> ({types}) {{
        {body}
        return {", ".join(chosen)} : {types}
      }}
      func.func private @f(%a: tensor<4xf32>) -> tensor<4xf32> {{
        %0 = stablehlo.sine %a : tensor<4xf32> loc("op {count}.")
        return %0 : tensor<4xf32>
      }}
    }}"""
    return text, count


@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.filter_too_much])
@given(programs(), st.data())
def test_of_random_programs_the_one_wrong_operation_is_named(program: tuple[str, int], data: st.DataObject) -> None:
    text, count = program
    place = f"op {data.draw(st.integers(0, count))}."
    with WrongClient(at(place, lambda values: values + np.float32(0.25))) as client, pjrt.client("reference") as right:
        comparison = pjrt.compare(text, [client, right])
    assume(not comparison.agrees)  # the operation may not be used, or its fault may vanish
    first = comparison.first_difference
    assert first is not None
    assert (first.cause, first.location) == (Cause.OPERATION, place)


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


def test_rounding_that_a_loop_amplifies() -> None:
    """The logistic map: each iteration doubles an error, on average."""
    program = """
    func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %one = stablehlo.constant dense<1.0> : tensor<3xf32>
      %four = stablehlo.constant dense<3.99> : tensor<3xf32>
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %step = stablehlo.constant dense<1> : tensor<i32>
      %many = stablehlo.constant dense<60> : tensor<i32>
      %r:2 = stablehlo.while(%i = %zero, %s = %x) : tensor<i32>, tensor<3xf32>
        cond { %less = stablehlo.compare LT, %i, %many : (tensor<i32>, tensor<i32>) -> tensor<i1>
               stablehlo.return %less : tensor<i1> }
        do { %a = stablehlo.subtract %one, %s : tensor<3xf32>
             %b = stablehlo.multiply %a, %s : tensor<3xf32> loc("rounds")
             %c = stablehlo.multiply %b, %four : tensor<3xf32>
             %next = stablehlo.add %i, %step : tensor<i32>
             stablehlo.return %next, %c : tensor<i32>, tensor<3xf32> }
      return %r#1 : tensor<3xf32>
    }"""
    start = np.array([0.1, 0.2, 0.3], np.float32)
    first = find(program, at("rounds", lambda values: values * np.float32(1 + 1e-6)), start)
    assert (first.cause, first.name) == (Cause.ROUNDING, "stablehlo.while")
    (step,) = first.path
    assert "of 60 of stablehlo.while" in step
    assert all(value.difference.agrees for value in first.inputs)
    assert not all(value.difference.agrees for value in first.results)
    assert first.suspects[0].location == "rounds"


@pytest.mark.parametrize(("index", "branch"), [(0, 0), (1, 1), (7, 1), (-1, 1)])
def test_the_branch_of_a_case_that_was_taken(index: int, branch: int) -> None:
    program = """
    func.func @main(%x: tensor<3xf32>, %i: tensor<i32>) -> tensor<3xf32> {
      %0 = "stablehlo.case"(%i) ({
        %t = stablehlo.negate %x : tensor<3xf32> loc("branch 0")
        stablehlo.return %t : tensor<3xf32>
      }, {
        %t = stablehlo.abs %x : tensor<3xf32> loc("branch 1")
        stablehlo.return %t : tensor<3xf32>
      }) : (tensor<i32>) -> tensor<3xf32>
      return %0 : tensor<3xf32>
    }"""
    first = find(program, at("branch", lambda values: values + 1), X, np.int32(index))
    assert (first.cause, first.location) == (Cause.OPERATION, f"branch {branch}")
    assert first.path[0].startswith(f"branch {branch} of stablehlo.case")


def test_results_that_nothing_uses_do_not_count() -> None:
    program = """
    func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %0:2 = func.call @both(%x) : (tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>)
      %1 = stablehlo.sine %0#1 : tensor<3xf32> loc("wrong")
      return %1 : tensor<3xf32>
    }
    func.func private @both(%x: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xf32>) {
      %0 = stablehlo.cosine %x : tensor<3xf32> loc("work space")
      %1 = stablehlo.tanh %x : tensor<3xf32>
      return %0, %1 : tensor<3xf32>, tensor<3xf32>
    }"""

    def spoil(step: Any, inputs: Any, outputs: Any) -> None:
        if step.location in ("work space", "wrong"):
            outputs[0] += 1

    assert find(program, spoil, X).location == "wrong"
    first = find(program.replace('loc("wrong")', ""), at("tanh", lambda values: values + 1), X)
    assert first.name == "stablehlo.tanh"
