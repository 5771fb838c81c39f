"""Checks of ``PJRT_Client_DefaultDeviceAssignment``."""

from __future__ import annotations

from pjrt.capi import raw
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.clients.client_lookups import device_ids
from pjrt.conformance.plugin.subject import Subject

_ASSIGNMENT = "PJRT_Client_DefaultDeviceAssignment"
_MARK = -77
_MOST = 2**31 - 1


def _attempt(subject: Subject, replicas: int, partitions: int, size: int) -> raw.Result:
    return subject.attempt(
        _ASSIGNMENT, client=subject.client, num_replicas=replicas, num_partitions=partitions,
        default_assignment_size=size, default_assignment=[_MARK] * (size + 1),
    )  # fmt: skip


@check(
    "client.default_device_assignment.one_device",
    calls=(_ASSIGNMENT,),
    rule="The default assignment of one replica and one partition is a device of the client.",
)
def _one_device(subject: Subject) -> None:
    subject.require(_ASSIGNMENT)
    result = _attempt(subject, 1, 1, 1)
    subject.expect(result.error is None, f"{_ASSIGNMENT} to succeed", str(result.error))
    number = result.default_assignment[0]
    subject.expect(number in device_ids(subject), "the id of a device of the client", number)


@check(
    "client.default_device_assignment.all_devices",
    calls=(_ASSIGNMENT,),
    rule="The default assignment of as many replicas as the client has devices has each device once.",
)
def _all_devices(subject: Subject) -> None:
    subject.require(_ASSIGNMENT)
    ids = sorted(device_ids(subject))
    result = _attempt(subject, len(ids), 1, len(ids))
    subject.expect(result.error is None, f"{_ASSIGNMENT} to succeed", str(result.error))
    numbers = sorted(result.default_assignment[: len(ids)])
    subject.expect(numbers == ids, f"the device ids {ids}", numbers)


@check(
    "client.default_device_assignment.partitions",
    calls=(_ASSIGNMENT,),
    rule="The default assignment of as many partitions as the client has devices has each device once.",
)
def _partitions(subject: Subject) -> None:
    subject.require(_ASSIGNMENT)
    ids = sorted(device_ids(subject))
    result = _attempt(subject, 1, len(ids), len(ids))
    subject.expect(result.error is None, f"{_ASSIGNMENT} to succeed", str(result.error))
    numbers = sorted(result.default_assignment[: len(ids)])
    subject.expect(numbers == ids, f"the device ids {ids}", numbers)


@check(
    "client.default_device_assignment.larger_buffer",
    calls=(_ASSIGNMENT,),
    rule="The plugin writes as many numbers as there are replicas times partitions, and leaves the rest of the buffer.",
)
def _larger_buffer(subject: Subject) -> None:
    subject.require(_ASSIGNMENT)
    result = _attempt(subject, 1, 1, 8)
    subject.expect(result.error is None, f"{_ASSIGNMENT} to succeed", str(result.error))
    rest = result.default_assignment[1:]
    subject.expect(set(rest) == {_MARK}, f"{_MARK} in the rest of the buffer", rest)


@check(
    "client.default_device_assignment.too_small",
    calls=(_ASSIGNMENT,),
    rule="A buffer for fewer numbers than replicas times partitions is an error with the code FAILED_PRECONDITION, and "
    "is not written.",
    over={"1x1 in 0": (1, 1, 0), "2x1 in 1": (2, 1, 1), "1x2 in 1": (1, 2, 1), "3x5 in 14": (3, 5, 14)},
)
def _too_small(subject: Subject, numbers: tuple[int, int, int]) -> None:
    subject.require(_ASSIGNMENT)
    result = _attempt(subject, *numbers)
    subject.expect(result.error, f"{_ASSIGNMENT} to fail", "that it succeeded")
    assert result.error is not None
    subject.expect_code(result.error, "FAILED_PRECONDITION", _ASSIGNMENT)


@check(
    "client.default_device_assignment.overflow",
    calls=(_ASSIGNMENT,),
    rule="Replicas times partitions that do not fit into 32 bits are an error.",
)
def _overflow(subject: Subject) -> None:
    subject.require(_ASSIGNMENT)
    result = _attempt(subject, _MOST, _MOST, 7)
    subject.expect(result.error, f"{_ASSIGNMENT} to fail", "that it succeeded")


@check(
    "client.default_device_assignment.not_positive",
    calls=(_ASSIGNMENT,),
    rule="Numbers of replicas or partitions below 1 write nothing behind the buffer; an error is lawful.",
    over={"0x1": (0, 1), "1x0": (1, 0), "-1x1": (-1, 1), "-2x-2": (-2, -2)},
)
def _not_positive(subject: Subject, numbers: tuple[int, int]) -> None:
    subject.require(_ASSIGNMENT)
    result = _attempt(subject, *numbers, 4)
    if result.error is not None:
        subject.expect_code(result.error, ("INVALID_ARGUMENT", "FAILED_PRECONDITION"), _ASSIGNMENT)
    else:
        subject.expect(result.default_assignment[4] == _MARK, f"{_MARK} behind the buffer", result.default_assignment)
