"""The layer ``validate`` before XLA's own CPU plugins under JAX: neither JAX nor they break a rule."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pjrt import layers

pytestmark = pytest.mark.vendor

PROGRAM = Path(__file__).with_name("jax_calls.py")


LAMMPS, ATOMS = ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"), ("fastatomstruct_xla_cpu", "libpjrt_cpu.so")
OLDEST = ("xla_plugins.xla_cpu_pjrt", "xla_cpu_pjrt.so")


# Through this package the oldest stops in sums over devices: each execution there waits for the others.
@pytest.mark.parametrize(
    ("plugin", "chosen", "how"),
    [
        *((plugin, chosen, "plain") for plugin in (LAMMPS, ATOMS, OLDEST) for chosen in ("validate", "adapt,validate")),
        *((plugin, "validate", "wrap") for plugin in (LAMMPS, ATOMS)),
    ],
)
def test_what_users_do_breaks_no_rule(plugin: tuple[str, str], chosen: str, how: str, tmp_path: Path) -> None:
    package, file = plugin
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    library = Path(spec.submodule_search_locations[0]) / file
    findings = tmp_path / "findings.jsonl"
    options = f"file={findings},advice=on,checksums=on,stacks=all,limit=1000"
    environment = {**os.environ, "PJRT_LAYERS": chosen, "PJRT_VALIDATE": options, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(PROGRAM), str(library), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    # XLA's client destroys events in their callbacks, as the header allows.
    found = layers.read_findings(findings)
    assert {finding.rule for finding in found} == {"event-destroyed-in-callback"}, list(map(str, found))
