"""The examples of the page "Write a device in Python" run, and print what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "host.md"


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_first_device_is_under_forty_lines() -> None:
    first = examples()[0]
    assert "HostClient(" in first
    assert len(first.splitlines()) < 40


def test_the_examples_run_in_order_and_print_what_they_say(capsys: Any) -> None:
    space: dict[str, Any] = {}
    for number, source in enumerate(examples()):
        exec(compile(source, f"{PAGE.name}, example {number}", "exec"), space)
    space["client"].close()
    printed = capsys.readouterr().out
    for comment in re.findall(r"print\(.*\) +# ([A-Z]\w+: .*|out of memory.*)$", PAGE.read_text(), re.MULTILINE):
        assert comment.removesuffix("…") in printed


@pytest.mark.full
def test_jax_runs_on_the_first_device() -> None:
    (framework,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    script = examples()[0] + framework
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (expected,) = re.findall(r"print\(.*\) +# (\[.*)$", framework, re.MULTILINE)
    assert done.stdout.strip() == expected
