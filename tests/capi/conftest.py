"""Fixtures of the tests of loaded plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny import TinyProgram
from tiny.control import Control

import pjrt
from pjrt.api.client import Client


@pytest.fixture
def plugin(tiny_library: Path) -> pjrt.Plugin:
    """The tiny plugin."""
    return pjrt.load_plugin(tiny_library)


@pytest.fixture
def client(plugin: pjrt.Plugin, tiny_control: Control) -> Iterator[Client]:
    """A client with two devices, closed after the test; a broken rule of the ABI fails the test."""
    before = tiny_control.violations
    with plugin.client(num_devices=2) as made:
        yield made
        tiny_control.clear()
    tiny_control.collect()  # what is alive now will call the plugin when it is freed
    assert tiny_control.violations == before, tiny_control.last_violation


@pytest.fixture
def adder() -> pjrt.Program:
    """A program that adds two arrays of four floats."""
    program = TinyProgram("adder")
    x, y = program.parameter("f32[4]"), program.parameter("f32[4]")
    return pjrt.Program(program.result(program.let("add", x, y)).code, format="tiny")


@pytest.fixture
def program() -> Callable[[TinyProgram], pjrt.Program]:
    """Wrap a tiny program for the compiler."""
    return lambda tiny: pjrt.Program(tiny.code, format="tiny")
