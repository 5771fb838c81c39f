"""Watching a program run: what observers are told, and what they find."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from pjrt.api.errors import InvalidArgumentError, PjrtError, StatusCode
from pjrt.devices.reference import Context, Evaluator
from pjrt.devices.reference.core import mlir
from pjrt.devices.reference.observers import Breakpoints, DebugNans, NonFiniteError, Profile, Trace, loop_for

PROGRAM = """
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<3xf32>
    cond {
      %p = stablehlo.compare LT, %i, %three : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %j = stablehlo.add %i, %one : tensor<i32>
      %w = stablehlo.log %v : tensor<3xf32> loc("layers.py":12:5)
      stablehlo.return %j, %w : tensor<i32>, tensor<3xf32>
    }
  return %r#1 : tensor<3xf32>
}
"""


def run(*observers: Any, x: Any = (100.0, 50.0, 20.0)) -> list[Any]:
    evaluator = Evaluator(mlir.parse(PROGRAM), fold=False)
    return evaluator.run([np.array(x, np.float32)], Context(loop_for(observers)))


def test_a_trace_sees_every_step_and_its_values() -> None:
    seen: list[Any] = []
    (found,) = run(Trace(lambda step, inputs, outputs: seen.append((step.name, inputs, outputs))))
    names = [name for name, _, _ in seen]
    assert names == [
        *["stablehlo.compare", "stablehlo.add", "stablehlo.log"] * 3,
        "stablehlo.compare",
        "stablehlo.while",
    ]
    for _, inputs, outputs in [entry for entry in seen if entry[0] == "stablehlo.log"]:
        assert np.array_equal(outputs[0], np.log(inputs[0]))
    assert np.array_equal(seen[-1][2][1], found)


def test_an_observed_run_gives_the_same_results() -> None:
    expected = Evaluator(mlir.parse(PROGRAM)).run([np.array([100, 50, 20], np.float32)])
    assert np.array_equal(run(Trace(lambda *_: None), Profile(), DebugNans()), expected)


def test_debug_nans_stops_where_the_first_one_is_made() -> None:
    """log(log(log(2))) is NaN: the second round's logarithm is negative, the third one's argument."""
    with pytest.raises(NonFiniteError, match=r"first NaN was made by stablehlo.log.*layers.py:12:5.*-0.366") as caught:
        run(DebugNans(), x=(100.0, 50.0, 2.0))
    error = caught.value
    assert isinstance(error, FloatingPointError)
    assert error.code is StatusCode.OUT_OF_RANGE
    assert error.step.name == "stablehlo.log"
    assert error.inputs[0][2] == pytest.approx(math.log(math.log(2)))
    assert np.isnan(error.outputs[0][2])


def test_debug_nans_tells_infinity_from_nan_and_ignores_what_came_in() -> None:
    with pytest.raises(NonFiniteError, match="first infinity was made"):
        run(DebugNans(), x=(100.0, 50.0, 0.0))
    (found,) = run(DebugNans(), x=(math.nan, math.inf, 50.0))
    assert np.isnan(found[0])


def test_a_profile_adds_up_time_without_what_runs_inside() -> None:
    profile = Profile()
    run(profile)
    counts = {name: entry.calls for name, entry in profile.by_op.items()}
    assert counts == {"stablehlo.compare": 4, "stablehlo.add": 3, "stablehlo.log": 3, "stablehlo.while": 1}
    assert profile.by_op["stablehlo.log"].bytes_out == 3 * 12
    assert profile.by_location["stablehlo.log", "layers.py:12:5"].calls == 3
    assert profile.seconds == pytest.approx(sum(entry.seconds for entry in profile.by_op.values()))
    assert all(entry.seconds > 0 for entry in profile.by_op.values())
    assert "stablehlo.log [layers.py:12:5]" in profile.table(by_location=True)
    assert len(profile.table().splitlines()) == 5
    assert profile.as_dict()["stablehlo.log"]["calls"] == 3


@pytest.mark.parametrize(("at", "times"), [("log", 3), ("layers.py:12", 3), ("stablehlo.while", 1), ("sine", 0)])
def test_breakpoints_stop_by_name_and_by_place(at: str, times: int) -> None:
    hits: list[Any] = []
    run(Breakpoints([at], lambda step, inputs: hits.append(inputs)))
    assert len(hits) == times


def test_breakpoints_want_a_list_of_texts() -> None:
    for wrong in ("log", [""], [3]):
        with pytest.raises(InvalidArgumentError, match="list of op names"):
            Breakpoints(wrong)  # type: ignore[arg-type]


def test_the_debugger_has_step_and_inputs_at_hand() -> None:
    """In a process of its own, because the debugger talks to its terminal."""
    script = (
        "import numpy as np\n"
        "from pjrt.devices.reference import Context, Evaluator\n"
        "from pjrt.devices.reference.core import mlir\n"
        "from pjrt.devices.reference.observers import Breakpoints, loop_for\n"
        f"program = {PROGRAM!r}\n"
        "observers = [Breakpoints(['layers.py:12'])]\n"
        "Evaluator(mlir.parse(program)).run([np.full(3, 1e9, np.float32)], Context(loop_for(observers)))\n"
        "print('done')\n"
    )
    commands = "up\np step.name, inputs[0].tolist()\nc\nc\nc\n"
    ran = subprocess.run(
        [sys.executable, "-c", script], input=commands, capture_output=True, text=True, timeout=120, check=True
    )
    assert "('stablehlo.log', [1000000000.0, 1000000000.0, 1000000000.0])" in ran.stdout
    assert ran.stdout.rstrip().endswith("done")


def test_errors_survive_a_pickle() -> None:
    import pickle

    with pytest.raises(NonFiniteError) as caught:
        run(DebugNans(), x=(1.0, 0.5, 0.0))
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, PjrtError)
    assert again.message == caught.value.message
