"""The layer ``validate``: each rule has a C program that breaks it, and that is caught in each mode."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from rule_programs import BrokenRule, cases, run_case

from pjrt.layers import Rule, rules

RULES = {rule.name: rule for rule in rules()}
ALLOWED = {
    "use-after-client": {"leak"},  # the same mistake, seen earlier
    "client-destroyed-in-callback": {"client-left"},  # where the call is refused
}
EVERYTHING = "advice=on,checksums=on"


def is_mistake(rule: Rule) -> bool:
    """Whether a rule is for a call that can be refused: no leak, and no advice."""
    return rule.severity in ("error", "fault")


@pytest.fixture
def run(tiny_cache: Path, tiny_library: Path, tmp_path: Path):  # type: ignore[no-untyped-def]
    return lambda case, options: run_case(case, tiny_cache, tiny_library, tmp_path, options)


def test_every_rule_has_a_program() -> None:
    assert sorted(cases("sound")) == sorted(RULES)


def test_the_page_has_every_rule() -> None:
    page = (Path(__file__).parents[3] / "docs" / "layers.md").read_text()
    rows = "".join(
        f"| `{rule.name}` | {rule.severity} | {rule.description} | {rule.requirement} |\n" for rule in RULES.values()
    )
    assert rows in page, "run python tools/generate.py"


def check_findings(name: str, done: BrokenRule) -> None:
    assert {finding.rule for finding in done.findings} - ALLOWED.get(name, set()) == {name}, done
    finding = next(each for each in done.findings if each.rule == name)
    assert finding.severity == RULES[name].severity
    assert finding.requirement == RULES[name].requirement
    assert finding.function.startswith("PJRT_")
    assert any("break_rules" in frame for frame in finding.stack)


@pytest.mark.parametrize("name", RULES)
def test_a_broken_rule_is_reported(name: str, run) -> None:  # type: ignore[no-untyped-def]
    done = run(name, f"action=report,{EVERYTHING}")
    assert done.returncode == 0, done.errors
    check_findings(name, done)


@pytest.mark.parametrize("name", RULES)
def test_a_broken_rule_is_an_error(name: str, run) -> None:  # type: ignore[no-untyped-def]
    done = run(name, f"action=error,{EVERYTHING}")
    assert done.returncode == 0, done.errors
    check_findings(name, done)
    results = [line.split(maxsplit=2) for line in done.output.splitlines() if line.startswith("result")]
    # A callback has nobody to return an error to.
    expected = is_mistake(RULES[name]) and name not in ("callback-twice", "error-without-message", "error-code")
    assert (results[0][1] != "0") == (expected or name in ("error-without-message", "error-code")), done.output
    if expected:
        assert f"rule {name} of the validate layer" in results[0][2]
        assert results[0][1] == ("13" if RULES[name].severity == "fault" else "9")


@pytest.mark.parametrize("name", RULES)
def test_a_broken_rule_ends_the_process(name: str, run) -> None:  # type: ignore[no-untyped-def]
    done = run(name, f"action=abort,{EVERYTHING}")
    assert done.returncode == (-signal.SIGABRT if is_mistake(RULES[name]) else 0), done.errors
    check_findings(name, done)


@pytest.mark.parametrize("name", [rule.name for rule in RULES.values() if rule.severity == "advice"])
def test_advice_is_given_when_it_is_wanted(name: str, run) -> None:  # type: ignore[no-untyped-def]
    assert run(name, "action=report").findings == []


def test_a_finding_has_the_life_of_the_handle(run) -> None:  # type: ignore[no-untyped-def]
    (finding,) = run("use-after-donation", "stacks=all").findings
    assert (finding.function, finding.argument) == ("PJRT_Buffer_Memory", "buffer")
    assert finding.handle is not None
    assert finding.handle.made is not None
    assert finding.handle.ended is not None
    assert (finding.handle.kind, finding.handle.state) == ("PJRT_Buffer", "donated")
    assert finding.handle.made.function == "PJRT_Client_BufferFromHostBuffer"
    assert finding.handle.ended.function == "PJRT_LoadedExecutable_Execute"
    assert any("break_rules" in frame for frame in finding.handle.made.stack)
    assert finding.handle.made.thread == finding.thread


def test_leaks_are_counted_by_the_place_that_made_them(run) -> None:  # type: ignore[no-untyped-def]
    (finding,) = run("leak", "stacks=all").findings
    assert "3 PJRT_Buffer" in finding.message
    assert finding.handle is not None
    assert finding.handle.made is not None
    assert finding.handle.made.stack


def test_the_text_on_the_error_stream(tiny_cache: Path, tiny_library: Path, tmp_path: Path) -> None:
    done = run_case("double-destroy", tiny_cache, tiny_library, tmp_path, "file=,stacks=off")
    assert done.findings == []
    lines = done.errors.splitlines()
    assert lines[0].startswith("pjrt validate: double-destroy (error): PJRT_Buffer_Destroy, argument buffer: the ")
    assert lines[1] == "  required: A handle is destroyed exactly once."
    assert lines[3].startswith("  handle PJRT_Buffer 0x")
    assert lines[3].endswith(", destroyed")
    assert [line.split(" on ")[0] for line in lines[4:]] == [
        "    made by PJRT_Client_BufferFromHostBuffer",
        "    ended by PJRT_Buffer_Destroy",
    ]


@pytest.mark.parametrize("action", ["report", "error"])
def test_no_words_crash_the_layer(action: str, run) -> None:  # type: ignore[no-untyped-def]
    done = run("fuzz", f"action={action},stacks=off,limit=1,{EVERYTHING}")
    assert (done.returncode, done.output) == (0, "survived\n"), done.errors
    assert len({finding.rule for finding in done.findings}) > 15


@pytest.mark.parametrize("program", ["threads", "memory-after-callback"])
def test_programs_that_break_no_rule(program: str, run) -> None:  # type: ignore[no-untyped-def]
    done = run(program, EVERYTHING)
    assert (done.returncode, done.output, done.findings) == (0, "survived\n", [])
