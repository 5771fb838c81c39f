"""Buffers: what they are, their life, and copies of them on devices.

Copies to the host are in ``_to_host``, new buffers in ``_new_buffer``.
"""

cimport cython
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t

from pjrt.capi._api cimport count, start
from pjrt.capi._device cimport DeviceCore, MemorySpaceCore, device_at, memory_at, native_device, native_memory
from pjrt.capi._event cimport lazy_future
from pjrt.capi._gen_abi cimport *
from pjrt.capi._layouts cimport buffer_layout
from pjrt.capi._pin cimport Pin
from pjrt.capi._scope cimport ClientScope, Handle
from pjrt.capi._to_host cimport copy_raw, copy_raw_later, read_array
from pjrt.capi._values cimport Block, NativeLayout, element_type, int64_block, native_layout
from pjrt.capi._values cimport read_shape, read_layout, whole

from pjrt.api.buffer import Buffer, ExternalReference
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InternalError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.checks import expect
from pjrt.api.future import Future
from pjrt.api.shape_spec import expect_shape
from pjrt.capi._documented import documented


@cython.no_gc_clear
cdef class BufferCore(Handle):
    """A ``PJRT_Buffer``. What never changes is asked once."""

    cdef ClientScope owner(self):
        return <ClientScope>self.scope

    cdef int call(self, size_t slot, void *args) except -1:
        """The funnel; a use after the buffer's end is said to be that, whatever the plugin calls it."""
        try:
            Handle.call(self, slot, args)
        except FailedPreconditionError:
            raise
        except PjrtError as error:
            if self.is_deleted:
                raise FailedPreconditionError(
                    f"the buffer was deleted or donated; make a new one ({error.message})", payloads=error.payloads
                )
            raise
        return 0

    cdef int destroy(self, void *native) except -1:
        """Gives counts back first that someone outside still has: closing a client ends those too."""
        cdef PJRT_Buffer_DecreaseExternalReferenceCount_Args args
        while self.references:
            self.references -= 1
            start(&args, PJRT_Buffer_DecreaseExternalReferenceCount_Args_STRUCT_SIZE)
            args.buffer = <PJRT_Buffer *>native
            self.scope.api.call(SLOT_PJRT_Buffer_DecreaseExternalReferenceCount, &args)  # Client.close
        return Handle.destroy(self, native)

    # What it is.

    @property
    def client(self):
        return self.scope

    @property
    def shape(self):
        cdef PJRT_Buffer_Dimensions_Args args
        if self._shape is None:
            start(&args, PJRT_Buffer_Dimensions_Args_STRUCT_SIZE)
            args.buffer = <PJRT_Buffer *>self.use()
            self.call(SLOT_PJRT_Buffer_Dimensions, &args)
            self._shape = read_shape(args.dims, args.num_dims, "the dimensions of a buffer")
        return self._shape

    @property
    def element_type(self):
        cdef PJRT_Buffer_ElementType_Args args
        if self._element_type is None:
            start(&args, PJRT_Buffer_ElementType_Args_STRUCT_SIZE)
            args.buffer = <PJRT_Buffer *>self.use()
            self.call(SLOT_PJRT_Buffer_ElementType, &args)
            self._element_type = element_type(args.type)
        return self._element_type

    @property
    def layout(self):
        """The layout; of a plugin that leaves ``PJRT_Buffer_GetMemoryLayout`` out, by its Layouts extension."""
        cdef PJRT_Buffer_GetMemoryLayout_Args args
        if self._layout is None:
            start(&args, PJRT_Buffer_GetMemoryLayout_Args_STRUCT_SIZE)
            args.buffer = <PJRT_Buffer *>self.use()
            try:
                self.call(SLOT_PJRT_Buffer_GetMemoryLayout, &args)
                self._layout = read_layout(&args.layout)
            except UnimplementedError:
                self._layout = buffer_layout(self)
        return self._layout

    @property
    def dynamic_dimensions(self):
        cdef PJRT_Buffer_DynamicDimensionIndices_Args args
        cdef size_t index
        start(&args, PJRT_Buffer_DynamicDimensionIndices_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.use()
        self.call(SLOT_PJRT_Buffer_DynamicDimensionIndices, &args)
        number = count(args.num_dynamic_dims, args.dynamic_dim_indices, "the dynamic dimensions of a buffer")
        return tuple([args.dynamic_dim_indices[index] for index in range(number)])

    @property
    def unpadded_shape(self):
        cdef PJRT_Buffer_UnpaddedDimensions_Args args
        start(&args, PJRT_Buffer_UnpaddedDimensions_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.use()
        self.call(SLOT_PJRT_Buffer_UnpaddedDimensions, &args)
        return read_shape(args.unpadded_dims, args.num_dims, "the dimensions of a buffer")

    @property
    def on_device_size(self):
        cdef PJRT_Buffer_OnDeviceSizeInBytes_Args args
        start(&args, PJRT_Buffer_OnDeviceSizeInBytes_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.use()
        self.call(SLOT_PJRT_Buffer_OnDeviceSizeInBytes, &args)
        return args.on_device_size_in_bytes

    @property
    def device(self):
        cdef PJRT_Buffer_Device_Args args
        if self._device is None:
            start(&args, PJRT_Buffer_Device_Args_STRUCT_SIZE)
            args.buffer = <PJRT_Buffer *>self.use()
            self.call(SLOT_PJRT_Buffer_Device, &args)
            self._device = device_at(self.owner(), args.device)
        return self._device

    @property
    def memory_space(self):
        cdef PJRT_Buffer_Memory_Args args
        if self._memory_space is None:
            start(&args, PJRT_Buffer_Memory_Args_STRUCT_SIZE)
            args.buffer = <PJRT_Buffer *>self.use()
            self.call(SLOT_PJRT_Buffer_Memory, &args)
            self._memory_space = memory_at(self.owner(), args.memory)
        return self._memory_space

    @property
    def is_on_cpu(self):
        cdef PJRT_Buffer_IsOnCpu_Args args
        start(&args, PJRT_Buffer_IsOnCpu_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.use()
        self.call(SLOT_PJRT_Buffer_IsOnCpu, &args)
        return bool(args.is_on_cpu)

    # Its life.

    @property
    def is_deleted(self):
        """Whether it was deleted or donated; also once its client was closed."""
        cdef PJRT_Buffer_IsDeleted_Args args
        if self.native == NULL or self.scope.closed:
            return True
        start(&args, PJRT_Buffer_IsDeleted_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.native
        Handle.call(self, SLOT_PJRT_Buffer_IsDeleted, &args)
        return bool(args.is_deleted)

    def delete(self):
        cdef PJRT_Buffer_Delete_Args args
        if self.native == NULL or self.scope.closed:
            return
        start(&args, PJRT_Buffer_Delete_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.native
        self.call(SLOT_PJRT_Buffer_Delete, &args)

    def ready(self):
        cdef PJRT_Buffer_ReadyEvent_Args args
        if self.is_deleted:  # asked first, because plugins tell it by an event with an error of their own choice
            self.use()
            raise FailedPreconditionError("the buffer was deleted or donated; it cannot be waited for")
        start(&args, PJRT_Buffer_ReadyEvent_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.use()
        self.call(SLOT_PJRT_Buffer_ReadyEvent, &args)
        return lazy_future(self.scope, args.event, None)

    # To the host.

    def to_host(self, out=None, *, layout=None):
        return read_array(self, out, layout)

    def copy_raw_to_host(self, out, offset=0, size=None):
        return copy_raw(self, out, offset, size)

    def copy_raw_to_host_future(self, out, offset=0, size=None):
        return copy_raw_later(self, out, offset, size)

    # To other places and other hands.

    def copy_to(self, destination):
        if isinstance(destination, DeviceCore):
            return self._copy_to_device(destination)
        if isinstance(destination, MemorySpaceCore):
            return self._copy_to_memory(destination)
        raise InvalidArgumentError(
            f"a buffer is copied to a device or a memory space of its client, found {destination!r}"
        )

    def _copy_to_device(self, device):
        cdef PJRT_Buffer_CopyToDevice_Args args
        cdef Pin pin = Pin.of(self.scope)
        start(&args, PJRT_Buffer_CopyToDevice_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.use()
        args.dst_device = native_device(self.owner(), device)
        self.call(SLOT_PJRT_Buffer_CopyToDevice, &args)  # Buffer.copy_to
        return new_buffer(self.owner(), args.dst_buffer)

    def _copy_to_memory(self, memory_space):
        cdef PJRT_Buffer_CopyToMemory_Args args
        cdef Pin pin = Pin.of(self.scope)
        start(&args, PJRT_Buffer_CopyToMemory_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.use()
        args.dst_memory = native_memory(self.owner(), memory_space)
        self.call(SLOT_PJRT_Buffer_CopyToMemory, &args)  # Buffer.copy_to
        return new_buffer(self.owner(), args.dst_buffer)

    def bitcast(self, element_type, shape, layout=None):
        cdef PJRT_Buffer_Bitcast_Args args
        cdef Pin pin = Pin.of(self.scope)
        cdef Block dims = int64_block(expect_shape(shape))
        cdef NativeLayout native = native_layout(layout)
        start(&args, PJRT_Buffer_Bitcast_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.use()
        args.element_type = <PJRT_Buffer_Type><int>ElementType.of(element_type)
        args.dims = <int64_t *>dims.data
        args.num_dims = len(shape)
        args.device_layout = native.pointer
        self.call(SLOT_PJRT_Buffer_Bitcast, &args)
        return new_buffer(self.owner(), args.out_buffer)

    def donate_with_control_dependency(self, dependency):
        cdef PJRT_Buffer_DonateWithControlDependency_Args args
        cdef Pin pin = Pin.of(self.scope)
        expect(dependency, Future, "a future to wait for")
        start(&args, PJRT_Buffer_DonateWithControlDependency_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.use()
        self.call(SLOT_PJRT_Buffer_DonateWithControlDependency, &args)
        donated = new_buffer(self.owner(), args.out_buffer)
        promise = _Dependency()
        (<_Dependency>promise).callback = args.dependency_ready_callback
        (<_Dependency>promise).data = args.callback_data
        dependency.add_done_callback(promise)
        return donated

    def external_reference(self):
        cdef PJRT_Buffer_IncreaseExternalReferenceCount_Args increase
        cdef PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args pointer
        start(&increase, PJRT_Buffer_IncreaseExternalReferenceCount_Args_STRUCT_SIZE)
        increase.buffer = <PJRT_Buffer *>self.use()
        self.call(SLOT_PJRT_Buffer_IncreaseExternalReferenceCount, &increase)
        reference = PluginExternalReference()
        (<ExternalReferenceCore>reference).buffer = self
        (<ExternalReferenceCore>reference).held = True
        self.references += 1
        start(&pointer, PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args_STRUCT_SIZE)
        pointer.buffer = <PJRT_Buffer *>self.use()
        self.call(SLOT_PJRT_Buffer_OpaqueDeviceMemoryDataPointer, &pointer)
        (<ExternalReferenceCore>reference).address = <size_t>pointer.device_memory_ptr
        return reference

    def unsafe_pointer(self):
        cdef PJRT_Buffer_UnsafePointer_Args args
        start(&args, PJRT_Buffer_UnsafePointer_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.use()
        self.call(SLOT_PJRT_Buffer_UnsafePointer, &args)
        return args.buffer_pointer

    def raw(self):
        from pjrt.capi._raw_buffer import raw_alias

        return raw_alias(self)

    def wait_until_ready_on_stream(self, stream):
        cdef PJRT_Stream_Extension *extension
        cdef PJRT_Wait_Until_Buffer_Ready_On_Stream_Args args
        extension = <PJRT_Stream_Extension *>self.scope.api.extension(
            PJRT_Extension_Type_Stream, PJRT_Stream_Extension_STRUCT_SIZE, "Stream"
        )
        start(&args, PJRT_Wait_Until_Buffer_Ready_On_Stream_Args_STRUCT_SIZE)
        args.stream = whole(stream, "a stream as a whole number")
        args.buffer = <PJRT_Buffer *>self.use()
        self.call_extension(<void *>extension.wait_stream, &args, "PJRT_Wait_Until_Buffer_Ready_On_Stream")

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        from pjrt.capi._dlpack import to_capsule

        return to_capsule(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self):
        from pjrt.capi._dlpack import device_of

        return device_of(self)

    def copy_to_remote_device(self, descriptor):
        from pjrt.capi._cross_host import send_buffer

        return send_buffer(self, descriptor)

    def __repr__(self):
        if self.native == NULL or self.scope.closed:
            return f"<{type(self).__name__} of a closed client>"
        return Buffer.__repr__(self)


@documented
class PluginBuffer(BufferCore, Buffer):
    """An array on a device of a plugin (``PJRT_Buffer``)."""

    __slots__ = ()


@cython.no_gc_clear
cdef class ExternalReferenceCore:
    """A count on a buffer; given back with the object at the latest."""

    @property
    def pointer(self):
        return self.address

    def release(self):
        cdef PJRT_Buffer_DecreaseExternalReferenceCount_Args args
        if not self.held:
            return
        self.held = False
        if self.buffer.native == NULL or self.buffer.scope.closed:
            return  # closing the client has freed the buffer and its counts
        start(&args, PJRT_Buffer_DecreaseExternalReferenceCount_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.buffer.native
        self.buffer.references -= 1
        self.buffer.call(SLOT_PJRT_Buffer_DecreaseExternalReferenceCount, &args)

    def __dealloc__(self):
        if self.held:
            self.release()


@documented
class PluginExternalReference(ExternalReferenceCore, ExternalReference):
    """Memory of a plugin's buffer in the hands of someone outside of it."""

    __slots__ = ()


cdef class _Dependency:
    """Tells the plugin, once, that the dependency of a donation is done: the callback of the dependency's future."""

    cdef void (*callback)(PJRT_Buffer_DonateWithControlDependency_Callback_Args *args) noexcept nogil
    cdef void *data

    def __call__(self, future):
        cdef PJRT_Buffer_DonateWithControlDependency_Callback_Args args
        cdef bytes message
        start(&args, PJRT_Buffer_DonateWithControlDependency_Callback_Args_STRUCT_SIZE)
        args.callback_data = self.data
        error = future.exception()
        if error is not None:
            message = error.message.encode()
            args.error_code = <PJRT_Error_Code><int>error.code
            args.error_message = message
            args.error_message_size = len(message)
        if self.callback != NULL:
            with nogil:
                self.callback(&args)


cdef PyTypeObject *_BUFFER_TYPE = <PyTypeObject *>PluginBuffer
cdef tuple _NO_ARGUMENTS = ()


cdef object new_buffer(ClientScope scope, PJRT_Buffer *native):
    """A buffer that the plugin made; it is the caller's, and now this object's."""
    if native == NULL:
        raise InternalError("the plugin gave no buffer where one was expected; report it to its vendor")
    cdef BufferCore buffer = <BufferCore>(<object (*)(PyTypeObject *, object, PyObject *)>_BUFFER_TYPE.tp_new)(
        _BUFFER_TYPE, _NO_ARGUMENTS, NULL
    )
    buffer.open(scope, native, SLOT_PJRT_Buffer_Destroy)  # Buffer: when it is dropped
    return buffer
