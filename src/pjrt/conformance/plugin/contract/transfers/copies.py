"""Copies of buffers to devices and memories, and to other hosts."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from pjrt.capi import raw
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.buffers.calls import (
    REFUSAL,
    default_memory,
    expect_value,
    from_host,
    is_ready,
    memories_of,
    other_device,
    other_memory,
    ramp,
    supported,
)
from pjrt.conformance.plugin.contract.buffers.pending import fulfill, make_alias
from pjrt.conformance.plugin.contract.events import Calls
from pjrt.conformance.plugin.subject import Subject

# Copies of buffers to devices and memories.

TO_DEVICE, TO_MEMORY = "PJRT_Buffer_CopyToDevice", "PJRT_Buffer_CopyToMemory"
_BOTH = (TO_DEVICE, TO_MEMORY)


def copy_elsewhere(subject: Subject, name: str, buffer: int) -> int:
    """Return a copy of a buffer of the first device: on another device, or in another memory.

    Raises:
        Unsupported: there is no other one, or the plugin cannot copy to it.
    """
    subject.require(name)
    place = {"dst_device": other_device(subject)} if name == TO_DEVICE else {"dst_memory": other_memory(subject)}
    result = subject.attempt(name, buffer=buffer, **place)
    if result.error is not None and result.error.code in REFUSAL:
        raise Unsupported(f"{name}: {result.error.message}")
    subject.expect(result.error is None, f"{name} to succeed", str(result.error))
    subject.expect(result.dst_buffer, "a buffer", "a null pointer")
    return int(result.dst_buffer)


@check("buffer.copy_to_each_device", calls=(TO_DEVICE, "PJRT_Buffer_Device"))
def _copy_to_each_device(subject: Subject) -> None:
    """PJRT_Buffer_CopyToDevice copies the buffer to another device of the client."""
    subject.require(TO_DEVICE)
    other_device(subject)
    array = ramp(3, 5)
    for source in subject.devices:
        buffer = subject.buffer(array, device=source)
        for target in subject.devices:
            if target != source:
                copy = subject.call(TO_DEVICE, buffer=buffer, dst_device=target).dst_buffer
                found = subject.call("PJRT_Buffer_Device", buffer=copy).device
                subject.expect(found == target, "the device of the argument", "another device")
                subject.expect_contents(copy, array)
                subject.destroy_buffers(copy)
        subject.destroy_buffers(buffer)


@check("buffer.copy_to_each_memory", calls=(TO_MEMORY, "PJRT_Buffer_Memory"))
def _copy_to_each_memory(subject: Subject) -> None:
    """PJRT_Buffer_CopyToMemory copies the buffer to another memory of the client."""
    subject.require(TO_MEMORY)
    array = ramp(3, 5)
    memories = [memory for device in subject.devices for memory in memories_of(subject, device)]
    if len(memories) < 2:
        raise Unsupported("the client has one memory")
    source = subject.buffer(array)
    home = subject.call("PJRT_Buffer_Memory", buffer=source).memory
    for target in memories:
        if target == home:
            continue
        copy = subject.call(TO_MEMORY, buffer=source, dst_memory=target).dst_buffer
        found = subject.call("PJRT_Buffer_Memory", buffer=copy).memory
        subject.expect(found == target, "the memory of the argument", "another memory")
        subject.expect_contents(copy, array)
        back = subject.call(TO_MEMORY, buffer=copy, dst_memory=home).dst_buffer
        subject.expect_contents(back, array)
        subject.destroy_buffers(copy, back)


@check("buffer.copy_to_its_own_place", calls=_BOTH, over=_BOTH)
def _copy_to_its_own_place(subject: Subject, name: str) -> None:
    """A copy to the place where the buffer is already is an error; plugins of XLA make a copy with the same value."""
    subject.require(name)
    array = ramp(6)
    buffer = subject.buffer(array)
    place = (
        {"dst_device": subject.device} if name == TO_DEVICE else {"dst_memory": default_memory(subject, subject.device)}
    )
    result = subject.attempt(name, buffer=buffer, **place)
    if result.error is None:
        subject.expect(result.dst_buffer != buffer, "a buffer of its own", "the same buffer")
        subject.destroy_buffers(buffer)
        subject.expect_contents(result.dst_buffer, array)
        subject.destroy_buffers(result.dst_buffer)
    else:
        subject.expect_contents(buffer, array)
        subject.destroy_buffers(buffer)


@check("buffer.copy_is_independent", calls=_BOTH, over=_BOTH)
def _copy_is_independent(subject: Subject, name: str) -> None:
    """A copy has memory of its own: it keeps its value when the source is gone, and the source when the copy is."""
    array = ramp(1000)
    buffer = subject.buffer(array)
    copy = copy_elsewhere(subject, name, buffer)
    subject.await_buffers([copy])
    second = copy_elsewhere(subject, name, buffer)
    subject.destroy_buffers(second)
    expect_value(subject, buffer, array)
    subject.call("PJRT_Buffer_Delete", buffer=buffer)
    subject.buffer(np.full_like(array, -1))
    subject.expect_contents(copy, array)


@check(
    "buffer.copy_of_a_released_source",
    calls=(*_BOTH, "PJRT_Buffer_Destroy"),
    over=tuple(f"{name}-{end}" for name in _BOTH for end in ("delete", "destroy")),
)
def _copy_of_a_released_source(subject: Subject, case: str) -> None:
    """The source may be deleted or destroyed while the copy is under way."""
    name, end = case.split("-")
    array = ramp(1 << 20)
    buffer = subject.buffer(array)
    copy = copy_elsewhere(subject, name, buffer)
    if end == "delete":
        subject.call("PJRT_Buffer_Delete", buffer=buffer)
    else:
        subject.destroy_buffers(buffer)
    other = subject.buffer(np.full_like(array, -1))
    subject.expect_contents(copy, array)
    subject.destroy_buffers(copy, other, *([buffer] if end == "delete" else []))


@check("buffer.copy_before_ready", calls=(*_BOTH, "PJRT_Client_BufferFromHostBuffer"), over=_BOTH)
def _copy_before_ready(subject: Subject, name: str) -> None:
    """A buffer may be copied before it is ready; the copy becomes ready after it."""
    array = ramp(1 << 20)
    result = from_host(subject, array, 1)
    copy = copy_elsewhere(subject, name, result.buffer)
    subject.expect_contents(copy, array)
    subject.await_event(result.done_with_host_buffer)


@check("buffer.copy_of_a_pending_buffer", calls=(*_BOTH, "PJRT_Client_CreateAliasBuffer"), over=_BOTH)
def _copy_of_a_pending_buffer(subject: Subject, name: str) -> None:
    """A copy of a buffer whose data is not there yet waits for the data."""
    array = ramp(4)
    alias, handle = make_alias(subject, [4])
    copy = copy_elsewhere(subject, name, alias)
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=copy).event
    subject.expect(not is_ready(subject, event), "a copy that is not ready", "that it is ready")
    buffer = subject.buffer(array)
    fulfill(subject, handle, buffer)
    subject.await_event(event)
    subject.expect_contents(copy, array)


@check(
    "buffer.copy_keeps_the_type",
    calls=(*_BOTH, "PJRT_Buffer_ElementType", "PJRT_Buffer_Dimensions"),
    over=tuple(
        f"{name}-{kind}" for name in _BOTH for kind in ("pred", "u8", "f64", "c64", "scalar", "empty", "rank_5")
    ),
)
def _copy_keeps_the_type(subject: Subject, case: str) -> None:
    """A copy has the type, the dimensions and the value of its source."""
    name, kind = case.split("-")
    array = {
        "pred": np.array([True, False, True]),
        "u8": ramp(5, dtype=np.uint8),
        "f64": ramp(2, 2, dtype=np.float64),
        "c64": ramp(3, dtype=np.complex64),
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 3), np.float32),
        "rank_5": ramp(1, 2, 3, 2, 1),
    }[kind]
    buffer = subject.buffer(array)
    copy = copy_elsewhere(subject, name, buffer)
    subject.expect_contents(copy, array)


@check("buffer.copy_around_all_devices", calls=(TO_DEVICE,))
def _copy_around_all_devices(subject: Subject) -> None:
    """Copies of copies keep the value, also without a wait between them."""
    subject.require(TO_DEVICE)
    other_device(subject)
    array = ramp(4099)
    buffer = subject.buffer(array)
    for target in [*subject.devices[1:], subject.device] * 3:
        copy = subject.call(TO_DEVICE, buffer=buffer, dst_device=target).dst_buffer
        subject.destroy_buffers(buffer)
        buffer = copy
    subject.expect_contents(buffer, array)


# Transfers between hosts (the extension CrossHostTransfers), as far as one process has both ends.

RECEIVE = "PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers"
SEND = "PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice"
RECEIVE_BY_KEY = "PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers"
SEND_BY_KEY = "PJRT_Transfers_PJRT_Client_CrossHostSendBuffers"
_CALLS = (RECEIVE, SEND)


class _Receiver:
    """Buffers that wait for a sender.

    Attributes:
        buffers: the buffers.
    """

    def __init__(self, subject: Subject, device: int, shapes: list[list[int]]) -> None:
        subject.require_extension("CrossHostTransfers")
        self._subject = subject
        self._calls = Calls(subject)
        self._result = supported(
            subject,
            RECEIVE,
            client=subject.client,
            shape_num_dims=[len(shape) for shape in shapes],
            num_dims=shapes,
            element_types=[11] * len(shapes),
            device=device,
            notifier=raw.Struct("PJRT_Transfers_CrossHostRecvNotifierInfo", notifier=self._notified),
            buffers=[None] * len(shapes),
        )
        subject.expect(self._result.num_buffers == len(shapes), f"{len(shapes)} buffers", self._result.num_buffers)
        address = int.from_bytes(self._result.struct_bytes[88:96], "little")
        self.buffers = list((ctypes.c_uint64 * len(shapes)).from_address(address))

    def _notified(self, error: int, texts: int, sizes: int, number: int, *_: Any) -> None:
        if error:
            self._calls.add(self._subject.plugin.take_error(error))
            return
        starts = (ctypes.c_void_p * number).from_address(texts)
        lengths = (ctypes.c_size_t * number).from_address(sizes)
        self._calls.add([ctypes.string_at(starts[i] or 0, lengths[i]) for i in range(number)])

    def descriptors(self) -> list[bytes]:
        """Return the descriptors of the buffers, for which the notifier was called once."""
        descriptors = self._calls.wait()
        self._subject.expect(isinstance(descriptors, list), "descriptors", str(descriptors))
        self._calls.expect_once(descriptors)
        self._subject.expect(
            len(descriptors) == len(self.buffers), f"{len(self.buffers)} descriptors", f"{len(descriptors)}"
        )
        return list(descriptors)


class _Sender:
    """A send of a buffer to one that waits for it."""

    def __init__(self, subject: Subject, buffer: int) -> None:
        self._subject = subject
        self.calls = Calls(subject)
        self.event = subject.call("PJRT_Event_Create").event
        self._text = ctypes.c_char_p()
        self._size = ctypes.c_size_t()
        self._result = supported(
            subject,
            SEND,
            buffer=buffer,
            event=self.event,
            serialized_descriptor=self._text,
            serialized_descriptor_size=self._size,
            on_done=raw.Struct("PJRT_Transfers_CrossHostRemoteSendCallbackInfo", on_done=self._done),
        )

    def _done(self, error: int, sends_were_enqueued: bool, user_arg: int) -> None:
        self.calls.add(self._subject.plugin.take_error(error) if error else None)

    def give(self, descriptor: bytes) -> None:
        """State where the buffer is sent to."""
        self._text.value, self._size.value = descriptor, len(descriptor)
        self._subject.call("PJRT_Event_Set", event=self.event, error_code=0)

    def fail(self) -> None:
        """State that there is nowhere to send the buffer to."""
        self._subject.call("PJRT_Event_Set", event=self.event, error_code=10, error_message="nowhere, on purpose")


@check("cross_host.value", calls=_CALLS, over=(1, 3))
def _value(subject: Subject, number: int) -> None:
    """A buffer that is sent to a descriptor arrives in the buffer that the descriptor was made for."""
    subject.require_extension("CrossHostTransfers")
    _, target = subject.several_devices(2)
    receiver = _Receiver(subject, target, [[4]] * number)
    arrays = [ramp(4) + index for index in range(number)]
    buffers = [subject.buffer(array) for array in arrays]
    senders = [_Sender(subject, buffer) for buffer in buffers]
    for sender, descriptor in zip(senders, receiver.descriptors(), strict=True):
        sender.give(descriptor)
    for array, buffer in zip(arrays, receiver.buffers, strict=True):
        subject.expect_contents(buffer, array)
    for sender in senders:
        sender.calls.expect_once(None)


@check("cross_host.waits", calls=_CALLS)
def _waits(subject: Subject) -> None:
    """A buffer that is to receive data is not ready before they are sent."""
    subject.require_extension("CrossHostTransfers")
    _, target = subject.several_devices(2)
    receiver = _Receiver(subject, target, [[4]])
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=receiver.buffers[0]).event
    subject.expect(not is_ready(subject, event), "a buffer that is not ready", "that it is ready")
    buffer = subject.buffer(ramp(4))
    sender = _Sender(subject, buffer)
    sender.give(receiver.descriptors()[0])
    subject.await_event(event)


@check("cross_host.properties", calls=(RECEIVE, "PJRT_Buffer_Dimensions", "PJRT_Buffer_Device"))
def _properties(subject: Subject) -> None:
    """Buffers that are to receive data have their dimensions and their device before."""
    subject.require_extension("CrossHostTransfers")
    receiver = _Receiver(subject, subject.device, [[2, 3], [4]])
    for buffer, dims in zip(receiver.buffers, ((2, 3), (4,)), strict=True):
        subject.expect(subject.shape(buffer) == dims, f"the dimensions {dims}", str(subject.shape(buffer)))
        place = subject.call("PJRT_Buffer_Device", buffer=buffer).device
        subject.expect(place == subject.device, "the device of the argument", "another device")


@check("cross_host.no_descriptor", calls=(SEND,))
def _no_descriptor(subject: Subject) -> None:
    """If there is no descriptor, on_done is called once, with an error, and the buffer stays."""
    subject.require_extension("CrossHostTransfers")
    buffer = subject.buffer(ramp(4))
    sender = _Sender(subject, buffer)
    sender.fail()
    error = sender.calls.wait()
    subject.expect(error is not None, "an error", "none")
    sender.calls.expect_once(error)
    subject.expect_contents(buffer, ramp(4))


@check("cross_host.by_key", calls=(RECEIVE_BY_KEY, SEND_BY_KEY))
def _by_key(subject: Subject) -> None:
    """Sends and receives with the same key belong together; each send has an event."""
    subject.require_extension("CrossHostTransfers")
    source, target = subject.several_devices(2)
    ids = {
        each: subject.call("PJRT_DeviceDescription_Id", device_description=subject.description(each)).id
        for each in (source, target)
    }
    received = supported(
        subject,
        RECEIVE_BY_KEY,
        client=subject.client,
        num_shapes=1,
        shape_num_dims=[1],
        num_dims=[[4]],
        element_types=[11],
        device=target,
        src_global_device_ids=[ids[source]],
        transfer_keys=[77],
        buffers=[None],
    )
    buffer = subject.buffer(ramp(4))
    sent = supported(
        subject,
        SEND_BY_KEY,
        client=subject.client,
        num_buffers=1,
        buffers=[buffer],
        dst_global_device_ids=[ids[target]],
        transfer_keys=[77],
        send_events=[None],
    )
    subject.expect_contents(received.buffers[0], ramp(4))
    subject.await_event(sent.send_events[0])
