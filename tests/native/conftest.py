"""Fixtures of the tests of the runtime in C: the example's chip, and a driver that lies."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import pjrt
from pjrt import native
from pjrt.api.client import Client

EXAMPLES = Path(__file__).parents[2] / "examples"
WARNINGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")


def compile_driver(source: Path, folder: Path) -> Path:
    """Compile a driver's source with the system's C compiler."""
    target = folder / f"lib{source.stem}.so"
    command = [*shlex.split(os.environ.get("CC", "gcc")), *WARNINGS, f"-I{native.get_include()}", str(source)]
    subprocess.run([*command, "-o", str(target), "-lm", "-lpthread"], check=True, timeout=240)
    return target


@pytest.fixture(scope="session")
def chip_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver of the example `native_chip`."""
    return compile_driver(EXAMPLES / "native_chip" / "chip.c", tmp_path_factory.mktemp("chip"))


@pytest.fixture(scope="session")
def chip_library(chip_driver: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plugin of the example `native_chip`."""
    compiler = f"{EXAMPLES / 'native_chip' / 'compiler.py'}:compile"
    return native.write_library(tmp_path_factory.mktemp("chip_plugin") / "chip.so", compiler, driver=chip_driver)


@pytest.fixture(scope="module")
def chip(chip_library: Path) -> Iterator[Client]:
    """A client of the chip, which has two devices. To start the process that compiles takes a second: a file does it
    once."""
    with pjrt.load_plugin(chip_library).client() as client:
        yield client


@pytest.fixture(scope="session")
def lying_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plugin whose driver breaks one rule of its contract, which the environment names."""
    folder = tmp_path_factory.mktemp("lying")
    driver = compile_driver(Path(__file__).parent / "lying_driver.c", folder)
    copy = folder / "compiler.py"
    shutil.copy(Path(__file__).parent / "copying_compiler.py", copy)
    return native.write_library(folder / "lying.so", f"{copy}:compile", driver=driver)
