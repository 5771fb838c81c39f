"""Expectations of XLA's test of the C API: the table, the plugin, a client and its devices, compilation, buffers."""

from __future__ import annotations

import base64

import numpy as np

from pjrt.abi.generated.version import API_VERSION
from pjrt.abi.schema import FUNCTIONS
from pjrt.capi import raw
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.subject import Subject, compile_options

# The table and the plugin, with versions, sizes and attributes.

_FIRST_SLOT = 40
_REQUIRED_ATTRIBUTES = ("xla_version", "stablehlo_current_version", "stablehlo_minimum_version")


@check("official.api_version", calls=())
def _api_version(subject: Subject) -> None:
    """The plugin states the version of the C API that it was compiled with: its major version is 0. XLA's test wants
    the minor version of the header of the caller, too, which is advice here: an older or newer plugin is not wrong.
    """
    major, minor = subject.plugin.api_version
    subject.expect(major == API_VERSION[0], f"the major version {API_VERSION[0]}", major)
    subject.expect(minor > 0, "a minor version above 0", minor)
    subject.advise(minor == API_VERSION[1], f"the minor version {API_VERSION[1]} of this package's header", minor)


@check("official.field_offsets_and_sizes", calls=())
def _field_offsets_and_sizes(subject: Subject) -> None:
    """The table of each minor version has the functions of that version, in whole slots: its struct_size reaches behind
    the last of them.
    """
    _, minor = subject.plugin.api_version
    functions = [each for each in FUNCTIONS.values() if not each.extension and each.minor <= minor]
    least = _FIRST_SLOT + 8 * len(functions)
    size = subject.plugin.table.size
    subject.expect(size >= least, f"a table of at least {least} bytes", size)
    subject.expect(size % 8 == 0, "a table of whole pointers", f"{size} bytes")


@check("official.plugin_attributes", calls=("PJRT_Plugin_Attributes",))
def _plugin_attributes(subject: Subject) -> None:
    """Each attribute of the plugin has a name of its own. XLA's test wants xla_version, stablehlo_current_version and
    stablehlo_minimum_version among them, which is advice for plugins that are not built on XLA.
    """
    attributes = subject.call("PJRT_Plugin_Attributes").attributes or []
    names = [each.name.decode() for each in attributes]
    subject.expect(len(set(names)) == len(names), "attributes with different names", names)
    missing = [name for name in _REQUIRED_ATTRIBUTES if name not in names]
    subject.advise(not missing, f"the attributes {', '.join(_REQUIRED_ATTRIBUTES)}", f"none named {', '.join(missing)}")


@check("official.error_to_status", calls=("PJRT_Error_Destroy", "PJRT_Plugin_Attributes"))
def _error_to_status(subject: Subject) -> None:
    """A null pointer in place of an error is success, and destroying it does nothing."""
    subject.call("PJRT_Plugin_Attributes")
    subject.call("PJRT_Error_Destroy", error=0)


# A client and its devices, in a job of one process.

_LOOKUP = "PJRT_Client_LookupDevice"
_LOOKUP_ADDRESSABLE = "PJRT_Client_LookupAddressableDevice"
_ASSIGNMENT = "PJRT_Client_DefaultDeviceAssignment"


def _devices(subject: Subject) -> list[int]:
    devices = subject.call("PJRT_Client_Devices", client=subject.client).devices
    subject.expect(devices, "a client with devices", "none")
    return list(devices)


def _id(subject: Subject, device: int) -> int:
    description = subject.description(device)
    return int(subject.call("PJRT_DeviceDescription_Id", device_description=description).id)


def _hardware_id(subject: Subject, device: int) -> int:
    return int(subject.call("PJRT_Device_LocalHardwareId", device=device).local_hardware_id)


@check("official.platform_name", calls=("PJRT_Client_PlatformName",))
def _platform_name(subject: Subject) -> None:
    """The client's platform has a name."""
    name = subject.call("PJRT_Client_PlatformName", client=subject.client).platform_name
    subject.expect(name, "the name of a platform", name)


@check("official.client_process_index", calls=("PJRT_Client_ProcessIndex",))
def _client_process_index(subject: Subject) -> None:
    """The process index of a client of a single process is 0."""
    index = subject.call("PJRT_Client_ProcessIndex", client=subject.client, process_index=-1).process_index
    subject.expect(index == 0, "the process index 0", index)


@check(
    "official.client_devices", calls=("PJRT_Client_Devices", "PJRT_Device_GetDescription", "PJRT_DeviceDescription_Id")
)
def _client_devices(subject: Subject) -> None:
    """A client has devices, and their ids are at least 0."""
    for device in _devices(subject):
        number = _id(subject, device)
        subject.expect(number >= 0, "an id of at least 0", number)


@check("official.client_addressable_devices", calls=("PJRT_Client_AddressableDevices", "PJRT_Client_Devices"))
def _client_addressable_devices(subject: Subject) -> None:
    """A client has addressable devices, with ids of at least 0, and each is one of its devices."""
    devices = _devices(subject)
    for device in subject.devices:
        number = _id(subject, device)
        subject.expect(number >= 0, "an id of at least 0", number)
        subject.expect(device in devices, "an addressable device that is among the client's devices", "another one")


@check("official.lookup_device", calls=(_LOOKUP,))
def _lookup_device(subject: Subject) -> None:
    """The id 0 finds the device with the id 0."""
    device = subject.call(_LOOKUP, client=subject.client, id=0).device
    subject.expect(device, "a device", "a null pointer")
    number = _id(subject, device)
    subject.expect(number == 0, "the device with the id 0", f"one with the id {number}")


@check("official.lookup_addressable_device", calls=(_LOOKUP_ADDRESSABLE, "PJRT_Device_LocalHardwareId"))
def _lookup_addressable_device(subject: Subject) -> None:
    """The local hardware id 0 finds the addressable device with that id."""
    device = subject.call(_LOOKUP_ADDRESSABLE, client=subject.client, local_hardware_id=0).addressable_device
    subject.expect(device, "a device", "a null pointer")
    number = _hardware_id(subject, device)
    subject.expect(number == 0, "the device with the local hardware id 0", f"one with {number}")


def _outside_of(subject: Subject, number: int) -> None:
    error = subject.fails(_LOOKUP, "INVALID_ARGUMENT", client=subject.client, id=number)
    message = f"No matching device found for device_id {number}"
    subject.advise(error.message == message, f"the message {message!r}", repr(error.message))


@check("official.lookup_device_negative_id", calls=(_LOOKUP,))
def _lookup_device_negative_id(subject: Subject) -> None:
    """The id -1 is an error with the code INVALID_ARGUMENT."""
    _outside_of(subject, -1)


@check("official.lookup_device_out_of_range_id", calls=(_LOOKUP,))
def _lookup_device_out_of_range_id(subject: Subject) -> None:
    """The number of devices, as an id that no device has, is an error with the code INVALID_ARGUMENT."""
    devices = _devices(subject)
    _outside_of(subject, max(len(devices), 1 + max(_id(subject, device) for device in devices)))


@check("official.get_default_device_assignment_nominal", calls=(_ASSIGNMENT,))
def _default_device_assignment(subject: Subject) -> None:
    """There is a default device assignment of 2 replicas and 1 partition, whatever devices the client has."""
    subject.call(
        _ASSIGNMENT, client=subject.client, num_replicas=2, num_partitions=1, default_assignment_size=2,
        default_assignment=[0, 0],
    )  # fmt: skip


@check("official.get_default_device_assignment_buffer_too_small", calls=(_ASSIGNMENT,))
def _default_device_assignment_too_small(subject: Subject) -> None:
    """An assignment of 4 replicas and 2 partitions does not fit into 7 numbers: FAILED_PRECONDITION."""
    error = subject.fails(
        _ASSIGNMENT, "FAILED_PRECONDITION", client=subject.client, num_replicas=4, num_partitions=2,
        default_assignment_size=7, default_assignment=[0] * 7,
    )  # fmt: skip
    message = (
        "PJRT_Client_DefaultDeviceAssignment: `default_assignment_size` 7 < `num_replicas * num_partitions`, 4 * 2 = 8"
    )
    subject.advise(error.message == message, f"the message {message!r}", repr(error.message))


@check("official.device_id", calls=("PJRT_DeviceDescription_Id",))
def _device_id(subject: Subject) -> None:
    """The first device of the client has the id 0."""
    number = _id(subject, _devices(subject)[0])
    subject.expect(number == 0, "the id 0", number)


@check("official.device_process_index", calls=("PJRT_DeviceDescription_ProcessIndex",))
def _device_process_index(subject: Subject) -> None:
    """The first device of a client of a single process belongs to process 0."""
    description = subject.description(_devices(subject)[0])
    index = subject.call("PJRT_DeviceDescription_ProcessIndex", device_description=description).process_index
    subject.expect(index == 0, "the process index 0", index)


@check("official.device_is_addressable", calls=("PJRT_Device_IsAddressable",))
def _device_is_addressable(subject: Subject) -> None:
    """The first device of a client of a single process is addressable."""
    answer = subject.call("PJRT_Device_IsAddressable", device=_devices(subject)[0]).is_addressable
    subject.expect(answer, "an addressable device", "one that is not")


@check("official.device_local_hardware_id", calls=("PJRT_Device_LocalHardwareId",))
def _device_local_hardware_id(subject: Subject) -> None:
    """The first device of the client has the local hardware id 0."""
    number = _hardware_id(subject, _devices(subject)[0])
    subject.expect(number == 0, "the local hardware id 0", number)


@check(
    "official.device_description_and_memory_descriptions",
    calls=("PJRT_DeviceDescription_MemoryDescriptions", "PJRT_MemoryDescription_Kind"),
)
def _memory_descriptions(subject: Subject) -> None:
    """A device's description has a default memory, and each memory has a kind with a name and a number other than 0."""
    subject.require_extension("MemoryDescriptions")
    described = subject.call(
        "PJRT_DeviceDescription_MemoryDescriptions", device_description=subject.description(_devices(subject)[0])
    )
    if not described.memory_descriptions:
        raise Unsupported("descriptions of memories")
    memories = described.memory_descriptions
    default = described.default_memory_index
    subject.expect(0 <= default < len(memories), f"a default memory among {len(memories)}", f"the index {default}")
    for memory in memories:
        kind = subject.call("PJRT_MemoryDescription_Kind", memory_description=memory)
        subject.expect(kind.kind, "a kind with a name", repr(kind.kind))
        subject.expect(kind.kind_id != 0, "a kind id other than 0", kind.kind_id)


# Compilation, with formats, options, and topologies of clients.

_COMPILE = "PJRT_Client_Compile"
_DESTROY = "PJRT_LoadedExecutable_Destroy"
_ADD_ONE = """module {
  func.func @main(%x: tensor<f32>) -> tensor<f32> {
    %0 = "mhlo.copy"(%x) : (tensor<f32>) -> tensor<f32>
    %1 = mhlo.constant dense<1.0> : tensor<f32>
    %2 = mhlo.add %0, %1 : tensor<f32>
    return %2 : tensor<f32>
  }
}
"""
_PASS_THROUGH = """module {
  func.func @main(%x: tensor<i32>) -> tensor<i32> {
    return %x : tensor<i32>
  }
}
"""
# An HloModuleProto whose entry returns its arguments f32[], f32[3] and f32[2,3] as a tuple: plugins may read HLO as a
# protocol buffer alone, and only XLA can write one.
_TUPLE = base64.b64decode(
    "CgtUdXBsZUNyZWF0ZRIGbWFpbi4xGpsDCgZtYWluLjESLAoHQXJnXzAuMRIJcGFyYW1ldGVyGgcQCyoDgAEBOgCYAoGAgIAQogQAkgUAEjcKB0Fy"
    "Z18xLjESCXBhcmFtZXRlchoQEAsaAQMqBgoBAIABATIBADoASAGYAoKAgIAQogQAkgUAEjoKB0FyZ18yLjESCXBhcmFtZXRlchoTEAsaAgIDKgcK"
    "AgEAgAEBMgIAADoASAKYAoOAgIAQogQAkgUAEmUKB3R1cGxlLjESBXR1cGxlGjIQDSIHEAsqA4ABASIQEAsaAQMqBgoBAIABATIBACITEAsaAgID"
    "KgcKAgEAgAEBMgIAADoAmAKEgICAEKICD4GAgIAQgoCAgBCDgICAEKIEAJIFACJ/CgcQCyoDgAEBChAQCxoBAyoGCgEAgAEBMgEAChMQCxoCAgMq"
    "BwoCAQCAAQEyAgAAEjIQDSIHEAsqA4ABASIQEAsaAQMqBgoBAIABATIBACITEAsaAgIDKgcKAgEAgAEBMgIAABoHQXJnXzAuMRoHQXJnXzEuMRoH"
    "QXJnXzIuMSgBMISAgIAQInAKBxALKgOAAQEKEBALGgEDKgYKAQCAAQEyAQAKExALGgICAyoHCgIBAIABATICAAASMhANIgcQCyoDgAEBIhAQCxoB"
    "AyoGCgEAgAEBMgEAIhMQCxoCAgMqBwoCAQCAAQEyAgAAGgJwMBoCcDEaAnAyMAFCAJIBAJoBAA=="
)


def _program(code: bytes | str | None, form: str) -> raw.Struct:
    return raw.Struct("PJRT_Program", code=code, format=form)


def _refuse_own_programs(subject: Subject, dialect: str) -> None:
    if subject.samples.folder:
        raise Unsupported(f"programs of {dialect}; the user gave programs of another format")


@check("official.compile", calls=(_COMPILE, _DESTROY))
def _compile(subject: Subject) -> None:
    """A program in MHLO, as MLIR text, is compiled. A plugin may leave out the dialect, with the code UNIMPLEMENTED:
    frameworks send StableHLO.
    """
    _refuse_own_programs(subject, "MHLO")
    subject.require(_COMPILE)
    executable = subject.call(
        _COMPILE, client=subject.client, program=_program(_ADD_ONE, "mlir"), compile_options=compile_options()
    ).executable
    subject.call(_DESTROY, executable=executable)


@check("official.compile_xla_computation", calls=(_COMPILE, _DESTROY))
def _compile_hlo(subject: Subject) -> None:
    """A program in HLO, as an HloModuleProto, is compiled. A plugin may leave out the format, with the code
    UNIMPLEMENTED.
    """
    _refuse_own_programs(subject, "HLO")
    subject.require(_COMPILE)
    executable = subject.call(
        _COMPILE, client=subject.client, program=_program(_TUPLE, "hlo"), compile_options=compile_options()
    ).executable
    subject.call(_DESTROY, executable=executable)


@check("official.compile_invalid_option", calls=(_COMPILE, _DESTROY))
def _compile_invalid_option(subject: Subject) -> None:
    """Compile options that are no CompileOptionsProto are an error with the code INVALID_ARGUMENT, and the executable
    stays a null pointer, which can be destroyed.
    """
    result = subject.attempt(
        _COMPILE, client=subject.client, program=subject.program("identity"), compile_options=b"invalid compile options"
    )
    subject.expect(result.error, f"{_COMPILE} to fail with INVALID_ARGUMENT", "that it succeeded")
    assert result.error is not None
    subject.expect_code(result.error, "INVALID_ARGUMENT", _COMPILE)
    message = "PJRT_Client_Compile: failed to deserialize CompileOptionsProto"
    subject.advise(result.error.message == message, f"the message {message!r}", repr(result.error.message))
    subject.call(_DESTROY, executable=0)


@check("official.compile_invalid_program_format", calls=(_COMPILE, _DESTROY))
def _compile_invalid_format(subject: Subject) -> None:
    """A program of an unknown format, without code, is an error with the code INVALID_ARGUMENT."""
    program = _program(None, "invalid")
    error = subject.fails(
        _COMPILE, "INVALID_ARGUMENT", client=subject.client, program=program, compile_options=compile_options()
    )
    message = "Unknown program format 'invalid'."
    subject.advise(error.message == message, f"the message {message!r}", repr(error.message))
    subject.call(_DESTROY, executable=0)


def _topology(subject: Subject) -> int:
    function = "PJRT_Client_TopologyDescription"
    subject.require(function)
    topology = subject.call(function, client=subject.client).topology
    subject.expect(topology, "a topology", "a null pointer")
    return int(topology)


def _compile_for(subject: Subject, topology: int, **fields: int) -> None:
    subject.require("PJRT_Compile")
    program = subject.program("identity") if subject.samples.folder else _program(_PASS_THROUGH, "mlir")
    executable = subject.call(
        "PJRT_Compile", topology=topology, program=program, compile_options=compile_options(), **fields
    ).executable
    subject.expect(executable, "an executable", "a null pointer")
    subject.call("PJRT_Executable_Destroy", executable=executable)


@check("official.compile_with_shared_topology", calls=("PJRT_Client_TopologyDescription", "PJRT_Compile"))
def _compile_with_shared_topology(subject: Subject) -> None:
    """A program that passes its argument through is compiled for the topology of a client, without the client."""
    _compile_for(subject, _topology(subject))


@check("official.compile_with_client", calls=("PJRT_Client_TopologyDescription", "PJRT_Compile"))
def _compile_with_client(subject: Subject) -> None:
    """A program is compiled for the topology of a client, and with the client."""
    _compile_for(subject, _topology(subject), client=subject.client)


# Buffers.

_INCREASE = "PJRT_Buffer_IncreaseExternalReferenceCount"
_DECREASE = "PJRT_Buffer_DecreaseExternalReferenceCount"
_POINTER = "PJRT_Buffer_OpaqueDeviceMemoryDataPointer"
FLOATS = np.arange(41, 45, dtype=np.float32)
"""The contents of the buffer of XLA's test."""


@check(
    "official.buffer_transfer_immutable_until_transfer_completes",
    calls=("PJRT_Client_BufferFromHostBuffer", "PJRT_Event_Await"),
)
def _buffer_transfer(subject: Subject) -> None:
    """A transfer from memory that stays unchanged until it ends is done when its event is."""
    subject.buffer(FLOATS, host_buffer_semantics="ImmutableUntilTransferCompletes")


@check("official.buffer_is_deleted", calls=("PJRT_Buffer_IsDeleted", "PJRT_Buffer_Delete"))
def _is_deleted(subject: Subject) -> None:
    """A buffer is deleted after PJRT_Buffer_Delete, and not before."""
    buffer = subject.buffer(FLOATS)
    before = subject.call("PJRT_Buffer_IsDeleted", buffer=buffer, is_deleted=True).is_deleted
    subject.expect(not before, "a buffer that is not deleted", "that it is deleted")
    subject.call("PJRT_Buffer_Delete", buffer=buffer)
    after = subject.call("PJRT_Buffer_IsDeleted", buffer=buffer).is_deleted
    subject.expect(after, "a buffer that is deleted", "that it is not deleted")


@check("official.buffer_on_device_size_in_bytes", calls=("PJRT_Buffer_OnDeviceSizeInBytes",))
def _on_device_size(subject: Subject) -> None:
    """A buffer of four floats occupies memory on its device."""
    size = subject.call("PJRT_Buffer_OnDeviceSizeInBytes", buffer=subject.buffer(FLOATS)).on_device_size_in_bytes
    subject.expect(size > 0, "more than 0 bytes", size)


@check(
    "official.buffer_ready_event",
    calls=("PJRT_Buffer_ReadyEvent", "PJRT_Event_Await", "PJRT_Event_IsReady", "PJRT_Event_Destroy"),
)
def _ready_event(subject: Subject) -> None:
    """A buffer has an event, which is ready once it was awaited."""
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=subject.buffer(FLOATS)).event
    subject.expect(event, "an event", "a null pointer")
    subject.call("PJRT_Event_Await", event=event)
    subject.expect(subject.call("PJRT_Event_IsReady", event=event).is_ready, "an event that is ready", "that it is not")
    subject.call("PJRT_Event_Destroy", event=event)


@check("official.buffer_to_host_buffer_no_host_layout", calls=("PJRT_Buffer_ToHostBuffer",))
def _to_host_buffer(subject: Subject) -> None:
    """Without a host layout, the elements of a buffer arrive in the host's memory."""
    target = np.zeros(4, np.float32)
    result = subject.call("PJRT_Buffer_ToHostBuffer", src=subject.buffer(FLOATS), dst=target)
    subject.await_event(result.event)
    subject.expect(np.array_equal(target, FLOATS), f"the elements {FLOATS.tolist()}", target.tolist())


@check("official.buffer_increase_and_decrease_reference_count", calls=(_INCREASE, _DECREASE))
def _reference_count(subject: Subject) -> None:
    """An external reference to a buffer is taken and given back."""
    subject.require(_INCREASE, _DECREASE)
    buffer = subject.buffer(FLOATS)
    subject.call(_INCREASE, buffer=buffer)
    subject.call(_DECREASE, buffer=buffer)


@check("official.buffer_decrease_reference_count_returns_error", calls=(_DECREASE,))
def _too_many_decreases(subject: Subject) -> None:
    """Giving back a reference that was not taken is an error with the code INVALID_ARGUMENT."""
    subject.require(_DECREASE)
    error = subject.fails(_DECREASE, "INVALID_ARGUMENT", buffer=subject.buffer(FLOATS))
    message = "Attempting to decrease reference on a buffer with zero reference count."
    subject.advise(error.message == message, f"the message {message!r}", repr(error.message))


@check("official.buffer_opaque_device_memory_data_pointer", calls=(_POINTER,))
def _opaque_pointer(subject: Subject) -> None:
    """The pointer to the memory of a buffer is not null."""
    subject.require(_POINTER)
    pointer = subject.call(_POINTER, buffer=subject.buffer(FLOATS)).device_memory_ptr
    subject.expect(pointer, "a pointer that is not null", pointer)
