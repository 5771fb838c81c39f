"""Faults by rule under JAX: it raises the error as its exception, goes on afterwards, and ends as ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("injected_jax.py")


@pytest.fixture(scope="module")
def report() -> Any:
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), "reference"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.full
@pytest.mark.parametrize(
    ("step", "error", "result"),
    [
        ("compile", "INTERNAL: no compiler", [1, 3, 5, 7]),
        ("execute", "ABORTED: no engine", [0, 2, 4, 6]),
        ("to device", "DATA_LOSS: no way in", [0, 1, 2, 3]),
        ("from device", "DATA_LOSS: no way out", [0, 2, 4, 6]),
        ("event", "INTERNAL: broken later", [0, 2, 4, 6]),
        ("argument", "INTERNAL: came broken", [0, 2, 4, 6]),
        ("donation", "RESOURCE_EXHAUSTED: no room", [0, 1, 2, 3]),
    ],
)
def test_an_error_is_an_exception_once(report: Any, step: str, error: str, result: list[float]) -> None:
    assert report[step] == [f"JaxRuntimeError: {error}", result]


@pytest.mark.full
def test_a_bit_is_wrong_once(report: Any) -> None:
    assert report["flip"] == [[1, 2, 4, 6], [0, 2, 4, 6]]


def test_memory_is_full_until_an_array_goes(report: Any) -> None:
    number, error = report["full"]
    assert number == 4  # of 256 bytes
    assert error.startswith(
        "JaxRuntimeError: RESOURCE_EXHAUSTED: out of memory: PJRT_Client_BufferFromHostBuffer needs"
    )


def test_a_wait_for_what_is_never_ready_can_be_given_up(report: Any) -> None:
    assert report["never"] == ["TimeoutError: long enough", False]


def test_no_fault_breaks_a_rule_of_the_abi(report: Any) -> None:
    assert report["findings"] == []
