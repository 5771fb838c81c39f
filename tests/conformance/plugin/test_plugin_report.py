"""Reports of checks of a plugin: their file, their comparison, and their page."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest
from browser import Browser

from pjrt.api.errors import DataLossError, InvalidArgumentError, NotFoundError
from pjrt.conformance import PluginReport, check_plugin
from pjrt.conformance.plugin.check import Outcome, Verdict
from pjrt.conformance.plugin.report import ReportComparison, report_page
from pjrt.conformance.plugin.strengths import Strength

FACTS = {"functions": ["PJRT_Client_Create"], "extensions": ["FFI"], "memories": ["device"], "devices": 1,
         "platform": "mine", "platform_version": "1", "api_version": [0, 100], "attributes": {"xla_version": 2},
         "problem": ""}  # fmt: skip


def outcome(name: str, verdict: str, **fields: str) -> Outcome:
    return Outcome(name, Verdict(verdict), "contract", ("PJRT_Client_Create",), "A rule.", **fields)


def report(*outcomes: Outcome, **facts: object) -> PluginReport:
    return PluginReport("libmine.so", {**FACTS, **facts}, outcomes, 1.5)


MIXED = report(
    outcome("a.passes", "passed"),
    outcome(
        "a.fails", "failed", expected="one", found="</script> two", call="PJRT_Client_Create()", c_program="int x;"
    ),
    outcome("a.crashes", "crashed", found="the end of the process in PJRT_Client_Create: SIGSEGV"),
    outcome("a.lacks[i4]", "unsupported", found="buffers of S4"),
    outcome("a.lacks[i2]", "unsupported", found="buffers of S4"),
)


def test_the_file_has_the_whole_report(tmp_path: Path) -> None:
    MIXED.write(tmp_path / "report.json")
    assert PluginReport.read(tmp_path / "report.json") == MIXED
    plain = json.loads((tmp_path / "report.json").read_text())
    assert (plain["format"], plain["version"]) == ("pjrt conformance report", 1)
    assert plain["unsupported"] == {"buffers of S4": 2}
    assert plain["counts"] == {"passed": 1, "failed": 1, "unsupported": 2, "crashed": 1, "hung": 0}


def test_a_changed_report_is_found_by_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    MIXED.write(path)
    plain = json.loads(path.read_text())
    rest = json.dumps({**plain, "sha256": None, "baseline": {}}, sort_keys=True, separators=(",", ":"))
    rest = rest.replace('"baseline":{},', "").replace(',"sha256":null', "")
    assert plain["sha256"] == hashlib.sha256(rest.encode()).hexdigest()
    plain["facts"]["platform_version"] = "2"
    path.write_text(json.dumps(plain))
    with pytest.raises(DataLossError, match=f"sha256 is {plain['sha256']}.*changed after it was made"):
        PluginReport.read(path)
    del plain["sha256"]  # an earlier version wrote none
    path.write_text(json.dumps(plain))
    assert PluginReport.read(path).facts["platform_version"] == "2"


def test_the_report_says_with_what_the_plugin_was_checked(tiny_library: Path) -> None:
    facts = check_plugin(tiny_library, filters=["client.lookup_device.absent_id"]).facts
    assert facts["device_kinds"]
    assert facts["library_sha256"] == hashlib.sha256(tiny_library.read_bytes()).hexdigest()
    assert facts["versions"]["pjrt"] == importlib.metadata.version("pjrt")
    assert facts["versions"]["jaxlib"] == importlib.metadata.version("jaxlib")
    assert facts["versions"]["python"] == platform.python_version()


def test_an_interrupted_run_does_not_pass(tmp_path: Path) -> None:
    interrupted = replace(report(outcome("a.passes", "passed")), left=2)
    assert not interrupted.passes
    assert str(interrupted) == "libmine.so: 1 passed, 2 not made, in 1.5 s"
    interrupted.write(tmp_path / "report.json")
    assert PluginReport.read(tmp_path / "report.json") == interrupted


def test_the_text_has_each_failure_and_each_lack_once() -> None:
    assert str(MIXED).splitlines() == [
        "failed: a.fails: expected one, found </script> two",
        "    rule: A rule.",
        "    in PJRT_Client_Create()",
        "crashed: a.crashes: the end of the process in PJRT_Client_Create: SIGSEGV",
        "unsupported: buffers of S4 (2 checks)",
        "not passed: 2 required, 0 expected, 0 hardening",
        "libmine.so: 1 passed, 1 failed, 2 unsupported, 1 crashed, in 1.5 s",
    ]


HARD = replace(outcome("b.wrong", "crashed", found="the end of the process"), strength=Strength.HARDENING)


def test_the_verdict_follows_the_required_checks() -> None:
    lenient = report(HARD, outcome("a.passes", "passed"))
    assert (lenient.passes, lenient.passes_strictly) == (True, False)
    assert str(lenient).splitlines()[0] == "crashed (hardening): b.wrong: the end of the process"
    mixed = report(HARD, outcome("a.fails", "failed", found="two"))
    assert (mixed.passes, mixed.failed) == (False, {"required": 1, "expected": 0, "hardening": 1})
    assert [each.check for each in mixed.failures] == ["a.fails", "b.wrong"]


def test_a_baseline_counts_the_required_checks_unless_it_is_strict() -> None:
    comparison = ReportComparison.of(report(HARD), report(replace(HARD, verdict=Verdict.PASSED)))
    assert (comparison.is_worse, comparison.is_strictly_worse) == (False, True)


def test_a_report_of_an_earlier_version_gets_the_strengths_of_this_one(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report(outcome("buffer_from_host.wrong_argument[x]", "failed", found="two")).write(path)
    plain = json.loads(path.read_text())
    del plain["outcomes"][0]["strength"], plain["sha256"]
    path.write_text(json.dumps(plain))
    assert PluginReport.read(path).passes


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (None, NotFoundError, "no such file"),
        ("[1]", InvalidArgumentError, "found another file"),
        ("PK\x03", InvalidArgumentError, "found another file"),
        ('{"format": "pjrt conformance report", "version": 99}', InvalidArgumentError, "found version 99"),
        ('{"format": "pjrt conformance report", "ver', DataLossError, "damaged"),
        ('{"format": "pjrt conformance report", "version": 1}', DataLossError, "damaged.*outcomes"),
        (
            '{"format": "pjrt conformance report", "version": 1, "outcomes": [{"check": "a", "verdict": "good"}]}',
            DataLossError,
            "damaged",
        ),
        (
            '{"format": "pjrt conformance report", "version": 1, "plugin": "p", "facts": {}, "seconds": 1, "outcomes": '
            '[{"check": "a", "verdict": "passed", "rule": 3}]}',
            DataLossError,
            "expected a text as rule, found 3",
        ),
    ],
)
def test_a_file_that_is_no_report(tmp_path: Path, text: str | None, error: type[Exception], message: str) -> None:
    path = tmp_path / "report.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(error, match=message):
        PluginReport.read(path)


def test_the_file_may_be_unwritable(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be written"):
        MIXED.write(tmp_path / "no folder" / "report.json")


def test_a_report_beside_an_earlier_one() -> None:
    versions = {"jaxlib": "0.11.0", "numpy": "2.0"}
    before = report(
        outcome("fixed", "failed", found="x"), outcome("same", "failed", found="x"), outcome("breaks", "passed"),
        outcome("leaves", "passed"), outcome("gone", "passed"), functions=["PJRT_Client_Create", "PJRT_Old"],
        platform_version="0", versions=versions,
    )  # fmt: skip
    after = report(
        outcome("fixed", "passed"), outcome("same", "failed", found="x"), outcome("breaks", "hung", found="y"),
        outcome("leaves", "unsupported", found="z"), outcome("new", "failed", found="n"), outcome("good", "passed"),
        memories=["device", "pinned_host"], versions=versions | {"jaxlib": "0.12.0"},
    )  # fmt: skip
    comparison = ReportComparison.of(after, before)
    assert comparison.is_worse
    assert str(comparison).splitlines() == [
        "newly hung: breaks: y",
        "newly failed: new: n",
        "newly unsupported: leaves: z",
        "newly passed: fixed",
        "lost: function PJRT_Old",
        "gained: memory pinned_host",
        "changed: platform version from 0 to 1",
        "changed: version of jaxlib from 0.11.0 to 0.12.0",
        "beside the baseline: 2 newly failed, 1 newly unsupported, 1 newly passed, 1 still failing, 1 not made",
    ]
    assert not ReportComparison.of(before, before).is_worse
    assert str(ReportComparison.of(before, before)) == "beside the baseline: 2 still failing"


@pytest.mark.full
def test_the_page_shows_the_failures_the_matrix_and_the_differences(window: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(report_page(MIXED, report(outcome("a.fails", "passed"))))
    window.open(tmp_path / "page.html")
    titles = window.run("return [...document.querySelectorAll('h2')].map(e => e.textContent)")
    assert titles == ["Beside the baseline", "Failures", "Functions", "Capabilities", "Checks"]
    failures = window.run("return [...document.querySelectorAll('.failure')].map(e => e.textContent)")
    assert len(failures) == 2
    assert "expectedone" in failures[0]
    assert "</script> two" in failures[0]
    assert "int x;" in failures[0]
    cells = window.run("return [...document.querySelectorAll('.cell')].map(e => e.className)")
    assert cells == [f"cell {word}" for word in ("passed", "failed", "crashed", "unsupported", "unsupported")]
    assert window.run("return document.body.textContent.includes('buffers of S42')")  # said once, for two checks
    window.click(".cell.crashed")
    assert window.run("return document.querySelector('.target').id") == "failure-a.crashes"
    hidden = "return [...document.querySelectorAll('.failure')].map(e => e.classList.contains('hidden'))"
    filled = "const e = document.getElementById('search'); e.value = 'crash'; e.dispatchEvent(new Event('input'));"
    window.run(filled)
    assert window.run(hidden) == [True, False]
    assert window.console() == []


def test_the_page_is_one_file_that_needs_no_network() -> None:
    text = report_page(MIXED)
    assert "</script> two" not in text
    assert "https://" not in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_tier_or_filter_that_does_not_exist() -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected a tier \(official, contract, framework\), found 'core'"):
        check_plugin("reference", tiers=["core"])
    with pytest.raises(InvalidArgumentError, match="found no check for 'no_such_check' in the tiers contract"):
        check_plugin("reference", tiers=["contract"], filters=["no_such_check"])
    with pytest.raises(InvalidArgumentError, match="without those for 'client'"):
        check_plugin("reference", filters=["client.lookup_device"], leave_out=["client"])
    with pytest.raises(InvalidArgumentError, match="at least 1 job"):
        check_plugin("reference", jobs=0)
    with pytest.raises(NotFoundError, match="no such folder"):
        check_plugin("reference", programs="/nowhere")
    with pytest.raises(NotFoundError, match="nochip"):
        check_plugin("nochip")
