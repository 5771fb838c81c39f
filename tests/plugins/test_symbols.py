"""Symbols that a plugin's library exports beside the one that loaders look for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import build

from pjrt.plugins import symbols
from pjrt.system import elf

SHOWN = '__attribute__((visibility("default"))) '
NAMES = {"GetPjrtApi", "_ZN6google8protobuf7MessageD2Ev", "__start_pb_defaults", "_ZN4absl3LogEv", "helper"}


@pytest.fixture(scope="module")
def library(tiny_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with symbols of protobuf and of others; one function is hidden, and one is called and not defined."""
    source = tmp_path_factory.mktemp("symbols") / "shows.c"
    shown = "".join(f"{SHOWN}void {name}(void);\n{SHOWN}void {name}(void) {{ abort(); }}\n" for name in sorted(NAMES))
    source.write_text(f"#include <stdlib.h>\n{shown}void hidden(void);\nvoid hidden(void) {{}}\n")
    return build.build([source], tiny_cache, "libshows.so")


def test_the_names_are_those_that_are_defined_and_visible(library: Path) -> None:
    assert set(elf.exported_names(library)) - {"_init", "_fini"} == NAMES


@pytest.mark.parametrize("size", [0.2, 0.5, 0.9])
def test_a_library_that_is_cut_off_has_fewer(library: Path, tmp_path: Path, size: float) -> None:
    content = library.read_bytes()
    cut = tmp_path / "libcut.so"
    cut.write_bytes(content[: int(len(content) * size)])
    assert set(elf.exported_names(cut)) <= NAMES | {"_init", "_fini"}


def test_names_are_grouped_by_the_library_they_are_of(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbols, "_library_of", lambda package, _: library if package == "jaxlib" else None)
    report = symbols.symbol_report(library)
    assert set(report.needless) == NAMES - {"GetPjrtApi"}
    assert report.groups == {"protobuf": 2, "Abseil": 1}
    assert report.shared == {"jaxlib": report.needless}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pjrt", "info", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_the_command_prints_them(library: Path) -> None:
    found = json.loads(run(str(library), "--symbols", "--json").stdout)
    assert found["groups"] == {"protobuf": 2, "Abseil": 1}
    assert "of protobuf           2\n" in run(str(library), "--symbols").stdout


@pytest.mark.parametrize(("name", "found"), [((), "no NAME"), (("reference",), "reference, which has none")])
def test_a_device_without_a_library(name: tuple[str, ...], found: str) -> None:
    done = run(*name, "--symbols")
    assert done.returncode == 2
    assert f"found {found}" in done.stderr
