"""Expectations of XLA's tests of its plugins for GPUs, as far as any plugin can be asked for them."""

from __future__ import annotations

import threading

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.capi.raw.table import KeyValueStore
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.examples.handles import gpu_options
from pjrt.conformance.plugin.official.c_api import FLOATS
from pjrt.conformance.plugin.subject import Subject
from pjrt.host_memory.array import aligned_empty

# Views, executables, events, topologies, types and allocators.

_VIEW = "PJRT_Client_CreateViewOfDeviceBuffer"
_RAW_COPY = "PJRT_Buffer_CopyRawToHost"
_DMA = ("PJRT_Client_DmaMap", "PJRT_Client_DmaUnmap")
_EVENTS = ("PJRT_Event_Create", "PJRT_Event_Set")
_STATS = "PJRT_Executable_GetCompiledMemoryStats"
_ASSIGNMENT = "PJRT_LoadedExecutable_GetDeviceAssignment"
_CONTEXTS = ("PJRT_ExecuteContext_Create", "PJRT_ExecuteContext_Destroy")
_USER_DATA = "PJRT_FFI_UserData_Add"
_TYPE = "PJRT_FFI_Type_Register"
_TOPOLOGY = "PJRT_TopologyDescription_Create"
_TOPOLOGY_LAYOUT = "PJRT_Layouts_PJRT_Topology_GetDefaultLayout"
_GPUS = ("cuda", "rocm", "oneapi", "sycl")


def executable_of(subject: Subject, loaded: int) -> int:
    """Return the executable of a loaded one."""
    return int(subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable)


def created_topology(subject: Subject) -> int:
    """Return the topology that a plugin makes without a name and without options, if it does."""
    result = subject.attempt(_TOPOLOGY)
    if result.error is not None:
        raise Unsupported(f"a topology without a name and options: {result.error}")
    subject.expect(result.topology, "a topology", "a null pointer")
    return int(result.topology)


@check("official.gpu.create_view_of_device_buffer", calls=(_VIEW, "PJRT_Buffer_OpaqueDeviceMemoryDataPointer"))
def _view(subject: Subject) -> None:
    """A view of the memory of a buffer has its contents."""
    subject.require(_VIEW, "PJRT_Buffer_OpaqueDeviceMemoryDataPointer")
    buffer = subject.buffer(FLOATS)
    subject.await_buffers([buffer])  # the view does not wait for it
    pointer = subject.call("PJRT_Buffer_OpaqueDeviceMemoryDataPointer", buffer=buffer).device_memory_ptr
    device = subject.call("PJRT_Buffer_Device", buffer=buffer).device
    view = subject.call(
        _VIEW,
        client=subject.client,
        device_buffer_ptr=pointer,
        dims=[4],
        element_type=int(ElementType.F32),
        layout=raw.Struct("PJRT_Buffer_MemoryLayout", type=0, minor_to_major=[0]),
        device=device,
    ).buffer
    subject.expect_contents(view, FLOATS)


@check("official.gpu.copy_raw_to_host", calls=(_RAW_COPY,))
def _copy_raw_to_host(subject: Subject) -> None:
    """The bytes of a buffer's memory arrive in the host's memory."""
    subject.require(_RAW_COPY)
    buffer = subject.buffer(FLOATS)
    size = subject.call("PJRT_Buffer_OnDeviceSizeInBytes", buffer=buffer).on_device_size_in_bytes
    target = aligned_empty((size,), np.dtype(np.uint8))
    result = subject.call(_RAW_COPY, buffer=buffer, dst=target, offset=0, transfer_size=size)
    subject.await_event(result.event)
    first = float(target[:4].view(np.float32)[0])
    subject.expect(first == FLOATS[0], f"{FLOATS[0]} as the first number", first)


@check("official.gpu.copy_raw_to_host_with_invalid_offset", calls=(_RAW_COPY,))
def _copy_raw_with_invalid_offset(subject: Subject) -> None:
    """A copy from an offset behind the end of a buffer fails: its event, or the call, has the code INVALID_ARGUMENT."""
    subject.require(_RAW_COPY)
    buffer = subject.buffer(FLOATS)
    size = subject.call("PJRT_Buffer_OnDeviceSizeInBytes", buffer=buffer).on_device_size_in_bytes
    target = aligned_empty((size,), np.dtype(np.uint8))
    result = subject.attempt(_RAW_COPY, buffer=buffer, dst=target, offset=size + 1, transfer_size=size)
    error = result.error or subject.event_error(result.event)
    subject.expect(error, "an error with the code INVALID_ARGUMENT", "that the copy succeeded")
    assert error is not None
    subject.expect_code(error, "INVALID_ARGUMENT", _RAW_COPY)
    subject.advise(result.error is None, "the error in the event", "it from the call")


@check("official.gpu.get_compiled_memory_stats", calls=(_STATS,))
def _memory_stats(subject: Subject) -> None:
    """The sizes of an executable's memory are at least 0."""
    subject.require(_STATS)
    stats = subject.call(_STATS, executable=executable_of(subject, subject.compile("add"))).fields
    for name, size in stats.items():
        subject.expect(size >= 0, f"{name} of at least 0", size)


@check("official.gpu.get_num_outputs", calls=("PJRT_Executable_NumOutputs",), over={"add": 1, "two_results": 2})
def _num_outputs(subject: Subject, number: int) -> None:
    """The number of outputs of an executable is the number of results of its program."""
    name = {1: "add", 2: "two_results"}[number]
    outputs = subject.num_outputs(subject.compile(name))
    subject.expect(outputs == number, f"{number} outputs of the program {name}", outputs)


@check("official.gpu.get_device_assignment", calls=(_ASSIGNMENT,))
def _device_assignment(subject: Subject) -> None:
    """The device assignment of a program for one device, as a DeviceAssignmentProto, has one replica and one
    computation on a device of the client.
    """
    from pjrt.api.compile_options import DeviceAssignment

    subject.require(_ASSIGNMENT)
    executable = subject.compile("add")
    result = subject.call(_ASSIGNMENT, executable=executable)
    subject.expect(result.serialized_bytes, "a serialized device assignment", "no bytes")
    assignment = DeviceAssignment.from_proto(result.serialized_bytes)
    devices = subject.call("PJRT_LoadedExecutable_AddressableDevices", executable=executable).addressable_devices
    ids = [
        subject.call("PJRT_DeviceDescription_Id", device_description=subject.description(device)).id
        for device in devices
    ]
    subject.expect(assignment.device_ids == (tuple(ids),), f"the device ids {[ids]}", assignment.device_ids)


@check("official.gpu.create_and_destroy_execute_context", calls=(*_CONTEXTS, _USER_DATA))
def _execute_context(subject: Subject) -> None:
    """An execute context can be made, take data of a registered type, and be destroyed."""
    subject.require(*_CONTEXTS)
    context = subject.call("PJRT_ExecuteContext_Create").context
    subject.expect(context, "an execute context", "a null pointer")
    if subject.plugin.has(_USER_DATA):
        subject.require(_USER_DATA)
        text = np.frombuffer(b"string_data", np.uint8)
        subject.call(_USER_DATA, context=context, user_data={"type_id": 42, "data": text.ctypes.data})
    subject.call("PJRT_ExecuteContext_Destroy", context=context)


@check("official.gpu.dma_map_and_unmap", calls=_DMA)
def _dma(subject: Subject) -> None:
    """Memory of the host can be registered for direct transfers, and released."""
    subject.require(*_DMA)
    memory = np.zeros(2 << 20, np.uint8)
    aligned = memory[-memory.ctypes.data % (1 << 20) :][: 1 << 20]
    subject.call("PJRT_Client_DmaMap", client=subject.client, data=aligned, size=1 << 20)
    subject.call("PJRT_Client_DmaUnmap", client=subject.client, data=aligned)


@check("official.gpu.create_and_set_event", calls=(*_EVENTS, "PJRT_Event_IsReady", "PJRT_Event_Destroy"))
def _create_and_set_event(subject: Subject) -> None:
    """An event that the caller makes is ready after the caller has set it, and not before."""
    subject.require(*_EVENTS)
    event = subject.call("PJRT_Event_Create").event
    ready = subject.call("PJRT_Event_IsReady", event=event, is_ready=True).is_ready
    subject.expect(not ready, "an event that is not ready", "that it is")
    subject.call("PJRT_Event_Set", event=event, error_code=0)
    subject.expect(subject.call("PJRT_Event_IsReady", event=event).is_ready, "an event that is ready", "that it is not")
    subject.call("PJRT_Event_Destroy", event=event)


@check("official.gpu.create_topology", calls=(_TOPOLOGY, "PJRT_TopologyDescription_Destroy"))
def _create_topology(subject: Subject) -> None:
    """The topology of this machine is made without a name and options, and destroyed. A plugin may require a name."""
    topology = created_topology(subject)
    name = subject.call("PJRT_TopologyDescription_PlatformName", topology=topology).platform_name
    subject.expect(name, "the name of a platform", repr(name))
    subject.call("PJRT_TopologyDescription_Destroy", topology=topology)


@check(
    "official.gpu.create_explicit_topology",
    calls=(_TOPOLOGY, "PJRT_TopologyDescription_GetDeviceDescriptions", "PJRT_DeviceDescription_Id"),
    over={"cuda": "v100", "rocm": "mi300x"},
)
def _explicit_topology(subject: Subject, gpu: str) -> None:
    """A topology of 16 slices with 2 hosts of 4 GPUs each, which need not be here, describes 128 devices with the ids 0
    to 127 in 32 processes.
    """
    platform = {"v100": "cuda", "mi300x": "rocm"}[gpu]
    result = subject.attempt(_TOPOLOGY, **gpu_options(platform, f"{gpu}:16x2x4"))
    if result.error is not None:
        raise Unsupported("the options of topologies of GPUs")
    function = "PJRT_TopologyDescription_GetDeviceDescriptions"
    descriptions = subject.call(function, topology=result.topology).descriptions or []
    if len(descriptions) != 128:
        name = subject.call("PJRT_TopologyDescription_PlatformName", topology=result.topology).platform_name
        if name.decode() not in _GPUS:
            raise Unsupported("the options of topologies of GPUs")
    ids = [subject.call("PJRT_DeviceDescription_Id", device_description=each).id for each in descriptions]
    subject.expect(ids == list(range(128)), "the ids 0 to 127", ids)
    processes = {
        subject.call("PJRT_DeviceDescription_ProcessIndex", device_description=each).process_index
        for each in descriptions
    }
    subject.expect(len(processes) == 32, "32 processes", len(processes))


@check(
    "official.gpu.topology_get_default_layout",
    calls=(_TOPOLOGY_LAYOUT, "PJRT_Layouts_MemoryLayout_Serialize", "PJRT_Layouts_MemoryLayout_Destroy"),
)
def _topology_default_layout(subject: Subject) -> None:
    """A topology has a default layout for an array of 2 x 3 floats, as text that is not empty."""
    subject.require_extension("Layouts")
    subject.require(_TOPOLOGY_LAYOUT, "PJRT_Client_TopologyDescription")
    topology = subject.call("PJRT_Client_TopologyDescription", client=subject.client).topology
    layout = subject.call(
        _TOPOLOGY_LAYOUT, topology_description=topology, type=int(ElementType.F32), dims=[2, 3]
    ).layout
    subject.expect(layout, "a layout", "a null pointer")
    text = subject.call("PJRT_Layouts_MemoryLayout_Serialize", layout=layout).serialized_bytes
    subject.expect(text, "a serialized layout", repr(text))
    subject.call("PJRT_Layouts_MemoryLayout_Destroy", layout=layout)


@check("official.gpu.ffi_type_register", calls=(_TYPE,))
def _ffi_type(subject: Subject) -> None:
    """A type without an id gets one, which the name has from then on."""
    subject.require_extension("FFI")
    subject.require(_TYPE)
    info = raw.Struct("PJRT_FFI_Type_Info")  # XLA's plugins read it without a look whether it is there
    first = subject.call(_TYPE, type_name="pjrt.conformance.Type", type_id=0, type_info=info).type_id
    subject.expect(first > 0, "an id above 0", first)
    again = subject.call(_TYPE, type_name="pjrt.conformance.Type", type_id=first, type_info=info).type_id
    subject.expect(again == first, f"the id {first}", again)


def _client_of_gpu(subject: Subject, **options: object) -> raw.Result:
    """Return the result of making a client of a plugin for GPUs with its own options."""
    platform = subject.call("PJRT_Client_PlatformName", client=subject.client).platform_name.decode()
    if platform not in _GPUS:
        raise Unsupported("the options of XLA's plugins for GPUs")
    values = [raw.named_value(name, value) for name, value in {**subject.options, **options}.items()]
    return subject.attempt("PJRT_Client_Create", create_options=values)


@check(
    "official.gpu.valid_allocator_options",
    calls=("PJRT_Client_Create", "PJRT_Client_Destroy"),
    over=("default", "platform", "bfc", "cuda_async"),
)
def _allocators(subject: Subject, allocator: str) -> None:
    """A client of a GPU is made with each allocator: default, platform, bfc and cuda_async."""
    fraction = {"memory_fraction": 0.5} if allocator in ("bfc", "cuda_async") else {}
    preallocate = {"preallocate": True} if allocator == "cuda_async" else {}
    result = _client_of_gpu(subject, allocator=allocator, **fraction, **preallocate)
    subject.expect(result.error is None, "PJRT_Client_Create to succeed", str(result.error))
    subject.call("PJRT_Client_Destroy", client=result.client)


@check("official.gpu.invalid_allocator_options", calls=("PJRT_Client_Create",))
def _unknown_allocator(subject: Subject) -> None:
    """An unknown allocator is an error with the code UNIMPLEMENTED."""
    result = _client_of_gpu(subject, allocator="invalid_allocator", memory_fraction=0.5, preallocate=True)
    subject.expect(result.error, "PJRT_Client_Create to fail with UNIMPLEMENTED", "that it succeeded")
    assert result.error is not None
    subject.expect_code(result.error, "UNIMPLEMENTED", "PJRT_Client_Create")


@check("official.gpu.unavailable_platform_name", calls=("PJRT_Client_Create",))
def _unknown_platform(subject: Subject) -> None:
    """An unknown platform name is an error with the code NOT_FOUND."""
    result = _client_of_gpu(subject, platform_name="invalid_platform_name", allocator="default")
    subject.expect(result.error, "PJRT_Client_Create to fail with NOT_FOUND", "that it succeeded")
    assert result.error is not None
    subject.expect_code(result.error, "NOT_FOUND", "PJRT_Client_Create")


# Asynchronous transfers.

_CREATE_MANAGER = "PJRT_Client_CreateBuffersForAsyncHostToDevice"
_MANAGER = "PJRT_AsyncHostToDeviceTransferManager_"
_METADATA = f"{_MANAGER}AddMetadata"
_ERROR = f"{_MANAGER}SetBufferError"


def _manager(subject: Subject, element_type: ElementType) -> int:
    subject.require(_CREATE_MANAGER, f"{_MANAGER}RetrieveBuffer", f"{_MANAGER}Destroy")
    spec = raw.Struct("PJRT_ShapeSpec", dims=[8], element_type=int(element_type))
    return int(
        subject.call(_CREATE_MANAGER, client=subject.client, shape_specs=[spec], memory=subject.memory).transfer_manager
    )


@check(
    "official.gpu.transfer_manager_set_buffer_error",
    calls=(_CREATE_MANAGER, _METADATA, f"{_MANAGER}BufferCount", f"{_MANAGER}RetrieveBuffer", _ERROR),
)
def _set_buffer_error(subject: Subject) -> None:
    """A buffer that is set to an error has it, with its code and message, for those who read it."""
    manager = _manager(subject, ElementType.F32)
    subject.require(_ERROR)
    metadata = subject.attempt(
        _METADATA, transfer_manager=manager, transfer_metadata=[raw.named_value("test_key", "test_value")]
    )
    if metadata.error is not None:
        subject.advise(False, "metadata of transfers", str(metadata.error))
    count = subject.call(f"{_MANAGER}BufferCount", transfer_manager=manager).buffer_count
    subject.expect(count == 1, "1 buffer", count)
    buffer = subject.call(f"{_MANAGER}RetrieveBuffer", transfer_manager=manager, buffer_index=0).buffer_out
    subject.call(_ERROR, transfer_manager=manager, buffer_index=0, error_code="INTERNAL", error_message="test error")
    target = np.zeros(8, np.float32)
    result = subject.attempt("PJRT_Buffer_ToHostBuffer", src=buffer, dst=target)
    error = result.error or subject.event_error(result.event)
    subject.expect(error, "the error INTERNAL", "that the buffer can be read")
    assert error is not None
    subject.expect_code(error, "INTERNAL", "PJRT_Buffer_ToHostBuffer")
    subject.expect("test error" in error.message, "a message with 'test error'", repr(error.message))


@check(
    "official.gpu.transfer_manager_transfer_raw_data",
    calls=(_CREATE_MANAGER, f"{_MANAGER}BufferSize", f"{_MANAGER}Device", f"{_MANAGER}TransferData"),
)
def _transfer_raw_data(subject: Subject) -> None:
    """A buffer becomes ready by the transfer of its data, and not before. The manager states its size and device."""
    manager = _manager(subject, ElementType.U32)
    data = np.arange(1, 9, dtype=np.uint32)
    buffer = subject.call(f"{_MANAGER}RetrieveBuffer", transfer_manager=manager, buffer_index=0).buffer_out
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=buffer).event
    ready = subject.call("PJRT_Event_IsReady", event=event).is_ready
    subject.expect(not ready, "a buffer that waits for its data", "that it is ready")
    size = subject.call(f"{_MANAGER}BufferSize", transfer_manager=manager, buffer_index=0).buffer_size
    on_device = subject.call("PJRT_Buffer_OnDeviceSizeInBytes", buffer=buffer).on_device_size_in_bytes
    subject.expect(size == on_device, f"a size of {on_device} bytes, as the buffer states", size)
    device = subject.call(f"{_MANAGER}Device", transfer_manager=manager).device_out
    subject.expect(device == subject.device, "the device whose memory was stated", "another one")
    result = subject.call(
        f"{_MANAGER}TransferData", transfer_manager=manager, buffer_index=0, data=data, offset=0,
        transfer_size=data.nbytes, is_last_transfer=True,
    )  # fmt: skip
    subject.await_event(result.done_with_h2d_transfer)
    subject.await_event(event)
    subject.expect_contents(buffer, data)


# Clients that share a key-value store.

_CREATE_CLIENT = "PJRT_Client_Create"
_NODES = 2


@check(
    "official.gpu.create_client_with_kv_callback",
    calls=(_CREATE_CLIENT, "PJRT_Client_Devices", "PJRT_Client_AddressableDevices", "PJRT_Client_Destroy"),
)
def _two_nodes(subject: Subject) -> None:
    """Two clients of one machine that share a key-value store, by the options num_nodes and node_id, know both devices,
    and each can use its own. A plugin may have no such options.
    """
    keys = KeyValueStore()
    results: dict[int, raw.Result] = {}

    def create(node: int) -> None:
        options = {**subject.options, "num_nodes": _NODES, "node_id": node, "visible_devices": [0]}
        values = [raw.named_value(name, value) for name, value in options.items()]
        results[node] = subject.attempt(_CREATE_CLIENT, create_options=values, **keys.fields())

    threads = [threading.Thread(target=create, args=(node,)) for node in range(_NODES)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    refusals = [result.error for result in results.values() if result.error is not None]
    if refusals:
        late = any(error.code == StatusCode.DEADLINE_EXCEEDED for error in refusals)  # it knows the options
        subject.expect(not late, "two clients of one job", "; ".join(map(str, refusals)))
        raise Unsupported("the options num_nodes and node_id of clients")
    for result in results.values():
        devices = subject.call("PJRT_Client_Devices", client=result.client).devices or []
        if len(devices) == len(subject.devices):
            raise Unsupported("the options num_nodes and node_id of clients")
        subject.expect(len(devices) == _NODES, f"{_NODES} devices", len(devices))
        own = subject.call("PJRT_Client_AddressableDevices", client=result.client).addressable_devices or []
        subject.expect(len(own) == 1, "1 addressable device", len(own))
    for result in results.values():
        subject.call("PJRT_Client_Destroy", client=result.client)
