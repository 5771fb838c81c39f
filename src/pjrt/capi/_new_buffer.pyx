"""New buffers: from the host's memory, uninitialized, failed, as an alias, over memory of the device."""

from cpython.buffer cimport PyBUF_STRIDES, Py_buffer, PyBuffer_IsContiguous, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, intptr_t

from pjrt.capi._api cimport start
from pjrt.capi._buffer cimport BufferCore, new_buffer
from pjrt.capi._device cimport native_device, native_memory, payload_values
from pjrt.capi._event cimport Event, eager_future
from pjrt.capi._gate cimport gate_enter, gate_leave
from pjrt.capi._gen_abi cimport *
from pjrt.capi._pin cimport Pin
from pjrt.capi._scope cimport ClientScope, Handle
from pjrt.capi._ticket cimport redeem, ticket_for
from pjrt.capi._values cimport Block, NamedValues, NativeLayout, int64_block, native_layout, whole

import logging

import numpy as np

from pjrt.api.buffer import AliasFulfillment
from pjrt.api.checks import expect, expect_array, expect_callable, expect_int, unexpected
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, PjrtError
from pjrt.api.buffer import HostBufferSemantics
from pjrt.api.executable import choose_place
from pjrt.api.executable import default_device
from pjrt.api.shape_spec import expect_spec
from pjrt.capi._documented import documented

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
        native = native_layout(layout)
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
        native[0] = native_device(scope, device if device is not None else default_device(scope))
    return 0


cdef object _memory_or_default(ClientScope scope, memory_space):
    return default_device(scope).default_memory_space if memory_space is None else memory_space


cdef object uninitialized(ClientScope scope, spec, memory_space):
    """``Client.create_uninitialized_buffer``."""
    cdef PJRT_Client_CreateUninitializedBuffer_Args args
    cdef Pin pin = Pin.of(scope)
    cdef Block dims = int64_block(expect_spec(spec).shape)
    cdef NativeLayout layout = native_layout(spec.layout)
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
    cdef Block dims = int64_block(expect_spec(spec).shape)
    cdef NativeLayout layout = native_layout(spec.layout)
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
    cdef Block dims = int64_block(expect_spec(spec).shape)
    cdef NativeLayout layout = native_layout(spec.layout)
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
            (<BufferCore>buffer).use()
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
    cdef Block dims = int64_block(expect_spec(spec).shape)
    cdef NativeLayout layout = native_layout(spec.layout)
    place, memory_space = choose_place(scope, device, memory_space)
    if on_delete is not None:
        expect_callable(on_delete, "a function, or None, as on_delete")
    start(&args, PJRT_Client_CreateViewOfDeviceBuffer_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>scope.native
    args.device_buffer_ptr = <void *><size_t>expect_int(pointer, "the address of memory as a whole number")
    args.dims = <int64_t *>dims.data
    args.num_dims = len(spec.shape)
    args.element_type = <PJRT_Buffer_Type><int>spec.element_type
    args.layout = layout.pointer
    args.device = native_device(scope, place)
    args.memory = native_memory(scope, memory_space)
    args.stream = <intptr_t>(0 if stream is None else whole(stream, "a stream as a whole number, or None"))
    if on_delete is not None:
        args.on_delete_callback = _on_delete
        args.on_delete_callback_arg = ticket_for(on_delete)
    try:
        scope.call(SLOT_PJRT_Client_CreateViewOfDeviceBuffer, &args)
    except BaseException:
        redeem(args.on_delete_callback_arg)
        raise
    return new_buffer(scope, args.buffer)


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
