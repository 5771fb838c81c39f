"""The tutorial, as it stands: its Python blocks are run one after the other in one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "plugin.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_tutorial_runs() -> None:
    code = "\n".join(blocks())
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    refusal, losses = done.stdout.strip().splitlines()
    assert "does not run stablehlo.sine" in refusal
    ours, jaxs = map(float, losses.split())
    assert ours == pytest.approx(jaxs, rel=1e-4)
    assert ours < 0.2


def test_the_first_device_is_short() -> None:
    lines = [line for line in blocks()[0].splitlines() if line.strip()]
    assert len(lines) < 40
