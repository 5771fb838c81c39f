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
GIVEN_UP = """
import sys, numpy as np, pjrt
client = pjrt.load_plugin(sys.argv[1]).client(watchdog_seconds=0.25)
executable = client.compile(
    "func.func @copy(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }")
for number in range(3):
    try:
        (result,) = executable(np.arange(4, dtype=np.float32))
        print("result", np.asarray(result).tolist())
    except pjrt.PjrtError as error:
        print(type(error).__name__, error)
client.close()
print("closed")
"""
RIGHT = "result [0.0, 1.0, 2.0, 3.0]"


def run(lying_library: Path, lie: str, *expected: str, script: str = SCRIPT) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, str(lying_library)],
        env={**os.environ, "LIE": lie},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for text in expected:
        assert text in done.stdout, done.stdout
    assert ("called the function of on_done twice" in done.stderr) == (lie == "fence_twice")
    return done.stderr


@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        ("open_fails", "the cable is out"),
        ("no_devices", "function open gave 0 devices, expected 1 to 256"),
        ("no_kind", "function describe left out the kind"),
        ("no_memory", "function describe left out the kind"),
        ("null_memory", "function describe gave no name for kind of memory 0 of device 0"),
        ("null_driver", "function open gave null as the driver"),
        ("many_kinds", "function describe gave 1000 kinds of memory of device 0, expected 1 to 64"),
        ("two_kinds", "function describe gave the kind of memory other of device 1, expected the kinds of device 0"),
        ("negative_limit", "function describe gave a limit of -5 bytes for kind of memory 0 of device 0"),
        ("no_value", "function describe gave attribute 0 (coords) without its name or its value"),
        ("no_name", "function describe gave attribute 0 (no name) without"),
        ("two_values", "function describe gave attribute 0 (coords) without"),
        ("no_type", "function describe gave attribute 0 (coords) without"),
        ("no_attributes", "function describe gave attribute 0 (no name) without"),
        ("no_version", "function describe_client gave null as the platform's version"),
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
        ("allocate_0", "function allocate gave 0 for 16 bytes, which stands for no memory"),
        ("size_0", "function layout gave 0 bytes for f32[4]"),
        ("size_huge", "function layout gave 18446744073709551612 bytes for f32[4]"),
        ("size_packed", "function layout gave elements of 4 bits for f32[4]"),
        ("message_without_end", "xxxxxxxx"),
        ("load_0", "function load gave 0"),
        ("fence_fails", "the chip is too hot"),
        ("fence_refused", "no such fence"),
        ("no_wait", "returned the fence 5, and it has neither wait nor on_done"),
    ],
)
def test_a_lie_about_work(lying_library: Path, lie: str, expected: str) -> None:
    run(lying_library, lie, expected)


LATE = "DeadlineExceededError"


@pytest.mark.full  # a program is compiled in each, and its end is waited for
@pytest.mark.parametrize(
    ("lie", "expected", "called"),
    [
        ("fence_never", ["liar(id=0): launch of the program main was not done within 0.25 seconds", RIGHT], []),
        ("fence_late", [LATE, RIGHT], []),
        ("fence_waits_for_ever", [LATE], []),
        ("fence_cancel", [LATE, RIGHT], ["cancel of fence 5"]),
        ("fence_reset", [LATE, RIGHT], ["reset"]),
        (
            "fence_cancel_fails",
            [LATE, RIGHT],
            ["cancel of fence 5", "the driver's function cancel failed: the chip does not listen", "reset"],
        ),
        ("copies_never", ["liar(id=0): copy_out was not done within 0.25 seconds", RIGHT], []),
    ],
)
def test_work_that_does_not_end(lying_library: Path, lie: str, expected: list[str], called: list[str]) -> None:
    """The watchdog gives it up. What comes after it runs, and the client closes."""
    said = run(lying_library, lie, *expected, "closed", script=GIVEN_UP)
    for text in called:
        assert text in said
    assert called or not said


@pytest.mark.parametrize("seconds", ["0", "-1.5", "'long'", "float('nan')"])
def test_a_watchdog_without_patience(lying_library: Path, seconds: str) -> None:
    script = SCRIPT.replace(".client()", f".client(watchdog_seconds={seconds})")
    run(lying_library, "", "option watchdog_seconds: expected a number of seconds from 0.001", script=script)
