"""Host memory that is mapped for transfers."""

from __future__ import annotations

import mmap

import numpy as np

from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import (
    SEMANTICS,
    Array,
    address,
    expect_bytes,
    from_host,
    supported,
)
from pjrt.conformance.plugin.subject import Subject

MAP, UNMAP = "PJRT_Client_DmaMap", "PJRT_Client_DmaUnmap"
_CALLS = (MAP, UNMAP)


def _mapped(subject: Subject, size: int = 1 << 16) -> Array:
    """Return memory of whole pages that is mapped."""
    subject.require(*_CALLS)
    data = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    supported(subject, MAP, client=subject.client, data=address(data), size=data.nbytes)
    return data


@check("dma.map_and_unmap", calls=_CALLS, rule="Memory is mapped by its address and size, and unmapped by its address.")
def _map_and_unmap(subject: Subject) -> None:
    data = _mapped(subject)
    data[:] = 7
    subject.call(UNMAP, client=subject.client, data=address(data))
    subject.expect(bool((data == 7).all()), "memory that keeps its bytes", "changed bytes")


@check(
    "dma.transfers",
    calls=(*_CALLS, "PJRT_Client_BufferFromHostBuffer", "PJRT_Buffer_ToHostBuffer"),
    rule="Mapped memory is used for transfers as any other.",
    over=tuple(SEMANTICS),
)
def _transfers(subject: Subject, semantics: str) -> None:
    data = _mapped(subject)
    source, target = data[:4096], data[8192 : 8192 + 4096]
    source[:] = np.arange(4096).astype(np.uint8)
    result = from_host(subject, source, SEMANTICS[semantics])
    read = subject.call("PJRT_Buffer_ToHostBuffer", src=result.buffer, dst=target)
    subject.await_event(read.event)
    expect_bytes(subject, target, source)
    subject.destroy_buffers(result.buffer)
    subject.await_event(result.done_with_host_buffer)
    subject.call(UNMAP, client=subject.client, data=address(data))


@check("dma.again", calls=_CALLS, rule="Memory that was unmapped may be mapped again.")
def _again(subject: Subject) -> None:
    data = _mapped(subject)
    for _ in range(20):
        subject.call(UNMAP, client=subject.client, data=address(data))
        subject.call(MAP, client=subject.client, data=address(data), size=data.nbytes)
    subject.call(UNMAP, client=subject.client, data=address(data))


@check("dma.several", calls=_CALLS, rule="Several pieces of memory are mapped at once, and unmapped in any order.")
def _several(subject: Subject) -> None:
    pieces = [_mapped(subject, 1 << 14) for _ in range(8)]
    for piece in pieces[::2] + pieces[1::2]:
        subject.call(UNMAP, client=subject.client, data=address(piece))


@check("dma.unmap_unknown", calls=_CALLS, rule="Unmapping memory that is not mapped harms nothing.")
def _unmap_unknown(subject: Subject) -> None:
    data = _mapped(subject)
    other = np.zeros(4096, np.uint8)
    subject.attempt(UNMAP, client=subject.client, data=address(other))
    subject.call(UNMAP, client=subject.client, data=address(data))
    subject.attempt(UNMAP, client=subject.client, data=address(data))
    subject.expect_contents(subject.buffer(other), other)
