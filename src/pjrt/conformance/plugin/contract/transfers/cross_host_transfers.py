"""Transfers between hosts (the extension CrossHostTransfers), as far as one process has both ends."""

from __future__ import annotations

import ctypes
from typing import Any

from pjrt.capi import raw
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import is_ready, ramp, supported
from pjrt.conformance.plugin.contract.events.event_calls import Calls
from pjrt.conformance.plugin.subject import Subject

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


@check(
    "cross_host.value",
    calls=_CALLS,
    rule="A buffer that is sent to a descriptor arrives in the buffer that the descriptor was made for.",
    over=(1, 3),
)
def _value(subject: Subject, number: int) -> None:
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
    subject.destroy_buffers(*buffers, *receiver.buffers)


@check(
    "cross_host.waits",
    calls=_CALLS,
    rule="A buffer that is to receive data is not ready before they are sent.",
)
def _waits(subject: Subject) -> None:
    subject.require_extension("CrossHostTransfers")
    _, target = subject.several_devices(2)
    receiver = _Receiver(subject, target, [[4]])
    event = subject.call("PJRT_Buffer_ReadyEvent", buffer=receiver.buffers[0]).event
    subject.expect(not is_ready(subject, event), "a buffer that is not ready", "that it is ready")
    buffer = subject.buffer(ramp(4))
    sender = _Sender(subject, buffer)
    sender.give(receiver.descriptors()[0])
    subject.await_event(event)
    subject.destroy_buffers(buffer, *receiver.buffers)


@check(
    "cross_host.properties",
    calls=(RECEIVE, "PJRT_Buffer_Dimensions", "PJRT_Buffer_Device"),
    rule="Buffers that are to receive data have their dimensions and their device before.",
)
def _properties(subject: Subject) -> None:
    subject.require_extension("CrossHostTransfers")
    receiver = _Receiver(subject, subject.device, [[2, 3], [4]])
    for buffer, dims in zip(receiver.buffers, ((2, 3), (4,)), strict=True):
        subject.expect(subject.shape(buffer) == dims, f"the dimensions {dims}", str(subject.shape(buffer)))
        place = subject.call("PJRT_Buffer_Device", buffer=buffer).device
        subject.expect(place == subject.device, "the device of the argument", "another device")


@check(
    "cross_host.no_descriptor",
    calls=(SEND,),
    rule="If there is no descriptor, on_done is called once, with an error, and the buffer stays.",
)
def _no_descriptor(subject: Subject) -> None:
    subject.require_extension("CrossHostTransfers")
    buffer = subject.buffer(ramp(4))
    sender = _Sender(subject, buffer)
    sender.fail()
    error = sender.calls.wait()
    subject.expect(error is not None, "an error", "none")
    sender.calls.expect_once(error)
    subject.expect_contents(buffer, ramp(4))
    subject.destroy_buffers(buffer)


@check(
    "cross_host.by_key",
    calls=(RECEIVE_BY_KEY, SEND_BY_KEY),
    rule="Sends and receives with the same key belong together; each send has an event.",
)
def _by_key(subject: Subject) -> None:
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
    subject.destroy_buffers(buffer, received.buffers[0])
