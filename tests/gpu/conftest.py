"""Fixtures of the tests on a GPU. ``PJRT_TEST_GPU=cpu`` lets another device stand in, to try the tests without one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pjrt

NAME = os.environ.get("PJRT_TEST_GPU", "cuda")
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder: they are run by ``run.sh`` on a machine with a GPU."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker("gpu")


@pytest.fixture(scope="session")
def gpu() -> str:
    """The name of the device under test."""
    return NAME


@pytest.fixture(scope="session")
def client(gpu: str) -> Iterator[pjrt.Client]:
    """One client for all tests, which leaves memory to other libraries."""
    client = pjrt.client(gpu, **({"memory": "on-demand"} if gpu == "cuda" else {}))
    yield client
    client.close()


@pytest.fixture(scope="session")
def is_gpu(gpu: str) -> bool:
    """Whether the device is a GPU, and no stand-in."""
    return gpu == "cuda"


@pytest.fixture
def python(gpu: str) -> Callable[..., str]:
    """``python(code, **environment)`` runs code in a subprocess with ``GPU`` as the device's name, and returns what it
    prints. JAX takes memory on demand there.
    """

    def run(code: str, **environment: str) -> str:
        head = f"GPU = {gpu!r}\n"
        settings = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **environment}
        command = [sys.executable, "-X", "faulthandler", "-c", head + code]
        result = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=240, check=False)
        assert result.returncode == 0, result.stderr[-4000:]
        return result.stdout

    return run
