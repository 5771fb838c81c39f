"""Sharded JAX programs on devices of ours, by JAX and on global arrays.

Values and shardings of all results are those of JAX's own CPU.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

SCRIPT = Path(__file__).with_name("sharded_programs.py")


@functools.cache
def results(way: str, device: str) -> dict[str, str | None]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), way, device],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    differences: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return differences


def programs() -> list[str]:
    return re.findall(r"^ *@program\n *def (\w+)", SCRIPT.read_text(), re.MULTILINE)


FULL, HEAVY = pytest.mark.full, pytest.mark.heavy


@pytest.mark.parametrize(
    ("way", "device"),
    [  # each way and each device, then each way on each device
        pytest.param("jax", "cpu", marks=FULL),
        pytest.param("ifrt", "reference", marks=FULL),
        pytest.param("jax", "simulated_chip", marks=FULL),
        pytest.param("ifrt", "cpu", marks=HEAVY),
        pytest.param("jax", "reference", marks=HEAVY),
    ],
)
@pytest.mark.parametrize("name", programs())
def test_a_sharded_program(name: str, way: str, device: str) -> None:
    differences = results(way, device)
    if name not in differences:
        pytest.skip("this JAX has no such program")
    assert differences[name] is None
