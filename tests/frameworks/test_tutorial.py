"""The tutorial, as it stands: its Python blocks are run one after the other in one process."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "plugin.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@functools.cache
def printed() -> list[str]:
    code = "\n".join(blocks())
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
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


def device() -> str:
    """Return the device of the page: its kernels, its memory and the function that makes clients."""
    code = blocks()
    first = code[0].partition("client = ")[0]
    (memory,) = (block for block in code if "class ChipMemory" in block)
    (client,) = (block.partition("chip = ")[0] for block in code if "def make_client" in block)
    return first + memory + client


def lines_of(code: str) -> int:
    return sum(1 for line in code.splitlines() if line.strip())


def test_the_devices_are_short() -> None:
    (memory,) = (block for block in blocks() if "class ChipMemory" in block)
    assert lines_of(blocks()[0]) < 20
    assert lines_of(memory) < 40
    assert lines_of(device()) < 60


@pytest.mark.full
@pytest.mark.parametrize(
    "choice",
    [("--filter", "f32"), ("--group", "behaviour", "--group", "devices", "--group", "jax")],
    ids=["operations", "behaviour"],
)
def test_the_device_is_right(tmp_path: Path, choice: tuple[str, ...]) -> None:
    (tmp_path / "mychip.py").write_text(device())
    done = subprocess.run(
        [sys.executable, "-m", "pjrt", "test-device", "mychip.py:make_client", *choice],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert re.search(r"\b[4-9]\d checks passed, nothing is wrong", done.stdout)
