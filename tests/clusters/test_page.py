"""The page about clusters: its programs print what it shows; ``…`` stands for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
PROGRAMS = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


def test_every_program_has_a_name() -> None:
    assert PAGE.count("```python\n") == len(PROGRAMS)


@pytest.mark.full
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_the_page(name: str, tmp_path: Path) -> None:
    code = PROGRAMS[name]
    if "import jax" in code:
        pytest.importorskip("jax")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    expected = re.findall(r"\bprint\(.*\)+\s+# (.*)$", code, re.MULTILINE)
    assert len(lines) == len(expected)
    for line, shown in zip(lines, expected, strict=True):
        assert re.fullmatch(".*".join(map(re.escape, shown.split("…"))), line), (line, shown)
