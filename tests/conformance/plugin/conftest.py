"""The plugin under the checks, and the browser in which the tests look at pages."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from browser import window

__all__ = ["window"]


@pytest.fixture(scope="session")
def tiny_library(tiny_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tiny plugin: what checks leave behind, as the end of their process frees it, is counted by no other
    test."""
    return Path(shutil.copy(tiny_library, tmp_path_factory.mktemp("checked")))
