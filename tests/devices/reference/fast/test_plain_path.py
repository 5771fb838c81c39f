"""The optimizations: the plain path knows nothing of them, and gives the same bits (see the fixture ``run`` too)."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.devices import reference
from pjrt.devices.reference import Evaluator
from pjrt.devices.reference.core import mlir

PROGRAMS = Path(__file__).parents[1] / "programs"
PACKAGE = Path(reference.__file__).parent
ADD_TWICE = """
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %c = stablehlo.constant dense<1.0> : tensor<3xf32>
  %d = stablehlo.add %c, %c : tensor<3xf32>
  %0 = func.call @twice(%d) : (tensor<3xf32>) -> tensor<3xf32>
  %1 = stablehlo.add %x, %0 : tensor<3xf32>
  return %1 : tensor<3xf32>
}
func.func private @twice(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = stablehlo.add %x, %x : tensor<3xf32>
  return %0 : tensor<3xf32>
}"""


def imports(path: Path) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}


def test_only_the_evaluator_imports_the_optimizations() -> None:
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if any(name.startswith("pjrt.devices.reference.fast.") for name in imports(path))
    }
    assert {user for user in users if not user.startswith("fast/")} == {"evaluator.py"}


def test_the_plain_path_runs_every_op_as_it_is_written() -> None:
    plain, fast = (Evaluator(mlir.parse(ADD_TWICE), optimize=optimize) for optimize in (False, True))
    assert [step.name for step in plain.region.block.steps] == ["stablehlo.add", "func.call", "stablehlo.add"]
    assert [step.name for step in fast.region.block.steps] == ["stablehlo.add"]


def test_the_plain_path_has_no_faster_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from pjrt.devices.reference.fast import kernels

    def fails(view: Any) -> Any:
        raise AssertionError(view.name)

    text = """func.func @main(%p: tensor<3xi1>, %x: tensor<3xf32>) -> tensor<3xf32> {
      %0 = stablehlo.select %p, %x, %x : tensor<3xi1>, tensor<3xf32>
      return %0 : tensor<3xf32> }"""
    Evaluator(mlir.parse(text))  # registers the faster kernels
    monkeypatch.setitem(kernels._COMPILERS, "stablehlo.select", fails)
    Evaluator(mlir.parse(text), optimize=False)
    with pytest.raises(pjrt.PjrtError, match=r"stablehlo\.select"):
        Evaluator(mlir.parse(text))


@pytest.mark.parametrize("observed", [False, True])
def test_a_client_without_optimizations(observed: bool) -> None:
    names: list[str] = []
    trace = (lambda step, *_: names.append(step.name)) if observed else None
    with pjrt.client("reference", optimize=False, trace=trace) as client:
        (out,) = client.compile(ADD_TWICE)(np.zeros(3, np.float32))
        assert np.asarray(out).tolist() == [4.0, 4.0, 4.0]
    assert names == (["stablehlo.add", "stablehlo.add", "func.call", "stablehlo.add"] if observed else [])


def test_the_option_is_a_boolean() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="expected True or False as the option optimize"):
        pjrt.client("reference", optimize="no")


def arguments(evaluator: Evaluator) -> list[Any]:
    """Arrays large enough for masks and merges where the program allows, of the types of the arguments."""
    generator = np.random.default_rng(0)
    return [np.asarray(generator.integers(0, 3, t.sizes) + 0.5).astype(t.dtype) for t in evaluator.arguments]


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.mlir")), ids=lambda path: path.stem)
def test_programs_give_the_same_bits(path: Path, same_bits: Any) -> None:
    module = mlir.parse(path.read_text())
    plain, fast = Evaluator(module, optimize=False), Evaluator(module)
    args = arguments(plain)
    same_bits(plain.run(args), fast.run(args))


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float16, np.float32, np.float64, np.complex128])
def test_large_choices_give_the_same_bits(run: Any, dtype: Any) -> None:
    generator = np.random.default_rng(0)
    element = pjrt.ElementType.of(np.dtype(dtype)).mlir
    t = f"tensor<700x{element}>"
    text = f"""func.func @main(%p: tensor<700xi1>, %x: {t}, %y: {t}) -> {t} {{
      %0 = stablehlo.select %p, %x, %y : tensor<700xi1>, {t}
      return %0 : {t} }}"""
    p = generator.integers(0, 2, 700).astype(np.bool_)
    x, y = (generator.standard_normal(700).astype(dtype) for _ in range(2))
    expected = [a if chosen else b for chosen, a, b in zip(p, x, y, strict=True)]
    assert run(text, p, x, y)[0].tobytes() == np.array(expected, dtype).tobytes()
