"""``pjrt test-device``, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pjrt.cli import main

DEVICES = Path(__file__).parents[2] / "conformance" / "device" / "devices_under_test.py"


@pytest.mark.full
def test_findings_are_printed_with_their_programs() -> None:
    arguments = ["test-device", f"{DEVICES}:wrong_for_bf16", "--filter", "tanh bf16", "--group", "operations"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "wrong: stablehlo.tanh bf16 edge values: 1 of 1 elements differ" in result.output
    assert "      %r = stablehlo.tanh %x : tensor<bf16>" in result.output
    assert "    also: bf16 denormal numbers, bf16 scalar, bf16 of odd shape, bf16 large" in result.output
    assert "1 checks passed, 5 failed" in result.output


@pytest.mark.full
def test_a_right_device_is_exit_code_0_and_json() -> None:
    arguments = ["test-device", f"{DEVICES}:right", "--filter", "add f32 scalar", "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["right"]
    assert report["passed"] == 1
    assert report["findings"] == []


@pytest.mark.full
def test_checks_are_left_out() -> None:
    arguments = ["test-device", f"{DEVICES}:right", "--filter", "add f32 *", "--json"]
    left_out = ["--leave-out", "large", "--leave-out", "edge*"]
    all_of_them, others = (
        json.loads(CliRunner().invoke(main, [*arguments, *more]).stdout)["passed"] for more in ([], left_out)
    )
    assert (all_of_them, others) == (6, 4)


def test_a_device_without_a_client_is_exit_code_2() -> None:
    result = CliRunner().invoke(main, ["test-device", f"{DEVICES}:has_no_client"])
    assert result.exit_code == 2
    assert "no chip in this machine" in result.output


def test_a_filter_without_a_check_is_exit_code_2() -> None:
    result = CliRunner().invoke(main, ["test-device", f"{DEVICES}:right", "--filter", "no such check"])
    assert result.exit_code == 2
    assert "found no check for 'no such check' in the groups operations, behaviour, devices, jax" in result.output


def test_all_checks_left_out_is_exit_code_2() -> None:
    result = CliRunner().invoke(main, ["test-device", f"{DEVICES}:right", "--group", "operations", "--leave-out", "*"])
    assert result.exit_code == 2
    assert "found no check for '*' in the groups operations, without those for '*'" in result.output
