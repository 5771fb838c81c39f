"""Names that are imported at their first use."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PACKAGES = ["pjrt", "pjrt.stablehlo", "pjrt.models", "pjrt.ifrt", "pjrt.devices.reference", "pjrt.frameworks"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there_and_listed(package: str) -> None:
    module = importlib.import_module(package)
    names = [name for name in module.__all__ if name != "torch_xla"]
    assert all(hasattr(module, name) for name in names)
    assert set(names) <= set(dir(module))


@pytest.mark.parametrize("package", PACKAGES)
def test_another_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        importlib.import_module(package).nothing  # noqa: B018  # reading it is the test


def test_a_name_stays_what_it_was_when_modules_are_imported_later() -> None:
    """A module of a name's package must not take the name's place."""
    code = """
import pjrt.models
before = pjrt.models.offload
import pjrt.models.offloading.offloaded_model
assert pjrt.models.offload is before is pjrt.offload
assert "pjrt.models.comparison" not in __import__("sys").modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
