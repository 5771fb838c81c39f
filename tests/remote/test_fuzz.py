"""A short part of the fuzzing of requests: no unforeseen error, no hang, no leak, and nothing of another session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_mutated_requests() -> None:
    command = [sys.executable, "-m", "benchmarks.fuzz.worker", "--target=remote", "--seed=7", "--binary=0", "0", "6"]
    done = subprocess.run(command, capture_output=True, timeout=200, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (0, b"o" * 6), done.stderr.decode()[-4000:]
