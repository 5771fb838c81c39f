"""The files of ``jax.export`` that the tests call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of ``exported_models.py``."""
    folder = tmp_path_factory.mktemp("exported")
    script = Path(__file__).parent / "exported_models.py"
    done = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder
