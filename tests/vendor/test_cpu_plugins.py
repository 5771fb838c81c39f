"""XLA's plugin for CPUs, as wheels of the package index have it: whole runs, also without jaxlib."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cpu_plugins import INSTALLED, library

import pjrt

pytestmark = pytest.mark.vendor

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
INPUTS = ("--input", str(DIGITS / "weights.npz"), "--input", str(DIGITS / "images.npy"))
ADD = """func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %y : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
NEEDED = ("click", "filelock", "google", "markdown_it", "mdurl", "ml_dtypes", "numpy", "pygments", "rich")


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python whose path has what this package requires, and no jaxlib."""
    folder, installed = tmp_path_factory.mktemp("bare"), Path(pytest.__file__).parents[1]
    for name in [*NEEDED, *(each.name for each in installed.glob("numpy.libs"))]:
        (folder / name).symlink_to(installed / name)
    path = os.pathsep.join((str(folder), str(Path(pjrt.__file__).parents[1])))
    return {**os.environ, "PYTHONPATH": path, "PJRT_CONFIG": os.devnull}


def command(*arguments: object, bare: dict[str, str] | None) -> str:
    """Run a command of pjrt, without jaxlib where ``bare`` is given; return its output."""
    python = [sys.executable, *(["-S"] if bare is not None else [])]
    done = subprocess.run(
        [*python, "-m", "pjrt", *map(str, arguments)],
        env=bare, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("has_jaxlib", [True, False], ids=["jaxlib", "no jaxlib"])
@pytest.mark.parametrize("wheel", INSTALLED)
def test_digits_are_recognized(wheel: str, has_jaxlib: bool, bare: dict[str, str], tmp_path: Path) -> None:
    """The program is a portable artifact: without jaxlib the plugin tells its arguments and results."""
    output = tmp_path / "scores.npy"
    command(
        "run", DIGITS / "digits.stablehlo", "-d", library(wheel), *INPUTS, "-o", output,
        bare=None if has_jaxlib else bare,
    )  # fmt: skip
    right = (np.load(output).argmax(axis=1) == np.load(DIGITS / "labels.npy")).sum()
    assert right >= 350


@pytest.mark.parametrize("wheel", INSTALLED)
def test_every_command_works_without_jaxlib(wheel: str, bare: dict[str, str], tmp_path: Path) -> None:
    program, plugin = tmp_path / "add.mlir", library(wheel)
    program.write_text(ADD)
    assert "cpu" in command("devices", plugin, bare=bare)
    assert re.search("^devices +4 × cpu$", command("info", plugin, bare=bare), re.MULTILINE)
    assert "tensor<4xf32>" in command("inspect", program, bare=bare)
    assert "yes" in command("check", program, "-d", plugin, bare=bare)
    found = json.loads(command("run", program, "-d", plugin, "--input", "random:0", "--json", bare=bare))
    assert found["results"][0]["shape"] == [4]
    measured = command("bench", program, "-d", plugin, "--input", "zeros", "-n", "20", "--json", bare=bare)
    assert json.loads(measured)
    compared = ("compare", program, "-d", plugin, "-d", plugin, "--input", "random:0", "--in-process")
    assert "agrees" in command(*compared, bare=bare)


@pytest.mark.parametrize("wheel", INSTALLED)
def test_a_program_of_one_partition_needs_no_shardings(wheel: str) -> None:
    """The oldest of the plugins has no such extension."""
    code = (
        f"import pjrt; executable = pjrt.client({str(library(wheel))!r}).compile({ADD!r}); "
        "print(executable.parameter_shardings, executable.output_shardings)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip().startswith(("None", "("))


@pytest.mark.parametrize("wheel", INSTALLED)
def test_a_loaded_executable_outlives_its_own_call(wheel: str) -> None:
    """XLA's executable is a view of the loaded one, which nothing else may keep."""
    code = (
        f"import pjrt; client = pjrt.client({str(library(wheel))!r})\n"
        f"for _ in range(20): assert client.compile({ADD!r}).memory_stats().output_size_in_bytes == 16"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-1000:]


BESIDE_JAX = """
import sys, threading
import jax, jax.numpy as jnp, numpy as np, pjrt, pjrt.frameworks.jax
pjrt.frameworks.jax.register(sys.argv[1], platform="real", make_default=True, wrap=sys.argv[3] == "wrap")
step, x = jax.jit(lambda x: x * 2 + 1), np.arange(4, dtype=np.float32)
client = pjrt.client(sys.argv[1])
add = client.compile(sys.argv[2])
def ours():
    for _ in range(100):
        np.testing.assert_array_equal(np.asarray(add(x, x)[0]), 2 * x)
def jaxs():
    for _ in range(100):
        np.testing.assert_array_equal(step(x), 2 * x + 1)
threads = [threading.Thread(target=ours), threading.Thread(target=jaxs)]
for each in threads: each.start()
for each in threads: each.join()
assert jnp.asarray(np.from_dlpack(add(x, x)[0])).tolist() == [0, 2, 4, 6]
assert np.asarray(add(np.asarray(step(x)), x)[0]).tolist() == [1, 4, 7, 10]
client.close()
jaxs()
client = pjrt.client(sys.argv[1])
print("done")
"""


@pytest.mark.parametrize("how", ["plain", "wrap"])
@pytest.mark.parametrize("wheel", INSTALLED)
def test_jax_and_this_package_share_a_plugin(wheel: str, how: str) -> None:
    """Each has a client of its own, of one library in one process."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BESIDE_JAX, str(library(wheel)), ADD, how],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.stdout.endswith("done\n"), done.stderr[-2000:]
    assert done.returncode == 0, done.stderr[-1000:]


KNOWN = frozenset(
    {
        "device_view.without_callback", "operation.chlo.broadcast_maximum", "operation.chlo.broadcast_minimum",
        "operation.stablehlo.clamp", "operation.stablehlo.maximum", "operation.stablehlo.minimum",
    }
)  # fmt: skip
"""The required checks that lammps-jax-pjrt-cpu 0.11.2 does not pass, of those below."""


def test_the_required_checks_that_it_does_not_pass_are_known() -> None:
    filters = ("device_view.", "operation.stablehlo.m", "operation.stablehlo.clamp", "operation.chlo.b", "client.")
    chosen = [part for text in filters for part in ("--filter", text)]
    done = subprocess.run(
        [sys.executable, "-m", "pjrt", "conform", str(library("lammps-jax-pjrt-cpu")), *chosen, "--json", "-j", "2"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    report = json.loads(done.stdout)
    failed = [each for each in report["outcomes"] if each["verdict"] in ("failed", "crashed", "hung")]
    assert {each["check"] for each in failed if each["strength"] == "required"} == KNOWN
    assert report["counts"]["passed"] > 60


def test_the_device_api_is_as_on_our_devices() -> None:
    """The exceptions are in ``tests/device_api/anydevice/theirs.py``."""
    path = library(INSTALLED[0])
    tests = Path(__file__).parents[1] / "device_api"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        env={**os.environ, "PJRT_TEST_DEVICES": str(path)}, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None
    assert int(found[1]) > 250
