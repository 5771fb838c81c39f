"""The browser in which the tests look at pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import CHROMIUM, DRIVER, Browser


@pytest.fixture(scope="session")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A window of Chromium for all tests of a process."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    window = Browser(tmp_path_factory.mktemp("profile"))
    yield window
    window.close()
