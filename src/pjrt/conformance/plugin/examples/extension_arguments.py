"""The arguments of right calls of functions of extensions that take more than handles."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.capi import raw
from pjrt.conformance.plugin.examples.handles import HANDLES, buffer, topology
from pjrt.conformance.plugin.subject import Subject

Arguments = dict[str, Any]
_numbers = itertools.count()
_SHAPE: Arguments = {"type": "F32", "dims": [2, 3]}


def _stream(subject: Subject) -> Arguments:
    function = "PJRT_Get_Stream_For_External_Ready_Events"
    subject.require(function)
    return {"stream": subject.call(function, device=subject.device).stream, "buffer": buffer(subject)}


def _raw_copy(subject: Subject, field: str) -> Arguments:
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
    "PJRT_Layouts_PJRT_Client_GetDefaultLayout": lambda s: {"client": s.client, **_SHAPE},
    "PJRT_Layouts_PJRT_Topology_GetDefaultLayout": lambda s: {"topology_description": topology(s), **_SHAPE},
    "PJRT_FFI_Type_Register": lambda _: {
        "type_name": f"pjrt.conformance.Example{next(_numbers)}",  # a name gets an id once
        "type_id": 0,
        "type_info": raw.Struct("PJRT_FFI_Type_Info"),
    },
    "PJRT_FFI_UserData_Add": lambda s: {
        "context": HANDLES["PJRT_ExecuteContext"](s),
        "user_data": {"type_id": 42, "data": np.zeros(8, np.uint8).ctypes.data},
    },
    "PJRT_RawBuffer_CopyRawHostToDevice": lambda s: _raw_copy(s, "src"),
    "PJRT_RawBuffer_CopyRawDeviceToHost": lambda s: _raw_copy(s, "dst"),
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
