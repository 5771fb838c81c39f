"""Loops with a limit: the values of a loop after some of its iterations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.stablehlo import Cutter, to_text
from pjrt.stablehlo.transforms.cutting import limit_iterations

DOUBLING = """
module @doubling {
  func.func @main(%x: tensor<2xf32>, %n: tensor<i32>) -> tensor<2xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %r:2 = stablehlo.while(%i = %zero, %s = %x) : tensor<i32>, tensor<2xf32> SHARDINGS
      cond { %less = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
             stablehlo.return %less : tensor<i1> }
      do { %t = stablehlo.add %s, %s : tensor<2xf32>
           %next = stablehlo.add %i, %one : tensor<i32>
           stablehlo.return %next, %t : tensor<i32>, tensor<2xf32> }
    return %r#1 : tensor<2xf32>
  }
}
"""
PLAIN = DOUBLING.replace("SHARDINGS", "")


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_values_after_each_iteration(device: str) -> None:
    x = np.array([1.0, 3.0], np.float32)
    with pjrt.client(device) as client:
        executable = client.compile(limit_iterations(PLAIN))
        for limit in (0, 1, 2, 5, 2**31 - 1):
            state, count = map(np.asarray, executable(x, np.int32(5), np.int32(limit)))
            assert count == min(limit, 5)
            np.testing.assert_array_equal(state, x * 2 ** min(limit, 5))


def test_a_loop_that_was_cut_out() -> None:
    cutter = Cutter(PLAIN)
    loop = next(each for each in cutter.parsed.entry.body.operations if each.name == "stablehlo.while")
    alone = cutter.cut_operations([loop])
    limited = limit_iterations(alone.program)
    signature = pjrt.stablehlo.signature(limited)
    assert len(signature.arguments) == len(alone.arguments) + 1
    assert len(signature.results) == len(alone.results) + 1
    assert signature.arguments[-1].type == signature.results[-1].type


@pytest.mark.parametrize(
    ("mesh", "shardings", "extended"),
    [
        (
            'module @doubling {\n sdy.mesh @m = <["a"=2]>',
            'attributes {sdy.sharding = #sdy.sharding_per_value<[<@m, []>, <@m, [{"a"}]>]>}',
            '#sdy.sharding_per_value<[<@m, []>, <@m, [{"a"}]>, <@m, []>, <@m, []>]>',
        ),
        (
            "module @doubling {",
            'attributes {mhlo.sharding = "{{replicated}, {devices=[2]<=[2]}}"}',
            '"{{replicated}, {devices=[2]<=[2]}, {replicated}, {replicated}}"',
        ),
    ],
)
def test_shardings_of_the_loop_stay(mesh: str, shardings: str, extended: str) -> None:
    text = DOUBLING.replace("SHARDINGS", shardings).replace("module @doubling {", mesh)
    assert extended in to_text(limit_iterations(text), trusted=True)


@pytest.mark.parametrize("program", ["func.func @main() { return }", PLAIN.replace("@main", "@other")])
def test_programs_without_a_loop_are_refused(program: Any) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected a function main with one stablehlo\.while"):
        limit_iterations(program)
