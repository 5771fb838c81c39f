"""Plugins that crash or hang, or do something else to the process of a check."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from pjrt.conformance import UnloadableError, check_plugin
from pjrt.conformance.plugin.check import Outcome, Verdict
from pjrt.conformance.plugin.process import SpawnedChild, Task, wait_for_any
from pjrt.conformance.plugin.report import PluginReport

FILTERS = ("client.lookup_device.absent_id[-1]", "there_and_back[f32]")


def run(library: Path, fault: str, monkeypatch: pytest.MonkeyPatch, **settings: float) -> PluginReport:
    monkeypatch.setenv("UNRULY", fault)
    return check_plugin(library, filters=FILTERS, **settings)  # type: ignore[arg-type]


def outcomes(report: PluginReport) -> tuple[Outcome, Outcome]:
    """Return the outcome of the lookup, and that of the check that has nothing to do with it."""
    by_name = {each.check: each for each in report.outcomes}
    return by_name["client.lookup_device.absent_id[-1]"], by_name["buffer.contents.there_and_back[f32]"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("crash", "SIGSEGV"),
        ("abort", "SIGABRT; it printed 'Check failed: the device table is broken'"),
        ("exit", "exit code 0"),
    ],
)
def test_the_end_of_the_process_is_a_finding_with_its_call(
    unruly_library: Path, monkeypatch: pytest.MonkeyPatch, fault: str, found: str
) -> None:
    lookup, other = outcomes(run(unruly_library, fault, monkeypatch))
    assert lookup.verdict is Verdict.CRASHED
    assert found in lookup.found
    assert "PJRT_Client_LookupDevice" in lookup.found
    assert lookup.call.startswith("PJRT_Client_LookupDevice(client=0x")
    assert "id=-1" in lookup.call
    assert other.verdict is Verdict.PASSED


@pytest.mark.full
@pytest.mark.parametrize("fault", ["hang", "stop"])
def test_a_hang_is_a_finding_with_its_call(unruly_library: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    lookup, other = outcomes(run(unruly_library, fault, monkeypatch, time_limit=8.0))
    assert lookup.verdict is Verdict.HUNG
    assert lookup.found == "no end of PJRT_Client_LookupDevice within 8 seconds"
    assert other.verdict is Verdict.PASSED


@pytest.mark.full
@pytest.mark.parametrize("fault", ["print", "signals", "threads", "children", "files"])
def test_what_a_plugin_does_to_its_process_changes_no_outcome(
    unruly_library: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], fault: str
) -> None:
    report = run(unruly_library, fault, monkeypatch, time_limit=120.0, jobs=2)
    assert report.passes_strictly, str(report)
    assert capfd.readouterr() == ("", "")


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("load crash", "the process that loaded it ended: SIGSEGV"),
        ("load exit", "the process that loaded it ended: exit code 3"),
        ("load hang", "it was not loaded within 8 seconds"),
        ("initialize hang", r"it was not loaded within 8 seconds in PJRT_Plugin_Initialize\(\)"),
    ],
)
def test_a_library_that_cannot_be_loaded(
    unruly_library: Path, monkeypatch: pytest.MonkeyPatch, fault: str, message: str
) -> None:
    with pytest.raises(UnloadableError, match=message):
        run(unruly_library, fault, monkeypatch, load_limit=8.0 if "hang" in fault else 120.0)


def test_a_library_that_is_no_plugin(no_symbol_library: Path, tmp_path: Path) -> None:
    with pytest.raises(UnloadableError, match="no function GetPjrtApi"):
        check_plugin(no_symbol_library)
    text = tmp_path / "libtext.so"
    text.write_text("not a library")
    with pytest.raises(UnloadableError, match="no shared library"):
        check_plugin(text)


@pytest.mark.full
def test_a_process_that_is_started_anew_does_the_same(
    unruly_library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """For systems that cannot fork."""
    with contextlib.closing(SpawnedChild(tmp_path, 0)) as child:
        for fault, verdict in (("none", Verdict.PASSED), ("crash", Verdict.CRASHED), ("hang", Verdict.HUNG)):
            monkeypatch.setenv("UNRULY", fault)
            child.start(Task(str(unruly_library)), FILTERS[0], 10.0 if verdict is Verdict.HUNG else 120.0)
            while not child.ended():
                wait_for_any([child])
            assert child.outcome().verdict is verdict
            assert ("PJRT_Client_LookupDevice" in child.outcome().call) is verdict.is_failure
