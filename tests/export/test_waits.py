"""Waits for a device in Python by callers that hold the GIL: they release it, and end."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pjrt.capi.export import release_gil_in_waits

HERE = Path(__file__).parent
WAYS = (
    "cond_wait",
    "cond_timedwait",
    "cond_clockwait",
    "condition_variable",
    "future",
    "mutex",
    "shared_lock",
    "exclusive_lock",
    "static",
    "semaphore",
    "futex",
    "cond_wait",  # again: what was let go of is there again
)


def run(*arguments: str) -> list[str]:
    """The lines that the process prints."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(HERE / "waiting.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="the functions that a library imports are replaced on Linux only")
def test_a_library_that_waits_with_the_gil(tmp_path: Path) -> None:
    compiler = shutil.which("c++")
    assert compiler is not None, "the tests need a C++ compiler"
    library = tmp_path / "libwaits.so"
    flags = ["-std=c++17", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-lpthread"]
    subprocess.run([compiler, str(HERE / "waits.cpp"), "-o", str(library), *flags], check=True, timeout=120)
    assert run(str(library), *WAYS) == [*WAYS]


def test_an_event_that_is_awaited_with_the_gil() -> None:
    assert run() == ["set"]


def test_a_library_that_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "libother.so").touch()
    assert release_gil_in_waits(tmp_path / "libother.so", tmp_path / "missing.so") == 0
