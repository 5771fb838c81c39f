"""The layer ``validate`` before XLA's own CPU plugins under JAX: neither JAX nor they break a rule."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cpu_plugins import INSTALLED, library

from pjrt import layers

pytestmark = pytest.mark.vendor

PROGRAM = Path(__file__).with_name("jax_calls.py")


@pytest.mark.parametrize(
    ("wheel", "chosen", "how"),
    [
        (wheel, chosen, how)
        for wheel in INSTALLED
        for chosen, how in (("validate", "plain"), ("adapt,validate", "plain"), ("validate", "wrap"))
    ],
)
def test_what_users_do_breaks_no_rule(wheel: str, chosen: str, how: str, tmp_path: Path) -> None:
    plugin = library(wheel)
    findings = tmp_path / "findings.jsonl"
    options = f"file={findings},advice=on,checksums=on,stacks=all,limit=1000"
    environment = {**os.environ, "PJRT_LAYERS": chosen, "PJRT_VALIDATE": options, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(PROGRAM), str(plugin), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    # XLA's client destroys events in their callbacks, as the header allows.
    found = layers.read_findings(findings)
    assert {finding.rule for finding in found} == {"event-destroyed-in-callback"}, list(map(str, found))
