"""Comparisons: whether devices agree, who is the judge, which is the odd one out, and devices that fail or crash."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pjrt
from pjrt.devices.reference.client import ReferenceClient
from pjrt.models import Comparison, ModelFile, Tolerance
from pjrt.models.comparison import compared_device
from pjrt.models.comparison.comparison import differences_from_file, read_expected

PROGRAM = """
func.func @main(%x: tensor<4xf32> loc("x"), %n: tensor<2xi32> loc("n")) -> (tensor<4xf32>, tensor<2xi32>) {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  %1 = stablehlo.add %n, %n : tensor<2xi32>
  return %0, %1 : tensor<4xf32>, tensor<2xi32>
}
"""
X, N = np.array([0.5, 1.0, -1.0, 2.0], np.float32), np.array([1, 2], np.int32)


class Wrong(ReferenceClient):
    """The interpreter under another name, whose ``tanh`` is off by a factor."""

    platform_name = property(lambda self: self.name)  # type: ignore[assignment]

    def __init__(self, name: str = "wrong", factor: float = 1.5) -> None:
        self.name = name

        def spoil(step: Any, inputs: Any, outputs: Any) -> None:
            if step.name == "stablehlo.tanh":
                outputs[0][...] *= np.float32(factor)

        super().__init__(trace=spoil)


def test_two_devices_that_agree() -> None:
    comparison = pjrt.compare(PROGRAM, ["cpu", "reference"], [X, N])
    assert comparison.agrees
    assert (comparison.judge, comparison.devices) == ("reference", ("cpu",))
    assert [each.result for each in comparison.differences] == ["result_0", "result_1"]
    assert comparison.disagreements == ()
    assert comparison.first_difference is None
    assert str(comparison).startswith("cpu and reference agree")
    assert repr(comparison) == "<Comparison: cpu and reference agree>"


def test_a_device_that_differs() -> None:
    with Wrong() as wrong:
        comparison = pjrt.compare(PROGRAM, ["reference", wrong], [X, N])
    assert not comparison.agrees
    (difference,) = comparison.disagreements
    assert (difference.device, difference.result) == ("wrong", "result_0")
    np.testing.assert_allclose(difference.difference.max_relative, 0.5, rtol=1e-6)
    assert comparison.first_difference is not None
    assert comparison.first_difference.name == "stablehlo.tanh"
    assert "wrong and reference differ" in str(comparison)
    assert repr(comparison.first_difference) == (
        "<FirstDifference: stablehlo.tanh differs: wrong and reference give different results on the same inputs>"
    )
    json.dumps(comparison.as_dict(), allow_nan=False)


def test_the_tolerance_decides() -> None:
    with Wrong(factor=1.001) as wrong:
        assert not pjrt.compare(PROGRAM, [wrong, "reference"], [X, N], find_first=False).agrees
        assert pjrt.compare(PROGRAM, [wrong, "reference"], [X, N], rtol=2e-3).agrees
        assert pjrt.compare(PROGRAM, [wrong, "reference"], [X, N], atol=0.1).agrees


def test_of_three_the_odd_one_out_is_named() -> None:
    with Wrong() as wrong:
        comparison = pjrt.compare(PROGRAM, ["cpu", wrong, "reference"], [X, N])
        assert (comparison.judge, comparison.odd_ones) == ("reference", ("wrong",))
        assert list(comparison.first_differences) == ["wrong"]
    with Wrong("one") as one, Wrong("two") as two:
        comparison = pjrt.compare(PROGRAM, ["cpu", one, two], [X, N], find_first=False)
        assert (comparison.judge, comparison.odd_ones) == ("one", ("cpu",))
        # The reference is the judge even if the others agree about something else.
        comparison = pjrt.compare(PROGRAM, ["reference", one, two], [X, N], find_first=False)
        assert (comparison.judge, comparison.odd_ones) == ("reference", ("reference",))
        assert not comparison.agrees


def test_the_same_device_twice_has_two_names() -> None:
    comparison = pjrt.compare(PROGRAM, ["reference", "reference"], [X, N])
    assert (comparison.judge, comparison.devices) == ("reference", ("reference (2)",))


@pytest.mark.parametrize(
    "inputs",
    [
        [X, N],
        ["random:0"],
        "random:0",
        {"x": X, "n": N},
        {"n": [1, 2], "x": X.tolist()},
        [X.tolist(), [1, 2]],
        ["x=random:3", "1=[1,2]"],
    ],
)
def test_forms_of_inputs(inputs: Any) -> None:
    assert pjrt.compare(PROGRAM, ["cpu", "reference"], inputs).agrees


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([X], "expected 2"),
        ([N, X], "expected argument 0"),
        ({"x": X}, "argument 1"),
        ({"x": X, "m": N}, "found m"),
        (["z=zeros"], "the program has no argument called 'z'"),
    ],
)
def test_inputs_that_do_not_fit(inputs: Any, message: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        pjrt.compare(PROGRAM, ["cpu", "reference"], inputs)


def test_too_few_devices() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="two devices or more to compare"):
        pjrt.compare(PROGRAM, ["cpu"])
    sharded = 'module attributes {mhlo.num_partitions = 2 : i32} { sdy.mesh @m = <["a"=2]> ' + PROGRAM + "}"
    with pjrt.client("reference") as one, pytest.raises(pjrt.InvalidArgumentError, match="needs 2 devices"):
        pjrt.compare(sharded, ["cpu", one])
    assert pjrt.compare(sharded, ["cpu", "reference"]).agrees


def test_a_device_that_fails_differs() -> None:
    class Failing(Wrong):
        def compile(self, *arguments: Any, **options: Any) -> Any:
            raise pjrt.UnimplementedError("not today")

    with Failing("failing") as failing:
        comparison = pjrt.compare(PROGRAM, [failing, "reference"], [X, N])
        assert not comparison.agrees
        assert comparison.errors["failing"].message == "not today"
        assert comparison.differences == ()
        with pytest.raises(pjrt.UnimplementedError, match="not today"):
            pjrt.compare(PROGRAM, [failing, failing])


def test_results_in_a_file(tmp_path: Path) -> None:
    with Wrong() as wrong:
        for device, agrees in (("cpu", True), (wrong, False)):
            comparison = pjrt.compare(PROGRAM, [device], [X, N], expected={"result_0": np.tanh(X), "result_1": N + N})
            assert comparison.agrees is agrees
            assert comparison.judge == "the expected results"
            assert comparison.first_difference is None
    expected = {"result_0": np.tanh(X), "result_1": N + N}
    with Wrong() as wrong:
        comparison = pjrt.compare(PROGRAM, ["cpu", wrong, "reference"], [X, N], expected=expected)
    assert list(comparison.first_differences) == ["wrong"]
    first = comparison.first_differences["wrong"]
    assert (first.judge, first.name) == ("reference", "stablehlo.tanh")
    with pytest.raises(pjrt.InvalidArgumentError, match=r"names of the results \(result_0, result_1\), found y"):
        pjrt.compare(PROGRAM, ["cpu"], [X, N], expected={"y": X})


def test_one_run_and_a_file(tmp_path: Path) -> None:
    import ml_dtypes

    results = {"result_0": X.astype(ml_dtypes.bfloat16), "result_1": N}
    np.savez(tmp_path / "expected.npz", **results)  # bfloat16 as raw bytes
    for difference in differences_from_file(results, tmp_path / "expected.npz", Tolerance()):
        assert difference.difference.agrees
        assert difference.difference.max_ulp == 0
    with pytest.raises(pjrt.NotFoundError, match=r"--expect .*none\.npz"):
        read_expected(tmp_path / "none.npz")
    with pytest.raises(pjrt.InvalidArgumentError, match=r"--expect .* expected PATH\.npy"):
        read_expected(tmp_path)


CRASHING = """
import ctypes
import os
import threading
import pjrt

def make_client(missing="", **options):
    if missing:
        raise pjrt.UnavailableError(f"there is no {missing}")

    def compile(program, options):
        names = {operation.name for operation in program.walk()}
        if "stablehlo.cosine" in names:
            print("the compiler meets a cosine", flush=True)
            os.abort()
        if "stablehlo.sine" in names:
            ctypes.PyDLL(None).pause()  # in native code that keeps the interpreter's lock
        if "stablehlo.tanh" in names:
            return lambda *arrays: threading.Event().wait()
        return lambda *arrays: arrays[0]
    return pjrt.StableHloClient("crashing", compile=compile, **options)
"""


def isolated(tmp_path: Path, operation: str, **options: Any) -> Comparison:
    (tmp_path / "crashing.py").write_text(CRASHING)
    program = f"""func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
      %0 = stablehlo.{operation} %x : tensor<4xf32>
      return %0 : tensor<4xf32>
    }}"""
    name = f"{tmp_path / 'crashing.py'}:make_client"
    with pjrt.client("reference") as reference:
        return pjrt.compare(program, [name, reference], [X], isolated=True, **options)


def test_a_crash_is_a_finding(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    comparison = isolated(tmp_path, "cosine")
    assert capfd.readouterr() == ("", "")
    (error,) = comparison.errors.values()
    assert isinstance(error, pjrt.InternalError)
    assert "crashed: SIGABRT; it printed 'the compiler meets a cosine'" in error.message
    first = comparison.first_difference
    assert first is not None
    assert (str(first.cause), first.name) == ("failure", "stablehlo.cosine")


@pytest.mark.full
@pytest.mark.parametrize("operation", ["sine", "tanh"])
def test_a_device_that_hangs_is_ended(tmp_path: Path, operation: str) -> None:
    comparison = isolated(tmp_path, operation, time_limit=2.0)
    (error,) = comparison.errors.values()
    assert isinstance(error, pjrt.DeadlineExceededError)
    assert error.message.endswith("make_client was not done within 2 seconds")
    first = comparison.first_difference
    assert first is not None
    assert (str(first.cause), first.name) == ("failure", f"stablehlo.{operation}")


@pytest.mark.full
def test_a_device_whose_client_is_never_made_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared_device, "_OPENING_SECONDS", 5.0)
    (tmp_path / "hanging.py").write_text("import time\ndef make_client():\n  time.sleep(600)")
    with pytest.raises(pjrt.DeadlineExceededError, match="was not done within 5 seconds"):
        pjrt.compare(PROGRAM, [f"{tmp_path / 'hanging.py'}:make_client", "reference"], isolated=True, time_limit=2.0)


@pytest.mark.full
def test_an_interrupt_ends_a_device_that_hangs(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(
        "import ctypes, os, signal\ndef make_client():\n"
        "  os.kill(os.getppid(), signal.SIGINT)\n  ctypes.PyDLL(None).pause()"
    )
    (tmp_path / "program.mlir").write_text(PROGRAM)
    command = [sys.executable, "-m", "pjrt", "compare", "program.mlir", "-i", "ones", "-d", "hanging.py:make_client"]
    done = subprocess.run([*command, "-d", "reference"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (1, "Aborted!")


def test_a_device_in_a_subprocess_gives_the_same_results(tmp_path: Path) -> None:
    comparison = isolated(tmp_path, "negate")
    assert comparison.disagreements[0].difference.value == -comparison.disagreements[0].difference.expected
    assert comparison.first_difference is not None
    assert comparison.first_difference.name == "stablehlo.negate"


def test_a_device_that_cannot_be_made_in_a_subprocess(tmp_path: Path) -> None:
    with pytest.raises(pjrt.NotFoundError, match="nonesuch"):
        pjrt.compare(PROGRAM, ["nonesuch", "reference"], isolated=True)
    with pytest.raises(pjrt.UnavailableError) as caught:
        isolated(tmp_path, "negate", client_options={"missing": "chip"})
    assert caught.value.message == "there is no chip"


@pytest.mark.full
def test_a_model_of_jax_with_names_and_a_dynamic_size() -> None:
    def model(weights: Any, x: Any) -> Any:
        return {"logits": jnp.tanh(x @ weights["w"]), "count": x.shape[0] * jnp.ones((), jnp.int32)}

    (batch,) = jax.export.symbolic_shape("batch")
    arguments = {"w": jax.ShapeDtypeStruct((3, 2), jnp.float32)}, jax.ShapeDtypeStruct((batch, 3), jnp.float32)
    exported = bytes(jax.export.export(jax.jit(model))(*arguments).serialize())
    inputs = [{"w": np.ones((3, 2), np.float32)}, np.ones((5, 3), np.float32)]
    with Wrong() as wrong:
        comparison = pjrt.compare(ModelFile.of(exported), ["cpu", wrong, "reference"], inputs)
    assert comparison.odd_ones == ("wrong",)
    (difference,) = comparison.disagreements
    assert "logits" in difference.result
    assert difference.difference.shape == (5, 2)
    assert comparison.first_difference is not None
    assert comparison.first_difference.name == "stablehlo.tanh"
    assert "test_comparison.py" in comparison.first_difference.location
