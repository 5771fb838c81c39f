"""Fixtures that hide the settings of the user who runs the tests: plugins are found as where nothing is configured."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from pjrt import plugins
from pjrt.plugins.discovery import wheels


def with_hardware(vendor: wheels.Vendor, file: Path) -> wheels.Vendor:
    """Declare a vendor's plugin whose hardware is known by a file."""
    return replace(vendor, facts={**vendor.facts, "hardware": (str(file),)})


@pytest.fixture
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No hardware, no variables, no configuration file."""
    nowhere = tmp_path_factory.getbasetemp() / "nowhere"
    for variable in os.environ:
        if variable.startswith("PJRT_"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("PJRT_CONFIG", os.devnull)
    here = {name: with_hardware(vendor, nowhere / name) for name, vendor in wheels.vendors().items()}
    monkeypatch.setattr(wheels, "vendors", lambda: here)
    plugins.refresh()
