"""Programs with dynamic shapes: ``compile``, ``check`` and ``inspect`` with ``--shape``, and ``run`` by its inputs."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner, Result
from jax import export

from pjrt.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a function of a dynamic batch, exported for two platforms, as a file and as a program."""
    folder = tmp_path_factory.mktemp("dynamic")
    batch, pairs = export.symbolic_shape("b, 2*b", constraints=["b >= 2"])

    def step(x: Any, y: Any) -> Any:
        scaled = jax.lax.platform_dependent(x, cpu=lambda x: x + 1, tpu=lambda x: x * 2)
        return {"sum": scaled.sum(0) + y.sum(), "scaled": scaled}

    arguments = jax.ShapeDtypeStruct((batch, 16), jnp.float32), jax.ShapeDtypeStruct((pairs,), jnp.float32)
    exported = export.export(jax.jit(step), platforms=("tpu", "cpu"))(*arguments)
    (folder / "step.exported").write_bytes(exported.serialize())
    (folder / "step.mlirbc").write_bytes(exported.mlir_module_serialized)
    np.savez(folder / "inputs.npz", x=np.ones((4, 16), np.float32), y=np.ones(8, np.float32))
    np.savez(folder / "unfit.npz", x=np.ones((4, 16), np.float32), y=np.ones(7, np.float32))
    return folder


def pjrt_(folder: Path, *arguments: str) -> Result:
    with contextlib.chdir(folder):
        return CliRunner().invoke(main, arguments)


@pytest.mark.full
@pytest.mark.parametrize("shapes", [("b=4",), ("x=4x16",), ("1=8",)])
def test_compile_for_the_shapes_or_a_symbol(folder: Path, shapes: tuple[str, ...]) -> None:
    options = [part for shape in shapes for part in ("--shape", shape)]
    done = pjrt_(folder, "compile", "step.exported", "-t", "cpu:1", "--json", *options)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["memory"]["argument_size_in_bytes"] == 4 * 16 * 4 + 8 * 4


@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shape", "b=1"], "constraint b >= 2. Expected 'b - 2' to be greater or equal to 0, but found -1"),
        (["--shape", "x=4x16", "--shape", "y=9"], "contradict each other: expected 2*b = 8 in argument 1 (y)"),
        (["--shape", "x=4x17"], "expected a shape that fits argument 0 (x) of shape [b, 16], found [4, 17]"),
        (["--shape", "z=4"], "expected the index of an argument, from 0 to 1, or its name ('x', 'y'), or a symbol (b)"),
        (["--shape", "x"], "expected NAME=SIZES, such as x=8x16, 0=8x16 or b=8, found 'x'"),
        (["--shape", "b=2", "--shape", "b=3"], "expected one shape for b, found (2,) and (3,)"),
        ([], "arguments of such shapes (x [b, 16], y [2*b]); give their shapes"),
    ],
)
def test_compile_names_what_does_not_fit(folder: Path, options: list[str], message: str) -> None:
    done = pjrt_(folder, "compile", "step.exported", "-t", "cpu:1", *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.full
def test_check_with_and_without_shapes(folder: Path) -> None:
    done = pjrt_(folder, "check", "step.exported", "-d", "cpu", "-d", "reference")
    assert done.exit_code == 1
    assert "cpu: no" in done.stdout
    assert "give the shapes of the arguments: --shape" in done.stdout
    assert "reference: yes" in done.stdout
    done = pjrt_(folder, "check", "step.exported", "-d", "cpu", "-d", "reference", "--shape", "b=4")
    assert done.exit_code == 0, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_run_knows_the_shapes_of_its_inputs(folder: Path, device: str) -> None:
    done = pjrt_(folder, "run", "step.exported", "-d", device, "-i", "inputs.npz", "-o", f"{device}.npz")
    assert done.exit_code == 0, done.stderr
    with np.load(folder / f"{device}.npz") as results:
        values = {name: results[name] for name in results}
    assert sorted(value.shape for value in values.values()) == [(4, 16), (16,)]
    for value in values.values():
        np.testing.assert_array_equal(value, np.full(value.shape, 2 if value.ndim == 2 else 16))


@pytest.mark.parametrize("command", [["run"], ["bench", "-n", "2", "--warm-up", "0"]])
def test_generated_inputs_take_their_shapes_from_options(folder: Path, command: list[str]) -> None:
    done = pjrt_(folder, *command, "step.exported", "-d", "cpu", "-i", "ones", "--shape", "b=3", "--json")
    assert done.exit_code == 0, done.stderr
    assert "[\n        3,\n        16\n      ]" in done.stdout or '"argument_bytes": 216' in done.stdout
    done = pjrt_(folder, *command, "step.exported", "-d", "cpu", "-i", "ones")
    assert (done.exit_code, "give it by --shape" in done.stderr) == (2, True)


@pytest.mark.full
def test_devices_are_compared_on_generated_inputs(folder: Path) -> None:
    devices = ["-d", "cpu", "-d", "reference", "--in-process"]
    done = pjrt_(folder, "compare", "step.exported", *devices, "-i", "random:0", "--shape", "b=3")
    assert done.exit_code == 0, done.stderr
    assert "agree" in done.stdout


def test_run_refuses_inputs_that_contradict_each_other(folder: Path) -> None:
    done = pjrt_(folder, "run", "step.exported", "-i", "unfit.npz")
    assert done.exit_code == 2
    assert "2*b" in done.stderr


def test_inspect_shows_names_and_symbols_without_the_file_around_the_program(folder: Path) -> None:
    done = pjrt_(folder, "inspect", "step.mlirbc")
    assert done.exit_code == 0, done.stderr
    assert "shape [b, 16]" in done.stdout
    assert "shape [2*b]" in done.stdout
    assert "_platform_index" in done.stdout
    done = pjrt_(folder, "inspect", "step.exported")
    assert "exported for    tpu, cpu" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "--json"],
        ["check", "-d", "reference", "--shape", "b=2"],
        ["run", "-d", "reference", "-i", "ones", "--shape", "b=2"],
        ["compile", "-t", "cpu:1", "--shape", "b=2"],
        ["bench", "-d", "cpu", "-i", "ones", "--shape", "b=2", "-n", "2", "--warm-up", "0"],
        ["compare", "-d", "cpu", "-d", "reference", "-i", "ones", "--shape", "b=2"],
    ],
)
def test_a_file_of_a_later_jax_is_one_line_of_warning(folder: Path, command: list[str]) -> None:
    """Also with warnings as errors, because the command has read the file."""
    (folder / "later.exported").write_bytes(later((folder / "step.exported").read_bytes()))
    whole = [sys.executable, "-W", "error::UserWarning", "-m", "pjrt", command[0], "later.exported", *command[1:]]
    done = subprocess.run(whole, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("pjrt: warning: later.exported: the jax.export file is newer than this pjrt")
    assert "from 1 to 12, found 13" in line


def test_a_file_that_a_later_jax_writes_in_another_way_is_one_line_of_error(folder: Path) -> None:
    (folder / "other.exported").write_bytes(later((folder / "step.exported").read_bytes(), without=15))
    done = pjrt_(folder, "inspect", "other.exported")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "other.exported: the jax.export file is too new: root has no kept arguments" in done.stderr


def later(code: bytes, without: int | None = None) -> bytes:
    """Return a file as a later JAX may write it: with a later serialization version, and without a field."""
    changed = bytearray(code)
    root = int.from_bytes(code[:4], "little")
    fields = root - int.from_bytes(code[root : root + 4], "little", signed=True) + 4
    version = root + int.from_bytes(code[fields : fields + 2], "little")
    changed[version : version + 2] = (13).to_bytes(2, "little")
    if without is not None:
        changed[fields + 2 * without : fields + 2 * without + 2] = bytes(2)
    return bytes(changed)


@pytest.mark.full
@pytest.mark.parametrize(("release", "writer"), [("0.12.0.1", "JAX 0.12.0.1"), ("0.10.2", None)])
def test_inspect_shows_the_jax_that_wrote_the_file(release: str, writer: str | None) -> None:
    path = str(Path(__file__).parents[2] / "stablehlo" / "data" / f"jax_{release}.export")
    shown = CliRunner().invoke(main, ["inspect", path])
    assert ("exported by" in shown.stdout) == (writer is not None)
    assert writer is None or f"exported by     {writer}" in shown.stdout
    assert json.loads(CliRunner().invoke(main, ["inspect", path, "--json"]).stdout)["writer"] == writer
