"""Host memory that the plugin allocates for transfers (the extensions HostAllocator and HostMemoryAllocator)."""

from __future__ import annotations

import ctypes

import numpy as np

from pjrt.capi.layer.schema import FUNCTIONS
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import ONLY_DURING_CALL, memory_at, outcome, ramp, supported
from pjrt.conformance.plugin.subject import Subject


def _names(extension: str) -> dict[str, str]:
    """Return the functions of an extension by the ends of their names."""
    return {name.rpartition("_")[2].lower(): name for name, each in FUNCTIONS.items() if each.extension == extension}


_OLD, _NEW = _names("HostAllocator"), _names("HostMemoryAllocator")
_ALIGNMENT, _ALLOCATE, _FREE = _OLD["getpreferredalignment"], _OLD["allocate"], _OLD["free"]
_ALLOCATE_NEW = _NEW["allocate"]
_SIZES = (1, 100, 4096, 1 << 20)


@check(
    "host_allocator.alignment",
    calls=(_ALIGNMENT,),
    rule="The preferred alignment is a power of two.",
)
def _alignment(subject: Subject) -> None:
    subject.require_extension("HostAllocator")
    found = supported(subject, _ALIGNMENT, client=subject.client).preferred_alignment
    subject.expect(found > 0 and not found & (found - 1), "a power of two", f"{found}")


@check(
    "host_allocator.allocate",
    calls=(_ALLOCATE, _FREE),
    rule="The memory has the size and the alignment of the arguments, and is the caller's until it is freed.",
    over=_SIZES,
)
def _allocate(subject: Subject, size: int) -> None:
    subject.require_extension("HostAllocator")
    for alignment_wanted in (16, 64, 4096):
        pointer = supported(subject, _ALLOCATE, client=subject.client, size=size, alignment=alignment_wanted).ptr
        subject.expect(pointer, "memory", "a null pointer")
        subject.expect(pointer % alignment_wanted == 0, f"a multiple of {alignment_wanted}", hex(pointer))
        _use(subject, pointer, size)
        subject.call(_FREE, client=subject.client, ptr=pointer)


@check(
    "host_allocator.several",
    calls=(_ALLOCATE, _FREE),
    rule="Pieces of memory do not overlap, and are freed in any order.",
)
def _several(subject: Subject) -> None:
    subject.require_extension("HostAllocator")
    pointers = [supported(subject, _ALLOCATE, client=subject.client, size=1000, alignment=64).ptr for _ in range(16)]
    for number, pointer in enumerate(pointers):
        ctypes.memset(pointer, number, 1000)
    for number, pointer in enumerate(pointers):
        subject.expect(bool((memory_at(pointer, 1000) == number).all()), "memory of its own", "changed bytes")
    for pointer in pointers[::2] + pointers[1::2]:
        subject.call(_FREE, client=subject.client, ptr=pointer)


@check(
    "host_memory_allocator.allocate",
    calls=(_ALLOCATE_NEW,),
    rule="The memory has the size of the argument, and is the caller's until the deleter is called.",
    over=_SIZES,
)
def _allocate_with_deleter(subject: Subject, size: int) -> None:
    subject.require_extension("HostMemoryAllocator")
    result = supported(subject, _ALLOCATE_NEW, client=subject.client, size=size, numa_node=-1)
    subject.expect(result.ptr, "memory", "a null pointer")
    subject.expect(result.deleter, "a deleter", "a null pointer")
    _use(subject, result.ptr, size)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(result.deleter)(result.ptr, result.deleter_arg)


@check(
    "host_memory_allocator.several",
    calls=(_ALLOCATE_NEW,),
    rule="Pieces of memory do not overlap, and are freed in any order.",
)
def _several_with_deleters(subject: Subject) -> None:
    subject.require_extension("HostMemoryAllocator")
    results = [supported(subject, _ALLOCATE_NEW, client=subject.client, size=1000, numa_node=-1) for _ in range(16)]
    for number, result in enumerate(results):
        ctypes.memset(result.ptr, number, 1000)
    for number, result in enumerate(results):
        subject.expect(bool((memory_at(result.ptr, 1000) == number).all()), "memory of its own", "changed bytes")
    for result in results[::2] + results[1::2]:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(result.deleter)(result.ptr, result.deleter_arg)


def _use(subject: Subject, pointer: int, size: int) -> None:
    """Make a buffer of the memory, and read it back into the memory."""
    ctypes.memset(pointer, 0x5A, size)
    result = subject.call(
        "PJRT_Client_BufferFromHostBuffer",
        client=subject.client,
        data=pointer,
        type=6,
        dims=[size],
        host_buffer_semantics=ONLY_DURING_CALL,
        device=subject.device,
    )
    subject.await_event(result.done_with_host_buffer)
    ctypes.memset(pointer, 0, size)
    error = outcome(subject, "PJRT_Buffer_ToHostBuffer", src=result.buffer, dst=pointer, dst_size=size)
    subject.expect(error is None, "a read without an error", str(error))
    subject.expect(bool((memory_at(pointer, size) == 0x5A).all()), "the value in the memory", "other bytes")
    subject.destroy_buffers(result.buffer)
    subject.expect_contents(subject.buffer(ramp(3, dtype=np.int32)), ramp(3, dtype=np.int32))
