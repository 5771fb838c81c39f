"""Buffers: their properties, their life, copies of them on devices and to the host; and new ones."""

import logging

cimport cython
from cpython.buffer cimport Py_buffer, PyBUF_STRIDES, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_GetBuffer
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int64_t, intptr_t
from libc.string cimport memcpy

from pjrt.capi._api cimport (
    Block, NamedValues, NativeLayout, address, fitting_layout, gate_enter, gate_leave, read_layout, redeem, shape_block,
    start, ticket_for, whole
)
from pjrt.capi._device cimport (
    DeviceCore, MemorySpaceCore, addressable_device, buffer_layout, native_device, native_memory, payload_values
)
from pjrt.abi.generated.declarations cimport *
from pjrt.capi._scope cimport (
    ClientScope, Event, Getter, Handle, HostMemory, Pin, eager_future, lazy_future, pjrt_counter_add,
    pjrt_counter_read, pjrt_pointer, pjrt_pointer_take
)

import numpy as np

from pjrt.api.buffer import AliasFulfillment, Buffer, ExternalReference
from pjrt.api.checks import expect, expect_array, expect_callable, expect_out, unexpected
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    FailedPreconditionError, InternalError, InvalidArgumentError, OutOfRangeError, PjrtError, ResourceExhaustedError,
    UnimplementedError
)
from pjrt.api.buffer import HostBufferSemantics
from pjrt.api.executable import choose_place, default_device
from pjrt.api.future import Future
from pjrt.api.shape_spec import ShapeSpec, StridedLayout, TiledLayout, expect_layout, expect_spec
from pjrt.capi._scope import documented

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
    """A ``PJRT_Buffer``.

    ``standing`` is what is known of it before a call: nothing, that it may be gone or is, or else the address of the
    kind of argument that it was found to be.
    """

    cdef void *alive(self) except NULL:
        """Return the pointer for a use of the contents. Plugins end the process over a buffer without any."""
        cdef void *native = self.use()
        if self.standing <= GONE and self.is_gone():
            raise FailedPreconditionError("the buffer was deleted or donated; make a new one")
        return native

    cdef bint is_gone(self) except -1:
        """Whether the buffer was deleted or donated. The plugin is asked only where it may have been."""
        if self.standing != PERHAPS_GONE:
            return self.standing == GONE
        return self.was_taken()

    cdef bint was_taken(self) except -1:
        """Ask the plugin whether the buffer was deleted or donated."""
        try:
            return self.is_deleted
        except PjrtError:
            return False  # the call that follows finds out

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
        if self.native == NULL or self.standing == GONE or self.scope.is_shut():
            return True
        start(&args, PJRT_Buffer_IsDeleted_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.native
        Handle.call(self, SLOT_PJRT_Buffer_IsDeleted, &args)
        return bool(args.is_deleted)

    def delete(self):
        cdef PJRT_Buffer_Delete_Args args
        if self.native == NULL or self.standing == GONE or self.scope.is_shut():
            return
        start(&args, PJRT_Buffer_Delete_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.native
        self.call(SLOT_PJRT_Buffer_Delete, &args)
        self.standing = GONE

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

    def __array__(self, dtype=None, copy=None):
        return read_value(self) if dtype is None and copy is not False else Buffer.__array__(self, dtype, copy)

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
        args.buffer = <PJRT_Buffer *>self.alive()
        args.dst_device = native_device(<ClientScope>self.scope, device)
        self.call(SLOT_PJRT_Buffer_CopyToDevice, &args)  # Buffer.copy_to
        return new_buffer(<ClientScope>self.scope, args.dst_buffer)

    def _copy_to_memory(self, memory_space):
        cdef PJRT_Buffer_CopyToMemory_Args args
        cdef Pin pin = Pin.of(self.scope)
        start(&args, PJRT_Buffer_CopyToMemory_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.alive()
        args.dst_memory = native_memory(<ClientScope>self.scope, memory_space)
        self.call(SLOT_PJRT_Buffer_CopyToMemory, &args)  # Buffer.copy_to
        return new_buffer(<ClientScope>self.scope, args.dst_buffer)

    def bitcast(self, element_type, shape, layout=None):
        cdef PJRT_Buffer_Bitcast_Args args
        cdef Pin pin = Pin.of(self.scope)
        cdef Block dims = shape_block(shape, element_type)
        cdef NativeLayout native = fitting_layout(layout, len(shape))
        self._expect_same_size(ShapeSpec(shape, element_type))
        start(&args, PJRT_Buffer_Bitcast_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.alive()
        args.element_type = <PJRT_Buffer_Type><int>ElementType.of(element_type)
        args.dims = <int64_t *>dims.data
        args.num_dims = len(shape)
        args.device_layout = native.pointer
        self.call(SLOT_PJRT_Buffer_Bitcast, &args)
        return new_buffer(<ClientScope>self.scope, args.out_buffer)

    def _expect_same_size(self, spec):
        """Refuse a bitcast to more or fewer bits, which would show memory beside the buffer."""
        try:
            own = ShapeSpec(self.shape, self.element_type)
        except PjrtError:
            return  # as with an older plugin; it judges itself
        if own.size * own.element_type.bits != spec.size * spec.element_type.bits and (
            own.size_in_bytes != spec.size_in_bytes  # elements of less than a byte may take one
        ):
            raise InvalidArgumentError(f"expected a shape and type of as many bits as {own} has, found {spec}")

    def donate_with_control_dependency(self, dependency):
        cdef PJRT_Buffer_DonateWithControlDependency_Args args
        cdef Pin pin = Pin.of(self.scope)
        expect(dependency, Future, "a future to wait for")
        start(&args, PJRT_Buffer_DonateWithControlDependency_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>self.alive()
        self.call(SLOT_PJRT_Buffer_DonateWithControlDependency, &args)
        self.standing = GONE
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
        increase.buffer = <PJRT_Buffer *>self.alive()
        self.call(SLOT_PJRT_Buffer_IncreaseExternalReferenceCount, &increase)
        reference = PluginExternalReference()
        (<ExternalReferenceCore>reference).buffer = self
        (<ExternalReferenceCore>reference).held = <void *>self
        pjrt_counter_add(&self.references, 1)
        (<ExternalReferenceCore>reference).address = _EXTERNAL_POINTER.ask(self)
        return reference

    def unsafe_pointer(self):
        self.alive()
        return _POINTER.ask(self)

    def raw(self):
        from pjrt.capi._transfers import raw_alias

        return raw_alias(self)

    def wait_until_ready_on_stream(self, stream):
        cdef PJRT_Wait_Until_Buffer_Ready_On_Stream_Args args
        start(&args, PJRT_Wait_Until_Buffer_Ready_On_Stream_Args_STRUCT_SIZE)
        args.stream = whole(stream, "a stream as a whole number")
        args.buffer = <PJRT_Buffer *>self.alive()
        self.call(SLOT_PJRT_Wait_Until_Buffer_Ready_On_Stream, &args)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        from pjrt.capi._transfers import to_capsule

        return to_capsule(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self):
        from pjrt.capi._transfers import device_of

        return device_of(self)

    def copy_to_remote_device(self, descriptor):
        from pjrt.capi._transfers import send_buffer

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

    cdef BufferCore buffer
    cdef size_t address
    cdef pjrt_pointer held  # not null until the count was given back

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


cdef int check_range(buffer, offset, size) except -1:
    """Refuse bytes that do not lie in a buffer, whole or raw.

    Raises:
        OutOfRangeError: they begin before the buffer, or end behind it.
    """
    try:
        total = buffer.on_device_size
    except PjrtError:
        total = None  # as with an older plugin; it judges itself
    if offset < 0 or size < 0 or (total is not None and offset + size > total):
        has = "a buffer begins at 0" if total is None else f"the buffer has {total}"
        raise OutOfRangeError(f"bytes {offset} to {offset + size} were asked for, and {has}")
    return 0


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


# To the host: as an array, or the bytes as they lie on the device.

cdef enum:
    MOST_DIMENSIONS = 64

# 63, 62, … 0: the last n of them are row-major for n dimensions.
cdef int64_t[MOST_DIMENSIONS] _DESCENDING
cdef int _position
for _position in range(MOST_DIMENSIONS):
    _DESCENDING[_position] = MOST_DIMENSIONS - 1 - _position


cdef object read_array(BufferCore buffer, out, layout):
    """``Buffer.to_host``: copy into ``out`` or a new array."""
    shape = buffer.unpadded_shape if buffer.dynamic_dimensions else buffer.shape
    dtype = buffer.element_type.dtype
    if out is None:
        if layout is None:
            return _copy(buffer, _new(shape, dtype), None)
        return _copy(buffer, _empty(shape, dtype, layout), _order(layout, shape))
    expect_out(out, shape, dtype)
    if out.flags.c_contiguous:
        return _copy(buffer, out, None)
    return _copy(buffer, _new(shape, dtype), None).then(_Filler(out))


cdef enum Reading:
    BY_TRANSFERS = 0
    LATE_ONCE = 1  # a transfer had not ended when its call returned: perhaps the value was not there yet
    IN_PLACE = 2  # transfers of values that are there end later
    ONLY_BY_TRANSFERS = 3  # the plugin refuses external references


cdef object read_value(BufferCore buffer):
    """Return a new array with the value; wait for it.

    Where the transfer of a value that is there has not ended when its call returns, it passes the plugin's threads: 130
    us for a small array of XLA's CPU plugin. From then on the client's values are copied in place, which takes 5 us.
    """
    cdef ClientScope scope = <ClientScope>buffer.scope
    cdef bint was_ready = False
    if scope.reading == IN_PLACE:
        array = copied_in_place(buffer)
        if array is not None:
            return array
    elif scope.reading == LATE_ONCE and not buffer.is_gone():
        was_ready = buffer.ready().done()
    future = read_array(buffer, None, None)
    if scope.reading < IN_PLACE:
        if not future.done():
            scope.reading = IN_PLACE if was_ready else LATE_ONCE
        elif was_ready:
            scope.reading = BY_TRANSFERS
    return future.result()


cdef object copied_in_place(BufferCore buffer):
    """Return a copy of a value that lies in the host's memory as numpy has it, or None; wait for it."""
    cdef Pin pin = Pin.of(buffer.scope)
    cdef HostMemory memory
    cdef const void *source
    try:
        dtype = buffer.element_type.dtype
        if not buffer.is_on_cpu or dtype.itemsize * 8 != buffer.element_type.bits or buffer.dynamic_dimensions:
            return None
        layout = buffer.layout
        if not isinstance(layout, TiledLayout) or not layout.is_row_major:
            return None
        buffer.ready().result()
        array = _new(buffer.shape, dtype)
        if not array.nbytes or buffer.on_device_size != array.nbytes:
            return None
    except PjrtError:
        return None  # the transfer raises it, or does without what the plugin lacks
    try:
        reference = buffer.external_reference()
    except PjrtError:
        if not buffer.is_gone():
            (<ClientScope>buffer.scope).reading = ONLY_BY_TRANSFERS
        return None
    try:
        source = <const void *><size_t>reference.pointer
        if source == NULL:
            return None
        memory = HostMemory.of(array, True, "the array")
        with nogil:
            memcpy(memory.view.buf, source, memory.view.len)
    finally:
        reference.release()
    return array


def _new(shape, dtype):
    """Return a new array for a value of the device.

    Raises:
        ResourceExhaustedError: the host has no memory for the array.
        UnimplementedError: numpy has no arrays of that many dimensions or elements.
    """
    try:
        return np.empty(shape, dtype)
    except MemoryError as error:
        raise ResourceExhaustedError(f"no memory of the host for an array of {dtype}{list(shape)}: {error}") from error
    except ValueError as error:
        raise UnimplementedError(f"numpy cannot hold an array of {dtype}{list(shape)}: {error}") from error


cdef object _copy(BufferCore buffer, array, order):
    """Start the copy into an array whose memory is in one piece, in an order of dimensions (row-major for ``None``)."""
    cdef PJRT_Buffer_ToHostBuffer_Args args
    cdef PJRT_Buffer_MemoryLayout row_major
    cdef NativeLayout other
    cdef int rank = array.ndim
    cdef HostMemory memory = HostMemory.of(
        array if order is None else array.transpose(order.minor_to_major[::-1]), True, "out"
    )
    start(&args, PJRT_Buffer_ToHostBuffer_Args_STRUCT_SIZE)
    args.src = <PJRT_Buffer *>buffer.alive()
    args.dst = memory.at(0, memory.view.len)
    args.dst_size = memory.view.len
    if order is None:
        start(&row_major, PJRT_Buffer_MemoryLayout_STRUCT_SIZE)
        row_major.type = PJRT_Buffer_MemoryLayout_Type_Tiled
        start(&row_major.tiled, PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE)
        row_major.tiled.minor_to_major = &_DESCENDING[MOST_DIMENSIONS - rank]
        row_major.tiled.minor_to_major_size = rank
        args.host_layout = &row_major
    else:
        other = fitting_layout(order, rank)
        args.host_layout = other.pointer
    buffer.call(SLOT_PJRT_Buffer_ToHostBuffer, &args)  # Buffer.to_host
    return eager_future(buffer.scope, args.event, array, (memory, buffer))


class _Filler:
    """A callback that copies a value from memory of its own into an array that lies in pieces."""

    def __init__(self, out):
        self.out = out

    def __call__(self, array):
        self.out[...] = array
        return self.out


cdef object _order(layout, shape):
    """Return a host layout as a dense order of dimensions; hosts have no tiles."""
    if isinstance(expect_layout(layout), StridedLayout):
        if len(layout.byte_strides) != len(shape):
            raise InvalidArgumentError(
                f"the host's layout for shape {tuple(shape)} has {len(shape)} strides, found {layout.byte_strides}"
            )
        order = sorted(range(len(shape)), key=lambda d: (abs(layout.byte_strides[d]), -d))
        return TiledLayout(tuple(order))
    if layout.tiles or len(layout.minor_to_major) != len(shape):
        raise InvalidArgumentError(
            f"the host's layout for shape {tuple(shape)} is one of {len(shape)} dimensions without tiles, found "
            f"{layout}"
        )
    return layout


cdef object _empty(shape, dtype, layout):
    """Return a new array whose memory lies in the order of dimensions of a layout."""
    order = _order(layout, shape)
    major_to_minor = order.minor_to_major[::-1]
    physical = _new([shape[d] for d in major_to_minor], dtype)
    array = physical.transpose(np.argsort(major_to_minor))
    if isinstance(layout, StridedLayout) and array.size and array.strides != layout.byte_strides:
        raise InvalidArgumentError(
            f"the strides {layout.byte_strides} leave gaps or overlap; give an array as out instead"
        )
    return array


cdef object copy_raw(BufferCore buffer, out, offset, size):
    """``Buffer.copy_raw_to_host``."""
    cdef PJRT_Buffer_CopyRawToHost_Args args
    cdef HostMemory memory = HostMemory.of(out, True, "out")
    start(&args, PJRT_Buffer_CopyRawToHost_Args_STRUCT_SIZE)
    args.transfer_size = memory.view.len if size is None else whole(size, "a number of bytes, or None, as size")
    args.buffer = <PJRT_Buffer *>buffer.alive()
    args.dst = memory.at(0, args.transfer_size)
    args.offset = whole(offset, "an offset in bytes as a whole number")
    check_range(buffer, args.offset, args.transfer_size)
    buffer.call(SLOT_PJRT_Buffer_CopyRawToHost, &args)
    return eager_future(buffer.scope, args.event, None, (memory, buffer))


cdef object copy_raw_later(BufferCore buffer, out, offset, size):
    """``Buffer.copy_raw_to_host_future``: give the plugin the memory as soon as the future has it."""
    cdef PJRT_Buffer_CopyRawToHostFuture_Args args
    cdef _Destination destination = _Destination()
    expect(out, Future, "a future of the memory to copy to")
    start(&args, PJRT_Buffer_CopyRawToHostFuture_Args_STRUCT_SIZE)
    args.buffer = <PJRT_Buffer *>buffer.alive()
    args.offset = whole(offset, "an offset in bytes as a whole number")
    args.transfer_size = (
        buffer.on_device_size - args.offset if size is None else whole(size, "a number of bytes, or None, as size")
    )
    check_range(buffer, args.offset, args.transfer_size)
    buffer.call(SLOT_PJRT_Buffer_CopyRawToHostFuture, &args)
    destination.callback = args.future_ready_callback
    destination.data = args.callback_data
    destination.size = args.transfer_size
    done = eager_future(buffer.scope, args.event, None, (destination, buffer))
    out.add_done_callback(destination)
    return done


cdef class _Destination:
    """A callback of the future of the memory: gives the memory to the plugin, once, and keeps it."""

    cdef void (*callback)(PJRT_Buffer_CopyRawToHostFuture_Callback_Args *args) noexcept nogil
    cdef void *data
    cdef int64_t size
    cdef HostMemory memory

    def __call__(self, future):
        cdef PJRT_Buffer_CopyRawToHostFuture_Callback_Args args
        cdef bytes message
        start(&args, PJRT_Buffer_CopyRawToHostFuture_Callback_Args_STRUCT_SIZE)
        args.callback_data = self.data
        try:
            self.memory = HostMemory.of(future.result(), True, "the value of the future")
            args.dst = self.memory.at(0, self.size)
        except Exception as error:
            wrapped = PjrtError.wrap(error)
            message = wrapped.message.encode()
            args.error_code = <PJRT_Error_Code><int>wrapped.code
            args.error_message = message
            args.error_message_size = len(message)
        with nogil:
            self.callback(&args)


# New buffers: from the host's memory, uninitialized, failed, as an alias, over memory of the device.

_log = logging.getLogger("pjrt")

cdef dict _TYPE_OF_DTYPE = {}
cdef int _ONLY_DURING_CALL = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall
cdef int _MUTABLE = PJRT_HostBufferSemantics_kMutableZeroCopy


cdef object from_host(ClientScope scope, array, device, memory_space, layout, semantics, on_done):
    """``Client.buffer_from_host``: the plugin copies or borrows, as the semantics say."""
    cdef PJRT_Client_BufferFromHostBuffer_Args args
    cdef Pin pin = Pin.of(scope)
    cdef NativeLayout native
    cdef Py_buffer view
    cdef object source = array if isinstance(array, np.ndarray) else expect_array(array)
    cdef object number = _TYPE_OF_DTYPE.get(source.dtype)
    if number is None:
        number, source = _convert(source)
    start(&args, PJRT_Client_BufferFromHostBuffer_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>scope.native
    _place(scope, device, memory_space, &args.device, &args.memory)
    if layout is not None:
        native = fitting_layout(layout, source.ndim)
        args.device_layout = native.pointer
    args.type = <PJRT_Buffer_Type><int>number
    if type(semantics) is not HostBufferSemantics:
        raise unexpected(semantics, "one of pjrt.HostBufferSemantics as semantics")
    if on_done is not None:
        expect_callable(on_done, "a function, or None, as on_done_with_host_buffer")
    args.host_buffer_semantics = <PJRT_HostBufferSemantics><int>semantics
    if <int>args.host_buffer_semantics == _MUTABLE and not source.flags.writeable:
        raise InvalidArgumentError(
            "MUTABLE_ZERO_COPY lets the device write to the array, but the array is read-only; use IMMUTABLE_ZERO_COPY"
        )
    PyObject_GetBuffer(source, &view, PyBUF_STRIDES)
    try:
        args.data = view.buf
        args.dims = <const int64_t *>view.shape
        args.num_dims = view.ndim
        if not PyBuffer_IsContiguous(&view, b"C"):
            args.byte_strides = <const int64_t *>view.strides
            args.num_byte_strides = view.ndim
        scope.call(SLOT_PJRT_Client_BufferFromHostBuffer, &args)
    finally:
        PyBuffer_Release(&view)
    if <int>args.host_buffer_semantics == _ONLY_DURING_CALL and on_done is None:
        Event.of(scope, args.done_with_host_buffer)  # ready by contract; dropped, and with it destroyed
    else:
        _tell_when_done(eager_future(scope, args.done_with_host_buffer, None, source), on_done)
    return new_buffer(scope, args.buffer)


def _convert(source):
    """Return the element type of a dtype that is new here, and the array, converted to this machine's byte order."""
    kind = ElementType.of(source.dtype)
    if not source.dtype.isnative:
        return int(kind), source.astype(source.dtype.newbyteorder("="))
    _TYPE_OF_DTYPE[source.dtype] = int(kind)
    return int(kind), source


def _tell_when_done(future, on_done):
    if on_done is not None:
        future.add_done_callback(lambda _: on_done())


cdef int _place(ClientScope scope, device, memory_space, PJRT_Device **native, PJRT_Memory **memory) except -1:
    """Fill in the place of a new buffer: one of the two is enough, because the memory counts before the device."""
    if device is not None and memory_space is not None:
        choose_place(scope, device, memory_space)
    if memory_space is not None:
        memory[0] = native_memory(scope, memory_space)
    else:
        native[0] = native_device(scope, default_device(scope)) if device is None else addressable_device(scope, device)
    return 0


cdef Block _block_of(spec):
    return shape_block(expect_spec(spec).shape, spec.element_type)


cdef object _memory_or_default(ClientScope scope, memory_space):
    return default_device(scope).default_memory_space if memory_space is None else memory_space


cdef object uninitialized(ClientScope scope, spec, memory_space):
    """``Client.create_uninitialized_buffer``."""
    cdef PJRT_Client_CreateUninitializedBuffer_Args args
    cdef Pin pin = Pin.of(scope)
    cdef Block dims = _block_of(spec)
    cdef NativeLayout layout = fitting_layout(spec.layout, len(spec.shape))
    start(&args, PJRT_Client_CreateUninitializedBuffer_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>scope.native
    args.shape_dims = <int64_t *>dims.data
    args.shape_num_dims = len(spec.shape)
    args.shape_element_type = <PJRT_Buffer_Type><int>spec.element_type
    args.shape_layout = layout.pointer
    _place(scope, None, memory_space, &args.device, &args.memory)
    scope.call(SLOT_PJRT_Client_CreateUninitializedBuffer, &args)
    return new_buffer(scope, args.buffer)


cdef object of_error(ClientScope scope, error, spec, memory_space):
    """``Client.create_error_buffer``."""
    cdef PJRT_Client_CreateErrorBuffer_Args args
    cdef Pin pin = Pin.of(scope)
    cdef Block dims = _block_of(spec)
    cdef NativeLayout layout = fitting_layout(spec.layout, len(spec.shape))
    cdef NamedValues payload = payload_values(expect(error, PjrtError, "an error as pjrt.PjrtError"))
    cdef bytes message = error.message.encode()
    start(&args, PJRT_Client_CreateErrorBuffer_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>scope.native
    args.error_code = <PJRT_Error_Code><int>error.code
    args.error_message = message
    args.error_message_size = len(message)
    args.shape_dims = <int64_t *>dims.data
    args.shape_num_dims = len(spec.shape)
    args.shape_element_type = <PJRT_Buffer_Type><int>spec.element_type
    args.shape_layout = layout.pointer
    args.memory = native_memory(scope, _memory_or_default(scope, memory_space))
    args.payload = payload.data
    args.num_payload = payload.size
    scope.call(SLOT_PJRT_Client_CreateErrorBuffer, &args)
    return new_buffer(scope, args.buffer)


cdef tuple alias(ClientScope scope, spec, memory_space):
    """``Client.create_alias_buffer``: return the buffer, and the object that decides which buffer it is an alias of."""
    cdef PJRT_Client_CreateAliasBuffer_Args args
    cdef Pin pin = Pin.of(scope)
    cdef Block dims = _block_of(spec)
    # XLA's plugins know no default layout of an alias.
    cdef object stated = TiledLayout.row_major(len(spec.shape)) if spec.layout is None else spec.layout
    cdef NativeLayout layout = fitting_layout(stated, len(spec.shape))
    start(&args, PJRT_Client_CreateAliasBuffer_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>scope.native
    args.memory = native_memory(scope, _memory_or_default(scope, memory_space))
    args.shape_dims = <int64_t *>dims.data
    args.shape_num_dims = len(spec.shape)
    args.shape_element_type = <PJRT_Buffer_Type><int>spec.element_type
    args.shape_layout = layout.pointer
    scope.call(SLOT_PJRT_Client_CreateAliasBuffer, &args)
    fulfillment = PluginAliasFulfillment()
    (<FulfillmentCore>fulfillment).open(scope, args.fulfill_alias_buffer_cb, 0)
    return new_buffer(scope, args.alias_buffer), fulfillment


cdef class FulfillmentCore(Handle):
    """A ``PJRT_FulfillAliasBufferCallback``: used once, at the latest when it is dropped."""

    def fulfill(self, buffer):
        if not isinstance(buffer, BufferCore) or (<BufferCore>buffer).scope is not self.scope:
            raise InvalidArgumentError(f"an alias is of a buffer of the same client, found {buffer!r}")
        self._settle(buffer, None)

    def fail(self, error):
        self._settle(None, expect(error, PjrtError, "an error as pjrt.PjrtError"))

    def _settle(self, buffer, error):
        cdef void *native
        if buffer is not None:
            (<BufferCore>buffer).alive()
        if self.native == NULL:
            self._refuse()
        self.hold()
        try:
            native = self.take()
            if native == NULL:
                self._refuse()
            self._fulfill(<size_t>native, buffer, error)
        finally:
            self.let_go()

    def _refuse(self):
        raise FailedPreconditionError("the alias was fulfilled already, or its client was closed; it is done once")

    def _fulfill(self, size_t native, buffer, error):
        cdef PJRT_Client_FulfillAliasBuffer_Args args
        cdef bytes message = b"" if error is None else error.message.encode()
        start(&args, PJRT_Client_FulfillAliasBuffer_Args_STRUCT_SIZE)
        args.client = <PJRT_Client *>(<ClientScope>self.scope).native
        args.buffer = NULL if buffer is None else <PJRT_Buffer *>(<BufferCore>buffer).use()
        args.status_code = <PJRT_Error_Code>(0 if error is None else <int>error.code)
        args.error_message = message
        args.error_message_size = len(message)
        args.fulfill_alias_buffer_cb = <PJRT_FulfillAliasBufferCallback *>native
        self.scope.api.call(SLOT_PJRT_Client_FulfillAliasBuffer, &args)  # AliasFulfillment.fulfill

    cdef int destroy(self, void *native) except -1:
        self._fulfill(
            <size_t>native,
            None,
            FailedPreconditionError("the alias was dropped before it was fulfilled"),
        )
        return 0


@documented
class PluginAliasFulfillment(FulfillmentCore, AliasFulfillment):
    """The one way to fulfill an alias buffer of a plugin."""

    __slots__ = ()


cdef object view_of_device(ClientScope scope, pointer, spec, device, memory_space, on_delete, stream):
    """``Client.create_view_of_device_buffer``."""
    cdef PJRT_Client_CreateViewOfDeviceBuffer_Args args
    cdef Pin pin = Pin.of(scope)
    cdef Block dims = _block_of(spec)
    cdef NativeLayout layout = fitting_layout(spec.layout, len(spec.shape))
    place, memory_space = choose_place(scope, device, memory_space)
    if on_delete is not None:
        expect_callable(on_delete, "a function, or None, as on_delete")
    start(&args, PJRT_Client_CreateViewOfDeviceBuffer_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>scope.native
    args.device_buffer_ptr = <void *>(
        0 if pointer == 0 and not spec.size else address(pointer, "the address of memory as a whole number")
    )
    args.dims = <int64_t *>dims.data
    args.num_dims = len(spec.shape)
    args.element_type = <PJRT_Buffer_Type><int>spec.element_type
    args.layout = layout.pointer
    args.device = addressable_device(scope, place)
    args.memory = native_memory(scope, memory_space)
    args.stream = <intptr_t>(0 if stream is None else whole(stream, "a stream as a whole number, or None"))
    args.on_delete_callback = _without_effect  # XLA's plugins call it, also where it is null
    if on_delete is not None:
        args.on_delete_callback = _on_delete
        args.on_delete_callback_arg = ticket_for(on_delete)
    try:
        scope.call(SLOT_PJRT_Client_CreateViewOfDeviceBuffer, &args)
    except BaseException:
        redeem(args.on_delete_callback_arg)
        raise
    return new_buffer(scope, args.buffer)


cdef void _without_effect(void *pointer, void *user_arg) noexcept nogil:
    pass


cdef void _on_delete(void *pointer, void *user_arg) noexcept nogil:
    # Any thread. Where the gate is shut, the owner is not called: the process is ending.
    if gate_enter():
        _tell(user_arg)
        gate_leave()


cdef void _tell(void *user_arg) noexcept with gil:
    on_delete = redeem(user_arg)
    if on_delete is None:
        return
    try:
        on_delete()
    except BaseException:
        _log.exception("the callback of a view of device memory raised; the exception goes no further")
