"""The plugin for pytest, as a vendor's tests use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

PROGRAMS = Path(__file__).parent / "programs"


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_mine.py").write_text("def test_mine():\n    pass\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | variables
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "pytest", "-p", "pjrt.conformance", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_each_check_is_an_item(tiny_library: Path, tmp_path: Path) -> None:
    done = run(tmp_path, f"--pjrt-plugin={tiny_library}", "--pjrt-filter=client.lookup_device", "-v")
    assert done.returncode == 0, done.stdout
    assert "libtiny.so::client.lookup_device.next_id PASSED" in done.stdout.replace(
        "client::lookup_device::", "client.lookup_device."
    )
    assert "test_mine" not in done.stdout


def test_workers_of_xdist_share_the_checks(tiny_library: Path, tmp_path: Path) -> None:
    arguments = (f"--pjrt-plugin={tiny_library}", "--pjrt-filter=client.lookup_device", "-n2")
    done = run(tmp_path, *arguments)
    assert done.returncode == 0, done.stdout
    assert "7 passed" in done.stdout


def test_a_failure_has_the_rule_and_the_call(unruly_library: Path, tmp_path: Path) -> None:
    arguments = (f"--pjrt-plugin={unruly_library}", "--pjrt-filter=lookup_device.absent_id[-1]", "test_mine.py")
    done = run(tmp_path, *arguments, UNRULY="crash")
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "crashed: the end of the process in PJRT_Client_LookupDevice: SIGSEGV" in done.stdout
    assert "rule: " in done.stdout
    assert "in PJRT_Client_LookupDevice(client=0x" in done.stdout
    assert "Traceback" not in done.stdout


def test_what_is_unsupported_is_skipped_with_the_reason(tiny_library: Path, tmp_path: Path) -> None:
    arguments = (f"--pjrt-plugin={tiny_library}", "--pjrt-option=fail_code=5", "--pjrt-filter=lookup_device.next_id")
    done = run(tmp_path, *arguments, "-rs")
    assert done.returncode == 0
    assert "unsupported: a client cannot be made: NOT_FOUND" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pjrt-plugin=reference", "--pjrt-tier=core"), "invalid choice: 'core'"),
        (("--pjrt-plugin=reference", "--pjrt-filter=no_such_check"), "found no check for 'no_such_check'"),
        (("--pjrt-plugin=reference", "--pjrt-option=many"), "expected NAME=VALUE"),
    ],
)
def test_wrong_options(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == 4
    assert message in done.stderr


def test_a_plugin_that_cannot_be_loaded_fails_at_once(no_symbol_library: Path, tmp_path: Path) -> None:
    done = run(tmp_path, f"--pjrt-plugin={no_symbol_library}", "--pjrt-tier=official")
    assert done.returncode == 1
    assert "no function GetPjrtApi" in done.stdout
    assert "passed" not in done.stdout
