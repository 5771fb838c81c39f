"""Leaks: what is made and destroyed ten thousand times leaves no memory behind."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.capi import raw
from pjrt.capi.raw.callback import callback
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.alias_buffers import CREATE as CREATE_ALIAS
from pjrt.conformance.plugin.contract.buffers.alias_buffers import FULFILL
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    IMMUTABLE_ZERO_COPY,
    ONLY_DURING_CALL,
    host_fields,
    ramp,
)
from pjrt.conformance.plugin.contract.buffers.buffer_placement import default_memory, other_device
from pjrt.conformance.plugin.contract.buffers.error_buffers import CREATE as CREATE_ERROR
from pjrt.conformance.plugin.contract.buffers.external_references import DECREASE, INCREASE
from pjrt.conformance.plugin.contract.buffers.layout_handles import DEFAULT as DEFAULT_LAYOUT
from pjrt.conformance.plugin.contract.buffers.layout_handles import DESTROY as DESTROY_LAYOUT
from pjrt.conformance.plugin.contract.endurance.memory_growth import expect_no_growth
from pjrt.conformance.plugin.contract.endurance.prepared_call import Destroyer, PreparedCall
from pjrt.conformance.plugin.contract.transfers.async_transfers import CREATE as CREATE_MANAGER
from pjrt.conformance.plugin.contract.transfers.async_transfers import DESTROY as DESTROY_MANAGER
from pjrt.conformance.plugin.contract.transfers.async_transfers import RETRIEVE, TRANSFER
from pjrt.conformance.plugin.subject import Subject

Round = Callable[[], None]


def _buffer(subject: Subject, semantics: int = ONLY_DURING_CALL) -> Round:
    array = ramp(16)
    make = PreparedCall(subject, "PJRT_Client_BufferFromHostBuffer", **host_fields(subject, array, semantics))
    buffer, event = make.field("buffer"), make.field("done_with_host_buffer")
    wait = Destroyer(subject, "PJRT_Event_Await", "event")
    end_event = Destroyer(subject, "PJRT_Event_Destroy", "event")
    end_buffer = Destroyer(subject, "PJRT_Buffer_Destroy", "buffer")

    def run() -> None:
        make()
        end_buffer(buffer)
        wait(event)
        end_event(event)

    return run


def _event_of(subject: Subject, make: PreparedCall, event: str = "event") -> Round:
    """Return a round of a call whose event is awaited and destroyed."""
    handle = make.field(event)
    wait = Destroyer(subject, "PJRT_Event_Await", "event")
    end = Destroyer(subject, "PJRT_Event_Destroy", "event")

    def run() -> None:
        make()
        wait(handle)
        end(handle)

    return run


def _ready_event(subject: Subject) -> Round:
    return _event_of(subject, PreparedCall(subject, "PJRT_Buffer_ReadyEvent", buffer=subject.buffer(ramp(4))))


def _read(subject: Subject) -> Round:
    data = np.zeros(16, np.float32)
    return _event_of(subject, PreparedCall(subject, "PJRT_Buffer_ToHostBuffer", src=subject.buffer(ramp(16)), dst=data))


def _raw_read(subject: Subject) -> Round:
    data = np.zeros(16, np.float32)
    call = PreparedCall(
        subject,
        "PJRT_Buffer_CopyRawToHost",
        buffer=subject.buffer(ramp(16)),
        dst=data,
        offset=0,
        transfer_size=data.nbytes,
    )
    return _event_of(subject, call)


def _ready_callback(subject: Subject) -> Round:
    ready = PreparedCall(subject, "PJRT_Buffer_ReadyEvent", buffer=subject.buffer(ramp(4)))
    event = ready.field("event")
    function = callback("PJRT_Event_OnReadyCallback", lambda error, user_arg: None)
    address = ctypes.cast(function, ctypes.c_void_p).value
    register = PreparedCall(subject, "PJRT_Event_OnReady", callback=address, user_arg=0)
    target = register.field("event")
    end = Destroyer(subject, "PJRT_Event_Destroy", "event")

    def run(_function: Any = function) -> None:
        ready()
        target.value = event.value
        register()
        end(event)

    return run


def _error(subject: Subject, name: str, **fields: Any) -> Round:
    """Return a round of a call that fails, and of the end of its error."""
    call = PreparedCall(subject, name, **fields)
    destroy = PreparedCall(subject, "PJRT_Error_Destroy")
    handle = destroy.field("error")

    def run() -> None:
        handle.value = call.error()
        destroy()

    return run


def _failed_call(subject: Subject) -> Round:
    fields = {**host_fields(subject, ramp(4)), "dims": [-4]}
    return _error(subject, "PJRT_Client_BufferFromHostBuffer", **fields)


def _created_event(subject: Subject) -> Round:
    make = PreparedCall(subject, "PJRT_Event_Create")
    event = make.field("event")
    put = PreparedCall(subject, "PJRT_Event_Set", error_code=10, error_message="on purpose")
    target = put.field("event")
    end = Destroyer(subject, "PJRT_Event_Destroy", "event")

    def run() -> None:
        make()
        target.value = event.value
        put()
        end(event)

    return run


def _copy(subject: Subject) -> Round:
    call = PreparedCall(
        subject, "PJRT_Buffer_CopyToDevice", buffer=subject.buffer(ramp(16)), dst_device=other_device(subject)
    )
    return _made_buffer(subject, call, "dst_buffer", filled=True)


def _made_buffer(subject: Subject, make: PreparedCall, out: str = "buffer", *, filled: bool = False) -> Round:
    """Return a round of a call that makes a buffer, and of the end of the buffer and of its ready event.

    Args:
        subject: the plugin.
        make: the call.
        out: the field of the buffer.
        filled: whether the plugin fills the buffer with contents. They are waited for: rounds that are faster than the
            plugin's threads would pile up what those have not done yet.
    """
    buffer = make.field(out)
    ready = PreparedCall(subject, "PJRT_Buffer_ReadyEvent")
    target, event = ready.field("buffer"), ready.field("event")
    wait = Destroyer(subject, "PJRT_Event_Await", "event")
    end_event = Destroyer(subject, "PJRT_Event_Destroy", "event")
    end_buffer = Destroyer(subject, "PJRT_Buffer_Destroy", "buffer")

    def run() -> None:
        make()
        target.value = buffer.value
        ready()
        if filled:
            wait(event)
        end_event(event)
        end_buffer(buffer)

    return run


def _shape_fields(subject: Subject) -> dict[str, Any]:
    return {
        "client": subject.client,
        "shape_dims": [16],
        "shape_element_type": 11,
        "memory": default_memory(subject, subject.device),
    }


def _error_buffer(subject: Subject) -> Round:
    fields = {**_shape_fields(subject), "error_code": 10, "error_message": "no value, on purpose"}
    return _made_buffer(subject, PreparedCall(subject, CREATE_ERROR, **fields))


def _uninitialized_buffer(subject: Subject) -> Round:
    call = PreparedCall(subject, "PJRT_Client_CreateUninitializedBuffer", **_shape_fields(subject))
    return _made_buffer(subject, call)


def _alias_buffer(subject: Subject) -> Round:
    make = PreparedCall(subject, CREATE_ALIAS, **_shape_fields(subject))
    buffer, handle = make.field("alias_buffer"), make.field("fulfill_alias_buffer_cb")
    fulfill = PreparedCall(subject, FULFILL, client=subject.client, buffer=subject.buffer(ramp(16)))
    target = fulfill.field("fulfill_alias_buffer_cb")
    end = Destroyer(subject, "PJRT_Buffer_Destroy", "buffer")

    def run() -> None:
        make()
        target.value = handle.value
        fulfill()
        end(buffer)

    return run


def _external_reference(subject: Subject) -> Round:
    buffer = subject.buffer(ramp(16))
    increase, decrease = PreparedCall(subject, INCREASE, buffer=buffer), PreparedCall(subject, DECREASE, buffer=buffer)

    def run() -> None:
        increase()
        decrease()

    return run


def _transfer(subject: Subject) -> Round:
    data = ramp(16)
    make = PreparedCall(
        subject,
        CREATE_MANAGER,
        client=subject.client,
        shape_specs=[raw.Struct("PJRT_ShapeSpec", dims=[16], element_type=11)],
        memory=default_memory(subject, subject.device),
    )
    manager = make.field("transfer_manager")
    take = PreparedCall(subject, RETRIEVE, buffer_index=0)
    move = PreparedCall(subject, TRANSFER, data=data, transfer_size=data.nbytes, is_last_transfer=True)
    of_take, of_move = take.field("transfer_manager"), move.field("transfer_manager")
    buffer, event = take.field("buffer_out"), move.field("done_with_h2d_transfer")
    wait = Destroyer(subject, "PJRT_Event_Await", "event")
    end_event = Destroyer(subject, "PJRT_Event_Destroy", "event")
    end_buffer = Destroyer(subject, "PJRT_Buffer_Destroy", "buffer")
    end_manager = Destroyer(subject, DESTROY_MANAGER, "transfer_manager")

    def run() -> None:
        make()
        of_take.value = of_move.value = manager.value
        take()
        move()
        wait(event)
        end_event(event)
        end_buffer(buffer)
        end_manager(manager)

    return run


def _layout(subject: Subject) -> Round:
    make = PreparedCall(subject, DEFAULT_LAYOUT, client=subject.client, type=11, dims=[3, 5])
    layout = make.field("layout")
    end = Destroyer(subject, DESTROY_LAYOUT, "layout")

    def run() -> None:
        make()
        end(layout)

    return run


def _getters(subject: Subject) -> Round:
    buffer = subject.buffer(ramp(3, 5))
    names = ("ElementType", "Dimensions", "UnpaddedDimensions", "DynamicDimensionIndices", "OnDeviceSizeInBytes")
    calls = [PreparedCall(subject, f"PJRT_Buffer_{name}", buffer=buffer) for name in names]

    def run() -> None:
        for call in calls:
            call()

    return run


_KINDS: dict[str, Callable[[Subject], Round]] = {
    "buffer": _buffer,
    "zero_copy_buffer": functools.partial(_buffer, semantics=IMMUTABLE_ZERO_COPY),
    "ready_event": _ready_event,
    "ready_callback": _ready_callback,
    "created_event": _created_event,
    "read": _read,
    "raw_read": _raw_read,
    "failed_call": _failed_call,
    "copy": _copy,
    "error_buffer": _error_buffer,
    "uninitialized_buffer": _uninitialized_buffer,
    "alias_buffer": _alias_buffer,
    "external_reference": _external_reference,
    "async_transfer": _transfer,
    "layout": _layout,
    "getters": _getters,
}


@check(
    "leaks.rounds",
    calls=(
        "PJRT_Buffer_Destroy",
        "PJRT_Event_Destroy",
        "PJRT_Error_Destroy",
        DESTROY_MANAGER,
        DESTROY_LAYOUT,
    ),
    rule="What the caller destroys is freed: ten thousand rounds leave no memory behind.",
    over=_KINDS,
)
def _rounds(subject: Subject, kind: Callable[[Subject], Round]) -> None:
    expect_no_growth(subject, kind(subject))
