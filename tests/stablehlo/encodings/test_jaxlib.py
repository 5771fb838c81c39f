from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pjrt import FailedPreconditionError
from pjrt.stablehlo.encodings import jaxlib


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Forgets the answer about the installed version before and after a test."""
    jaxlib._package.cache_clear()
    yield
    jaxlib._package.cache_clear()


def test_the_packages_metadata_states_the_same_range() -> None:
    metadata = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    requirements = metadata["project"]["optional-dependencies"]["xla"]
    assert jaxlib.SUPPORTED.replace(" ", "") in requirements


def test_the_installed_one_is_in_the_range() -> None:
    assert jaxlib.OLDEST <= jaxlib.version() < jaxlib.BELOW


@pytest.mark.parametrize("found", [(0, 8, 3), (0, 13, 0), (1, 0, 0)])
def test_one_outside_the_range_is_refused_with_both_versions(
    monkeypatch: pytest.MonkeyPatch, unchecked: None, found: tuple[int, ...]
) -> None:
    version = ModuleType("jaxlib.version")
    version.__version_info__ = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jaxlib.version", version)
    spelled = ".".join(map(str, found))
    with pytest.raises(FailedPreconditionError, match=rf"expected jaxlib >=0\.9,<0\.13, found jaxlib {spelled}"):
        jaxlib.load("mlir.ir", "test this")


def test_a_broken_one_is_told_apart_from_a_missing_one() -> None:
    with pytest.raises(FailedPreconditionError, match=r"the installed one cannot be imported.*no_such_module"):
        jaxlib.load("no_such_module", "test this")


def test_without_jaxlib_programs_are_read_and_the_extra_is_named() -> None:
    script = """
import sys
sys.modules["jaxlib"] = None
from pjrt import FailedPreconditionError, stablehlo
program = stablehlo.read("module {}")
assert stablehlo.encoding_of(program) is stablehlo.Encoding.TEXT
for look in (stablehlo.parse, stablehlo.inspect, stablehlo.to_text, stablehlo.to_hlo, stablehlo.needed_version):
    try:
        look(program)
    except FailedPreconditionError as error:
        assert "pip install 'pjrt[xla]'" in error.message, error.message
    else:
        raise AssertionError(look)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
