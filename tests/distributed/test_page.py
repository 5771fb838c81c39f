"""The page about jobs: its programs run, and its commands print what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text()
PROGRAMS = re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SESSIONS = re.findall(r"^```console\n\$ pjrt (launch [^\n]*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def without_numbers(text: str) -> list[str]:
    """Return the lines in order, without what differs from run to run, and without those of gloo, which may be torn."""
    lines = [line for line in text.splitlines() if not re.search(r"Gloo|peer ranks|^\[\d+\] *\d*$", line)]
    return sorted(re.sub(r"pid \d+ on [\w.-]+", "pid # on #", line) for line in lines)


def test_every_program_is_run() -> None:
    assert PAGE.count("```python\n") == len(PROGRAMS)
    assert sorted(name for name, _ in PROGRAMS) == sorted(command.split()[-1] for command, _ in SESSIONS)


@pytest.mark.full
@pytest.mark.parametrize(("command", "output"), SESSIONS, ids=[command for command, _ in SESSIONS])
def test_a_command_of_the_page(command: str, output: str, tmp_path: Path) -> None:
    for name, code in PROGRAMS:
        (tmp_path / name).write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pjrt", *command.split()], cwd=tmp_path, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    assert without_numbers(done.stdout) == without_numbers(output)
