"""A compiler of whole programs as an author's device: what it is offered, what it declines, and what is kept of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.host import Compiled
from pjrt.stablehlo import ParsedProgram

NUMPY: dict[str, Callable[..., Any]] = {
    "stablehlo.add": np.add,
    "stablehlo.exponential": np.exp,
    "stablehlo.multiply": np.multiply,
    "stablehlo.negate": np.negative,
    "stablehlo.tanh": np.tanh,
}

PROGRAM = """
module @model {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %x, %x : tensor<4xf32>
    %1 = stablehlo.tanh %0 : tensor<4xf32>
    %2 = stablehlo.negate %1 : tensor<4xf32>
    %3 = stablehlo.multiply %2, %2 : tensor<4xf32>
    return %3 : tensor<4xf32>
  }
}"""

LOOP = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  %c = stablehlo.constant dense<0> : tensor<i32>
  %1:2 = stablehlo.while(%i = %c, %v = %0) : tensor<i32>, tensor<4xf32>
    cond {
      %n = stablehlo.constant dense<3> : tensor<i32>
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %j = stablehlo.add %i, %one : tensor<i32>
      %w = stablehlo.multiply %v, %v : tensor<4xf32>
      stablehlo.return %j, %w : tensor<i32>, tensor<4xf32>
    }
  return %1#1 : tensor<4xf32>
}"""

X = np.array([0, 0.25, -0.5, 1], np.float32)


class Compiler:
    """An author's compiler, which declines some operations.

    Attributes:
        offered: the names of the operations of each program that it was offered.
        loaded: the payloads that it was given back.
    """

    def __init__(self, *declined: str, names_them: bool = True) -> None:
        self._declined = declined
        self._names_them = names_them
        self.offered: list[list[str]] = []
        self.loaded: list[bytes] = []

    def compile(self, program: ParsedProgram, options: pjrt.CompileOptions) -> Compiled:
        assert program.entry.body is not None
        *steps, _ = program.entry.body.operations
        self.offered.append([step.name.removeprefix("stablehlo.") for step in steps])
        wrong = [n for n, step in enumerate(steps) if step.name not in NUMPY or step.name in self._declined]
        if wrong and self._names_them:
            raise pjrt.DeclinedError("it has what I lack", wrong)
        if wrong:
            raise pjrt.UnimplementedError("it has what I lack")
        names = ",".join(self.offered[-1]).encode()
        return Compiled(run=functools.partial(self._run, program), serialize=lambda: names)

    def deserialize(self, payload: bytes, program: ParsedProgram, options: pjrt.CompileOptions) -> Compiled:
        self.loaded.append(payload)
        return Compiled(run=functools.partial(self._run, program), serialize=lambda: payload)

    @staticmethod
    def _run(program: ParsedProgram, *arrays: Any) -> Any:
        body = program.entry.body
        assert body is not None
        values: dict[Any, Any] = dict(zip(program.entry.arguments, arrays, strict=True))
        for step in body.operations[:-1]:
            values[step.results[0]] = NUMPY[step.name](*(values[v] for v in step.operands))
        return [values[v] for v in body.outputs]


def client(compiler: Compiler, **options: Any) -> pjrt.StableHloClient:
    return pjrt.StableHloClient(
        "whole",
        compile=compiler.compile,
        deserialize=compiler.deserialize,
        **{"fallback": "reference", "whole_programs": True, **options},
    )


def expected() -> np.ndarray:
    return np.tanh(2 * X) ** 2


def test_a_program_is_offered_whole() -> None:
    compiler = Compiler()
    with client(compiler) as made:
        executable = made.compile(PROGRAM)
        assert executable.name == "model"
        assert executable.cost_analysis()["transcendentals"] == 4
        np.testing.assert_allclose(np.asarray(executable(X)[0]), expected())
    assert compiler.offered == [["add", "tanh", "negate", "multiply"]]


def test_a_declined_program_is_cut_around_the_operations_that_are_the_reason() -> None:
    compiler = Compiler("stablehlo.tanh")
    with client(compiler) as made:
        np.testing.assert_allclose(np.asarray(made.compile(PROGRAM)(X)[0]), expected())
    whole = ["add", "tanh", "negate", "multiply"]
    assert compiler.offered == [whole, whole, ["add"], ["negate", "multiply"]]


def test_without_the_reason_a_declined_run_is_the_fallbacks() -> None:
    compiler = Compiler("stablehlo.tanh", names_them=False)
    with client(compiler) as made:
        np.testing.assert_allclose(np.asarray(made.compile(PROGRAM)(X)[0]), expected())
    assert len(compiler.offered) == 2


def test_an_operation_is_declined_once_in_a_loop_too() -> None:
    compiler = Compiler("stablehlo.while")
    with client(compiler) as made:
        np.testing.assert_allclose(np.asarray(made.compile(LOOP)(X)[0]), (2 * X) ** 8, rtol=1e-6)
    assert "while" in compiler.offered[0]
    assert ["multiply"] in [[name for name in each if name == "multiply"] for each in compiler.offered[1:]]


def test_without_a_fallback_the_reason_is_the_error() -> None:
    with client(Compiler("stablehlo.tanh"), fallback=None, whole_programs=False) as made:
        with pytest.raises(pjrt.UnimplementedError, match="it has what I lack"):
            made.compile(PROGRAM)


@pytest.mark.parametrize(("declined", "fallback"), [((), "reference"), ((), None), (("stablehlo.tanh",), "reference")])
def test_executables_are_loaded_without_compiling(declined: tuple[str, ...], fallback: str | None) -> None:
    with client(Compiler(*declined), fallback=fallback) as made:
        serialized = made.compile(PROGRAM).serialize()
    other = Compiler()
    with client(other, fallback=fallback) as made:
        executable = made.deserialize(serialized)
        np.testing.assert_allclose(np.asarray(executable(X)[0]), expected())
        assert executable.serialize() == serialized
    assert other.offered == []
    assert other.loaded == ([b"add", b"negate,multiply"] if declined else [b"add,tanh,negate,multiply"])


def test_damaged_code_is_refused() -> None:
    with client(Compiler()) as made:
        serialized = made.compile(PROGRAM).serialize()
        with pytest.raises(pjrt.DataLossError, match="compile the program again"):
            made.deserialize(serialized[:-1] + bytes([serialized[-1] ^ 1]))


def test_code_that_cannot_be_serialized_is_compiled_again() -> None:
    compiler = Compiler()

    def compile(program: ParsedProgram, options: pjrt.CompileOptions) -> Any:
        return compiler.compile(program, options).run

    with pjrt.StableHloClient("whole", compile=compile, deserialize=compiler.deserialize) as made:
        executable = made.deserialize(made.compile(PROGRAM).serialize())
        np.testing.assert_allclose(np.asarray(executable(X)[0]), expected())
    assert len(compiler.offered) == 2
