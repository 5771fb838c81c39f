"""Fixtures of the tests of the ``cpu`` device: clients, and the programs that they run."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import pjrt

ADD = """
func.func public @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %y : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""

# Multiplies by a matrix a number of times: long enough for XLA not to run it in the caller's thread.
POWER = """
func.func public @main(%x: tensor<512x512xf32>, %n: tensor<i64>) -> tensor<512x512xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %one = stablehlo.constant dense<1> : tensor<i64>
  %r:2 = stablehlo.while(%i = %zero, %a = %x) : tensor<i64>, tensor<512x512xf32>
    cond {
      %c = stablehlo.compare LT, %i, %n : (tensor<i64>, tensor<i64>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %next = stablehlo.add %i, %one : tensor<i64>
      %m = stablehlo.dot_general %a, %x, contracting_dims = [1] x [0]
        : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
      stablehlo.return %next, %m : tensor<i64>, tensor<512x512xf32>
    }
  return %r#1 : tensor<512x512xf32>
}
"""

# Gives its first argument, a square of a matrix that equals its square, when the handler returns. The product makes it
# long enough for XLA not to run it in the caller's thread.
HOLD = """
func.func public @main(%x: tensor<512x512xf32>, %number: tensor<i64>) -> tensor<512x512xf32> {
  %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
    : (tensor<512x512xf32>, tensor<512x512xf32>) -> tensor<512x512xf32>
  %1 = stablehlo.custom_call @tests.hold(%0, %number) {api_version = 4 : i32}
    : (tensor<512x512xf32>, tensor<i64>) -> tensor<512x512xf32>
  return %1 : tensor<512x512xf32>
}
"""

# Adds in the memory of its first argument.
ADD_IN_PLACE = ADD.replace("%x: tensor<4xf32>", "%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}")

ALL_REDUCE = """
func.func public @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<ui32>) {
  %sum = "stablehlo.all_reduce"(%x) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<4xf32>) -> tensor<4xf32>
  %id = stablehlo.replica_id : tensor<ui32>
  return %sum, %id : tensor<4xf32>, tensor<ui32>
}
"""


class Held:
    """An execution that does not end before the test releases it.

    Attributes:
        result: the argument, once it is released.
        entered: set when the device works on it.
    """

    # Nothing hangs for ever, whatever goes wrong.
    LIMIT_SECONDS = 100

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._go_on = threading.Event()
        self.result: pjrt.Buffer

    def let_go(self) -> None:
        self._go_on.set()

    def hold(self) -> None:
        self.entered.set()
        self._go_on.wait(self.LIMIT_SECONDS)


class Holder:
    """Start executions that take as long as the test wants; there is one in a process.

    A test that needs a result that is not there yet must not count on the device being slow.
    """

    def __init__(self, client: pjrt.Client) -> None:
        self._held: list[Held] = []
        client.register_ffi_handler("tests.hold", self._wait)
        self._executable = client.compile(HOLD)

    def __call__(self, x: pjrt.Buffer | np.ndarray | None = None) -> Held:  # type: ignore[type-arg]
        """Start one, with an argument that equals its own square: the unit matrix by default."""
        held = Held()
        self._held.append(held)
        argument = np.eye(512, dtype=np.float32) if x is None else x
        (held.result,) = self._executable(argument, np.int64(len(self._held) - 1))
        return held

    def let_all_go(self) -> None:
        for held in self._held:
            held.let_go()

    def _wait(self, x: np.ndarray, number: np.ndarray, out: np.ndarray) -> None:  # type: ignore[type-arg]
        self._held[int(number)].hold()
        out[...] = x


class Programs:
    """The programs above, and makers of others."""

    add = ADD
    power = POWER
    add_in_place = ADD_IN_PLACE
    all_reduce = ALL_REDUCE

    @staticmethod
    def identity(kind: str) -> str:
        """Return its argument of a type such as ``4xf32``."""
        return f"func.func public @main(%x: tensor<{kind}>) -> tensor<{kind}> {{ return %x : tensor<{kind}> }}"

    @staticmethod
    def call(target: str, attributes: str = "") -> str:
        """Call an FFI handler that takes and returns four floats."""
        return f"""
        func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
          %0 = stablehlo.custom_call @{target}(%x) {{api_version = 4 : i32, backend_config = {{{attributes}}}}}
            : (tensor<4xf32>) -> tensor<4xf32>
          return %0 : tensor<4xf32>
        }}"""


@pytest.fixture(scope="session")
def programs() -> type[Programs]:
    return Programs


@pytest.fixture(scope="session")
def client() -> Iterator[pjrt.Client]:
    """A client with four devices that the tests share; none of them closes it."""
    with pjrt.client("cpu", num_devices=4) as made:
        yield made


@pytest.fixture(scope="module")
def reference() -> Iterator[pjrt.Client]:
    """The interpreter, whose numbers are right."""
    with pjrt.client("reference", num_devices=4) as made:
        yield made


@pytest.fixture(scope="session")
def add(client: pjrt.Client) -> pjrt.LoadedExecutable:
    """Adds two vectors of four floats on the first device."""
    return client.compile(ADD)


@pytest.fixture(scope="session")
def _holder(client: pjrt.Client) -> Holder:
    return Holder(client)


@pytest.fixture
def hold(_holder: Holder) -> Iterator[Callable[..., Held]]:
    """Start executions on the first device that last until the test releases them, or ends."""
    yield _holder
    _holder.let_all_go()


@pytest.fixture(scope="session")
def run_script() -> Callable[..., str]:
    """Run Python source in a subprocess, which must exit with 0, and return what it printed."""
    preamble = "\n".join(
        [
            "from __future__ import annotations",
            "import threading, numpy as np, pjrt",
            *(f"{name} = {text!r}" for name, text in (("ADD", ADD), ("POWER", POWER), ("HOLD", HOLD))),
            *map(inspect.getsource, (Held, Holder)),
        ]
    )

    def run(source: str, *, seconds: float = 200, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-c", preamble + source],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )
        assert done.returncode == code, f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    return run
