"""The page of memory and queues: its chip is right, its examples run, and print what it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "host.md").read_text()


def examples(page: str = PAGE) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The reader's folder: the chip of the first page, and the one of this page."""
    (tmp_path / "mychip.py").write_text(examples((DOCS / "plugin.md").read_text())[0])
    (tmp_path / "mychip2.py").write_text(examples()[0])
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=240, cwd=folder, env=environment
    )


def test_the_chip_and_the_first_device_are_short() -> None:
    assert len(examples()[0].splitlines()) < 60
    (first,) = (code for code in examples() if "HostClient, " in code or "Compiled, HostClient\n" in code)
    assert len(first.splitlines()) < 40


def test_the_examples_run_in_order_and_print_what_they_say(folder: Path) -> None:
    code = "\n".join(examples()[1:])
    done = run(folder, "-c", code)
    assert done.returncode == 0, done.stderr[-3000:]
    printed = done.stdout
    shown = re.findall(r"print\(.*\) +# (\d+|\{.*|[A-Z]\w+: .*|out of memory.*|the work of .*)$", code, re.MULTILINE)
    assert len(shown) >= 7
    for comment in shown:
        assert comment.removesuffix("…") in printed


@pytest.mark.full
@pytest.mark.parametrize(
    "choice",
    [("--filter", "f32"), ("--group", "behaviour", "--group", "devices", "--group", "jax")],
    ids=["operations", "behaviour"],
)
def test_the_chip_is_right(folder: Path, choice: tuple[str, ...]) -> None:
    done = run(folder, "-m", "pjrt", "test-device", "mychip2.py:make_client", *choice)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert re.search(r"\b[4-9]\d checks passed, nothing is wrong", done.stdout)


@pytest.mark.full
def test_the_command_with_jax(folder: Path) -> None:
    (command,) = re.findall(r'^\$ python -c "(import mychip2.*)"$', PAGE, re.MULTILINE)
    done = run(folder, "-c", command)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "[1. 2. 3.]"


@pytest.mark.full
def test_jax_runs_on_the_device_of_host_client(tmp_path: Path) -> None:
    (framework,) = re.findall(r"^```py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (first,) = (code for code in examples() if "Compiled, HostClient\n" in code)
    done = run(tmp_path, "-c", first + framework)
    assert done.returncode == 0, done.stderr
    (expected,) = re.findall(r"print\(.*\) +# (\[.*)$", framework, re.MULTILINE)
    assert done.stdout.strip() == expected
