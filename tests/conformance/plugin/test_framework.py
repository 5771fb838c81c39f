"""The tier of frameworks: recordings of their programs, and operations of StableHLO."""

from __future__ import annotations

import json
import lzma
from importlib import resources
from pathlib import Path

import pytest

from pjrt.conformance import check_plugin
from pjrt.conformance.plugin.check import Verdict
from pjrt.layers.recording import Recording

HERE = Path(__file__).resolve().parent
DEVICES = HERE.parent / "device" / "devices_under_test.py"
PROGRAMS = HERE / "programs"
RECORDINGS = resources.files("pjrt.conformance.plugin.framework") / "recordings"


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_what_frameworks_do_works(device: str) -> None:
    filters = [
        "jax.grad",
        "jax.donation",
        "jax.shard_map",
        "jax.serialization",
        "torch_tpu.training",
        "torch_xla.training",
        "tensorflow.eager",
    ]
    report = check_plugin(device, {"num_devices": 2}, tiers=["framework"], filters=filters, jobs=2)
    assert report.counts[Verdict.PASSED] == len(filters), str(report)


@pytest.mark.full
def test_a_program_for_two_devices_is_unsupported_on_one() -> None:
    report = check_plugin("reference", tiers=["framework"], filters=["jax.shard_map"])
    assert report.unsupported == {"2 addressable devices; the client has 1": 1}


@pytest.mark.full
def test_operations_have_the_results_of_the_reference_interpreter() -> None:
    filters = ["operation.stablehlo.add", "operation.stablehlo.reduce_window", "operation.chlo.erf"]
    report = check_plugin("cpu", tiers=["framework"], filters=filters, jobs=2)
    assert report.passes_strictly, str(report)
    assert report.counts[Verdict.PASSED] >= 3, str(report)


@pytest.mark.full
def test_a_device_that_adds_wrong_is_found() -> None:
    report = check_plugin(
        f"{DEVICES}:wrong_sum", tiers=["framework"], filters=["operation.stablehlo.add", "jax.grad"], jobs=2
    )
    failures = {each.check: each for each in report.failures}
    assert "the results of stablehlo.add f32" in failures["operation.stablehlo.add"].expected
    assert "the results of the recorded program" in failures["jax.grad"].expected


def test_a_plugin_with_programs_of_its_own_runs_no_frameworks(tiny_library: Path) -> None:
    report = check_plugin(tiny_library, programs=PROGRAMS, tiers=["framework"], filters=["jax.jit", "stablehlo.add"])
    assert report.counts[Verdict.UNSUPPORTED] == len(report.outcomes)


def test_each_recording_is_whole_and_in_the_index() -> None:
    index = json.loads((RECORDINGS / "recordings.json").read_text(encoding="utf-8"))
    files = {each.name.removesuffix(".rec.xz") for each in RECORDINGS.iterdir() if each.name.endswith(".rec.xz")}
    assert files == set(index)
    for name, facts in index.items():
        recording = Recording.parse(lzma.decompress((RECORDINGS / f"{name}.rec.xz").read_bytes()), name)
        assert not recording.problem
        assert facts["calls"] == sorted({call.function for call in recording.calls})
        assert facts["about"].endswith(".")
