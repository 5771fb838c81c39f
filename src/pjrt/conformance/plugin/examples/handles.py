"""Handles of each kind, made with the plugin under test."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.capi import raw
from pjrt.conformance.plugin.check import Unsupported
from pjrt.conformance.plugin.subject import Subject, compile_options
from pjrt.plugins.discovery.wheels import cuda_options, rocm_options

_CHANNEL = 3
_PATIENCE = 10.0
_kept: list[raw.Result] = []
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
    """Return the address of an error: of a program of an unknown format, or of a client that cannot be made."""
    if subject.has_client:
        function = "PJRT_Client_Compile"
        program = {"code": b"", "format": "invalid"}
        fields = {"client": subject.client, "program": program, "compile_options": compile_options()}
    else:
        function = "PJRT_Client_Create"
        fields = {"create_options": [raw.named_value(*option) for option in subject.options.items()]}
    address = subject.plugin.error_address(function, **fields)
    subject.expect(address, f"{function} to fail", "that it succeeded")
    return address


def loaded_executable(subject: Subject) -> int:
    """Return the loaded executable of the program ``add``."""
    return subject.compile("add")


def executable(subject: Subject) -> int:
    """Return the executable of the program ``add``; without a client, one for a topology."""
    if not subject.has_client:
        fields = {
            "topology": topology(subject),
            "program": subject.program("add"),
            "compile_options": compile_options(),
        }
        return _made(subject, "PJRT_Compile", "executable", **fields)
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
    topology = _made(subject, "PJRT_Client_TopologyDescription", "topology", client=subject.client)
    subject.expect(topology, "a topology", "a null pointer")
    return topology


def topology(subject: Subject) -> int:
    """Return the topology of the client; without a client, one by a name."""
    return client_topology(subject) if subject.has_client else own_topology(subject)


def topology_arguments(subject: Subject) -> dict[str, Any]:
    """Return the arguments of which the plugin makes a topology."""
    arguments, made = _created_topology(subject)
    if not made:
        raise Unsupported("a topology by a common name")
    subject.call("PJRT_TopologyDescription_Destroy", topology=made)
    return arguments


def own_topology(subject: Subject) -> int:
    """Return a topology that the caller destroys, by a name that the plugin takes, or from the client's bytes."""
    _, made = _created_topology(subject)
    if made:
        return made
    if not subject.plugin.has("PJRT_TopologyDescription_Deserialize"):
        raise Unsupported("a topology by a common name")
    return read_topology(subject, topology_bytes(subject, client_topology(subject)))


def topology_bytes(subject: Subject, topology: int) -> bytes:
    """Return the bytes of a topology."""
    subject.require("PJRT_TopologyDescription_Serialize")
    result = subject.call("PJRT_TopologyDescription_Serialize", topology=topology)
    subject.expect(result.serialized_topology_deleter, "a deleter", "a null pointer")
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(result.serialized_topology_deleter)(result.serialized_topology)
    return bytes(result.serialized_bytes or b"")


def read_topology(subject: Subject, data: bytes) -> int:
    """Return a topology, which the caller destroys, from its bytes."""
    topology = _made(subject, "PJRT_TopologyDescription_Deserialize", "topology", serialized_topology=data)
    subject.expect(topology, "a topology", "a null pointer")
    return topology


def _created_topology(subject: Subject) -> tuple[dict[str, Any], int]:
    """Return the first arguments of which the plugin makes a topology, and the topology; 0 if there is none."""
    subject.require("PJRT_TopologyDescription_Create")
    options = [gpu_options("cuda", "h100:1x1x2"), gpu_options("rocm", "mi300x:1x1x2")]
    for arguments in [*({"topology_name": name} for name in _TOPOLOGY_NAMES), *options]:
        result = subject.attempt("PJRT_TopologyDescription_Create", **arguments)
        if result.error is None:
            return arguments, int(result.topology)
    return {}, 0


def gpu_options(platform: str, name: str) -> dict[str, Any]:
    """Return the arguments of which XLA's plugins for GPUs make a topology of GPUs that need not be here."""
    options = {"cuda": cuda_options, "rocm": rocm_options}[platform](name) or {}
    return {"create_options": [raw.named_value(*option) for option in options.items()]}


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
        memory=subject.memory, shape_dims=[4], shape_element_type="F32", shape_layout={"minor_to_major": [0]},
    )  # fmt: skip


def _description(subject: Subject) -> int:
    if subject.has_client:
        return subject.description(subject.device)
    function = "PJRT_TopologyDescription_GetDeviceDescriptions"
    return int(subject.call(function, topology=topology(subject)).descriptions[0])


def _memory_description(subject: Subject) -> int:
    function = "PJRT_DeviceDescription_MemoryDescriptions"
    subject.require(function)
    description = _description(subject)
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


def _stream(subject: Subject) -> int:
    """Return the stream that a program which waits for a value gives to its callback."""
    streams: list[int] = []
    given = threading.Event()

    def receive(stream: int, user_arg: int) -> None:
        streams.append(stream)
        given.set()

    compiled = subject.attempt_compile(subject.program("receives"))
    if compiled.error is not None:
        raise Unsupported(f"programs that exchange values with the host: {compiled.error}")
    info = {"channel_id": _CHANNEL, "recv_callback": receive}
    result = subject.attempt_execute(compiled.executable, [[]], num_outputs=1, recv_callbacks=[[info]], num_recv_ops=1)
    if result.error is not None:
        raise Unsupported(f"programs that exchange values with the host: {result.error}")
    _kept.append(result)  # the callback lives as long as this, and the program waits
    subject.expect(given.wait(_PATIENCE), "a call of the receive callback", f"none in {_PATIENCE:g} s")
    return streams[0]


def _made(subject: Subject, function: str, field: str, /, **fields: object) -> int:
    subject.require(function)
    return int(subject.call(function, **fields).fields[field] or 0)


HANDLES: dict[str, Callable[[Subject], int]] = {
    "PJRT_Client": lambda subject: subject.client,
    "PJRT_Device": lambda subject: subject.device,
    "PJRT_DeviceDescription": _description,
    "PJRT_Memory": lambda subject: subject.memory,
    "PJRT_MemoryDescription": _memory_description,
    "PJRT_Buffer": buffer,
    "PJRT_RawBuffer": _raw_buffer,
    "PJRT_Event": ready_event,
    "PJRT_Error": error,
    "PJRT_Executable": executable,
    "PJRT_LoadedExecutable": loaded_executable,
    "PJRT_ExecuteContext": _context,
    "PJRT_TopologyDescription": topology,
    "PJRT_AsyncHostToDeviceTransferManager": transfer_manager,
    "PJRT_AsyncTrackingEvent": _tracking_event,
    "PJRT_CopyToDeviceStream": _stream,
    "PJRT_FulfillAliasBufferCallback": alias,
    "PJRT_Layouts_MemoryLayout": _layout,
    "PJRT_RuntimeAbiVersion": _runtime_version,
    "PJRT_ExecutableAbiVersion": _executable_version,
    "PJRT_PhaseCompiler": _phase_compiler,
}
"""For each kind of handle, a function that returns one."""
