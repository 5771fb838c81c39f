"""What a name means to ``pjrt.client`` and ``pjrt.topology``."""

from __future__ import annotations

import pytest

import pjrt
from pjrt import plugins
from pjrt.plugins import _wheels


def test_the_cpu_device_is_the_default_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wheels, "_DEVICE_FILES", {})
    assert "cpu" in plugins.names()
    with pjrt.client("cpu") as named, pjrt.client() as unnamed:
        assert named.platform_name == unnamed.platform_name == "cpu"


def test_a_plugin_is_one_object() -> None:
    assert plugins.find("cpu") is plugins.find("cpu")


def test_options_reach_the_device() -> None:
    with pjrt.client("cpu", num_devices=3) as client:
        assert len(client.devices) == 3
    with pytest.raises(pjrt.InvalidArgumentError, match=r"no option 'colour'; it has num_devices"):
        pjrt.client("cpu", colour="red")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(pjrt.NotFoundError, match=r"no device called 'abacus': expected one of .*cpu"):
        pjrt.client("abacus")
    with pytest.raises(pjrt.NotFoundError, match=r"no device called 'abacus'"):
        pjrt.topology("abacus", "2x2")


def test_neither_a_name_nor_a_path() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected a device's name or a plugin's path, found 3"):
        pjrt.client(3)  # type: ignore[arg-type]
