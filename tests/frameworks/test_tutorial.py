"""The page of the first device, as it stands: its device is in a file, and its other blocks run in order."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "plugin.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@functools.cache
def printed() -> list[str]:
    code = "\n".join(blocks()[1:])
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mychip.py").write_text(blocks()[0])
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment, cwd=folder
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()


@pytest.mark.full
def test_the_tutorial_prints_what_it_shows() -> None:
    code = "\n".join(blocks())
    shown = re.findall(r"\bprint\(.*\)+\s+# (.*)$", code, re.MULTILINE)
    fused = re.findall(r"^# (lambda .*)$", code, re.MULTILINE)
    lines = [line for line in printed() if not line.startswith("lambda")]
    assert [line for line in printed() if line.startswith("lambda")] == fused
    assert len(lines) == len(shown) >= 9
    for line, expected in zip(lines, shown, strict=True):
        pattern = ".*".join(re.escape(part) for part in expected.split("…"))
        assert re.fullmatch(pattern, line), f"the page shows {expected!r}, the output is {line!r}"


@pytest.mark.full
def test_the_network_learns() -> None:
    ours, _ = map(float, printed()[-1].split())
    assert ours < 0.02


def test_the_device_is_short() -> None:
    assert sum(1 for line in blocks()[0].splitlines() if line.strip()) <= 20


@pytest.mark.full
@pytest.mark.parametrize(
    "choice",
    [("--filter", "f32"), ("--group", "behaviour", "--group", "devices", "--group", "jax")],
    ids=["operations", "behaviour"],
)
def test_the_device_is_right(tmp_path: Path, choice: tuple[str, ...]) -> None:
    (tmp_path / "mychip.py").write_text(blocks()[0])
    done = subprocess.run(
        [sys.executable, "-m", "pjrt", "test-device", "mychip.py:make_client", *choice],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert re.search(r"\b[4-9]\d checks passed, nothing is wrong", done.stdout)
