"""Plugins are found as they are where nothing is configured, whatever the settings of whoever runs the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pjrt import plugins


@pytest.fixture
def nothing_configured(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No hardware, no variables, no configuration file."""
    nowhere = tmp_path_factory.getbasetemp() / "nowhere"
    for variable in os.environ:
        if variable.startswith("PJRT_"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("PJRT_CONFIG", os.devnull)
    monkeypatch.setattr("pjrt.system.device_files", lambda vendor: (str(Path(nowhere) / vendor),))
    plugins.refresh()
