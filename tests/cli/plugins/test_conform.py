"""``pjrt conform``, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pjrt.cli import main

LOOKUP = ("--filter", "client.lookup_device.absent_id[-1]")


def run(*arguments: object) -> tuple[int, str, str]:
    """Return the exit code, the output, and what went to the error stream."""
    result = CliRunner().invoke(main, ["conform", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_a_right_plugin_has_the_exit_code_0(tiny_library: Path, tmp_path: Path) -> None:
    page, report = tmp_path / "report.html", tmp_path / "report.json"
    code, output, _ = run(tiny_library, *LOOKUP, "-O", "num_devices=2", "--html", page, "--output", report)
    assert (code, output.split(",")[0]) == (0, f"{tiny_library}: 1 passed")
    assert json.loads(report.read_text())["facts"]["devices"] == 2
    assert "client.lookup_device.absent_id[-1]" in page.read_text()


@pytest.mark.full
def test_a_wrong_plugin_has_the_exit_code_1_unless_it_was_wrong_before(
    unruly_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong = tmp_path / "right.json", tmp_path / "wrong.json"
    assert run(unruly_library, *LOOKUP, "-o", right)[0] == 0
    monkeypatch.setenv("UNRULY", "wrong answer")
    code, output, _ = run(unruly_library, *LOOKUP, "-o", wrong, "--baseline", right)
    assert code == 1
    assert "newly failed: client.lookup_device.absent_id[-1]" in output
    code, output, _ = run(unruly_library, *LOOKUP, "--baseline", wrong)
    assert code == 0
    assert output.splitlines()[-1] == "beside the baseline: 1 still failing"
    code, output, _ = run(unruly_library, *LOOKUP, "--baseline", right, "--json")
    plain = json.loads(output)
    assert (code, plain["passes"], plain["baseline"]["is_worse"]) == (1, False, True)
    assert "PJRT_Client_LookupDevice" in plain["outcomes"][0]["c_program"]


@pytest.mark.full
def test_a_plugin_without_a_client_has_the_exit_code_2_unless_that_is_expected(tiny_library: Path) -> None:
    options = (tiny_library, *LOOKUP, "--option", "fail_code=5")
    code, output, errors = run(*options)
    assert code == 2
    assert "unsupported: a client cannot be made: NOT_FOUND" in output
    assert "give its options with --option, or accept it with --without-client" in errors
    assert run(*options, "--without-client")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nochip",), "there is no device called 'nochip'"),
        (("nochip:make",), "a function of a module is given by its file, as nochip.py:make"),
        (("/nowhere/libmine.so",), "there is no such file"),
        (("reference", "--tier", "core"), "'core' is not one of 'official', 'contract', 'framework'"),
        (("reference", "--filter", "no_such_check"), "found no check for 'no_such_check'"),
        (("reference", "--baseline", "/nowhere/report.json"), "there is no such file"),
        (("reference", "--baseline", __file__), "expected a report of pjrt conform --json, found another file"),
        (("reference", "--html", "/nowhere/report.html"), "there is no folder '/nowhere'"),
        (("reference", "--html", "report.json"), "expected a name that ends in .html"),
        (("reference", "--output", "/tmp"), "expected a name that ends in .json"),
        (("reference", "--programs", "/nowhere"), "there is no such folder"),
        (("reference", "--jobs", "0"), "0 is not in the range"),
    ],
)
def test_wrong_arguments_have_the_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    code, _, errors = run(*arguments)
    assert code == 2
    assert message in errors
