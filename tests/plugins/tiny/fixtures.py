"""Fixtures for everything that tests with the tiny plugin. The root conftest.py registers this module."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tiny import build
from tiny.control import Control


@pytest.fixture(scope="session")
def tiny_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder where compiled plugins stay from session to session."""
    return tmp_path_factory.getbasetemp().parent / "pjrt-tiny-plugins"


@pytest.fixture(scope="session")
def tiny_library(tiny_cache: Path) -> Path:
    """The tiny plugin, compiled once. Shared by all tests: leave no faults and no settings behind."""
    return build.build_tiny(tiny_cache)


@pytest.fixture(scope="session")
def noop_library(tiny_cache: Path) -> Path:
    """The plugin that does nothing."""
    return build.build_other("noop", tiny_cache)


@pytest.fixture(scope="session")
def no_symbol_library(tiny_cache: Path) -> Path:
    """A library without GetPjrtApi."""
    return build.build_other("no_symbol", tiny_cache)


@pytest.fixture(scope="session")
def unruly_library(tiny_library: Path, tiny_cache: Path) -> Path:
    """The tiny plugin with functions that do to its process what the variable UNRULY names, or answer wrongly."""
    source = build.other_source("unruly_process")
    return build.build([source], tiny_cache, "libunruly_process.so", [f'-DTINY_LIBRARY="{tiny_library}"'])


@pytest.fixture
def tiny_copy(tiny_library: Path, tmp_path: Path) -> Callable[..., Control]:
    """A factory of copies of the tiny plugin, each with faults and counts of its own, shaped before it is loaded.

    `tiny_copy(minor=54, functions=90).path` is what to load; README.md lists the settings.
    """
    made = 0

    def make(**settings: int | str) -> Control:
        nonlocal made
        made += 1
        path = tmp_path / f"libtiny{made}.so"
        shutil.copy(tiny_library, path)
        control = Control(path)
        control.configure(**settings)
        return control

    return make


@pytest.fixture
def tiny_control(tiny_library: Path) -> Iterator[Control]:
    """The controls of the shared tiny plugin; its faults are taken away when the test ends."""
    control = Control(tiny_library)
    yield control
    control.clear()
    control.strict(False)
