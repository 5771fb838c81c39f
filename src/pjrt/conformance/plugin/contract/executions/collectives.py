"""Checks of programs on several devices: replicas, and the collectives in which they exchange values."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.api.errors import StatusCode
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.executions.launch import Launch
from pjrt.conformance.plugin.contract.executions.pending_buffer import PendingBuffer, error_buffer
from pjrt.conformance.plugin.subject import Subject

_CALLS = ("PJRT_Client_Compile", "PJRT_LoadedExecutable_Execute")
_X = np.arange(4, dtype=np.float32)
_ROUNDS = 20
Array = np.ndarray[Any, Any]


def _compiled(subject: Subject, sample: str, count: int) -> int:
    """Return the executable of a program for several replicas."""
    subject.several_devices(count)
    answer = subject.attempt_compile(subject.program(sample), num_replicas=count)
    if answer.error is not None and answer.error.code == StatusCode.UNIMPLEMENTED:
        raise Unsupported(f"the program {sample} on {count} devices: {answer.error}")
    subject.expect(answer.error is None, "a compiled program", str(answer.error))
    return int(answer.executable)


def _rows(subject: Subject, executable: int, arrays: list[Array]) -> list[list[int]]:
    devices = subject.call("PJRT_LoadedExecutable_AddressableDevices", executable=executable).addressable_devices
    return [[subject.buffer(array, device=device)] for array, device in zip(arrays, devices, strict=True)]


def _arrays(count: int) -> list[Array]:
    return [_X + 10 * number for number in range(count)]


def _expected(operation: str, arrays: list[Array]) -> list[Array]:
    count = len(arrays)
    match operation:
        case "all_reduce":
            return [np.sum(np.stack(arrays), axis=0)] * count
        case "all_gather":
            return [np.concatenate(arrays)] * count
        case "collective_permute":
            return [arrays[(number - 1) % count] for number in range(count)]
        case _:
            pieces = [np.split(array, count) for array in arrays]
            return [np.concatenate([pieces[source][number] for source in range(count)]) for number in range(count)]


_OPERATIONS = ("all_reduce", "all_gather", "collective_permute", "all_to_all")
_CASES = {f"{operation}_{count}": (operation, count) for operation in _OPERATIONS for count in (2, 4)}


def _sample(operation: str, count: int) -> str:
    return operation if count == 2 else f"{operation}_{count}"


@check(
    "collectives.result",
    calls=_CALLS,
    over=_CASES,
    rule="In a collective the replicas of a program exchange values; each device has its own result.",
)
def _result(subject: Subject, case: tuple[str, int]) -> None:
    operation, count = case
    executable = _compiled(subject, _sample(operation, count), count)
    arrays = _arrays(count)
    launch = Launch(subject, executable, _rows(subject, executable, arrays))
    for device, array in enumerate(_expected(operation, arrays)):
        launch.expect(array, device=device)


@check(
    "collectives.in_flight",
    calls=_CALLS,
    rule="Several launches of a program with collectives may be in flight; each exchanges its own values.",
)
def _in_flight(subject: Subject) -> None:
    executable = _compiled(subject, "all_reduce", 2)
    launches = [
        Launch(subject, executable, _rows(subject, executable, [_X * number, _X + number])) for number in range(_ROUNDS)
    ]
    for number, launch in enumerate(launches):
        for device in range(2):
            launch.expect(_X * number + _X + number, device=device)


@check(
    "collectives.events",
    calls=(*_CALLS, "PJRT_Event_Await"),
    rule="There is an event for each device, which is ready when the device has finished.",
)
def _events(subject: Subject) -> None:
    executable = _compiled(subject, "all_reduce", 2)
    launch = Launch(subject, executable, _rows(subject, executable, _arrays(2)), with_events=True).succeeded()
    subject.expect(len(set(launch.events)) == 2, "2 events", "the same handle for both")
    for event in launch.events:
        subject.await_event(event)


@check(
    "collectives.device_by_device",
    calls=_CALLS,
    rule="A program for several devices may be launched on each by execute_device, by one call for each device.",
)
def _one_by_one(subject: Subject) -> None:
    executable = _compiled(subject, "all_reduce", 2)
    devices = subject.call("PJRT_LoadedExecutable_AddressableDevices", executable=executable).addressable_devices
    rows = _rows(subject, executable, _arrays(2))
    launches = []
    for row, device in zip(rows, devices, strict=True):
        launch = Launch(subject, executable, [row], execute_device=device, launch_id=3)
        if launch.error is not None and launch.error.code == StatusCode.UNIMPLEMENTED:
            raise Unsupported(f"executions on one of several devices: {launch.error}")
        launches.append(launch.succeeded())
    for launch in launches:
        launch.expect(2 * _X + 10)


@check(
    "collectives.waits_for_each_device",
    calls=_CALLS,
    rule="A collective waits for the values of all devices, also where one of them comes later.",
)
def _waits(subject: Subject) -> None:
    executable = _compiled(subject, "all_reduce", 2)
    rows = _rows(subject, executable, _arrays(2))
    pending = PendingBuffer(subject)
    launch = Launch(subject, executable, [[pending.handle], rows[1]]).succeeded()
    pending.fulfil(_X)
    for device in range(2):
        launch.expect(2 * _X + 10, device=device)


@check(
    "collectives.error_of_one_device",
    calls=(*_CALLS, "PJRT_Client_CreateErrorBuffer"),
    rule="Where the argument of one device has an error its results have that error; those of the others have an error "
    "too, and nothing waits for ever.",
)
def _error(subject: Subject) -> None:
    executable = _compiled(subject, "all_reduce", 2)
    rows = _rows(subject, executable, _arrays(2))
    failed = error_buffer(subject, StatusCode.DATA_LOSS, b"lost on the way")
    launch = Launch(subject, executable, [[failed], rows[1]])
    errors = launch.errors()
    first = errors[0]
    subject.expect(
        first is not None and first.code == StatusCode.DATA_LOSS, "DATA_LOSS on the first device", str(first)
    )
    subject.expect(all(error is not None for error in errors), "an error on each device", str(errors))
    again = Launch(subject, executable, _rows(subject, executable, _arrays(2)))
    again.expect(2 * _X + 10)


@check(
    "collectives.replica_id",
    calls=_CALLS,
    rule="Each replica knows its number: the results of the devices are in the order of the replicas.",
)
def _replica_id(subject: Subject) -> None:
    executable = _compiled(subject, "replica_id", 2)
    launch = Launch(subject, executable, [[], []])
    for device in range(2):
        launch.expect(np.array(device, np.uint32), device=device)
