"""The checks of the contract, on the built-in devices and on the tiny plugin.

The official ones are in ``tests/export/test_official.py``, those of frameworks in ``test_framework.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pjrt.conformance import check_plugin
from pjrt.conformance.plugin.check import Outcome, Tier, Verdict, all_checks

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE = 120.0
"""The seconds for a check on a machine that is busy with other tests; the slowest takes 3 where it is alone."""

pytestmark = pytest.mark.timeout(900)  # 1,800 processes take 40 seconds where nothing else runs


def more_values() -> list[str]:
    """Return the names of the checks that make a check once more, with another value than the first."""
    names = [check.name for check in all_checks().values() if check.tier is Tier.CONTRACT]
    firsts = {name.partition("[")[0]: name for name in reversed(names)}
    return [name for name in names if name not in firsts.values()]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        pytest.param("reference", "all", marks=pytest.mark.full),
        pytest.param("cpu", "the first", marks=pytest.mark.full),
        pytest.param("cpu", "all", marks=pytest.mark.heavy),
    ],
)
def test_a_built_in_device_passes(name: str, values: str) -> None:
    left_out = more_values() if values == "the first" else []
    report = check_plugin(name, {"num_devices": 2}, tiers=["contract"], leave_out=left_out, jobs=2, time_limit=PATIENCE)
    assert report.passes_strictly, str(report)
    assert len(report.outcomes) > (1200 if values == "all" else 500)
    assert report.counts[Verdict.PASSED] > 400


@pytest.mark.parametrize(
    "values", [pytest.param("the first", marks=pytest.mark.full), pytest.param("all", marks=pytest.mark.heavy)]
)
def test_the_tiny_plugin_passes(tiny_library: Path, values: str) -> None:
    outcomes: list[Outcome] = []
    report = check_plugin(
        tiny_library,
        {"num_devices": 2},
        tiers=["contract"],
        leave_out=more_values() if values == "the first" else [],
        programs=PROGRAMS,
        jobs=2,
        time_limit=PATIENCE,
        progress=outcomes.append,
    )
    assert report.passes_strictly, str(report)
    assert report.counts[Verdict.PASSED] > 400
    assert (report.facts["platform"], report.facts["devices"]) == ("tiny", 2)
    assert sorted(each.check for each in outcomes) == sorted(each.check for each in report.outcomes)


def test_a_plugin_with_nothing_of_our_runtime_is_judged(noop_library: Path) -> None:
    """Its one device answers to every number; what else it says of it is right."""
    report = check_plugin(noop_library, tiers=["contract"], filters=["client.lookup_device.", "memory.id."], jobs=2)
    verdicts = {each.check: each.verdict for each in report.outcomes}
    assert verdicts["client.lookup_device.absent_id[-1]"] is Verdict.FAILED
    assert verdicts["client.lookup_device.next_id"] is Verdict.FAILED
    assert verdicts["memory.id.unique_in_its_kind"] is Verdict.PASSED


ADDRESSLESS = '''
import itertools
import numpy as np
import pjrt

class ChipMemory(pjrt.host.Memory):
    """Memory with the required methods alone: it has no addresses to give."""

    def __init__(self):
        self.handles, self.contents = itertools.count(1), {}

    def allocate(self, spec, space):
        handle = next(self.handles)
        self.contents[handle] = np.empty(spec.shape, spec.element_type.dtype)
        return handle

    def free(self, handle):
        del self.contents[handle]

    def copy_in(self, handle, array):
        self.contents[handle][...] = array

    def copy_out(self, handle, array):
        array[...] = self.contents[handle]

def make_client(**options):
    return pjrt.StableHloClient("mychip", fallback="reference", memory=ChipMemory(), **options)
'''


def test_what_a_memory_without_addresses_lacks_is_unsupported(tmp_path: Path) -> None:
    (tmp_path / "chip.py").write_text(ADDRESSLESS)
    report = check_plugin(f"{tmp_path / 'chip.py'}:make_client", filters=["external_reference"], time_limit=PATIENCE)
    assert report.passes_strictly, str(report)
    reasons = {each.check: each.found for each in report.outcomes if each.verdict is Verdict.UNSUPPORTED}
    refused = "PJRT_Buffer_OpaqueDeviceMemoryDataPointer is unimplemented"
    assert reasons["external_reference.keeps_the_memory"] == refused
