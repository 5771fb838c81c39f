"""The RawBuffer extension: the bytes behind a buffer."""

cimport cython

from pjrt.capi._api cimport start
from pjrt.capi._buffer cimport BufferCore
from pjrt.capi._event cimport eager_future
from pjrt.capi._gen_abi cimport *
from pjrt.capi._getter cimport Getter
from pjrt.capi._memory cimport HostMemory
from pjrt.capi._pin cimport Pin
from pjrt.capi._scope cimport ClosableHandle, Handle
from pjrt.capi._values cimport whole

from pjrt.api.buffer import RawBuffer
from pjrt.capi._documented import documented


cdef Getter _HOST_POINTER = Getter("PJRT_RawBuffer_GetHostPointer")


@cython.no_gc_clear
cdef class RawBufferCore(ClosableHandle):
    """A ``PJRT_RawBuffer``."""

    def host_pointer(self):
        return _HOST_POINTER.ask(self)

    def copy_from_host(self, source, offset=0):
        cdef PJRT_RawBuffer_CopyRawHostToDevice_Args args
        cdef HostMemory memory = HostMemory.of(source, False, "the source")
        start(&args, PJRT_RawBuffer_CopyRawHostToDevice_Args_STRUCT_SIZE)
        args.buffer = <PJRT_RawBuffer *>self.use()
        args.src = memory.at(0, memory.view.len)
        args.offset = whole(offset, "an offset in bytes as a whole number")
        args.transfer_size = memory.view.len
        self.call(SLOT_PJRT_RawBuffer_CopyRawHostToDevice, &args)
        return eager_future(self.scope, args.event, None, (memory, self))

    def copy_to_host(self, out, offset=0, size=None):
        cdef PJRT_RawBuffer_CopyRawDeviceToHost_Args args
        cdef HostMemory memory = HostMemory.of(out, True, "out")
        start(&args, PJRT_RawBuffer_CopyRawDeviceToHost_Args_STRUCT_SIZE)
        args.transfer_size = memory.view.len if size is None else whole(size, "a number of bytes, or None, as size")
        args.buffer = <PJRT_RawBuffer *>self.use()
        args.dst = memory.at(0, args.transfer_size)
        args.offset = whole(offset, "an offset in bytes as a whole number")
        self.call(SLOT_PJRT_RawBuffer_CopyRawDeviceToHost, &args)
        return eager_future(self.scope, args.event, None, (memory, self))

    def release(self):
        self.free()


@documented
class PluginRawBuffer(RawBufferCore, RawBuffer):
    """The bytes behind a buffer of a plugin (``PJRT_RawBuffer``)."""

    __slots__ = ()

    memory_space = Getter("PJRT_RawBuffer_GetMemorySpace")
    on_device_size = Getter("PJRT_RawBuffer_GetOnDeviceSizeInBytes")


def raw_alias(BufferCore buffer):
    """``Buffer.raw``."""
    cdef PJRT_RawBuffer_CreateRawAliasOfBuffer_Args args
    cdef Pin pin = Pin.of(buffer.scope)
    start(&args, PJRT_RawBuffer_CreateRawAliasOfBuffer_Args_STRUCT_SIZE)
    args.buffer = <PJRT_Buffer *>buffer.use()
    buffer.call(SLOT_PJRT_RawBuffer_CreateRawAliasOfBuffer, &args)
    raw = PluginRawBuffer()
    (<Handle>raw).open(buffer.scope, args.raw_buffer, SLOT_PJRT_RawBuffer_Destroy)
    return raw
