"""A plugin of pytest: the plugins that a session loads have the layer ``validate``, with findings in a file.

The variables are set when the session starts: the tests' own conftest.py removes those of the environment.
"""

from __future__ import annotations

import os

import pytest


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have all plugins that are loaded from now on validated."""
    os.environ["PJRT_LAYERS"] = "validate"
    os.environ["PJRT_VALIDATE"] = f"checksums=on,limit=1000,file={os.environ['PJRT_TEST_FINDINGS']}"
