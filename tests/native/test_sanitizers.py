"""A program in C on both examples, with the runtime, the driver and the program under the compiler's sanitizers."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
import random_calls

import pjrt
from pjrt import native
from pjrt.native import library

ROOT = Path(__file__).parents[2]
SOURCES = Path(library.__file__).parent / "library"
HOST = ROOT / "examples" / "c_host" / "host.c"
PROGRAM = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
THREADS = 16


def headers() -> list[str]:
    """Return the options of the compiler for the headers of the C API and of drivers."""
    return [f"-I{folder}" for folder in (Path(pjrt.__file__).parent / "abi", native.get_include(), SOURCES)]


@pytest.mark.full
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
@pytest.mark.parametrize("example", ["native_chip", "emitted_c"])
def test_a_program_in_c(sanitizer: str, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = [*shlex.split(os.environ.get("CC", "gcc")), "-std=c11", "-D_GNU_SOURCE", "-g", "-O1", *headers()]
    shared = ["-fPIC", "-shared", "-fvisibility=hidden"]

    def build(name: str, *arguments: str) -> Path:
        command = [
            *compiler,
            f"-fsanitize={sanitizer}",
            *arguments,
            "-o",
            str(tmp_path / name),
            "-lm",
            "-ldl",
            "-lpthread",
        ]
        subprocess.run(command, check=True, timeout=240)
        return tmp_path / name

    runtime = build("runtime.so", *shared, *map(str, sorted(SOURCES.glob("*.c"))))
    chip = ROOT / "examples" / "native_chip" / "chip.c"
    driver: str | Path = "host"
    if example == "native_chip":
        driver = build("chip_driver.so", "-fPIC", "-shared", str(chip))
    monkeypatch.setattr(library, "library_of", lambda folder: runtime)
    spec = f"{ROOT / 'examples' / example / 'compiler.py'}:compile"
    plugin = native.write_library(tmp_path / "plugin.so", spec, driver=driver)
    (tmp_path / "program.mlir").write_text(PROGRAM)
    host = build("host", str(HOST))
    command = [str(host), str(plugin), str(tmp_path / "program.mlir"), str(THREADS)]
    environment = random_calls.sanitized(tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["0.0000 2.0000 4.0000 6.0000"] * THREADS


@pytest.mark.full
@pytest.mark.parametrize("sanitizer", random_calls.SANITIZERS)
def test_random_calls(sanitizer: str, tmp_path: Path) -> None:
    """A short run of the job; what goes wrong names its round and seed."""
    random_calls.prepare(tmp_path, sanitizer)
    for number, each in enumerate([*random_calls.ROUNDS, *random_calls.ENDS * 3]):
        assert not random_calls.failure(tmp_path, each, number, 3000)
