"""A C program as the host: the written library starts the Python of the device, in a process of its own."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pjrt

INCLUDE = Path(pjrt.__file__).parent / "abi"
DEVICE = """
import pjrt

def make(**options):
    return pjrt.client("reference", **options)
"""
PROGRAM = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.tanh %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
EXPECTED = " ".join(f"{math.tanh(x):.4f}" for x in range(4))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "the tests need a C compiler"
    target = tmp_path_factory.mktemp("host") / "host"
    source = Path(__file__).parents[2] / "examples" / "c_host" / "host.c"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}"]
    subprocess.run([compiler, *flags, str(source), "-o", str(target), "-ldl", "-lpthread"], check=True, timeout=120)
    return target


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("device")
    (folder / "device.py").write_text(DEVICE)
    (folder / "program.mlir").write_text(PROGRAM)
    arguments = ["export", f"{folder / 'device.py'}:make", "-o", str(folder / "libdevice.so"), "--name", "device"]
    subprocess.run([sys.executable, "-m", "pjrt", *arguments], check=True, timeout=120, capture_output=True)
    return folder


def run(host: Path, place: Path, threads: int = 1, **environment: str) -> subprocess.CompletedProcess[str]:
    bare = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment}
    command = [str(host), str(place / "libdevice.so"), str(place / "program.mlir"), str(threads)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=bare)


def test_it_prints_its_result(host: Path, place: Path) -> None:
    done = run(host, place)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [EXPECTED]


def test_from_several_threads(host: Path, place: Path) -> None:
    done = run(host, place, threads=4)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [EXPECTED] * 4


def test_which_python_is_settable(host: Path, place: Path) -> None:
    done = run(host, place, PJRT_WORKER_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    done = run(host, place, PJRT_WORKER_PYTHON="/nowhere/python")
    assert done.returncode == 1
    assert "/nowhere/python" in done.stderr
    assert "PJRT_WORKER_PYTHON" in done.stderr


def test_a_python_without_the_package_is_an_error(host: Path, place: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "empty")], check=True, timeout=120)
    done = run(host, place, PJRT_WORKER_PYTHON=str(tmp_path / "empty" / "bin" / "python"))
    assert done.returncode == 1
    assert "No module named" in done.stderr  # Python says it
    assert "gave no answer" in done.stderr


def test_an_error_in_the_program_has_its_message(host: Path, place: Path, tmp_path: Path) -> None:
    (tmp_path / "program.mlir").write_text("func.func @main() { stablehlo.nothing }")
    shutil.copy(place / "libdevice.so", tmp_path)
    done = run(host, tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "nothing" in done.stderr
