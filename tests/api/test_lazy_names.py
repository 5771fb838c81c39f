"""Names that are imported at their first use."""

from __future__ import annotations

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

import pjrt
from pjrt.api.lazy_names import lazy_names

PACKAGES = [
    *("pjrt", "pjrt.stablehlo", "pjrt.models", "pjrt.ifrt", "pjrt.devices.reference", "pjrt.frameworks", "pjrt.host"),
]


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


def test_threads_import_the_host_runtime_at_the_same_moment() -> None:
    """A thread holds the lock of the module that it imports: a package that imports its modules would wait for it."""
    code = """
import importlib, threading
import numpy  # its own modules import each other in a circle, which threads at the same moment cannot
names = ["pjrt.host", "pjrt.host.device", "pjrt.host.device_memory", "pjrt.host.processes", "pjrt.host.client"]
together, failures = threading.Barrier(len(names)), []

def load(name):
    together.wait()
    try:
        importlib.import_module(name)
        importlib.import_module("pjrt.host").HostClient
    except (ImportError, RuntimeError) as error:  # a deadlock of locks is the latter
        failures.append(error)

threads = [threading.Thread(target=load, args=(name,)) for name in names]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_package_is_imported_before_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that need a package and one of its modules at the same moment then wait in one order."""
    asked: list[str] = []
    load = importlib.import_module

    def note(name: str, package: str | None = None) -> ModuleType:
        asked.append(name)
        return load(name, package)

    get, _ = lazy_names("pjrt", {"pjrt.plugins.registry": "client", ".api.client": "Client"})
    monkeypatch.setattr(importlib, "import_module", note)
    assert get("client") is pjrt.client
    assert get("Client") is load("pjrt.api.client").Client
    assert asked == ["pjrt.plugins", "pjrt.plugins.registry", "pjrt.api", "pjrt.api.client"]
