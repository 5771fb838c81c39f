"""Views of device memory that the plugin does not own."""

from __future__ import annotations

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import MISUSE, ramp, supported
from pjrt.conformance.plugin.contract.buffers.buffer_placement import default_memory
from pjrt.conformance.plugin.contract.buffers.external_references import DECREASE, referenced_buffer
from pjrt.conformance.plugin.contract.events.event_calls import Calls
from pjrt.conformance.plugin.subject import Subject

VIEW = "PJRT_Client_CreateViewOfDeviceBuffer"
_CALLS = (VIEW,)
_USER_ARG = 0x1234


class View:
    """A view of the memory of another buffer, which the plugin must not free.

    Attributes:
        buffer: the view.
        owner: the buffer whose memory it is.
        pointer: the address of the memory.
        deletions: the calls of the callback for the end of the view.
    """

    def __init__(self, subject: Subject, array: np.ndarray, owner: int = 0, pointer: int = 0) -> None:
        subject.require(VIEW)
        self._subject = subject
        self.owner, self.pointer = (owner, pointer) if owner else referenced_buffer(subject, array)
        self.deletions = Calls(subject)
        self._result = supported(
            subject,
            VIEW,
            client=subject.client,
            device_buffer_ptr=self.pointer,
            dims=list(array.shape),
            element_type=11,
            device=subject.device,
            on_delete_callback=lambda pointer, user_arg: self.deletions.add((pointer, user_arg)),
            on_delete_callback_arg=_USER_ARG,
        )
        subject.expect(self._result.buffer, "a buffer", "a null pointer")
        self.buffer = int(self._result.buffer)

    def expect_deleted_once(self) -> None:
        """Expect one call of the callback, with the pointer and the argument of the caller."""
        self.deletions.expect_once((self.pointer, _USER_ARG))

    def end(self) -> None:
        """Release the memory of the owner."""
        self._subject.call(DECREASE, buffer=self.owner)
        self._subject.destroy_buffers(self.owner)


@check("device_view.value", calls=_CALLS, rule="The view has the value that is in the device memory.")
def _value(subject: Subject) -> None:
    array = ramp(16)
    view = View(subject, array)
    subject.expect_contents(view.buffer, array)
    subject.destroy_buffers(view.buffer)
    view.end()


@check(
    "device_view.on_delete",
    calls=_CALLS,
    rule="on_delete_callback is called once, with pointer and argument, when the buffer is done with the memory.",
    over=("destroy", "delete_and_destroy"),
)
def _on_delete(subject: Subject, end: str) -> None:
    view = View(subject, ramp(16))
    subject.expect_contents(view.buffer, ramp(16))
    view.deletions.expect_none()
    if end == "delete_and_destroy":
        subject.call("PJRT_Buffer_Delete", buffer=view.buffer)
    subject.destroy_buffers(view.buffer)
    view.expect_deleted_once()
    view.end()


@check(
    "device_view.memory_is_not_freed",
    calls=_CALLS,
    rule="The view does not own the memory: its owner keeps the value when the view is gone.",
)
def _memory_is_not_freed(subject: Subject) -> None:
    array = ramp(4096)
    view = View(subject, array)
    subject.destroy_buffers(view.buffer)
    others = [subject.buffer(array + 1) for _ in range(8)]
    subject.expect_contents(view.owner, array)
    subject.destroy_buffers(*others)
    view.end()


@check(
    "device_view.several",
    calls=_CALLS,
    rule="Several views of one memory end one by one, each with a call of its own callback.",
)
def _several(subject: Subject) -> None:
    first = View(subject, ramp(16))
    second = View(subject, ramp(16), first.owner, first.pointer)
    subject.destroy_buffers(first.buffer)
    first.expect_deleted_once()
    second.deletions.expect_none()
    subject.expect_contents(second.buffer, ramp(16))
    subject.destroy_buffers(second.buffer)
    second.expect_deleted_once()
    first.end()


@check(
    "device_view.read_under_way",
    calls=(*_CALLS, "PJRT_Buffer_ToHostBuffer", "PJRT_Buffer_Destroy"),
    rule="The callback comes after the operations that use the memory, and not before.",
)
def _read_under_way(subject: Subject) -> None:
    array = ramp(1 << 20)
    view = View(subject, array)
    data = np.zeros_like(array)
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=view.buffer, dst=data)
    subject.destroy_buffers(view.buffer)
    subject.await_event(read.event)
    subject.expect(bool((data == array).all()), "the whole value", "another one")
    view.expect_deleted_once()
    view.end()


@check("device_view.without_callback", calls=_CALLS, rule="on_delete_callback is optional.")
def _without_callback(subject: Subject) -> None:
    array = ramp(16)
    owner, pointer = referenced_buffer(subject, array)
    buffer = _make(subject, pointer, device=subject.device)
    subject.expect_contents(buffer, array)
    subject.destroy_buffers(buffer)
    subject.call(DECREASE, buffer=owner)
    subject.destroy_buffers(owner)


@check(
    "device_view.memory",
    calls=(*_CALLS, "PJRT_Buffer_Memory"),
    rule="With memory set the view is in that memory, and device is ignored.",
    over=("memory", "memory_and_device"),
)
def _memory(subject: Subject, kind: str) -> None:
    array = ramp(16)
    owner, pointer = referenced_buffer(subject, array)
    place = default_memory(subject, subject.device)
    device = subject.devices[-1] if kind == "memory_and_device" else 0
    buffer = _make(subject, pointer, memory=place, device=device)
    found = subject.call("PJRT_Buffer_Memory", buffer=buffer).memory
    subject.expect(found == place, "the memory of the argument", "another memory")
    subject.expect_contents(buffer, array)
    subject.destroy_buffers(buffer)
    subject.call(DECREASE, buffer=owner)
    subject.destroy_buffers(owner)


@check(
    "device_view.properties",
    calls=(*_CALLS, "PJRT_Buffer_Dimensions", "PJRT_Buffer_ElementType", "PJRT_Buffer_Device"),
    rule="The view has the type, the dimensions and the device of the arguments, and is ready.",
)
def _properties(subject: Subject) -> None:
    array = ramp(4, 4)
    view = View(subject, array)
    subject.expect(subject.shape(view.buffer) == (4, 4), "the dimensions (4, 4)", str(subject.shape(view.buffer)))
    number = subject.call("PJRT_Buffer_ElementType", buffer=view.buffer).type
    subject.expect(number == 11, "the type F32", f"{number}")
    device = subject.call("PJRT_Buffer_Device", buffer=view.buffer).device
    subject.expect(device == subject.device, "the device of the argument", "another device")
    subject.await_buffers([view.buffer])
    subject.destroy_buffers(view.buffer)
    view.end()


@check(
    "device_view.wrong",
    calls=_CALLS,
    rule="Arguments that describe no memory are an error, and no callback is called.",
    over={
        "null_pointer": {"device_buffer_ptr": 0},
        "no_place": {"device": 0},
        "negative_dimension": {"dims": [-4]},
        "unknown_type": {"element_type": 4711},
    },
)
def _wrong(subject: Subject, change: dict[str, object]) -> None:
    view = View(subject, ramp(16))
    calls = Calls(subject)
    fields = {
        "client": subject.client,
        "device_buffer_ptr": view.pointer,
        "dims": [16],
        "element_type": 11,
        "device": subject.device,
        "on_delete_callback": lambda pointer, user_arg: calls.add(pointer),
    }
    subject.fails(VIEW, MISUSE, **{**fields, **change})
    calls.expect_none()
    subject.destroy_buffers(view.buffer)
    view.end()


def _make(subject: Subject, pointer: int, **place: int) -> int:
    result = supported(
        subject, VIEW, client=subject.client, device_buffer_ptr=pointer, dims=[16], element_type=11, **place
    )
    return int(result.buffer)
