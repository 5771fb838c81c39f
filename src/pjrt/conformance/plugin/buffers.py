"""Buffers and events of the plugin under test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import StatusCode
from pjrt.capi import raw
from pjrt.conformance.plugin.clients import Clients
from pjrt.conformance.plugin.outcome import Failed, Unsupported

Array = np.ndarray[Any, Any]


def row_major(rank: int) -> raw.Struct | None:
    """Return the layout of a dense array in row-major order; ``None``, the default, for a scalar."""
    if not rank:
        return None
    return raw.Struct("PJRT_Buffer_MemoryLayout", type=0, minor_to_major=list(range(rank))[::-1])


class Buffers(Clients):
    """Buffers of the client, and the events of their transfers."""

    def buffer(self, array: Any, *, device: int | None = None, memory: int | None = None, **fields: Any) -> int:
        """Return a buffer with a copy of an array, when the transfer is done.

        Args:
            array: an array of numpy, or what makes one.
            device: where to; by default the first device, unless there is a memory.
            memory: the memory.
            fields: further fields of ``PJRT_Client_BufferFromHostBuffer``, such as ``host_buffer_semantics``.

        Raises:
            Failed: the plugin returned an error.
            Unsupported: the plugin has no such element type.
        """
        host = np.ascontiguousarray(array).reshape(np.shape(array))
        result = self.attempt_buffer(host, device=device, memory=memory, **fields)
        if result.error is not None:
            if result.error.code == StatusCode.UNIMPLEMENTED:
                raise Unsupported(f"buffers of element type {ElementType.of(host.dtype).name}")
            raise Failed("PJRT_Client_BufferFromHostBuffer to succeed", str(result.error))
        self.await_event(result.done_with_host_buffer)
        return int(result.buffer)

    def attempt_buffer(
        self, host: Array, *, device: int | None = None, memory: int | None = None, **fields: Any
    ) -> raw.Result:
        """Call ``PJRT_Client_BufferFromHostBuffer``, which may fail. The caller keeps the result until it is done."""
        if device is None and memory is None:
            device = self.device
        arguments = {
            "client": self.client,
            "data": host,
            "type": int(ElementType.of(host.dtype)),
            "dims": list(host.shape),
            "host_buffer_semantics": "ImmutableOnlyDuringCall",
            "device": device,
            "memory": memory,
        }
        return self.attempt("PJRT_Client_BufferFromHostBuffer", **{**arguments, **fields})

    def read(self, buffer: int) -> Array:
        """Return the contents of a buffer, in row-major order."""
        number = self.call("PJRT_Buffer_ElementType", buffer=buffer).type
        shape = self.shape(buffer)
        array = np.zeros(shape, ElementType(number).dtype)
        if not array.size:
            array = np.zeros(max(1, array.itemsize), np.uint8).view(array.dtype)  # memory that the plugin may be given
        result = self.call("PJRT_Buffer_ToHostBuffer", src=buffer, host_layout=row_major(len(shape)), dst=array)
        self.await_event(result.event)
        return array.reshape(shape) if array.size == np.prod(shape, dtype=int) else array[:0].reshape(shape)

    def shape(self, buffer: int) -> tuple[int, ...]:
        """Return the dimensions of a buffer."""
        return tuple(self.call("PJRT_Buffer_Dimensions", buffer=buffer).dims or ())

    def expect_contents(self, buffer: int, expected: Any) -> None:
        """Raise ``Failed`` unless a buffer has the contents of an array, bit by bit."""
        array, right = self.read(buffer), np.asarray(expected)
        same = array.shape == right.shape and array.dtype == right.dtype and array.tobytes() == right.tobytes()
        self.expect(same, f"a buffer with {_shown(right)}", _shown(array))

    def await_event(self, event: int) -> None:
        """Wait for an event, which must succeed, and destroy it."""
        error = self.event_error(event)
        if error is not None:
            raise Failed("an event without an error", str(error))

    def event_error(self, event: int) -> raw.Error | None:
        """Wait for an event, and destroy it; return its error."""
        if not event:
            raise Failed("an event", "a null pointer")
        error = self.attempt("PJRT_Event_Await", event=event).error
        self.call("PJRT_Event_Destroy", event=event)
        return error

    def await_buffers(self, buffers: Sequence[int]) -> None:
        """Wait until buffers have their contents, which they must get without an error."""
        for each in buffers:
            self.await_event(self.call("PJRT_Buffer_ReadyEvent", buffer=each).event)

    def destroy_buffers(self, *buffers: int) -> None:
        """Destroy buffers."""
        for each in buffers:
            self.call("PJRT_Buffer_Destroy", buffer=each)


def _shown(array: Array) -> str:
    text = np.array2string(array.ravel()[:8], separator=", ", threshold=8)
    more = f" and {array.size - 8} more" if array.size > 8 else ""
    return f"{array.dtype.name}{list(array.shape)} {text}{more}"
