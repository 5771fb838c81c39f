"""The layer ``validate`` makes no finding where no rule is broken: our loader, and programs through it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pjrt.layers import Finding, read_findings

TESTS = Path(__file__).resolve().parents[2]

LIFE = """
import sys
import pjrt
from tiny.life import Life

assert Life(pjrt.load_plugin(sys.argv[1])).run() == []
"""


def run(folder: Path, arguments: list[str], **variables: str) -> list[Finding]:
    """Run Python with these arguments, and return the findings that it left in a file."""
    file = folder / "findings.jsonl"
    variables = {name: value.format(file=file) for name, value in variables.items()}
    path = os.pathsep.join([str(TESTS / "plugins"), str(TESTS / "layers" / "validate")])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, env=environment, cwd=TESTS.parent
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return read_findings(file) if file.exists() else []


def test_a_life_with_every_function(tiny_library: Path, tmp_path: Path) -> None:
    options = "checksums=on,stacks=all,file={file}"
    assert run(tmp_path, ["-c", LIFE, str(tiny_library)], PJRT_LAYERS="validate", PJRT_VALIDATE=options) == []


@pytest.mark.full
def test_the_device_api_breaks_no_rule(tmp_path: Path) -> None:
    """Its tests use everything wrongly, too: what would break a rule is refused before the plugin is called."""
    arguments = ["-m", "pytest", "-q", "-p", "validated_session", "-p", "no:cacheprovider", "tests/device_api"]
    assert run(tmp_path, [*arguments, "-k", "[tiny]"], PJRT_TEST_FINDINGS="{file}") == []
