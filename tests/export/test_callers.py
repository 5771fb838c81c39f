"""Callers in C that are older, newer, careless or many. Each case runs in a subprocess."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pjrt

HERE = Path(__file__).parent
INCLUDE = Path(pjrt.__file__).parent / "abi"
SOURCES = sorted((HERE / "callers").glob("*.c"))
CASES = [case for source in SOURCES for case in re.findall(r"^void (\w+)\(void\) \{", source.read_text(), re.MULTILINE)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "the tests need a C compiler"
    target = tmp_path_factory.mktemp("callers") / "libcallers.so"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-shared", "-fPIC", f"-I{INCLUDE}"]
    subprocess.run([compiler, *flags, *map(str, SOURCES), "-o", str(target), "-lpthread"], check=True, timeout=120)
    return target


def run(library: Path, device: str, case: str) -> str:
    command = [sys.executable, "-X", "faulthandler", str(HERE / "run_caller.py"), str(library), device, case]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=quiet)
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
    assert not done.stderr, done.stderr[-3000:]
    return done.stdout


def test_there_are_cases() -> None:
    assert len(CASES) > 15


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_survived(library: Path, device: str, case: str) -> None:
    assert run(library, device, case) == "survived\n"


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_nothing_leaks(library: Path, device: str) -> None:
    blocks, pages = map(int, run(library, device, "leak").split())
    assert blocks < 100, "each 300 lives of a buffer, an execution and a fetch left Python objects behind"
    assert pages < 128, "each 300 lives left half a MiB or more behind"


@pytest.mark.full
def test_ctrl_c_ends_a_wait_in_native_code(library: Path) -> None:
    command = [sys.executable, str(HERE / "run_caller.py"), str(library), "reference", "be_interrupted"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert out == "interrupted\n"
