"""Libraries that come first in a program, and where none can."""

from __future__ import annotations

import platform
import sys

import pytest

from pjrt import system


@pytest.fixture(autouse=True)
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))


def test_a_library_comes_before_those_of_the_environment() -> None:
    environment = {"LD_PRELOAD": "/old.so", "HOME": "/root"}
    assert system.with_preloaded("/new.so", environment) == {"LD_PRELOAD": "/new.so:/old.so", "HOME": "/root"}
    assert environment["LD_PRELOAD"] == "/old.so"
    assert system.with_preloaded("/new.so", {}) == {"LD_PRELOAD": "/new.so"}


@pytest.mark.parametrize("path", ["/a folder/new.so", "/a:folder/new.so"])
def test_a_path_that_the_linker_would_take_for_two(path: str) -> None:
    assert system.with_preloaded(path, {}) is None


def test_another_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert system.with_preloaded("/new.so", {}) is None


def test_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert system.with_preloaded("/new.so", {}) is None
