"""Checks of loaded executables: their devices, deleting, destroying, and the handles made from them."""

from __future__ import annotations

import numpy as np

from pjrt.api.compile_options import DeviceAssignment
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.executions.launch import Launch
from pjrt.conformance.plugin.contract.executions.pending_buffer import PendingBuffer
from pjrt.conformance.plugin.contract.programs.compilation import expect_sum
from pjrt.conformance.plugin.contract.programs.compile_options import device_ids
from pjrt.conformance.plugin.contract.programs.executables import answer_of
from pjrt.conformance.plugin.contract.programs.owned_bytes import delete, reread
from pjrt.conformance.plugin.subject import Subject

_X = np.arange(4, dtype=np.float32)


def _is_deleted(subject: Subject, executable: int) -> bool:
    return bool(subject.call("PJRT_LoadedExecutable_IsDeleted", executable=executable).is_deleted)


@check(
    "loaded_executable.addressable_devices",
    calls=("PJRT_LoadedExecutable_AddressableDevices",),
    rule="The addressable devices are those on which the executable runs; they are devices of the client.",
)
def _devices(subject: Subject) -> None:
    answer = subject.call("PJRT_LoadedExecutable_AddressableDevices", executable=subject.compile("add"))
    devices = list(answer.addressable_devices)
    subject.expect(len(devices) == 1, "1 device", str(len(devices)))
    subject.expect(devices[0] in subject.devices, "a device of the client", hex(devices[0]))


@check(
    "loaded_executable.logical_ids",
    calls=("PJRT_LoadedExecutable_AddressableDeviceLogicalIds",),
    rule="The logical ids are the replica and the partition of each addressable device, in the same order.",
)
def _logical_ids(subject: Subject) -> None:
    answer = answer_of(subject, "PJRT_LoadedExecutable_AddressableDeviceLogicalIds", executable=subject.compile("add"))
    places = [(each.replica, each.partition) for each in answer.addressable_device_logical_ids]
    subject.expect(places == [(0, 0)], "replica 0, partition 0", str(places))


@check(
    "loaded_executable.device_assignment",
    calls=("PJRT_LoadedExecutable_GetDeviceAssignment",),
    rule="PJRT_LoadedExecutable_GetDeviceAssignment returns a serialized DeviceAssignmentProto with the ids of the "
    "devices, and a deleter.",
)
def _assignment(subject: Subject) -> None:
    loaded = subject.compile("add")
    answer = answer_of(subject, "PJRT_LoadedExecutable_GetDeviceAssignment", executable=loaded)
    subject.expect(bool(answer.serialized_device_assignment_deleter), "a deleter", "null")
    rows = DeviceAssignment.from_proto(bytes(answer.serialized_bytes)).device_ids
    subject.expect(rows == ((device_ids(subject)[0],),), "the first device", str(rows))
    delete(answer.serialized_device_assignment_deleter, answer.serialized_device_assignment)


@check(
    "loaded_executable.device_assignment_outlives_it",
    calls=("PJRT_LoadedExecutable_GetDeviceAssignment", "PJRT_LoadedExecutable_Destroy"),
    rule="The bytes of a device assignment live until their deleter is called.",
)
def _assignment_outlives(subject: Subject) -> None:
    loaded = subject.compile("add")
    answer = answer_of(subject, "PJRT_LoadedExecutable_GetDeviceAssignment", executable=loaded)
    before = bytes(answer.serialized_bytes)
    subject.call("PJRT_LoadedExecutable_Destroy", executable=loaded)
    after = bytes(reread(answer).serialized_bytes)
    subject.expect(after == before, f"the same bytes, {before!r}", repr(after))
    delete(answer.serialized_device_assignment_deleter, answer.serialized_device_assignment)


@check(
    "loaded_executable.is_deleted",
    calls=("PJRT_LoadedExecutable_IsDeleted", "PJRT_LoadedExecutable_Delete"),
    rule="PJRT_LoadedExecutable_IsDeleted is true if and only if PJRT_LoadedExecutable_Delete was called.",
)
def _deleted(subject: Subject) -> None:
    loaded = subject.compile("add")
    subject.expect(not _is_deleted(subject, loaded), "an executable that is not deleted", "a deleted one")
    expect_sum(subject, loaded)
    subject.expect(not _is_deleted(subject, loaded), "an executable that is not deleted", "a deleted one after it ran")
    subject.call("PJRT_LoadedExecutable_Delete", executable=loaded)
    subject.expect(_is_deleted(subject, loaded), "a deleted executable", "one that is not deleted")
    subject.call("PJRT_LoadedExecutable_Destroy", executable=loaded)


@check(
    "loaded_executable.delete_twice",
    calls=("PJRT_LoadedExecutable_Delete", "PJRT_LoadedExecutable_IsDeleted"),
    rule="Deleting a deleted executable may fail, and changes nothing.",
)
def _delete_twice(subject: Subject) -> None:
    loaded = subject.compile("add")
    subject.call("PJRT_LoadedExecutable_Delete", executable=loaded)
    subject.attempt("PJRT_LoadedExecutable_Delete", executable=loaded)
    subject.expect(_is_deleted(subject, loaded), "a deleted executable", "one that is not deleted")
    subject.call("PJRT_LoadedExecutable_Destroy", executable=loaded)


@check(
    "loaded_executable.execute_after_delete",
    calls=("PJRT_LoadedExecutable_Delete", "PJRT_LoadedExecutable_Execute"),
    rule="A deleted executable cannot be executed: the call or the results have an error.",
)
def _execute_deleted(subject: Subject) -> None:
    loaded = subject.compile("add")
    subject.call("PJRT_LoadedExecutable_Delete", executable=loaded)
    Launch(subject, loaded, [[subject.buffer(_X), subject.buffer(_X)]]).expect_error()
    expect_sum(subject, subject.compile("add"))


@check(
    "loaded_executable.delete_during_execution",
    calls=("PJRT_LoadedExecutable_Delete", "PJRT_LoadedExecutable_Execute"),
    over={"delete": "PJRT_LoadedExecutable_Delete", "destroy": "PJRT_LoadedExecutable_Destroy"},
    rule="An execution that has begun goes on when its executable is deleted; the code is freed after it.",
)
def _delete_during(subject: Subject, function: str) -> None:
    loaded = subject.compile("add")
    pending = PendingBuffer(subject)
    launch = Launch(subject, loaded, [[pending.handle, subject.buffer(_X)]]).succeeded()
    subject.call(function, executable=loaded)
    pending.fulfil(_X)
    launch.expect(2 * _X)


@check(
    "loaded_executable.results_outlive_it",
    calls=("PJRT_LoadedExecutable_Destroy", "PJRT_LoadedExecutable_Execute", "PJRT_Buffer_ToHostBuffer"),
    rule="Results belong to the caller, and live on when the executable is destroyed.",
)
def _results_outlive(subject: Subject) -> None:
    loaded = subject.compile("add")
    launch = Launch(subject, loaded, [[subject.buffer(_X), subject.buffer(_X)]]).succeeded()
    subject.call("PJRT_LoadedExecutable_Destroy", executable=loaded)
    launch.expect(2 * _X)


@check(
    "loaded_executable.destroy_null",
    calls=("PJRT_LoadedExecutable_Destroy",),
    rule="The executable of PJRT_LoadedExecutable_Destroy may be null.",
)
def _destroy_null(subject: Subject) -> None:
    subject.call("PJRT_LoadedExecutable_Destroy", executable=0)


@check(
    "loaded_executable.executable_outlives_it",
    calls=("PJRT_LoadedExecutable_GetExecutable", "PJRT_LoadedExecutable_Destroy", "PJRT_Executable_NumOutputs"),
    rule="The handle of PJRT_LoadedExecutable_GetExecutable belongs to the caller, and lives until it is destroyed.",
)
def _executable_outlives(subject: Subject) -> None:
    loaded = subject.compile("add")
    handle = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable
    subject.call("PJRT_LoadedExecutable_Destroy", executable=loaded)
    name = subject.call("PJRT_Executable_Name", executable=handle).executable_name
    count = subject.call("PJRT_Executable_NumOutputs", executable=handle).num_outputs
    subject.expect(bool(name) and count == 1, "a name and 1 result", f"{name!r} and {count}")
    subject.call("PJRT_Executable_Destroy", executable=handle)


@check(
    "loaded_executable.get_executable_twice",
    calls=("PJRT_LoadedExecutable_GetExecutable", "PJRT_Executable_Destroy"),
    rule="Each call of PJRT_LoadedExecutable_GetExecutable returns a handle that is destroyed on its own.",
)
def _get_twice(subject: Subject) -> None:
    loaded = subject.compile("add")
    first, second = (
        subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable for _ in range(2)
    )
    subject.call("PJRT_Executable_Destroy", executable=first)
    count = subject.call("PJRT_Executable_NumOutputs", executable=second).num_outputs
    subject.expect(count == 1, "1 result", str(count))
    subject.call("PJRT_Executable_Destroy", executable=second)
    expect_sum(subject, loaded)


@check(
    "loaded_executable.destroying_the_executable_leaves_it",
    calls=("PJRT_LoadedExecutable_GetExecutable", "PJRT_Executable_Destroy", "PJRT_LoadedExecutable_Execute"),
    rule="The loaded executable lives on when a handle of PJRT_LoadedExecutable_GetExecutable is destroyed.",
)
def _handle_destroyed(subject: Subject) -> None:
    loaded = subject.compile("add")
    handle = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable
    subject.call("PJRT_Executable_Destroy", executable=handle)
    expect_sum(subject, loaded)
    subject.expect(not _is_deleted(subject, loaded), "an executable that is not deleted", "a deleted one")
