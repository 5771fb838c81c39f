"""A real browser for the tests of pages: Chromium, driven through the WebDriver protocol of ``chromedriver``."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1400,1500",
)
_ATTEMPTS = 5  # to act on an element of a page that draws itself anew at the same time
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key of an element's reference, by the standard."""


class Browser:
    """One window.

    Args:
        folder: an empty folder for the profile.
        flags: further flags.
    """

    def __init__(self, folder: Path, *flags: str) -> None:
        assert DRIVER is not None
        self._driver = subprocess.Popen(
            [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            started = re.search(r"started successfully on port (\d+)", line)
            if started:
                self._root = f"http://127.0.0.1:{started[1]}"
                break
        else:
            raise RuntimeError("chromedriver ended before it listened")
        options = {"args": [*_FLAGS, *flags, f"--user-data-dir={folder}"], "binary": CHROMIUM}
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._session = ""
        self._session = (
            "/session/" + self._post("/session", {"capabilities": {"alwaysMatch": capabilities}})["sessionId"]
        )

    def open(self, path: Path) -> None:
        """Open a file, and wait until it is loaded."""
        self._post("/url", {"url": path.absolute().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a function with this body returns."""
        return self._post("/execute/sync", {"script": script, "args": list(arguments)})

    def click(self, selector: str) -> None:
        """Click on an element, as a user does."""
        self._act(selector, "click", {})

    def write(self, selector: str, text: str) -> None:
        """Type into an element."""
        self._act(selector, "value", {"text": text})

    def screenshot(self, path: Path) -> None:
        """Write what the window shows to a PNG file."""
        path.write_bytes(base64.b64decode(self._request("GET", f"{self._session}/screenshot", None)))

    def emulate(self, scheme: str) -> None:
        """Show pages as for a user who prefers light or dark colours."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        command = {"cmd": "Emulation.setEmulatedMedia", "params": {"features": features}}
        self._post("/goog/cdp/execute", command)

    def console(self) -> list[str]:
        """Return the messages of the console so far: errors of scripts and refused resources among them."""
        return [entry["message"] for entry in self._post("/se/log", {"type": "browser"})]

    def close(self) -> None:
        """Close the window and end the driver."""
        try:
            if self._session:
                self._request("DELETE", self._session, None)
        finally:
            self._driver.terminate()
            self._driver.wait(timeout=60)
            assert self._driver.stdout is not None
            self._driver.stdout.close()

    def _act(self, selector: str, action: str, body: Any) -> None:
        for attempts_left in reversed(range(_ATTEMPTS)):
            try:
                self._post(f"/element/{self._find(selector)}/{action}", body)
                return
            except RuntimeError as error:  # the page has drawn the element anew since it was found
                if "stale element reference" not in str(error) or not attempts_left:
                    raise

    def _find(self, selector: str) -> str:
        element: str = self._post("/element", {"using": "css selector", "value": selector})[_ELEMENT]
        return element

    def _post(self, path: str, body: Any) -> Any:
        return self._request("POST", self._session + path, body)

    def _request(self, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._root + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.read().decode()[:2000]}") from error


@pytest.fixture(scope="session")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A window of Chromium for all tests of a process."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
