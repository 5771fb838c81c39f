"""Expectations of XLA's tests of its plugins for GPUs: asynchronous transfers."""

from __future__ import annotations

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.capi import raw
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject

_CREATE = "PJRT_Client_CreateBuffersForAsyncHostToDevice"
_MANAGER = "PJRT_AsyncHostToDeviceTransferManager_"
_METADATA = f"{_MANAGER}AddMetadata"
_ERROR = f"{_MANAGER}SetBufferError"


def _manager(subject: Subject, element_type: ElementType) -> int:
    subject.require(_CREATE, f"{_MANAGER}RetrieveBuffer", f"{_MANAGER}Destroy")
    spec = raw.Struct("PJRT_ShapeSpec", dims=[8], element_type=int(element_type))
    return int(subject.call(_CREATE, client=subject.client, shape_specs=[spec], memory=subject.memory).transfer_manager)


@check(
    "official.gpu.transfer_manager_set_buffer_error",
    calls=(_CREATE, _METADATA, f"{_MANAGER}BufferCount", f"{_MANAGER}RetrieveBuffer", _ERROR),
    rule="A buffer that is set to an error has it, with its code and message, for those who read it.",
)
def _set_buffer_error(subject: Subject) -> None:
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
    subject.destroy_buffers(buffer)
    subject.call(f"{_MANAGER}Destroy", transfer_manager=manager)


@check(
    "official.gpu.transfer_manager_transfer_raw_data",
    calls=(_CREATE, f"{_MANAGER}BufferSize", f"{_MANAGER}Device", f"{_MANAGER}TransferData"),
    rule="A buffer becomes ready by the transfer of its data, and not before. The manager states its size and device.",
)
def _transfer_raw_data(subject: Subject) -> None:
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
    subject.destroy_buffers(buffer)
    subject.call(f"{_MANAGER}Destroy", transfer_manager=manager)
