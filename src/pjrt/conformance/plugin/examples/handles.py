"""Handles of each kind, made with the plugin under test."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pjrt.capi import raw
from pjrt.conformance.plugin.executions import compile_options
from pjrt.conformance.plugin.outcome import Unsupported
from pjrt.conformance.plugin.subject import Subject

_TOPOLOGY_NAMES = ("", "1", "1x1", "1x1x1", "v4:2x2x1", "v5e:2x2", "2x2")


def buffer(subject: Subject) -> int:
    """Return a buffer of four floats."""
    return subject.buffer(np.arange(4, dtype=np.float32))


def ready_event(subject: Subject) -> int:
    """Return an event that is ready."""
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=buffer(subject)).event
    subject.call("PJRT_Event_Await", event=event)
    return int(event)


def own_event(subject: Subject) -> int:
    """Return an event that the caller sets."""
    return _made(subject, "PJRT_Event_Create", "event")


def error(subject: Subject) -> int:
    """Return the address of an error."""
    address = subject.plugin.error_address(
        "PJRT_Client_Compile",
        client=subject.client,
        program={"code": b"", "format": "invalid"},
        compile_options=compile_options(),
    )
    subject.expect(address, "PJRT_Client_Compile of an unknown format to fail", "that it succeeded")
    return address


def loaded_executable(subject: Subject) -> int:
    """Return the loaded executable of the program ``add``."""
    return subject.compile("add")


def executable(subject: Subject) -> int:
    """Return the executable of the program ``add``."""
    loaded = loaded_executable(subject)
    return int(subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable)


def transfer_manager(subject: Subject) -> int:
    """Return a manager of transfers to one buffer of four floats."""
    spec = raw.Struct("PJRT_ShapeSpec", dims=[4], element_type="F32")
    function = "PJRT_Client_CreateBuffersForAsyncHostToDevice"
    return _made(
        subject, function, "transfer_manager", client=subject.client, shape_specs=[spec], memory=subject.memory
    )


def client_topology(subject: Subject) -> int:
    """Return the topology of the client."""
    return _made(subject, "PJRT_Client_TopologyDescription", "topology", client=subject.client)


def topology_name(subject: Subject) -> str:
    """Return a name of which the plugin makes a topology."""
    subject.require("PJRT_TopologyDescription_Create")
    for name in _TOPOLOGY_NAMES:
        result = subject.attempt("PJRT_TopologyDescription_Create", topology_name=name)
        if result.error is None:
            subject.call("PJRT_TopologyDescription_Destroy", topology=result.topology)
            return name
    raise Unsupported("a topology by a common name")


def own_topology(subject: Subject) -> int:
    """Return a topology that the caller destroys."""
    return _made(subject, "PJRT_TopologyDescription_Create", "topology", topology_name=topology_name(subject))


def _tracking_event(subject: Subject) -> int:
    function = "PJRT_Device_CreateAsyncTrackingEvent"
    event = _made(subject, function, "event", device=subject.device, description="example")
    if not event:
        raise Unsupported("tracking events of a device")
    return event


def alias(subject: Subject) -> int:
    """Return the callback with which an alias buffer is fulfilled."""
    return _made(
        subject, "PJRT_Client_CreateAliasBuffer", "fulfill_alias_buffer_cb", client=subject.client,
        memory=subject.memory, shape_dims=[4], shape_element_type="F32",
    )  # fmt: skip


def _memory_description(subject: Subject) -> int:
    function = "PJRT_DeviceDescription_MemoryDescriptions"
    subject.require(function)
    description = subject.description(subject.device)
    memories = subject.call(function, device_description=description).memory_descriptions
    if not memories:
        raise Unsupported("descriptions of memories")
    return int(memories[0])


def _layout(subject: Subject) -> int:
    function = "PJRT_Layouts_PJRT_Buffer_MemoryLayout"
    return _made(subject, function, "layout", buffer=buffer(subject))


def _raw_buffer(subject: Subject) -> int:
    return _made(subject, "PJRT_RawBuffer_CreateRawAliasOfBuffer", "raw_buffer", buffer=buffer(subject))


def _runtime_version(subject: Subject) -> int:
    return _made(subject, "PJRT_Client_RuntimeAbiVersion", "abi_version", client=subject.client)


def _executable_version(subject: Subject) -> int:
    return _made(subject, "PJRT_Executable_GetAbiVersion", "abi_version", executable=executable(subject))


def _phase_compiler(subject: Subject) -> int:
    return _made(subject, "PJRT_PhaseCompile_Get_Compiler", "phase_compiler")


def _context(subject: Subject) -> int:
    return _made(subject, "PJRT_ExecuteContext_Create", "context")


def _made(subject: Subject, function: str, field: str, /, **fields: object) -> int:
    subject.require(function)
    return int(subject.call(function, **fields).fields[field] or 0)


HANDLES: dict[str, Callable[[Subject], int]] = {
    "PJRT_Client": lambda subject: subject.client,
    "PJRT_Device": lambda subject: subject.device,
    "PJRT_DeviceDescription": lambda subject: subject.description(subject.device),
    "PJRT_Memory": lambda subject: subject.memory,
    "PJRT_MemoryDescription": _memory_description,
    "PJRT_Buffer": buffer,
    "PJRT_RawBuffer": _raw_buffer,
    "PJRT_Event": ready_event,
    "PJRT_Error": error,
    "PJRT_Executable": executable,
    "PJRT_LoadedExecutable": loaded_executable,
    "PJRT_ExecuteContext": _context,
    "PJRT_TopologyDescription": client_topology,
    "PJRT_AsyncHostToDeviceTransferManager": transfer_manager,
    "PJRT_AsyncTrackingEvent": _tracking_event,
    "PJRT_FulfillAliasBufferCallback": alias,
    "PJRT_Layouts_MemoryLayout": _layout,
    "PJRT_RuntimeAbiVersion": _runtime_version,
    "PJRT_ExecutableAbiVersion": _executable_version,
    "PJRT_PhaseCompiler": _phase_compiler,
}
"""For each kind of handle, a function that returns one."""
