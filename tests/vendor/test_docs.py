"""The page "Use a vendor plugin" says what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vendor

PAGE = (Path(__file__).parents[2] / "docs" / "vendor.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_first_example_prints_what_the_page_shows(libtpu: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", blocks("python")[0]], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == blocks("text")[0]


def test_the_examples_that_go_further_print_what_the_page_shows(libtpu: Path) -> None:
    """The parts of a topology, the phases of a compilation and several slices: the blocks run in their order."""
    matmul = blocks("python")[0].split('"""')[1]
    code = [f"import pjrt\nprogram = {matmul!r}", *blocks("python")[1:4]]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    *topology, flops, slices = done.stdout.splitlines()
    assert topology == blocks("text")[1].splitlines()
    assert float(flops) > 0
    assert [slices] == blocks("text")[2].splitlines()


def test_the_command_prints_what_the_page_shows(libtpu: Path, tmp_path: Path) -> None:
    program = blocks("python")[0].split('"""')[1]
    (tmp_path / "matmul.mlir").write_text(f"module @matmul {{{program}}}")
    command, *shown = blocks("console")[0].splitlines()
    done = subprocess.run(
        [sys.executable, "-m", *command.removeprefix("$ ").split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for expected, printed in zip(shown[:-1], done.stdout.splitlines(), strict=False):
        # How long it took and how much it wrote are this machine's and this version's.
        assert re.sub(r"[\d.]+ (ms|s|KiB)", "…", printed) == re.sub(r"[\d.]+ (ms|s|KiB)", "…", expected)
