"""Checks of compile options: replicas and partitions, the device assignment, damaged options."""

from __future__ import annotations

import numpy as np

from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.executions.launch import Launch
from pjrt.conformance.plugin.contract.programs.compilation import OPTIONS, compile_code, expect_sum
from pjrt.conformance.plugin.subject import Subject

_CALLS = ("PJRT_Client_Compile",)
_X = np.arange(4, dtype=np.float32)


def device_ids(subject: Subject) -> list[int]:
    """Return the ids of the devices that the client can use."""
    descriptions = [
        subject.call("PJRT_Device_GetDescription", device=device).device_description for device in subject.devices
    ]
    return [
        int(subject.call("PJRT_DeviceDescription_Id", device_description=description).id)
        for description in descriptions
    ]


def assigned(ids: list[list[int]]) -> bytes:
    """Return the compile options of a device assignment, a row a replica."""
    assignment = DeviceAssignment(tuple(tuple(row) for row in ids))
    return CompileOptions(device_assignment=assignment).to_proto()


@check(
    "compile_options.damaged",
    calls=_CALLS,
    over={"noise": b"\xff\xff\xff\xff\x0f", "prose": b"invalid compile options", "half": OPTIONS[:-1]},
    rule="compile_options is a serialized CompileOptionsProto; bytes that are none are refused with an error.",
)
def _damaged(subject: Subject, options: bytes) -> None:
    program = subject.program("add")
    answer = compile_code(subject, program.code, program.format, options)
    subject.expect(answer.error is not None, "an error", "a compiled program")
    expect_sum(subject, subject.compile("add"))


@check(
    "compile_options.are_not_terminated",
    calls=_CALLS,
    rule="compile_options_size is the size of the options; what follows in memory is not read.",
)
def _not_terminated(subject: Subject) -> None:
    program = subject.program("add")
    options = np.frombuffer(OPTIONS + b"\xff" * 64, np.uint8)
    answer = subject.call(
        "PJRT_Client_Compile",
        client=subject.client,
        program={"code": program.code, "format": program.format},
        compile_options=options.ctypes.data,
        compile_options_size=len(OPTIONS),
    )
    expect_sum(subject, answer.executable)


@check(
    "compile_options.second_device",
    calls=(*_CALLS, "PJRT_LoadedExecutable_AddressableDevices", "PJRT_LoadedExecutable_Execute", "PJRT_Buffer_Device"),
    rule="The device assignment of the options names the devices that run the program.",
)
def _second_device(subject: Subject) -> None:
    second = subject.several_devices(2)[1]
    program = subject.program("add")
    answer = compile_code(subject, program.code, program.format, assigned([[device_ids(subject)[1]]]))
    subject.expect(answer.error is None, "a compiled program", str(answer.error))
    devices = subject.call("PJRT_LoadedExecutable_AddressableDevices", executable=answer.executable)
    subject.expect(
        list(devices.addressable_devices) == [second], "the second device", f"{list(devices.addressable_devices)}"
    )
    launch = Launch(subject, answer.executable, [[subject.buffer(_X, device=second)] * 2]).succeeded()
    launch.expect(2 * _X)
    place = subject.call("PJRT_Buffer_Device", buffer=launch.results[0][0]).device
    subject.expect(place == second, "a result on the second device", "a result on another")


@check(
    "compile_options.unknown_device",
    calls=_CALLS,
    over={"large": 987654, "negative": -5},
    rule="A device assignment names devices of the client; one that names another is refused with an error.",
)
def _unknown_device(subject: Subject, number: int) -> None:
    program = subject.program("add")
    answer = compile_code(subject, program.code, program.format, assigned([[number]]))
    subject.expect(answer.error is not None, "an error", f"a program compiled for a device {number}")
    expect_sum(subject, subject.compile("add"))


@check(
    "compile_options.too_many",
    calls=_CALLS,
    over={"replicas": "num_replicas", "partitions": "num_partitions"},
    rule="A program for more devices than there are is refused with an error.",
)
def _too_many(subject: Subject, name: str) -> None:
    program = subject.program("add")
    count = len(subject.call("PJRT_Client_Devices", client=subject.client).devices) + 1
    options = CompileOptions(**{name: count}).to_proto()  # type: ignore[arg-type]
    answer = compile_code(subject, program.code, program.format, options)
    subject.expect(answer.error is not None, "an error", f"a program compiled for {count} devices")
    expect_sum(subject, subject.compile("add"))


@check(
    "compile_options.replicas",
    calls=(*_CALLS, "PJRT_Executable_NumReplicas", "PJRT_LoadedExecutable_AddressableDeviceLogicalIds"),
    rule="A program of two replicas has two addressable devices, with the replicas 0 and 1.",
)
def _replicas(subject: Subject) -> None:
    subject.several_devices(2)
    program = subject.program("add")
    answer = compile_code(subject, program.code, program.format, CompileOptions(num_replicas=2).to_proto())
    subject.expect(answer.error is None, "a compiled program", str(answer.error))
    handle = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=answer.executable).executable
    counts = (
        subject.call("PJRT_Executable_NumReplicas", executable=handle).num_replicas,
        subject.call("PJRT_Executable_NumPartitions", executable=handle).num_partitions,
    )
    subject.expect(counts == (2, 1), "2 replicas of 1 partition", f"{counts}")
    devices = subject.call("PJRT_LoadedExecutable_AddressableDevices", executable=answer.executable)
    found = list(devices.addressable_devices)
    subject.expect(len(found) == 2 and len(set(found)) == 2, "2 devices", str(found))
    if not subject.plugin.has("PJRT_LoadedExecutable_AddressableDeviceLogicalIds"):
        return
    ids = subject.call("PJRT_LoadedExecutable_AddressableDeviceLogicalIds", executable=answer.executable)
    places = [(each.replica, each.partition) for each in ids.addressable_device_logical_ids]
    subject.expect(places == [(0, 0), (1, 0)], "the places (0, 0) and (1, 0)", str(places))


@check(
    "compile_options.order_of_devices",
    calls=(*_CALLS, "PJRT_LoadedExecutable_Execute", "PJRT_LoadedExecutable_AddressableDevices"),
    rule="The lists of arguments and results follow the order of the addressable devices, also when the assignment is "
    "not in the order of ids.",
)
def _order(subject: Subject) -> None:
    subject.several_devices(2)
    ids = device_ids(subject)
    program = subject.program("add")
    answer = compile_code(subject, program.code, program.format, assigned([[ids[1]], [ids[0]]]))
    subject.expect(answer.error is None, "a compiled program", str(answer.error))
    devices = list(
        subject.call("PJRT_LoadedExecutable_AddressableDevices", executable=answer.executable).addressable_devices
    )
    rows = [[subject.buffer(_X + 10 * number, device=device)] * 2 for number, device in enumerate(devices)]
    launch = Launch(subject, answer.executable, rows).succeeded()
    for number, device in enumerate(devices):
        (result,) = launch.results[number]
        subject.expect_contents(result, 2 * (_X + 10 * number))
        place = subject.call("PJRT_Buffer_Device", buffer=result).device
        subject.expect(place == device, f"the result of list {number} on its device", "another device")


@check(
    "compile_options.portable",
    calls=(*_CALLS, "PJRT_LoadedExecutable_Execute"),
    rule="A portable executable runs on the addressable device that execute_device names.",
)
def _portable(subject: Subject) -> None:
    program = subject.program("add")
    options = CompileOptions(compile_portable_executable=True).to_proto()
    answer = compile_code(subject, program.code, program.format, options)
    if answer.error is not None:
        raise Unsupported(f"the plugin compiles no portable executables: {answer.error}")
    for device in subject.devices:
        arguments = [subject.buffer(_X, device=device)] * 2
        launch = Launch(subject, answer.executable, [arguments], execute_device=device).succeeded()
        launch.expect(2 * _X)
        place = subject.call("PJRT_Buffer_Device", buffer=launch.results[0][0]).device
        subject.expect(place == device, "a result on the device that was named", "a result on another")
