"""The RawBuffer extension: the bytes behind a buffer."""

cimport cython

from pjrt.capi._api cimport start
from pjrt.capi._buffer cimport BufferCore
from pjrt.capi._device cimport memory_at
from pjrt.capi._event cimport eager_future
from pjrt.capi._gen_abi cimport *
from pjrt.capi._memory cimport HostMemory
from pjrt.capi._scope cimport ClientScope, Handle, Scope
from pjrt.capi._values cimport whole

from pjrt.api.raw_buffer import RawBuffer
from pjrt.capi._documented import documented


cdef PJRT_RawBuffer_Extension *_extension(Scope scope) except NULL:
    """The extension as far as the copies; ``GetHostPointer``, the last function, came later."""
    cdef size_t size = PJRT_RawBuffer_Extension_STRUCT_SIZE - sizeof(void *)
    return <PJRT_RawBuffer_Extension *>scope.api.extension(PJRT_Extension_Type_RawBuffer, size, "RawBuffer")


@cython.no_gc_clear
cdef class RawBufferCore(Handle):
    """A ``PJRT_RawBuffer``."""

    @property
    def memory_space(self):
        cdef PJRT_RawBuffer_GetMemorySpace_Args args
        start(&args, PJRT_RawBuffer_GetMemorySpace_Args_STRUCT_SIZE)
        args.buffer = <PJRT_RawBuffer *>self.use()
        self.call_extension(
            <void *>_extension(self.scope).PJRT_RawBuffer_GetMemorySpace, &args, "PJRT_RawBuffer_GetMemorySpace"
        )
        return memory_at(<ClientScope>self.scope, args.memory_space)

    @property
    def on_device_size(self):
        cdef PJRT_RawBuffer_GetOnDeviceSizeInBytes_Args args
        start(&args, PJRT_RawBuffer_GetOnDeviceSizeInBytes_Args_STRUCT_SIZE)
        args.buffer = <PJRT_RawBuffer *>self.use()
        self.call_extension(
            <void *>_extension(self.scope).PJRT_RawBuffer_GetOnDeviceSizeInBytes,
            &args,
            "PJRT_RawBuffer_GetOnDeviceSizeInBytes",
        )
        return args.on_device_size_in_bytes

    def host_pointer(self):
        cdef PJRT_RawBuffer_GetHostPointer_Args args
        cdef PJRT_RawBuffer_Extension *extension = <PJRT_RawBuffer_Extension *>self.scope.api.extension(
            PJRT_Extension_Type_RawBuffer, PJRT_RawBuffer_Extension_STRUCT_SIZE, "RawBuffer"
        )
        start(&args, PJRT_RawBuffer_GetHostPointer_Args_STRUCT_SIZE)
        args.buffer = <PJRT_RawBuffer *>self.use()
        self.call_extension(<void *>extension.PJRT_RawBuffer_GetHostPointer, &args, "PJRT_RawBuffer_GetHostPointer")
        return <size_t>args.host_pointer

    def copy_from_host(self, source, offset=0):
        cdef PJRT_RawBuffer_CopyRawHostToDevice_Args args
        cdef HostMemory memory = HostMemory.of(source, False, "the source")
        start(&args, PJRT_RawBuffer_CopyRawHostToDevice_Args_STRUCT_SIZE)
        args.buffer = <PJRT_RawBuffer *>self.use()
        args.src = memory.at(0, memory.view.len)
        args.offset = whole(offset, "an offset in bytes as a whole number")
        args.transfer_size = memory.view.len
        self.call_extension(
            <void *>_extension(self.scope).PJRT_RawBuffer_CopyRawHostToDevice,
            &args,
            "PJRT_RawBuffer_CopyRawHostToDevice",
        )
        return eager_future(self.scope, args.event, None, (memory, self))

    def copy_to_host(self, out, offset=0, size=None):
        cdef PJRT_RawBuffer_CopyRawDeviceToHost_Args args
        cdef HostMemory memory = HostMemory.of(out, True, "out")
        start(&args, PJRT_RawBuffer_CopyRawDeviceToHost_Args_STRUCT_SIZE)
        args.transfer_size = memory.view.len if size is None else whole(size, "a number of bytes, or None, as size")
        args.buffer = <PJRT_RawBuffer *>self.use()
        args.dst = memory.at(0, args.transfer_size)
        args.offset = whole(offset, "an offset in bytes as a whole number")
        self.call_extension(
            <void *>_extension(self.scope).PJRT_RawBuffer_CopyRawDeviceToHost,
            &args,
            "PJRT_RawBuffer_CopyRawDeviceToHost",
        )
        return eager_future(self.scope, args.event, None, (memory, self))

    def release(self):
        self.free()

    cdef int destroy(self, void *native) except -1:
        cdef PJRT_RawBuffer_Destroy_Args args
        start(&args, PJRT_RawBuffer_Destroy_Args_STRUCT_SIZE)
        args.buffer = <PJRT_RawBuffer *>native
        return self.scope.api.call_extension(
            <void *>_extension(self.scope).PJRT_RawBuffer_Destroy, &args, "PJRT_RawBuffer_Destroy"
        )


@documented
class PluginRawBuffer(RawBufferCore, RawBuffer):
    """The bytes behind a buffer of a plugin (``PJRT_RawBuffer``)."""

    __slots__ = ()


def raw_alias(BufferCore buffer):
    """``Buffer.raw``."""
    cdef PJRT_RawBuffer_CreateRawAliasOfBuffer_Args args
    cdef PJRT_RawBuffer_Extension *extension = _extension(buffer.scope)
    start(&args, PJRT_RawBuffer_CreateRawAliasOfBuffer_Args_STRUCT_SIZE)
    args.buffer = <PJRT_Buffer *>buffer.use()
    buffer.call_extension(
        <void *>extension.PJRT_RawBuffer_CreateRawAliasOfBuffer, &args, "PJRT_RawBuffer_CreateRawAliasOfBuffer"
    )
    raw = PluginRawBuffer()
    (<Handle>raw).open(buffer.scope, args.raw_buffer, 0)
    return raw
