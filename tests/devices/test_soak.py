"""A short soak: no call of a serving loop leaves something of Python's behind, where there is no jax to collect it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMES = 1000


@pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", marks=pytest.mark.full), pytest.param("exported-reference", marks=pytest.mark.heavy)],
)
def test_no_call_leaves_anything_behind(device: str) -> None:
    command = [sys.executable, "-m", "benchmarks.soak", "--contestant", device, str(TIMES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    grown = json.loads(done.stdout)
    assert len(grown) > 30
    # What a call leaves is at least a block a call; what is kept for a while is a few hundred in all.
    left = {name: blocks for name, (blocks, _) in grown.items() if blocks > 0.7}
    assert not left
