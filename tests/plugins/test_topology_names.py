"""The names of topologies that a manifest states, where none or a wrong one is given."""

from __future__ import annotations

from pathlib import Path

import pytest

import pjrt
from pjrt import plugins

CONFIG = """
[plugins.abacus]
factory = "pjrt.devices.reference.plugin:ReferencePlugin"
hardware = ["{hardware}"]
topologies = {{ wood = "2, 4", bone = "1" }}
"""
KNOWN = "GENERATION:SIZE, found {!r}. The generations and their sizes are wood: 2, 4; "


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(hardware="/no/such/*"))
    monkeypatch.setenv("PJRT_CONFIG", str(path))
    return path


@pytest.mark.parametrize("name", ["", "stone", "wood", "wood:", "v9:2x2"])
def test_a_wrong_name_is_answered_with_those_that_there_are(config: Path, name: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError) as caught:
        pjrt.topology("abacus", name)
    assert KNOWN.format(name) + "bone: 1" in caught.value.message


def test_what_the_plugin_says_of_a_size_is_kept(config: Path) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="is named by the number of its devices"):
        pjrt.topology("abacus", "wood:many")


def test_what_the_plugin_takes_is_taken(config: Path) -> None:
    assert len(pjrt.topology("abacus", "3").device_descriptions) == 3
    assert len(pjrt.topology("abacus", num_devices=2).device_descriptions) == 2


def test_where_the_hardware_is_no_name_is_needed(config: Path, tmp_path: Path) -> None:
    config.write_text(CONFIG.format(hardware=tmp_path))
    assert len(pjrt.topology("abacus").device_descriptions) == 1


def test_those_of_tpus_are_known() -> None:
    from pjrt.plugins.discovery import wheels

    folder = wheels.VENDORS
    assert '"v5e": "1x1, 2x2' in (folder / "tpu.json").read_text()
    assert plugins.declaration("cpu").topologies == {}
