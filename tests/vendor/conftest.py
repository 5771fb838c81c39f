"""Real vendors' plugins, without their hardware: the wheels of the extra ``vendor``.

They run with ``pytest -m vendor``, and fail where a wheel is not installed. Plugins are
loaded in subprocesses, for such a library handles signals and starts threads.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pjrt import plugins

HERE = Path(__file__).parent

Ask = Callable[..., dict[str, Any]]
"""Runs code that fills the dictionary ``found``, with the values given by name at hand, and returns it."""


def _library(name: str) -> Path:
    found = plugins.declaration(name).library
    assert found is not None
    return found


@pytest.fixture(scope="session")
def libtpu() -> Path:
    """The library of the TPU plugin."""
    return _library("tpu")


@pytest.fixture(scope="session")
def cuda_plugin() -> Path:
    """The library of the CUDA plugin."""
    return _library("cuda")


@pytest.fixture(scope="session")
def h100() -> Path:
    """A file that describes a GPU: what a machine with one gives as its topology's ``target_config``."""
    return HERE / "data" / "h100.txtpb"


@pytest.fixture(scope="session")
def ask() -> Ask:
    """See ``Ask``."""

    def run(body: str, **values: Any) -> dict[str, Any]:
        given = json.dumps(json.dumps(values))
        script = f"import json, pjrt\nfound = {{}}\nglobals().update(json.loads({given}))\n{body}"
        done = subprocess.run(
            [sys.executable, "-c", f"{script}\nprint('\\n' + json.dumps(found))"],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    return run
