"""The checks of ``pjrt conform`` that need no hardware, on vendors' plugins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vendor

WITHOUT_SERVERS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}
"""Without these libtpu asks a server for two minutes."""

NEEDS_NO_CLIENT = ("error.", "plugin.", "topology.", "topologies.", "extensions.")


@pytest.mark.parametrize("name", ["libtpu", "cuda_plugin"])
def test_a_plugin_without_its_hardware_fails_no_check(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    library = request.getfixturevalue(name)
    filters = [part for text in NEEDS_NO_CLIENT for part in ("--filter", text)]
    done = subprocess.run(
        [sys.executable, "-m", "pjrt", "conform", str(library), "--without-client", *filters],
        capture_output=True, text=True, timeout=300, env=os.environ | WITHOUT_SERVERS, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    passed = int(done.stdout.rstrip().splitlines()[-1].split(": ")[1].split(" ")[0])
    assert passed > 20, done.stdout[-2000:]
