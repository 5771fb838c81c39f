"""Each check of buffers and memory passes on the tiny plugin, and fails when the plugin does something wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from buffer_faults import MODULES, OPTIONS, PROGRAMS, WRONG_VALUES, checks, module_of

from pjrt.api import element_type
from pjrt.api.element_type import ElementType
from pjrt.capi import raw
from pjrt.conformance.plugin.check import Failed, all_checks
from pjrt.conformance.plugin.contract.endurance import leaks
from pjrt.conformance.plugin.samples import Samples
from pjrt.conformance.plugin.subject import Subject

UNSUPPORTED = {
    "buffer_from_host.tiled_device_layout",
    "host_allocator.alignment",
    "host_allocator.allocate",
    "host_allocator.several",
    "host_memory_allocator.allocate",
    "host_memory_allocator.several",
}
"""Checks of what the tiny plugin lawfully leaves out."""


@pytest.fixture(scope="module")
def outcomes(tiny_library: Path) -> Mapping[str, Mapping[str, str]]:
    """The outcomes of all checks with faults."""
    script = Path(__file__).with_name("buffer_faults.py")
    ended = subprocess.run(
        [sys.executable, str(script), str(tiny_library)], capture_output=True, text=True, timeout=600, check=True
    )
    found: Mapping[str, Mapping[str, str]] = json.loads(ended.stdout)
    return found


def test_there_are_checks() -> None:
    assert len(checks()) > 250
    assert {module_of(each) for each in checks().values()} == set(MODULES)


@pytest.mark.full
def test_each_check_can_fail(outcomes: Mapping[str, Mapping[str, str]]) -> None:
    found = outcomes["failing functions"]
    assert {name: each for name, each in found.items() if each not in ("caught", "unsupported")} == {}
    assert {name for name, each in found.items() if each == "unsupported"} == UNSUPPORTED


@pytest.mark.full
def test_wrong_values_are_found(outcomes: Mapping[str, Mapping[str, str]]) -> None:
    assert outcomes["wrong values"] == dict.fromkeys(WRONG_VALUES, "caught")


def test_types_that_ml_dtypes_lacks_are_checked(tiny_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(raw.load(tiny_library), OPTIONS, Samples(str(PROGRAMS)))
    monkeypatch.setitem(element_type._DTYPE_OF, ElementType.S1, None)
    for check in ("buffer_from_host.element_type", "buffer_from_host.element_type_strided", "buffer.element_type"):
        all_checks()[f"{check}[s1]"].run(subject)


@pytest.mark.full
def test_leaks_are_found(tiny_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def subject() -> Subject:
        return Subject(raw.load(tiny_library), OPTIONS, Samples(str(PROGRAMS)))

    rounds = all_checks()["leaks.rounds[created_event]"]
    rounds.run(subject())
    kept: list[bytes] = []
    repeat = leaks._repeat

    def leaking(run: Callable[[], None], most: int, least: int) -> int:
        count = repeat(run, most, least)
        kept.extend(bytes(600) for _ in range(count))
        return count

    monkeypatch.setattr(leaks, "_repeat", leaking)
    with pytest.raises(Failed, match=r"in each of \d+ rounds"):
        rounds.run(subject())
