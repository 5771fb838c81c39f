"""A short part of the fuzzing of files: each command ends with its result, or with an error on one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.full
def test_mutated_files_of_all_formats() -> None:
    command = [sys.executable, "-m", "benchmarks.fuzz.worker", "--target=files", "--seed=7", "--binary=0", "0", "96"]
    done = subprocess.run(command, capture_output=True, timeout=300, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    assert (len(done.stdout), set(done.stdout)) == (96, set(b"or")), done.stderr.decode()[-4000:]
