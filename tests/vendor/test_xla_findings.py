"""The reports for XLA: each program of the page is compiled, and does what the page says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from cpu_plugins import lammps

import pjrt

pytestmark = pytest.mark.vendor

PAGE = Path(__file__).parents[2] / "docs" / "xla_findings.md"
HEADERS = Path(pjrt.__file__).parent / "abi"
PRELUDE, *_ = re.findall(r"^```c\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
FINDINGS = re.findall(
    r"^## (.*?)\n.*?^```c\n(.*?)^```\n\n```text\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
)
ENDS_THE_PROCESS = ("ends the process", "outlive", "beyond its buffers")


def test_the_page_has_programs() -> None:
    assert len(FINDINGS) >= 8


@pytest.mark.parametrize(("title", "program", "expected"), FINDINGS, ids=[title for title, _, _ in FINDINGS])
def test_a_program_does_what_the_page_says(title: str, program: str, expected: str, tmp_path: Path) -> None:
    source, binary = tmp_path / "report.c", tmp_path / "report"
    source.write_text(f"{PRELUDE}\n{program}")
    subprocess.run(
        ["cc", '-DPJRT_HEADER="pjrt_abi.h"', "-I", HEADERS, "-D_GNU_SOURCE", source, "-o", binary, "-ldl"], check=True
    )
    done = subprocess.run([binary, lammps()], capture_output=True, text=True, timeout=120, check=False)
    assert expected.strip() in done.stdout + done.stderr
    crashed = done.returncode < 0
    assert crashed == any(words in title for words in ENDS_THE_PROCESS), (done.returncode, done.stdout[-300:])
    assert crashed or expected.strip() in done.stdout.splitlines()[-1]
