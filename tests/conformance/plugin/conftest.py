"""Plugins that are wrong on purpose."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import window
from tiny import build

__all__ = ["window"]

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def unruly_library(tiny_library: Path, tiny_cache: Path) -> Path:
    """The tiny plugin with a function that does to its process what the variable UNRULY names."""
    source = HERE / "unruly_process.c"
    return build.build([source], tiny_cache, "libunruly_process.so", [f'-DTINY_LIBRARY="{tiny_library}"'])
