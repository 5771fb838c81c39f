"""The tutorial, as it stands: its Python blocks are run one after the other in one process."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

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


def test_the_tutorial_prints_what_it_shows() -> None:
    code = "\n".join(blocks())
    shown = re.findall(r"\bprint\(.*\)+\s+# (.*)$", code, re.MULTILINE)
    fused = re.findall(r"^# (lambda .*)$", code, re.MULTILINE)
    lines = [line for line in printed() if not line.startswith("lambda")]
    assert [line for line in printed() if line.startswith("lambda")] == fused
    assert len(lines) == len(shown) == 7
    for line, expected in zip(lines, shown, strict=True):
        pattern = ".*".join(re.escape(part) for part in expected.split("…"))
        assert re.fullmatch(pattern, line), f"the page shows {expected!r}, the output is {line!r}"


def test_the_network_learns() -> None:
    ours, _ = map(float, printed()[-1].split())
    assert ours < 0.02


def lines_of(*places: int) -> int:
    return sum(1 for place in places for line in blocks()[place].splitlines() if line.strip())


def test_the_devices_are_short() -> None:
    first, memory, client = (
        number for number, code in enumerate(blocks()) if re.search(r"KERNELS =|ChipMemory\(p|def make_", code)
    )
    assert lines_of(first) < 20
    assert lines_of(memory) < 40
    assert lines_of(first, memory, client) < 100
