"""The arguments of right calls, by the names of the functions."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.abi.schema import FUNCTIONS, STRUCTS, Function
from pjrt.capi import raw
from pjrt.conformance.plugin.check import Unsupported
from pjrt.conformance.plugin.examples import handles
from pjrt.conformance.plugin.examples.handles import HANDLES, buffer, topology
from pjrt.conformance.plugin.subject import Subject, compile_options

Arguments = dict[str, Any]
_SHAPE: Arguments = {"shape_dims": [4], "shape_element_type": "F32"}
_ROW_MAJOR: Arguments = {"shape_layout": {"minor_to_major": [0]}}
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
    "PJRT_Client_CreateAliasBuffer": _in_memory(**_SHAPE, **_ROW_MAJOR),
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
    f"{_MANAGER}TransferLiteral": lambda s: _manager(s, data=_array(), **_SHAPE, **_ROW_MAJOR),
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


_numbers = itertools.count()
_TYPE_AND_DIMS: Arguments = {"type": "F32", "dims": [2, 3]}


def _stream(subject: Subject) -> Arguments:
    function = "PJRT_Get_Stream_For_External_Ready_Events"
    subject.require(function)
    return {"stream": subject.call(function, device=subject.device).stream, "buffer": buffer(subject)}


def _raw_buffer_copy(subject: Subject, field: str) -> Arguments:
    raw_buffer = HANDLES["PJRT_RawBuffer"](subject)
    return {"buffer": raw_buffer, field: np.zeros(4, np.float32), "offset": 0, "transfer_size": 16}


def _proto(subject: Subject, function: str, kind: str) -> Arguments:
    subject.require(function)
    result = subject.call(function, abi_version=HANDLES[kind](subject))
    data = bytes(result.serialized_proto or b"")
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(result.serialized_proto_deleter)(result.serialized_proto_holder)
    return {"serialized_proto": data}


def _host_memory(subject: Subject) -> Arguments:
    function = "PJRT_HostAllocator_Allocate"
    subject.require(function)
    pointer = subject.call(function, client=subject.client, size=64, alignment=64).ptr
    return {"client": subject.client, "ptr": pointer}


EXTENSION_ARGUMENTS: dict[str, Callable[[Subject], Arguments]] = {
    "PJRT_Layouts_PJRT_Client_GetDefaultLayout": lambda s: {"client": s.client, **_TYPE_AND_DIMS},
    "PJRT_Layouts_PJRT_Topology_GetDefaultLayout": lambda s: {"topology_description": topology(s), **_TYPE_AND_DIMS},
    "PJRT_FFI_Type_Register": lambda _: {
        "type_name": f"pjrt.conformance.Example{next(_numbers)}",  # a name gets an id once
        "type_id": 0,
        "type_info": raw.Struct("PJRT_FFI_Type_Info"),
    },
    "PJRT_FFI_UserData_Add": lambda s: {
        "context": HANDLES["PJRT_ExecuteContext"](s),
        "user_data": {"type_id": 42, "data": np.zeros(8, np.uint8).ctypes.data},
    },
    "PJRT_RawBuffer_CopyRawHostToDevice": lambda s: _raw_buffer_copy(s, "src"),
    "PJRT_RawBuffer_CopyRawDeviceToHost": lambda s: _raw_buffer_copy(s, "dst"),
    "PJRT_Wait_Until_Buffer_Ready_On_Stream": _stream,
    "PJRT_RuntimeAbiVersion_FromProto": lambda s: _proto(s, "PJRT_RuntimeAbiVersion_ToProto", "PJRT_RuntimeAbiVersion"),
    "PJRT_ExecutableAbiVersion_FromProto": lambda s: _proto(
        s, "PJRT_ExecutableAbiVersion_ToProto", "PJRT_ExecutableAbiVersion"
    ),
    "PJRT_HostAllocator_Allocate": lambda s: {"client": s.client, "size": 64, "alignment": 64},
    "PJRT_HostAllocator_Free": _host_memory,
    "PJRT_HostMemoryAllocator_Allocate": lambda s: {"client": s.client, "size": 64, "numa_node": 0},
}
"""For each function, a function that returns the arguments of a right call."""


Maker = Callable[[Subject], dict[str, Any]]
_STATED: dict[str, Maker] = {**TABLE_ARGUMENTS, **EXTENSION_ARGUMENTS}
_LEFT_OUT = frozenset({"Profiler", "Megascale", "Collectives", "MultiSlice"})
"""Extensions whose objects no plugin makes without its hardware, or whose functions are in a table of their own."""


def arguments_of(subject: Subject, function: str) -> dict[str, Any]:
    """Return the arguments of a right call of a function; those of each call are new.

    Raises:
        Unsupported: the plugin lacks the function, or has no object of a kind that the call needs.
        Failed: a call that makes such an object failed.
    """
    extension = FUNCTIONS[function].extension
    if extension:
        subject.require_extension(extension)
    subject.require(function)
    arguments = {field: HANDLES[kind](subject) for field, kind in _handles(FUNCTIONS[function]).items()}
    stated = _STATED.get(function)
    return arguments if stated is None else {**arguments, **stated(subject)}


def is_repeatable(function: str) -> bool:
    """Whether a function can be called again with the same arguments: it takes handles alone, and leaves them."""
    marks = {mark for field in STRUCTS[FUNCTIONS[function].args].fields.values() for mark in field.marks}
    return function not in _STATED and not marks & {"DESTROYS", "DELETES", "CONSUMES", "DONATES"}


def _handles(function: Function) -> dict[str, str]:
    """Return the kinds of the handles that a function needs, by field; not those that the stated arguments have."""
    if function.name in _STATED:
        return {}
    fields = STRUCTS[function.args].fields.values()
    needed = (each for each in fields if each.kind == "HANDLE" and each.direction != "OUT")
    return {each.name: each.type for each in needed if "NULLABLE" not in each.marks or each.name == function.handle}


def _has_example(function: Function) -> bool:
    if function.name in _STATED:
        return True
    if function.extension in _LEFT_OUT or any(kind not in HANDLES for kind in _handles(function).values()):
        return False
    fields = STRUCTS[function.args].fields.values()
    return all(
        each.kind in ("STRUCT_SIZE", "EXTENSIONS", "HANDLE") or each.direction == "OUT" or "NULLABLE" in each.marks
        for each in fields
    )


EXAMPLES = tuple(name for name, function in FUNCTIONS.items() if _has_example(function))
"""The functions of which there is an example, in the order of the table."""
