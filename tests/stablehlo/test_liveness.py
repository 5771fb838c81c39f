"""The memory that is live along a program."""

from __future__ import annotations

from typing import Any

import pytest

import pjrt
from pjrt import stablehlo
from pjrt.stablehlo.liveness import LiveMemory, live_memory


def memory_of(text: str) -> LiveMemory:
    return live_memory(stablehlo.parse(stablehlo.read(text)))


def lives(memory: LiveMemory) -> list[tuple[str, int]]:
    return [(step.operation.name.removeprefix("stablehlo."), step.live_bytes) for step in memory.steps]


def test_a_value_is_live_from_its_operation_to_its_last_use() -> None:
    memory = memory_of(
        """
        func.func @main(%x: tensor<4xf32> loc("images")) -> tensor<4xf32> {
          %a = stablehlo.tanh %x : tensor<4xf32>
          %b = stablehlo.exponential %a : tensor<4xf32>
          %c = stablehlo.add %a, %b : tensor<4xf32>
          %d = stablehlo.negate %c : tensor<4xf32>
          return %d : tensor<4xf32>
        }"""
    )
    # 16 bytes for each of: x always; a until c; b until c; c until d.
    assert lives(memory) == [("tanh", 32), ("exponential", 48), ("add", 64), ("negate", 48)]
    assert (memory.peak_bytes, memory.peak_step) == (64, 2)
    assert sorted(array.name for array in memory.peak_arrays) == ["%0", "%1", "%2", "images"]
    assert not memory.has_unknown_sizes


DONATING = """
func.func @main(%x: tensor<4xf32> {ATTRIBUTE}) -> tensor<4xf32> {
  %a = stablehlo.tanh %x : tensor<4xf32>
  %b = stablehlo.exponential %a : tensor<4xf32>
  return %b : tensor<4xf32>
}"""


@pytest.mark.parametrize(
    ("attribute", "last"),
    [("", 48), ("{tf.aliasing_output = 0 : i32}", 32), ("{jax.buffer_donor = true}", 32)],
)
def test_a_donated_argument_is_live_until_its_last_use(attribute: str, last: int) -> None:
    assert lives(memory_of(DONATING.replace("{ATTRIBUTE}", attribute))) == [("tanh", 32), ("exponential", last)]


def test_a_view_takes_no_memory_and_keeps_its_operand() -> None:
    memory = memory_of(
        """
        func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
          %a = stablehlo.tanh %x : tensor<4xf32>
          %v = stablehlo.reshape %a : (tensor<4xf32>) -> tensor<2x2xf32>
          %b = stablehlo.exponential %x : tensor<4xf32>
          %c = stablehlo.negate %v : tensor<2x2xf32>
          %d = stablehlo.reshape %c : (tensor<2x2xf32>) -> tensor<4xf32>
          %e = stablehlo.add %b, %d : tensor<4xf32>
          return %e : tensor<4xf32>
        }"""
    )
    assert lives(memory) == [
        ("tanh", 32),
        ("reshape", 32),
        ("exponential", 48),
        ("negate", 64),
        ("reshape", 48),
        ("add", 64),
    ]


LOOP = """
func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
  %a = stablehlo.tanh %x : tensor<4xf32>
  %r:2 = stablehlo.while(%s = %a, %i = %n) : tensor<4xf32>, tensor<i32>
   cond {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %more = stablehlo.compare GT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
   } do {
    %one = stablehlo.constant dense<1> : tensor<i32>
    %less = stablehlo.subtract %i, %one : tensor<i32>
    %next = stablehlo.exponential %s : tensor<4xf32>
    stablehlo.return %next, %less : tensor<4xf32>, tensor<i32>
   }
  %b = stablehlo.negate %r#0 : tensor<4xf32>
  return %b : tensor<4xf32>
}"""


def test_a_loop_carries_its_state_in_place() -> None:
    # x 16, n 4; a 16 becomes the loop's result; n is an argument, which the loop may not overwrite.
    assert lives(memory_of(LOOP)) == [
        ("tanh", 36),
        ("constant", 40),
        ("compare", 41),
        ("constant", 40),
        ("subtract", 44),
        ("exponential", 56),
        ("while", 40),
        ("negate", 52),
    ]


def test_a_called_function_is_live_inside_its_caller() -> None:
    memory = memory_of(
        """
        func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
          %a = func.call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>
          %b = func.call @f(%a) : (tensor<4xf32>) -> tensor<4xf32>
          return %b : tensor<4xf32>
        }
        func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
          %a = stablehlo.tanh %x : tensor<4xf32>
          %b = stablehlo.exponential %a : tensor<4xf32>
          return %b : tensor<4xf32>
        }"""
    )
    assert lives(memory) == [
        *[("tanh", 32), ("exponential", 48), ("func.call", 32)],
        *[("tanh", 48), ("exponential", 64), ("func.call", 48)],
    ]
    assert [step.function for step in memory.steps] == ["f", "f", "main"] * 2
    assert sum(array.nbytes for array in memory.peak_arrays) == memory.peak_bytes == 64


def test_many_calls_are_listed_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      CALLS
      return %20 : tensor<4xf32>
    }
    func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {
      %a = stablehlo.tanh %x : tensor<4xf32>
      %b = stablehlo.exponential %a : tensor<4xf32>
      return %b : tensor<4xf32>
    }"""
    calls = [f"%{n} = func.call @f({f'%{n - 1}' if n else '%x'}) : (tensor<4xf32>) -> tensor<4xf32>" for n in range(21)]
    text = text.replace("CALLS", "\n".join(calls))
    whole = memory_of(text)
    assert len(whole.steps) == 63
    monkeypatch.setattr("pjrt.stablehlo.liveness.MOST_STEPS", 10)
    cut = memory_of(text)
    assert len(cut.steps) == 12 + 17
    assert cut.peak_bytes == whole.peak_bytes


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }", True),
        ("func.func @main() { return }", False),
    ],
)
def test_programs_without_bytes(text: str, unknown: bool) -> None:
    memory = memory_of(text.replace("{ ", "{\n").replace(" }", "\n}"))
    assert (memory.peak_bytes, memory.steps, memory.has_unknown_sizes) == (0, (), unknown)


def test_a_function_that_calls_itself_is_an_error() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="calls itself"):
        memory_of("func.func @main() {\n func.call @main() : () -> ()\n return\n}")


def test_the_reference_device_agrees_for_a_chain() -> None:
    """Its compiler counts the memory of its own steps in the same way."""
    text: Any = DONATING.replace("{ATTRIBUTE}", "")
    with pjrt.client("reference", optimize=False) as client:
        assert client.compile(text).memory_stats().peak_memory_in_bytes == memory_of(text).peak_bytes
