"""Buffers: their properties, their life, and copies of them on devices.

Copies to the host are in ``_to_host``, new buffers in ``_new_buffer``.
"""

cimport cython
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t

from pjrt.capi._api cimport start
from pjrt.capi._device cimport DeviceCore, MemorySpaceCore, native_device, native_memory
from pjrt.capi._event cimport lazy_future
from pjrt.capi._gen_abi cimport *
from pjrt.capi._getter cimport Getter
from pjrt.capi._layouts cimport buffer_layout
from pjrt.capi._pin cimport Pin
from pjrt.capi._scope cimport ClientScope, Handle, pjrt_counter_add, pjrt_counter_read, pjrt_pointer_take
from pjrt.capi._to_host cimport copy_raw, copy_raw_later, read_array
from pjrt.capi._values cimport Block, NativeLayout, int64_block, native_layout, read_layout, whole

from pjrt.api.buffer import Buffer, ExternalReference
from pjrt.api.checks import expect
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InternalError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.future import Future
from pjrt.api.shape_spec import expect_shape
from pjrt.capi._documented import documented


# Asked once, and kept in fields: a __dict__ would make every new buffer slower. A field is set once, so that a thread can
# read it without a lock while others do.
cdef Getter _SHAPE = Getter("PJRT_Buffer_Dimensions")  # Buffer.shape
cdef Getter _ELEMENT_TYPE = Getter("PJRT_Buffer_ElementType")  # Buffer.element_type
cdef Getter _DEVICE = Getter("PJRT_Buffer_Device")  # Buffer.device
cdef Getter _MEMORY_SPACE = Getter("PJRT_Buffer_Memory")  # Buffer.memory_space
cdef Getter _POINTER = Getter("PJRT_Buffer_UnsafePointer")  # Buffer.unsafe_pointer
cdef Getter _EXTERNAL_POINTER = Getter("PJRT_Buffer_OpaqueDeviceMemoryDataPointer")  # Buffer.external_reference


@cython.no_gc_clear
cdef class BufferCore(Handle):
    """A ``PJRT_Buffer``."""

    cdef int call(self, size_t slot, void *args) except -1:
        """Call a function; a use after the buffer's end is reported as that, whatever the plugin calls it."""
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
        """Give back first the counts of external references that are still held: closing a client ends those, too."""
        cdef PJRT_Buffer_DecreaseExternalReferenceCount_Args args
        while pjrt_counter_read(&self.references):
            pjrt_counter_add(&self.references, -1)
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
        if self._shape is None:
            answer = _SHAPE.ask(self)
            with cython.critical_section(self):
                if self._shape is None:
                    self._shape = answer
        return self._shape

    @property
    def element_type(self):
        if self._element_type is None:
            answer = _ELEMENT_TYPE.ask(self)
            with cython.critical_section(self):
                if self._element_type is None:
                    self._element_type = answer
        return self._element_type

    @property
    def device(self):
        if self._device is None:
            answer = _DEVICE.ask(self)
            with cython.critical_section(self):
                if self._device is None:
                    self._device = answer
        return self._device

    @property
    def memory_space(self):
        if self._memory_space is None:
            answer = _MEMORY_SPACE.ask(self)
            with cython.critical_section(self):
                if self._memory_space is None:
                    self._memory_space = answer
        return self._memory_space

    @property
    def layout(self):
        """The layout; from the Layouts extension where the plugin leaves ``PJRT_Buffer_GetMemoryLayout`` out."""
        cdef PJRT_Buffer_GetMemoryLayout_Args args
        if self._layout is None:
            start(&args, PJRT_Buffer_GetMemoryLayout_Args_STRUCT_SIZE)
            args.buffer = <PJRT_Buffer *>self.use()
            try:
                self.call(SLOT_PJRT_Buffer_GetMemoryLayout, &args)
                answer = read_layout(&args.layout)
            except UnimplementedError:
                answer = buffer_layout(self)
            with cython.critical_section(self):
                if self._layout is None:
                    self._layout = answer
        return self._layout

    # Its life.

    @property
    def is_deleted(self):
        """Whether the buffer was deleted or donated, or its client closed."""
        cdef PJRT_Buffer_IsDeleted_Args args
        if self.native == NULL or self.scope.is_shut():
            return True
        start(&args, PJRT_Buffer_IsDeleted_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.native
        Handle.call(self, SLOT_PJRT_Buffer_IsDeleted, &args)
        return bool(args.is_deleted)

    def delete(self):
        cdef PJRT_Buffer_Delete_Args args
        if self.native == NULL or self.scope.is_shut():
            return
        start(&args, PJRT_Buffer_Delete_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.native
        self.call(SLOT_PJRT_Buffer_Delete, &args)

    def ready(self):
        cdef PJRT_Buffer_ReadyEvent_Args args
        if self.is_deleted:  # asked first: plugins would report it by an event with any error
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
        args.dst_device = native_device(<ClientScope>self.scope, device)
        self.call(SLOT_PJRT_Buffer_CopyToDevice, &args)  # Buffer.copy_to
        return new_buffer(<ClientScope>self.scope, args.dst_buffer)

    def _copy_to_memory(self, memory_space):
        cdef PJRT_Buffer_CopyToMemory_Args args
        cdef Pin pin = Pin.of(self.scope)
        start(&args, PJRT_Buffer_CopyToMemory_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.use()
        args.dst_memory = native_memory(<ClientScope>self.scope, memory_space)
        self.call(SLOT_PJRT_Buffer_CopyToMemory, &args)  # Buffer.copy_to
        return new_buffer(<ClientScope>self.scope, args.dst_buffer)

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
        return new_buffer(<ClientScope>self.scope, args.out_buffer)

    def donate_with_control_dependency(self, dependency):
        cdef PJRT_Buffer_DonateWithControlDependency_Args args
        cdef Pin pin = Pin.of(self.scope)
        expect(dependency, Future, "a future to wait for")
        start(&args, PJRT_Buffer_DonateWithControlDependency_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.use()
        self.call(SLOT_PJRT_Buffer_DonateWithControlDependency, &args)
        donated = new_buffer(<ClientScope>self.scope, args.out_buffer)
        promise = _Dependency()
        (<_Dependency>promise).callback = args.dependency_ready_callback
        (<_Dependency>promise).data = args.callback_data
        dependency.add_done_callback(promise)
        return donated

    def external_reference(self):
        cdef PJRT_Buffer_IncreaseExternalReferenceCount_Args increase
        cdef Pin pin = Pin.of(self.scope)
        start(&increase, PJRT_Buffer_IncreaseExternalReferenceCount_Args_STRUCT_SIZE)
        increase.buffer = <PJRT_Buffer *>self.use()
        self.call(SLOT_PJRT_Buffer_IncreaseExternalReferenceCount, &increase)
        reference = PluginExternalReference()
        (<ExternalReferenceCore>reference).buffer = self
        (<ExternalReferenceCore>reference).held = <void *>self
        pjrt_counter_add(&self.references, 1)
        (<ExternalReferenceCore>reference).address = _EXTERNAL_POINTER.ask(self)
        return reference

    def unsafe_pointer(self):
        return _POINTER.ask(self)

    def raw(self):
        from pjrt.capi._raw_buffer import raw_alias

        return raw_alias(self)

    def wait_until_ready_on_stream(self, stream):
        cdef PJRT_Wait_Until_Buffer_Ready_On_Stream_Args args
        start(&args, PJRT_Wait_Until_Buffer_Ready_On_Stream_Args_STRUCT_SIZE)
        args.stream = whole(stream, "a stream as a whole number")
        args.buffer = <PJRT_Buffer *>self.use()
        self.call(SLOT_PJRT_Wait_Until_Buffer_Ready_On_Stream, &args)

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
        if self.native == NULL or self.scope.is_shut():
            return f"<{type(self).__name__} of a closed client>"
        return Buffer.__repr__(self)


@documented
class PluginBuffer(BufferCore, Buffer):
    """An array on a device of a plugin (``PJRT_Buffer``)."""

    __slots__ = ()

    dynamic_dimensions = Getter("PJRT_Buffer_DynamicDimensionIndices")
    unpadded_shape = Getter("PJRT_Buffer_UnpaddedDimensions")
    on_device_size = Getter("PJRT_Buffer_OnDeviceSizeInBytes")
    is_on_cpu = Getter("PJRT_Buffer_IsOnCpu")


@cython.no_gc_clear
cdef class ExternalReferenceCore:
    """A count on a buffer; given back with the object at the latest."""

    @property
    def pointer(self):
        return self.address

    def release(self):
        cdef PJRT_Buffer_DecreaseExternalReferenceCount_Args args
        cdef BufferCore buffer = self.buffer
        if pjrt_pointer_take(&self.held) == NULL:
            return
        if not buffer.scope.try_to_enter():
            return  # closing the client has freed the buffer and its counts
        try:
            start(&args, PJRT_Buffer_DecreaseExternalReferenceCount_Args_STRUCT_SIZE)
            args.buffer = <PJRT_Buffer *>buffer.native
            if args.buffer != NULL:  # the garbage collector may free the buffer first, and its counts with it
                pjrt_counter_add(&buffer.references, -1)
                buffer.call(SLOT_PJRT_Buffer_DecreaseExternalReferenceCount, &args)
        finally:
            buffer.scope.leave()

    def __dealloc__(self):
        if self.held != NULL:
            self.release()


@documented
class PluginExternalReference(ExternalReferenceCore, ExternalReference):
    """A count that keeps the memory of a plugin's buffer for code outside of this package."""

    __slots__ = ()


cdef class _Dependency:
    """A callback of the dependency of a donation: reports to the plugin, once, that it is done."""

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
    """Return a buffer that the plugin made, and take it over."""
    if native == NULL:
        raise InternalError("the plugin gave no buffer where one was expected; report it to its vendor")
    cdef BufferCore buffer = <BufferCore>(<object (*)(PyTypeObject *, object, PyObject *)>_BUFFER_TYPE.tp_new)(
        _BUFFER_TYPE, _NO_ARGUMENTS, NULL
    )
    buffer.open(scope, native, SLOT_PJRT_Buffer_Destroy)  # Buffer: when it is dropped
    return buffer
