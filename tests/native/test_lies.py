"""A driver that breaks its contract: the error names the function and what it gave, and the process lives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, numpy as np, pjrt
try:
    client = pjrt.load_plugin(sys.argv[1]).client()
    executable = client.compile(
        "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }")
    for _ in range(2):
        (result,) = executable(np.arange(4, dtype=np.float32))
    print("result", np.asarray(result).tolist())
except pjrt.PjrtError as error:
    print(type(error).__name__, error)
"""
RIGHT = "result [0.0, 1.0, 2.0, 3.0]"


def run(lying_library: Path, lie: str, expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(lying_library)],
        env={**os.environ, "LIE": lie},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
    assert ("called the function of on_done twice" in done.stderr) == (lie == "fence_twice")


@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        ("open_fails", "the cable is out"),
        ("no_devices", "function open gave 0 devices, expected 1 to 256"),
        ("no_kind", "function describe left out the kind"),
        ("no_memory", "function describe left out the kind"),
        ("null_memory", "function describe gave no name for kind of memory 0 of device 0"),
        ("null_table", "pjrt_driver_entry returned null"),
        ("no_launch", "the driver's table has no launch, which every driver needs"),
        ("short_table", "the driver's table has no launch"),
    ],
)
def test_a_lie_about_the_devices(lying_library: Path, lie: str, expected: str) -> None:
    run(lying_library, lie, expected)


@pytest.mark.full  # a program is compiled in each
@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        ("", RIGHT),
        ("fence", RIGHT),
        ("fence_waits", RIGHT),
        ("fence_null_message", RIGHT),
        ("fence_twice", RIGHT),
        ("fence_ends_in_allocate", RIGHT),
        ("old_table", RIGHT),
        ("allocate_99", "function allocate returned 99, expected 0 or the number of a status code"),
        ("allocate_silent", "the driver's function allocate failed and gave no message"),
        ("message_without_end", "xxxxxxxx"),
        ("load_0", "function load gave 0"),
        ("fence_fails", "the chip is too hot"),
        ("fence_refused", "no such fence"),
        ("no_wait", "returned the fence 5, and it has neither wait nor on_done"),
    ],
)
def test_a_lie_about_work(lying_library: Path, lie: str, expected: str) -> None:
    run(lying_library, lie, expected)
