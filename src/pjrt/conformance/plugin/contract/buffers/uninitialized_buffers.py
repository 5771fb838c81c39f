"""Buffers that have memory and no value yet."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import MISUSE, ramp, read_bytes, read_size, supported
from pjrt.conformance.plugin.contract.buffers.buffer_placement import default_memory, memories_of
from pjrt.conformance.plugin.subject import Subject

CREATE = "PJRT_Client_CreateUninitializedBuffer"
_CALLS = (CREATE,)


def _make(subject: Subject, **fields: Any) -> int:
    result = supported(
        subject,
        CREATE,
        **{
            "client": subject.client,
            "shape_dims": [3, 5],
            "shape_element_type": 11,
            "device": subject.device,
            **fields,
        },
    )
    subject.expect(result.buffer, "a buffer", "a null pointer")
    return int(result.buffer)


@check(
    "uninitialized_buffer.read",
    calls=_CALLS,
    rule="The buffer becomes ready, and has as many bytes as its shape needs; the bytes may be any.",
    over={"rank_0": [], "rank_1": [7], "rank_2": [3, 5], "empty": [0, 3], "large": [1 << 20]},
)
def _read(subject: Subject, dims: list[int]) -> None:
    buffer = _make(subject, shape_dims=dims)
    subject.await_buffers([buffer])
    expected = 4 * int(np.prod(dims))
    size = read_size(subject, buffer)
    subject.expect(size == expected, f"{expected} bytes", f"{size}")
    read_bytes(subject, buffer)
    subject.destroy_buffers(buffer)


@check(
    "uninitialized_buffer.properties",
    calls=(*_CALLS, "PJRT_Buffer_Dimensions", "PJRT_Buffer_ElementType", "PJRT_Buffer_IsDeleted"),
    rule="The buffer has the type and the dimensions of the arguments.",
    over=("pred", "u8", "f32", "f64", "c64"),
)
def _properties(subject: Subject, name: str) -> None:
    number = {"pred": 1, "u8": 6, "f32": 11, "f64": 12, "c64": 14}[name]
    buffer = _make(subject, shape_element_type=number, shape_dims=[2, 3])
    subject.expect(subject.shape(buffer) == (2, 3), "the dimensions (2, 3)", str(subject.shape(buffer)))
    found = subject.call("PJRT_Buffer_ElementType", buffer=buffer).type
    subject.expect(found == number, f"the type {number}", f"{found}")
    deleted = subject.call("PJRT_Buffer_IsDeleted", buffer=buffer).is_deleted
    subject.expect(not deleted, "a buffer that is not deleted", "that it is")
    subject.destroy_buffers(buffer)


@check(
    "uninitialized_buffer.in_each_memory",
    calls=(*_CALLS, "PJRT_Buffer_Memory"),
    rule="With device null the buffer is in the memory of the argument.",
)
def _in_each_memory(subject: Subject) -> None:
    subject.require(CREATE)
    for device in subject.devices:
        for memory in memories_of(subject, device):
            buffer = _make(subject, device=0, memory=memory)
            found = subject.call("PJRT_Buffer_Memory", buffer=buffer).memory
            subject.expect(found == memory, "the memory of the argument", "another memory")
            read_bytes(subject, buffer)
            subject.destroy_buffers(buffer)


@check(
    "uninitialized_buffer.on_each_device",
    calls=(*_CALLS, "PJRT_Buffer_Device", "PJRT_Buffer_Memory"),
    rule="With memory null the buffer is in the default memory of the device of the argument.",
)
def _on_each_device(subject: Subject) -> None:
    subject.require(CREATE)
    for device in subject.devices:
        buffer = _make(subject, device=device)
        found = subject.call("PJRT_Buffer_Device", buffer=buffer).device
        subject.expect(found == device, "the device of the argument", "another device")
        memory = subject.call("PJRT_Buffer_Memory", buffer=buffer).memory
        subject.expect(memory == default_memory(subject, device), "its default memory", "another memory")
        subject.destroy_buffers(buffer)


@check(
    "uninitialized_buffer.own_memory",
    calls=_CALLS,
    rule="The buffer has memory of its own, which no other buffer uses.",
)
def _own_memory(subject: Subject) -> None:
    values = [subject.buffer(ramp(100) + number) for number in range(10)]
    empty = [_make(subject, shape_dims=[100]) for _ in range(10)]
    for each in empty:
        read_bytes(subject, each)
    subject.destroy_buffers(*empty)
    for number, each in enumerate(values):
        subject.expect_contents(each, ramp(100) + number)
    subject.destroy_buffers(*values)


@check(
    "uninitialized_buffer.released",
    calls=(*_CALLS, "PJRT_Buffer_Delete", "PJRT_Buffer_Destroy"),
    rule="The buffer is deleted and destroyed as any other, also before it is ready.",
)
def _released(subject: Subject) -> None:
    for kind in ("delete", "destroy", "ready"):
        buffer = _make(subject)
        if kind == "delete":
            subject.call("PJRT_Buffer_Delete", buffer=buffer)
        if kind == "ready":
            subject.await_buffers([buffer])
        subject.destroy_buffers(buffer)


@check("uninitialized_buffer.no_place", calls=_CALLS, rule="Without a device and a memory there is no place: an error.")
def _no_place(subject: Subject) -> None:
    subject.destroy_buffers(_make(subject))
    subject.fails(CREATE, MISUSE, client=subject.client, shape_dims=[3], shape_element_type=11)


@check(
    "uninitialized_buffer.too_large",
    calls=_CALLS,
    rule="A buffer for which there is no memory is an error, of the call or of its ready event.",
)
def _too_large(subject: Subject) -> None:
    subject.destroy_buffers(_make(subject))
    result = subject.attempt(
        CREATE, client=subject.client, shape_dims=[1 << 54], shape_element_type=11, device=subject.device
    )
    if result.error is None:
        error = subject.event_error(subject.call("PJRT_Buffer_ReadyEvent", buffer=result.buffer).event)
        subject.expect(error is not None, "an error: there are no 64 PiB of memory", "a ready buffer")
        subject.destroy_buffers(result.buffer)
    subject.expect_contents(subject.buffer(ramp(4)), ramp(4))
