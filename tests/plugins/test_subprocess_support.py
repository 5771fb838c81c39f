"""Capabilities of devices whose hardware is not on this machine, asked in a subprocess."""

from __future__ import annotations

from pathlib import Path

import pytest

from pjrt import Program
from pjrt.plugins import subprocess_support

pytestmark = pytest.mark.usefixtures("nothing_configured")

PROGRAM = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }"


@pytest.mark.parametrize("is_library", [True, False])
def test_a_topology_is_advised_where_there_are_some(
    is_library: bool, tiny_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"library = '{tiny_library}'" if is_library else "factory = 'pjrt.devices.reference.plugin:ReferencePlugin'"
    config = tmp_path / "config.toml"
    config.write_text(f"[plugins.abacus]\n{code}\nhardware = ['/no/such/*']\n")
    monkeypatch.setenv("PJRT_CONFIG", str(config))
    support = subprocess_support.support_of(subprocess_support.Target("abacus"), Program.of(PROGRAM))
    (said,) = [
        each.message for each in support.reasons if "it was not compiled: its hardware is not here" in each.message
    ]
    assert ("a topology may do without it" in said) is is_library
