"""The layer ``validate`` makes no finding where no rule is broken: our loader, and programs through it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pjrt.layers import Finding, read_findings

TESTS = Path(__file__).resolve().parents[1]

LIFE = """
import sys
import pjrt
from tiny.life import Life

assert Life(pjrt.load_plugin(sys.argv[1])).run() == []
"""

ON_PURPOSE = {
    ("argument-count", "test_arguments_are_counted"),
    ("negative-size", "test_pieces_must_fit"),
    ("negative-size", "test_raw_buffers_have_bounds"),
    ("use-after-delete", "test_a_deleted_buffer_is_refused"),
    ("use-after-delete", "test_a_deleted_executable_is_refused"),
    ("use-after-delete", "test_deleted_arguments_are_refused"),
    ("use-after-delete", "test_deleting_is_final_and_may_be_repeated"),
    ("use-after-donation", "test_a_donated_argument_is_used_up"),
}
"""The tests of the device API that break a rule to see that the plugin refuses it. New ones belong here."""
BY_CHANCE = {("negative-size", "test_raw_bytes_are_inside_or_refused")}
"""The tests that break a rule with some of the numbers that hypothesis chooses."""


def run(folder: Path, arguments: list[str], **variables: str) -> list[Finding]:
    """Run Python with these arguments, and return the findings that it left in a file."""
    file = folder / "findings.jsonl"
    variables = {name: value.format(file=file) for name, value in variables.items()}
    path = os.pathsep.join([str(TESTS / "plugins"), str(TESTS / "layers")])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, env=environment, cwd=TESTS.parent
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return read_findings(file) if file.exists() else []


def test_a_life_with_every_function(tiny_library: Path, tmp_path: Path) -> None:
    options = "checksums=on,stacks=all,file={file}"
    assert run(tmp_path, ["-c", LIFE, str(tiny_library)], PJRT_LAYERS="validate", PJRT_VALIDATE=options) == []


def breach(finding: Finding) -> tuple[str, str]:
    """Return the rule and the test whose line is in the finding's stack."""
    names = [name for frame in finding.stack for name in re.findall(r"test_\w+\.py:\d+ in (test_\w+)", frame)]
    return finding.rule, names[0] if names else f"no test in {finding}"


@pytest.mark.full
def test_the_device_api_breaks_a_rule_only_on_purpose(tmp_path: Path) -> None:
    """Each breach is found, with the line of Python that made it, and nothing else is."""
    arguments = ["-m", "pytest", "-q", "-p", "validated_session", "-p", "no:cacheprovider", "tests/device_api"]
    findings = run(tmp_path, [*arguments, "-k", "[tiny]"], PJRT_TEST_FINDINGS="{file}")
    assert {breach(finding) for finding in findings} - BY_CHANCE == ON_PURPOSE
