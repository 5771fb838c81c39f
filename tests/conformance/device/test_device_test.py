"""Devices that are wrong on purpose are found out; those that are right pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pjrt
from pjrt.conformance import Choice, Finding, Kind, Report, check_device

HERE = Path(__file__).parent
TEMPLATE = Path(pjrt.__file__).parent / "cli" / "template" / "device.py.txt"


def examined(function: str, *filters: str, groups: tuple[str, ...] = ("operations",), **options: Any) -> Report:
    choice = Choice(groups, filters)
    return check_device(f"{HERE / 'devices_under_test.py'}:{function}", choice=choice, **options)


def only(report: Report) -> Finding:
    (finding,) = report.findings
    return finding


@pytest.mark.full
def test_a_device_that_is_right_passes() -> None:
    report = examined("right", "add f32", "add bf16", "tanh i", "donation", groups=("operations", "behaviour"))
    assert report.is_right
    assert report.passed == 13
    assert report.platform == "mychip"


@pytest.mark.full
def test_a_device_with_memory_of_its_own_passes() -> None:
    report = examined("with_memory", "add f32", "add c", "*", groups=("behaviour", "devices"))
    assert report.is_right, str(report)
    assert report.passed > 40


@pytest.mark.full
def test_the_scaffold_passes_with_jax(tmp_path: Path) -> None:
    file = tmp_path / "device.py"
    file.write_text(TEMPLATE.read_text().replace("@NAME@", "scaffold"))
    filters = ("jax: x @ x.T", "jax: pmap", "jax: donation", "jax: sharded training step", "all_reduce", "partitions")
    report = check_device(f"{file}:make_client", choice=Choice(("jax", "devices"), filters))
    assert report.is_right, str(report)
    assert not report.skipped
    assert report.passed == len(filters)


def test_one_wrong_element_type_is_found_with_the_smallest_program() -> None:
    report = examined("wrong_for_bf16", "tanh bf16 edge", "tanh f32 edge")
    finding = only(report)
    assert (finding.check, finding.kind) == ("stablehlo.tanh bf16 edge values", Kind.WRONG)
    assert finding.program.splitlines() == [
        "func.func @main(%x: tensor<bf16>) -> tensor<bf16> {",
        "  %r = stablehlo.tanh %x : tensor<bf16>",
        "  return %r : tensor<bf16> }",
    ]
    assert (finding.inputs, finding.expected, finding.value) == (("%x = 1",), "0.761719", "0.953125")
    assert "49 ulp" in finding.message
    assert report.passed == 1


@pytest.mark.full
def test_the_sign_of_zero_is_a_part_of_exact_results() -> None:
    finding = only(examined("wrong_sign_of_zero", "negate f32 edge"))
    assert (finding.inputs, finding.expected, finding.value) == (("%x = 0.0",), "-0.0", "0.0")


@pytest.mark.full
def test_a_wrong_empty_result_is_found() -> None:
    finding = only(examined("wrong_on_empty", "add f32 *"))
    assert (finding.check, finding.kind) == ("stablehlo.add f32 empty", Kind.ERROR)
    assert "expected a result of type tensor<0x3xf32>, found f32[1,0,3]" in finding.message


@pytest.mark.full
@pytest.mark.parametrize(
    ("function", "kind", "message"), [("crashes", Kind.CRASH, "SIGABRT"), ("hangs", Kind.HANG, "within 10 seconds")]
)
def test_a_crash_or_a_hang_is_named_and_the_test_goes_on(function: str, kind: Kind, message: str) -> None:
    report = examined(function, "add i8 *", "add i16 *", check_seconds=10.0 if kind is Kind.HANG else 120.0)
    finding = only(report)
    assert (finding.check, finding.kind) == ("stablehlo.add i8 empty", kind)
    assert message in finding.message
    if kind is Kind.HANG:
        assert "devices_under_test.py" in finding.message  # the stacks of its threads
        assert "in add" in finding.message
    assert "tensor<0x3xi8>" in finding.program
    assert report.passed == 9
    assert report.complete


@pytest.mark.full
@pytest.mark.parametrize(
    ("function", "check", "message"),
    [
        ("changes_its_argument", "arguments that stay unchanged", "a run changed argument 0"),
        ("forgets_donation", "donation", "the donated argument was not deleted"),
        ("leaks", "memory of results that nobody holds", "MB more in use"),
        ("not_for_threads", "runs from many threads", "two programs at a time"),
    ],
)
def test_wrong_behaviour_is_named(function: str, check: str, message: str) -> None:
    finding = only(examined(function, check, groups=("behaviour",)))
    assert (finding.check, finding.kind) == (check, Kind.WRONG)
    assert message in finding.message
    assert "stablehlo.add" in finding.program


@pytest.mark.full
def test_wrong_replicas_are_named_with_the_arguments_of_each_device() -> None:
    finding = only(examined("forgets_replicas", "stablehlo.all_*", groups=("devices",)))
    assert (finding.check, finding.kind) == ("replicas with stablehlo.all_reduce", Kind.WRONG)
    assert [each.partition(" = ")[0] for each in finding.inputs] == ["%x of device 0", "%x of device 1"]


@pytest.mark.full
def test_a_device_without_a_client_is_an_error() -> None:
    with pytest.raises(pjrt.PjrtError, match="no chip in this machine"):
        examined("has_no_client")


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="expected groups among operations, behaviour, devices, jax"):
        examined("right", groups=("speed",))


def test_a_report_says_when_the_time_is_up() -> None:
    report = examined("right", "add", total_seconds=0.001)
    assert not report.complete
    assert "the time is up" in str(report)
