"""The arguments of right calls of functions of the table that take more than handles."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.capi import raw
from pjrt.conformance.plugin.examples import handles
from pjrt.conformance.plugin.executions import compile_options
from pjrt.conformance.plugin.outcome import Unsupported
from pjrt.conformance.plugin.subject import Subject

Arguments = dict[str, Any]
_SHAPE: Arguments = {"shape_dims": [4], "shape_element_type": "F32"}
_ERROR: Arguments = {"error_code": "ABORTED", "error_message": "an example"}


def _array() -> np.ndarray[Any, Any]:
    return np.arange(4, dtype=np.float32)


def _create(subject: Subject) -> Arguments:
    subject.client  # noqa: B018  # or the reason why none can be made
    return {"create_options": [raw.named_value(*option) for option in subject.options.items()]}


def _ids(subject: Subject) -> Arguments:
    description = subject.description(subject.device)
    return {
        "client": subject.client,
        "id": subject.call("PJRT_DeviceDescription_Id", device_description=description).id,
    }


def _local_ids(subject: Subject) -> Arguments:
    number = subject.call("PJRT_Device_LocalHardwareId", device=subject.device).local_hardware_id
    if number == -1:
        raise Unsupported("a local hardware id of the device")
    return {"client": subject.client, "local_hardware_id": number}


def _compile(subject: Subject) -> Arguments:
    return {"client": subject.client, "program": subject.program("add"), "compile_options": compile_options()}


def _compile_for_topology(subject: Subject) -> Arguments:
    topology = handles.topology(subject)
    return {"topology": topology, "program": subject.program("add"), "compile_options": compile_options()}


def _execute(subject: Subject) -> Arguments:
    return {
        "executable": handles.loaded_executable(subject),
        "options": raw.Struct("PJRT_ExecuteOptions"),
        "argument_lists": [[handles.buffer(subject), handles.buffer(subject)]],
        "num_args": 2,
        "output_lists": [[None]],
        "device_complete_events": [None],
    }


def _from_host(subject: Subject) -> Arguments:
    return {
        "client": subject.client,
        "data": _array(),
        "type": "F32",
        "dims": [4],
        "host_buffer_semantics": "ImmutableOnlyDuringCall",
        "device": subject.device,
    }


def _serialized(subject: Subject) -> Arguments:
    function = "PJRT_Executable_Serialize"
    subject.require(function)
    result = subject.call(function, executable=handles.executable(subject))
    data = bytes(result.serialized_bytes)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(result.serialized_executable_deleter)(result.serialized_executable)
    return {"client": subject.client, "serialized_executable": data}


def _serialized_topology(subject: Subject) -> Arguments:
    return {"serialized_topology": handles.topology_bytes(subject, handles.topology(subject))}


def _view(subject: Subject) -> Arguments:
    function = "PJRT_Buffer_OpaqueDeviceMemoryDataPointer"
    subject.require(function)
    pointer = subject.call(function, buffer=handles.buffer(subject)).device_memory_ptr
    fields = {"dims": [4], "element_type": "F32", "device": subject.device}
    return {"client": subject.client, "device_buffer_ptr": pointer, **fields}


def _other_device(subject: Subject) -> Arguments:
    return {"buffer": handles.buffer(subject), "dst_device": subject.several_devices(2)[1]}


def _other_memory(subject: Subject) -> Arguments:
    others = [memory for memory in subject.memories.values() if memory != subject.memory]
    if not others:
        raise Unsupported("a second memory of the device")
    return {"buffer": handles.buffer(subject), "dst_memory": others[0]}


def _raw_copy(subject: Subject) -> Arguments:
    return {"buffer": handles.buffer(subject), "dst": np.zeros(4, np.float32), "offset": 0, "transfer_size": 16}


def _loaded_example(subject: Subject) -> Arguments:
    subject.require("PJRT_Compile")
    made = subject.call("PJRT_Compile", **_compile_for_topology(subject)).executable
    return {"client": subject.client, "executable": made}


def _mapped(subject: Subject) -> Arguments:
    memory = np.zeros(1 << 16, np.uint8)
    subject.require("PJRT_Client_DmaMap")
    subject.call("PJRT_Client_DmaMap", client=subject.client, data=memory, size=memory.nbytes)
    return {"client": subject.client, "data": memory}


def _canonical_shape(subject: Subject) -> Arguments:
    function = "PJRT_TopologyDescription_GetMemorySpaceKindIds"
    subject.require(function)
    topology = handles.topology(subject)
    kinds = subject.call(function, topology=topology).memory_space_kind_ids
    if not kinds:
        raise Unsupported("kinds of memory of a topology")
    return {"topology": topology, "memory_space_kind_id": kinds[0], "dims": [2, 3], "element_type": "F32"}


def _manager(subject: Subject, **fields: Any) -> Arguments:
    return {"transfer_manager": handles.transfer_manager(subject), "buffer_index": 0, **fields}


def _in_client(**fields: Any) -> Callable[[Subject], Arguments]:
    return lambda subject: {"client": subject.client, **fields}


def _in_memory(**fields: Any) -> Callable[[Subject], Arguments]:
    return lambda subject: {"client": subject.client, "memory": subject.memory, **fields}


_MANAGER = "PJRT_AsyncHostToDeviceTransferManager_"
TABLE_ARGUMENTS: dict[str, Callable[[Subject], Arguments]] = {
    "PJRT_Error_ForEachPayload": lambda s: {"error": handles.error(s), "visitor": lambda *_: None, "user_arg": 0},
    "PJRT_Event_OnReady": lambda s: {"event": handles.ready_event(s), "callback": lambda *_: None, "user_arg": 0},
    "PJRT_Event_Set": lambda s: {"event": handles.own_event(s), "error_code": "OK"},
    "PJRT_Client_Create": _create,
    "PJRT_Client_Destroy": lambda s: {"client": s.new_client()},
    "PJRT_Client_LookupDevice": _ids,
    "PJRT_Client_LookupAddressableDevice": _local_ids,
    "PJRT_Client_Compile": _compile,
    "PJRT_Client_DefaultDeviceAssignment": _in_client(
        num_replicas=1, num_partitions=1, default_assignment_size=1, default_assignment=[0]
    ),
    "PJRT_Client_BufferFromHostBuffer": _from_host,
    "PJRT_Client_UpdateGlobalProcessInfo": _in_client(
        process_infos=[raw.Struct("PJRT_ProcessInfo", task_id=0, incarnation_id=1, state=3)]
    ),
    "PJRT_Client_DmaMap": lambda s: {"client": s.client, "data": np.zeros(1 << 16, np.uint8), "size": 1 << 16},
    "PJRT_Client_DmaUnmap": _mapped,
    "PJRT_Client_Load": _loaded_example,
    "PJRT_Client_CreateViewOfDeviceBuffer": _view,
    "PJRT_Client_CreateUninitializedBuffer": _in_memory(**_SHAPE),
    "PJRT_Client_CreateErrorBuffer": _in_memory(**_SHAPE, **_ERROR),
    "PJRT_Client_CreateAliasBuffer": _in_memory(**_SHAPE),
    "PJRT_Client_FulfillAliasBuffer": lambda s: {
        "client": s.client, "buffer": handles.buffer(s), "fulfill_alias_buffer_cb": handles.alias(s)
    },
    "PJRT_Client_CreateBuffersForAsyncHostToDevice": _in_memory(
        shape_specs=[raw.Struct("PJRT_ShapeSpec", dims=[4], element_type="F32")]
    ),
    "PJRT_Device_PoisonExecution": lambda s: {"device": s.device, "launch_id": 12345, **_ERROR},
    "PJRT_Device_CreateAsyncTrackingEvent": lambda s: {"device": s.device, "description": "example"},
    "PJRT_Executable_OptimizedProgram": lambda s: {
        "executable": handles.executable(s), "program": raw.Struct("PJRT_Program")
    },
    "PJRT_Executable_DeserializeAndLoad": _serialized,
    "PJRT_LoadedExecutable_Execute": _execute,
    "PJRT_Buffer_ToHostBuffer": lambda s: {"src": handles.buffer(s), "dst": np.zeros(4, np.float32)},
    "PJRT_Buffer_CopyRawToHost": _raw_copy,
    "PJRT_Buffer_CopyRawToHostFuture": lambda s: {"buffer": handles.buffer(s), "offset": 0, "transfer_size": 16},
    "PJRT_Buffer_CopyToDevice": _other_device,
    "PJRT_Buffer_CopyToMemory": _other_memory,
    "PJRT_Buffer_Bitcast": lambda s: {"buffer": handles.buffer(s), "element_type": "S32", "dims": [4]},
    "PJRT_TopologyDescription_Create": handles.topology_arguments,
    "PJRT_TopologyDescription_Destroy": lambda s: {"topology": handles.own_topology(s)},
    "PJRT_TopologyDescription_Deserialize": _serialized_topology,
    "PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace": _canonical_shape,
    "PJRT_Compile": _compile_for_topology,
    f"{_MANAGER}TransferData": lambda s: _manager(
        s, data=_array(), offset=0, transfer_size=16, is_last_transfer=True
    ),
    f"{_MANAGER}TransferLiteral": lambda s: _manager(s, data=_array(), **_SHAPE),
    f"{_MANAGER}RetrieveBuffer": _manager,
    f"{_MANAGER}BufferSize": _manager,
    f"{_MANAGER}SetBufferError": lambda s: _manager(s, **_ERROR),
    f"{_MANAGER}AddMetadata": lambda s: {
        "transfer_manager": handles.transfer_manager(s), "transfer_metadata": [raw.named_value("key", "value")]
    },
    "PJRT_CopyToDeviceStream_AddChunk": lambda s: {
        "stream": handles.HANDLES["PJRT_CopyToDeviceStream"](s),
        "chunk": raw.Struct("PJRT_Chunk", data=_array(), size=16, deleter=lambda *_: None),
    },
    "PJRT_Buffer_DecreaseExternalReferenceCount": lambda s: {"buffer": _referenced(s)},
}  # fmt: skip
"""For each function, a function that returns the arguments of a right call."""


def _referenced(subject: Subject) -> int:
    function = "PJRT_Buffer_IncreaseExternalReferenceCount"
    subject.require(function)
    buffer = handles.buffer(subject)
    subject.call(function, buffer=buffer)
    return buffer
