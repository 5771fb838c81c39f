"""Exported plugins against the expectations of XLA's own tests: codes are required, and here the texts, too.

The expectations are the official tier of ``pjrt conform``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pjrt
from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.conformance import check_plugin
from pjrt.conformance.plugin.check import Verdict

UNSUPPORTED: dict[str, set[str]] = {
    "cpu": set(),
    # XLA's test sends MHLO; frameworks send StableHLO, the only dialect that this device interprets and accepts.
    "reference": {"official.compile"},
}
OF_GPUS = {
    "official.gpu.create_explicit_topology",
    "official.gpu.create_client_with_kv_callback",
    "official.gpu.invalid_allocator_options",
    "official.gpu.unavailable_platform_name",
    "official.gpu.valid_allocator_options",
}
ASSIGNMENT = "PJRT_Client_DefaultDeviceAssignment"


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_what_xlas_tests_expect(device: str) -> None:
    report = check_plugin(device, tiers=["official"], jobs=2)
    assert report.passes_strictly, str(report)
    unsupported = {each.check.partition("[")[0] for each in report.outcomes if each.verdict is Verdict.UNSUPPORTED}
    assert unsupported == UNSUPPORTED[device] | OF_GPUS
    advice = {each.check: each.advice for each in report.outcomes if each.advice}
    # XLA's plugins return an event with the error; a device in Python has found the error before there is an event.
    assert advice.keys() == {"official.gpu.copy_raw_to_host_with_invalid_offset"}


class Exported:
    """An exported device with one client."""

    def __init__(self, device: str) -> None:
        self.owner = pjrt.export(lambda **options: pjrt.client(device, **options), name=device)
        self.plugin = raw.Plugin(self.owner.address, self.owner)
        self.client = self.plugin.call("PJRT_Client_Create").client

    def assignment(self, replicas: int, partitions: int, size: int) -> raw.Result:
        """Ask for a default device assignment."""
        return self.plugin.call(
            ASSIGNMENT, client=self.client, num_replicas=replicas, num_partitions=partitions,
            default_assignment_size=size, default_assignment=[0] * size,
        )  # fmt: skip


@pytest.fixture(scope="module", params=["cpu", "reference"])
def exported(request: pytest.FixtureRequest) -> Iterator[Exported]:
    made = Exported(request.param)
    yield made
    made.plugin.call("PJRT_Client_Destroy", client=made.client)


@pytest.mark.parametrize("number", [-1, 1, 2**31 - 1, -(2**31)])
def test_a_device_that_is_not_there(exported: Exported, number: int) -> None:
    error = exported.plugin.call("PJRT_Client_LookupDevice", client=exported.client, id=number).error
    assert error == raw.Error(StatusCode.INVALID_ARGUMENT, f"No matching device found for device_id {number}")
    function = "PJRT_Client_LookupAddressableDevice"
    error = exported.plugin.call(function, client=exported.client, local_hardware_id=number).error
    assert error == raw.Error(StatusCode.INVALID_ARGUMENT, f"No matching device found for local_hardware_id {number}")


def test_the_default_device_assignment_of_two_replicas_whatever_devices_there_are(exported: Exported) -> None:
    assert exported.assignment(1, 1, 1).default_assignment == [0]
    assert exported.assignment(2, 1, 2).default_assignment == [0, 1]
    numbers = exported.assignment(4, 2, 9).default_assignment  # of which the last is not written
    assert sorted(numbers) == [0, 0, 1, 2, 3, 4, 5, 6, 7]


def test_a_device_assignment_that_has_no_room(exported: Exported) -> None:
    error = exported.assignment(2**31 - 1, 2**31 - 1, 7).error
    assert error is not None
    assert error.code == StatusCode.FAILED_PRECONDITION
    assert "= 4611686014132420609" in error.message
    for replicas, partitions in [(-1, 2), (0, 1), (-2, -2)]:
        error = exported.assignment(replicas, partitions, 7).error
        assert error is not None
        assert error.code == StatusCode.INVALID_ARGUMENT
        assert "at least 1 replica" in error.message


def test_memory_of_the_host(exported: Exported) -> None:
    """PyTorch pins memory by it. What it does with the memory is among the checks of ``pjrt conform``."""
    allocate, free = "PJRT_HostAllocator_Allocate", "PJRT_HostAllocator_Free"
    for alignment in (0, 48):
        error = exported.plugin.call(allocate, client=exported.client, size=8, alignment=alignment).error
        message = f"expected an alignment that is a power of two, found {alignment}"
        assert error == raw.Error(StatusCode.INVALID_ARGUMENT, message)
    for size, alignment in [(0, 1), (1, 1), (100, 1 << 20)]:
        pointer = exported.plugin.call(allocate, client=exported.client, size=size, alignment=alignment).ptr
        assert pointer
        assert pointer % alignment == 0
        assert exported.plugin.call(free, client=exported.client, ptr=pointer).error is None
    error = exported.plugin.call(allocate, client=exported.client, size=1 << 62, alignment=64).error
    assert error is not None
    assert error.code == StatusCode.RESOURCE_EXHAUSTED
