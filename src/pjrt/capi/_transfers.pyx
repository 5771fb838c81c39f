"""Transfers beside those of a whole array: piece by piece, as raw bytes, to other processes, by DLPack.

Loaded when the first of them is asked for.
"""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyCapsule_SetName
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pjrt.capi._api cimport (
    Block, NamedValues, NativeLayout, blob, count, deleter_t, encoded, fitting_layout, function_t, gate_enter, gate_leave,
    int64_block, redeem, shape_block, start, ticket_for, whole
)
from pjrt.capi._buffer cimport BufferCore, check_range, new_buffer
from pjrt.capi._device cimport addressable_device, native_memory
from pjrt.abi.generated.declarations cimport *
from pjrt.capi._scope cimport (
    ClientScope, ClosableHandle, Getter, Handle, HostMemory, Pin, Scope, eager_future, lazy_future
)

import numpy as np

from pjrt.api.buffer import AsyncHostToDeviceTransferManager, CopyToDeviceStream, CrossHostReceive, RawBuffer
from pjrt.api.checks import expect, expect_array
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    FailedPreconditionError, InternalError, InvalidArgumentError, OutOfRangeError, PjrtError, UnimplementedError
)
from pjrt.api.executable import default_device
from pjrt.api.future import Future, Promise
from pjrt.api.shape_spec import ShapeSpec, TiledLayout
from pjrt.capi._scope import documented

# Asynchronous host-to-device transfers: buffers that are filled piece by piece.


@cython.no_gc_clear
cdef class TransferManagerCore(ClosableHandle):
    """A ``PJRT_AsyncHostToDeviceTransferManager``.

    XLA's managers end the process, or write beside a buffer, where an index or a range is wrong, or a buffer is taken
    twice.
    """

    cdef tuple specs
    cdef set retrieved
    cdef set filled

    cdef int _index(self, index) except -1:
        cdef int number = <int>whole(index, "the number of a buffer", 32)
        self.use()
        if not 0 <= number < len(self.specs):
            raise OutOfRangeError(f"there is no buffer {number} among {len(self.specs)}")
        return number

    cdef int _open(self, index) except -1:
        """Return the number of a buffer that can take more data."""
        cdef int number = self._index(index)
        if number in self.filled:
            raise FailedPreconditionError(
                f"buffer {number} had its last transfer, or its error; give is_last_transfer=False where more follows"
            )
        return number

    def buffer_size(self, index):
        cdef PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args args
        start(&args, PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args_STRUCT_SIZE)
        args.transfer_manager = <PJRT_AsyncHostToDeviceTransferManager *>self.use()
        args.buffer_index = self._index(index)
        self.call(SLOT_PJRT_AsyncHostToDeviceTransferManager_BufferSize, &args)
        return args.buffer_size

    def retrieve_buffer(self, index):
        cdef PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args args
        cdef Pin pin = Pin.of(self.scope)
        start(&args, PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args_STRUCT_SIZE)
        args.transfer_manager = <PJRT_AsyncHostToDeviceTransferManager *>self.use()
        args.buffer_index = self._index(index)
        if args.buffer_index in self.retrieved:
            raise FailedPreconditionError(f"buffer {args.buffer_index} was retrieved already, which is done once")
        self.call(SLOT_PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer, &args)
        self.retrieved.add(args.buffer_index)
        return new_buffer(<ClientScope>self.scope, args.buffer_out)

    def transfer_data(self, index, data, offset=0, *, is_last_transfer=True):
        cdef PJRT_AsyncHostToDeviceTransferManager_TransferData_Args args
        cdef HostMemory memory = HostMemory.of(data, False, "the data of a transfer")
        start(&args, PJRT_AsyncHostToDeviceTransferManager_TransferData_Args_STRUCT_SIZE)
        args.transfer_manager = <PJRT_AsyncHostToDeviceTransferManager *>self.use()
        args.buffer_index = self._open(index)
        args.data = memory.at(0, memory.view.len)
        args.offset = whole(offset, "an offset in bytes as a whole number")
        args.transfer_size = memory.view.len
        args.is_last_transfer = is_last_transfer
        self._check_range(args.buffer_index, args.offset, args.transfer_size)
        self.call(SLOT_PJRT_AsyncHostToDeviceTransferManager_TransferData, &args)
        if is_last_transfer:
            self.filled.add(args.buffer_index)
        return eager_future(self.scope, args.done_with_h2d_transfer, None, memory)

    def _check_range(self, index, offset, size):
        try:
            total = self.buffer_size(index)
        except PjrtError:
            total = None  # as with an older plugin; it judges itself
        if offset < 0 or (total is not None and offset + size > total):
            has = "a buffer begins at 0" if total is None else f"buffer {index} has {total}"
            raise OutOfRangeError(f"bytes {offset} to {offset + size} are to be written, and {has}")

    def transfer_literal(self, index, array):
        cdef PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args args
        whole_array = expect_array(array)
        source = np.ascontiguousarray(whole_array).reshape(whole_array.shape)  # the former makes scalars vectors
        cdef HostMemory memory = HostMemory.of(source, False, "the array of a transfer")
        cdef Block dims = int64_block(source.shape)
        cdef NativeLayout layout = fitting_layout(TiledLayout.row_major(source.ndim), source.ndim)
        cdef int number = self._open(index)
        spec, given = self.specs[number], ShapeSpec.of(source)
        if (given.shape, given.element_type) != (spec.shape, spec.element_type):
            raise InvalidArgumentError(f"buffer {number} is for an array of {spec}, found one of {given}")
        start(&args, PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args_STRUCT_SIZE)
        args.transfer_manager = <PJRT_AsyncHostToDeviceTransferManager *>self.use()
        args.buffer_index = number
        args.data = memory.at(0, memory.view.len)
        args.shape_dims = <int64_t *>dims.data
        args.shape_num_dims = source.ndim
        args.shape_element_type = <PJRT_Buffer_Type><int>given.element_type
        args.shape_layout = layout.pointer  # XLA's plugins end the process where there is none
        self.call(SLOT_PJRT_AsyncHostToDeviceTransferManager_TransferLiteral, &args)
        self.filled.add(number)
        return eager_future(self.scope, args.done_with_h2d_transfer, None, memory)

    def set_buffer_error(self, index, error):
        cdef PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args args
        cdef bytes message = expect(error, PjrtError, "an error as pjrt.PjrtError").message.encode()
        start(&args, PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args_STRUCT_SIZE)
        args.transfer_manager = <PJRT_AsyncHostToDeviceTransferManager *>self.use()
        args.buffer_index = self._open(index)
        args.error_code = <PJRT_Error_Code><int>error.code
        args.error_message = message
        args.error_message_size = len(message)
        self.call(SLOT_PJRT_AsyncHostToDeviceTransferManager_SetBufferError, &args)
        self.filled.add(args.buffer_index)

    def add_metadata(self, metadata):
        cdef PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args args
        cdef NamedValues values = NamedValues(metadata, "the metadata of a transfer")
        start(&args, PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args_STRUCT_SIZE)
        args.transfer_manager = <PJRT_AsyncHostToDeviceTransferManager *>self.use()
        args.transfer_metadata = values.data
        args.num_metadata = values.size
        self.call(SLOT_PJRT_AsyncHostToDeviceTransferManager_AddMetadata, &args)

    def close(self):
        self.free()


@documented
class PluginTransferManager(TransferManagerCore, AsyncHostToDeviceTransferManager):
    """A manager of transfers that fill new buffers piece by piece (``PJRT_AsyncHostToDeviceTransferManager``)."""

    __slots__ = ()

    device = Getter("PJRT_AsyncHostToDeviceTransferManager_Device")
    buffer_count = Getter("PJRT_AsyncHostToDeviceTransferManager_BufferCount")


def transfer_manager(ClientScope scope, specs, memory_space):
    """``Client.create_buffers_for_async_host_to_device``."""
    cdef PJRT_Client_CreateBuffersForAsyncHostToDevice_Args args
    cdef Pin pin = Pin.of(scope)
    cdef size_t number = len(specs), index
    cdef Block shapes = Block.of(number * sizeof(PJRT_ShapeSpec))
    cdef Block layouts = Block.of(number * sizeof(void *))
    cdef Block dims
    cdef NativeLayout layout
    keep = []
    for index in range(number):
        spec = specs[index]
        dims = shape_block(spec.shape, spec.element_type)
        layout = fitting_layout(spec.layout, len(spec.shape))
        keep.append((dims, layout))
        _fill_shape(&(<PJRT_ShapeSpec *>shapes.data)[index], <int64_t *>dims.data, spec)
        (<PJRT_Buffer_MemoryLayout **>layouts.data)[index] = layout.pointer
    start(&args, PJRT_Client_CreateBuffersForAsyncHostToDevice_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>scope.native
    args.shape_specs = <PJRT_ShapeSpec *>shapes.data
    args.num_shape_specs = number
    if any(spec.layout is not None for spec in specs):
        args.device_layouts = <PJRT_Buffer_MemoryLayout **>layouts.data
        args.num_device_layouts = number
    if memory_space is None:
        memory_space = default_device(scope).default_memory_space
    args.memory = native_memory(scope, memory_space)
    scope.call(SLOT_PJRT_Client_CreateBuffersForAsyncHostToDevice, &args)
    manager = PluginTransferManager()
    (<TransferManagerCore>manager).specs = tuple(specs)
    (<TransferManagerCore>manager).retrieved = set()
    (<TransferManagerCore>manager).filled = set()
    (<Handle>manager).open(
        scope,
        args.transfer_manager,
        SLOT_PJRT_AsyncHostToDeviceTransferManager_Destroy,  # AsyncHostToDeviceTransferManager.close
    )
    return manager


cdef int _fill_shape(PJRT_ShapeSpec *target, int64_t *dims, spec) except -1:
    start(target, PJRT_ShapeSpec_STRUCT_SIZE)
    target.dims = dims
    target.num_dims = len(spec.shape)
    target.element_type = <PJRT_Buffer_Type><int>spec.element_type
    return 0


# Streams of chunks to a program that receives from the host.

@cython.no_gc_clear
cdef class StreamCore(ClosableHandle):
    """A ``PJRT_CopyToDeviceStream``; freed when it is dropped."""

    def add_chunk(self, data):
        cdef PJRT_CopyToDeviceStream_AddChunk_Args args
        cdef PJRT_Chunk chunk
        cdef HostMemory memory = HostMemory.of(data, False, "a chunk")
        start(&args, PJRT_CopyToDeviceStream_AddChunk_Args_STRUCT_SIZE)
        args.stream = <PJRT_CopyToDeviceStream *>self.use()
        chunk.size = memory.view.len
        chunk.data = malloc(chunk.size or 1)  # a copy, which the plugin frees when it has used it
        chunk.deleter = _free_chunk
        chunk.deleter_arg = NULL
        if chunk.data == NULL:
            raise MemoryError(f"no {chunk.size} bytes of memory for a chunk")
        memcpy(chunk.data, memory.at(0, memory.view.len), chunk.size)
        args.chunk = &chunk
        self.call(SLOT_PJRT_CopyToDeviceStream_AddChunk, &args)
        return lazy_future(self.scope, args.transfer_complete, None)


cdef void _free_chunk(void *data, void *deleter_arg) noexcept nogil:
    free(data)


@documented
class PluginCopyToDeviceStream(StreamCore, CopyToDeviceStream):
    """A stream of chunks to a program of a plugin that receives from the host (``PJRT_CopyToDeviceStream``)."""

    __slots__ = ()

    total_bytes = Getter("PJRT_CopyToDeviceStream_TotalBytes")
    granule_size = Getter("PJRT_CopyToDeviceStream_GranuleSize")
    current_bytes = Getter("PJRT_CopyToDeviceStream_CurrentBytes")


# The RawBuffer extension: the bytes behind a buffer.

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
        check_range(self, args.offset, args.transfer_size)
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
        check_range(self, args.offset, args.transfer_size)
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
    args.buffer = <PJRT_Buffer *>buffer.alive()
    buffer.call(SLOT_PJRT_RawBuffer_CreateRawAliasOfBuffer, &args)
    raw = PluginRawBuffer()
    (<Handle>raw).open(buffer.scope, args.raw_buffer, SLOT_PJRT_RawBuffer_Destroy)
    return raw


# The CrossHostTransfers extension: buffers sent between the devices of different processes.


cdef class _Shapes:
    """Shapes in the form of the extension: one array for each property."""

    cdef size_t number
    cdef Block sizes
    cdef Block dims
    cdef Block types
    cdef Block layouts
    cdef list keep
    cdef bint laid_out

    def __init__(self, specs):
        cdef size_t index
        cdef Block numbers
        cdef NativeLayout layout
        self.number = len(specs)
        self.sizes = int64_block([len(spec.shape) for spec in specs])
        self.dims = Block.of(self.number * sizeof(void *))
        self.types = Block.of(self.number * sizeof(PJRT_Buffer_Type))
        self.layouts = Block.of(self.number * sizeof(void *))
        self.keep = []
        for index in range(self.number):
            spec = specs[index]
            numbers = shape_block(spec.shape, spec.element_type)
            layout = fitting_layout(spec.layout, len(spec.shape))
            self.keep += [numbers, layout]
            self.laid_out = self.laid_out or spec.layout is not None
            (<int64_t **>self.dims.data)[index] = <int64_t *>numbers.data
            (<PJRT_Buffer_Type *>self.types.data)[index] = <PJRT_Buffer_Type><int>spec.element_type
            (<PJRT_Buffer_MemoryLayout **>self.layouts.data)[index] = layout.pointer


def send_buffers(ClientScope client, buffers, destinations, keys):
    """``Client.cross_host_send_buffers``."""
    cdef PJRT_Transfers_PJRT_Client_CrossHostSendBuffers_Args args
    cdef size_t number = len(buffers), index
    cdef Block natives = Block.of(number * sizeof(void *))
    cdef Block events = Block.of(number * sizeof(void *))
    cdef Block ids = int64_block(destinations)
    cdef Block tags = int64_block(keys)
    _check_lengths(number, destinations, keys)
    for index in range(number):
        buffer = buffers[index]
        if not isinstance(buffer, BufferCore) or (<BufferCore>buffer).scope is not client:
            raise InvalidArgumentError(f"a client sends buffers of its own, found {buffer!r}")
        (<void **>natives.data)[index] = (<BufferCore>buffer).alive()
        (<void **>events.data)[index] = NULL
    start(&args, PJRT_Transfers_PJRT_Client_CrossHostSendBuffers_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>client.native
    args.num_buffers = number
    args.buffers = <PJRT_Buffer **>natives.data
    args.dst_global_device_ids = <int64_t *>ids.data
    args.transfer_keys = <int64_t *>tags.data
    args.send_events = <PJRT_Event **>events.data
    client.call(SLOT_PJRT_Transfers_PJRT_Client_CrossHostSendBuffers, &args)
    return [lazy_future(client, (<PJRT_Event **>events.data)[index], None) for index in range(number)]


def receive_buffers(ClientScope client, specs, device, sources, keys):
    """``Client.cross_host_receive_buffers``."""
    cdef PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers_Args args
    cdef Pin pin = Pin.of(client)
    cdef _Shapes shapes = _Shapes(specs)
    cdef size_t index
    cdef Block buffers = Block.of(shapes.number * sizeof(void *))
    cdef Block ids = int64_block(sources)
    cdef Block tags = int64_block(keys)
    _check_lengths(shapes.number, sources, keys)
    start(&args, PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>client.native
    args.num_shapes = shapes.number
    args.shape_num_dims = <size_t *>shapes.sizes.data
    args.num_dims = <const int64_t **>shapes.dims.data
    args.element_types = <PJRT_Buffer_Type *>shapes.types.data
    args.layouts = <PJRT_Buffer_MemoryLayout **>shapes.layouts.data if shapes.laid_out else NULL
    args.device = addressable_device(client, device)
    args.src_global_device_ids = <int64_t *>ids.data
    args.transfer_keys = <int64_t *>tags.data
    args.buffers = <PJRT_Buffer **>buffers.data
    client.call(SLOT_PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers, &args)
    return [new_buffer(client, (<PJRT_Buffer **>buffers.data)[index]) for index in range(shapes.number)]


def _check_lengths(number, devices, keys):
    for device in devices:
        if device < 0:
            raise InvalidArgumentError(f"the ids of devices are 0 or more, found {device}; see client.devices")
    if len(devices) != number or len(keys) != number:
        raise InvalidArgumentError(
            f"each buffer has one device and one key: found {number} buffers, {len(devices)} devices, {len(keys)} keys"
        )


# The first generation of the extension: the receiver makes descriptors, which the caller brings to the sender.


cdef class ReceiveCore:
    """Buffers that wait for a sender who has their descriptors."""

    cdef ClientScope scope
    cdef readonly tuple buffers
    cdef object promise
    cdef PJRT_Transfers_CrossHostSendCancelNotifier cancel_notifier
    cdef void *cancel_arg

    @property
    def descriptors(self):
        return self.promise.future

    def cancel(self, index, reason):
        cdef bytes descriptor, message = encoded(reason, "a reason as a str")
        cdef PJRT_Transfers_CrossHostSendCancelNotifier notifier = self.cancel_notifier
        cdef void *argument = self.cancel_arg
        cdef char *data
        cdef char *text_data = message
        cdef size_t size, text_size = len(message)
        cdef void *canceled_arg
        if not 0 <= index < len(self.buffers):
            raise OutOfRangeError(f"there is no buffer {index} among {len(self.buffers)}")
        if notifier == NULL:
            raise FailedPreconditionError(
                "a transfer can be cancelled once its descriptors are available; wait for receive.descriptors first"
            )
        descriptor = self.promise.future.result()[index]
        data, size = descriptor, len(descriptor)
        done = Promise()
        canceled_arg = ticket_for((self.scope, done))
        with nogil:
            notifier(data, size, PJRT_Error_Code_CANCELLED, text_data, text_size, _on_canceled, canceled_arg, argument)
        return done.future


@documented
class PluginCrossHostReceive(ReceiveCore, CrossHostReceive):
    """Buffers of a plugin that another process fills."""

    __slots__ = ()


def make_receive_buffers(ClientScope client, specs, device):
    """``Client.make_cross_host_receive_buffers``."""
    cdef PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers_Args args
    cdef Pin pin = Pin.of(client)
    cdef _Shapes shapes = _Shapes(specs)
    cdef size_t index
    cdef Block buffers = Block.of(shapes.number * sizeof(void *))
    receive = PluginCrossHostReceive()
    (<ReceiveCore>receive).scope = client
    (<ReceiveCore>receive).promise = Promise()
    start(&args, PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>client.native
    args.num_shapes = shapes.number
    args.shape_num_dims = <size_t *>shapes.sizes.data
    args.num_dims = <const int64_t **>shapes.dims.data
    args.element_types = <PJRT_Buffer_Type *>shapes.types.data
    args.layouts = <PJRT_Buffer_MemoryLayout **>shapes.layouts.data if shapes.laid_out else NULL
    args.device = addressable_device(client, device)
    args.notifier.user_arg = ticket_for(receive)
    args.notifier.notifier = _on_descriptors
    args.buffers = <PJRT_Buffer **>buffers.data
    try:
        client.call(SLOT_PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers, &args)
    except BaseException:
        redeem(args.notifier.user_arg)
        raise
    number = count(min(args.num_buffers, shapes.number), args.buffers, "the buffers of a transfer")
    (<ReceiveCore>receive).buffers = tuple(
        [new_buffer(client, (<PJRT_Buffer **>buffers.data)[index]) for index in range(number)]
    )
    return receive


cdef void _on_descriptors(
    PJRT_Error *error, const char **descriptors, size_t *sizes, size_t number, void *user_arg,
    PJRT_Transfers_CrossHostSendCancelNotifier cancel_notifier, void *cancel_arg,
) noexcept nogil:
    # Any thread, without the GIL; the error is ours. The descriptors are the plugin's and live during the call.
    if gate_enter():
        _tell_descriptors(error, descriptors, sizes, number, user_arg, cancel_notifier, cancel_arg)
        gate_leave()


cdef void _tell_descriptors(
    PJRT_Error *error, const char **descriptors, size_t *sizes, size_t number, void *user_arg,
    PJRT_Transfers_CrossHostSendCancelNotifier cancel_notifier, void *cancel_arg,
) noexcept with gil:
    cdef size_t index
    cdef ReceiveCore receive = redeem(user_arg)
    if receive is None:
        return
    try:
        if error != NULL:
            receive.promise.set_error(receive.scope.api.take_error(error))
            return
        receive.cancel_arg = cancel_arg  # first: a thread that cancels looks at the function
        receive.cancel_notifier = cancel_notifier
        receive.promise.set_result(
            [
                blob(descriptors[index], sizes[index], "a descriptor")
                for index in range(count(number, descriptors, "the descriptors"))
            ]
        )
    except BaseException as failure:
        receive.promise.set_error(failure)


cdef void _on_canceled(PJRT_Error *error, void *user_arg) noexcept nogil:
    # Any thread, without the GIL; the error is ours.
    if gate_enter():
        _settle(error, user_arg)
        gate_leave()


cdef void _settle(PJRT_Error *error, void *user_arg) noexcept with gil:
    """Complete the promise of the scope and promise that a ticket stands for."""
    waiting = redeem(user_arg)
    if waiting is None:
        return
    scope, promise = waiting[:2]
    if error != NULL:
        promise.set_error((<Scope>scope).api.take_error(error))
    else:
        promise.set_result(None)


cdef struct descriptor_t:
    char *data
    size_t size


cdef class _DescriptorSetter:
    """A callback of the future of a descriptor: hands the descriptor to the plugin."""

    cdef Scope scope
    cdef PJRT_Event *event
    cdef descriptor_t *slot

    def __call__(self, future):
        cdef PJRT_Event_Set_Args args
        cdef bytes data, message
        start(&args, PJRT_Event_Set_Args_STRUCT_SIZE)
        args.event = self.event
        error = future.exception()
        if error is None:
            data = bytes(future.result())
            self.slot.data = <char *>malloc(len(data) or 1)
            memcpy(self.slot.data, <char *>data, len(data))
            self.slot.size = len(data)
        else:
            message = error.message.encode()
            args.error_code = <PJRT_Error_Code><int>error.code
            args.error_message = message
            args.error_message_size = len(message)
        self.scope.api.call(SLOT_PJRT_Event_Set, &args)  # Buffer.copy_to_remote_device


def send_buffer(BufferCore buffer, descriptor):
    """``Buffer.copy_to_remote_device``."""
    cdef PJRT_Event_Create_Args created
    cdef PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args args
    cdef function_t send = buffer.scope.api.find(SLOT_PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice)
    cdef descriptor_t *slot
    cdef _DescriptorSetter setter = _DescriptorSetter()
    expect(descriptor, Future, "a future of one of the receiver's descriptors")
    start(&args, PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args_STRUCT_SIZE)
    args.buffer = <PJRT_Buffer *>buffer.alive()
    start(&created, PJRT_Event_Create_Args_STRUCT_SIZE)
    buffer.call(SLOT_PJRT_Event_Create, &created)
    slot = <descriptor_t *>malloc(sizeof(descriptor_t))
    slot.data = NULL
    slot.size = 0
    done = Promise()
    args.event = created.event
    args.serialized_descriptor = &slot.data
    args.serialized_descriptor_size = &slot.size
    args.on_done.on_done = _on_sent
    args.descriptor_destructor = _free_descriptor
    buffer.hold()
    try:
        args.on_done.user_arg = ticket_for((buffer.scope, done, buffer))
        with nogil:
            (<deleter_t>send)(&args)  # it returns no error: on_done is called with it
    finally:
        buffer.let_go()
    setter.scope = buffer.scope
    setter.event = created.event
    setter.slot = slot
    descriptor.add_done_callback(setter)
    return done.future


cdef void _free_descriptor(char **data, size_t *size) noexcept nogil:
    # The slot that send_buffer made begins with the data.
    free(data[0])
    free(data)


cdef void _on_sent(PJRT_Error *error, c_bool sends_were_enqueued, void *user_arg) noexcept nogil:
    # Any thread, without the GIL; the error is ours.
    if gate_enter():
        _settle(error, user_arg)
        gate_leave()


# DLPack: memory shared between buffers and arrays of other libraries, in both directions.

cdef extern from "pjrt_support/dlpack.h" nogil:
    enum:
        DLPACK_CPU
        DLPACK_CUDA
        DLPACK_ROCM
    ctypedef struct dlpack_tensor:
        void *data
        int32_t device_type
        int32_t device_id
        int32_t ndim
        uint8_t type_code
        uint8_t type_bits
        uint16_t type_lanes
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset
    ctypedef struct dlpack_managed:
        dlpack_tensor tensor
        void *context
        void (*deleter)(dlpack_managed *self) noexcept nogil
    ctypedef struct dlpack_versioned:
        uint32_t major
        uint32_t minor
        void *context
        void (*deleter)(dlpack_versioned *self) noexcept nogil
        uint64_t flags
        dlpack_tensor tensor

cdef const char *_PLAIN = b"dltensor"
cdef const char *_VERSIONED = b"dltensor_versioned"
cdef const char *_USED_PLAIN = b"used_dltensor"
cdef const char *_USED_VERSIONED = b"used_dltensor_versioned"

# The platforms whose memory DLPack has a name for, where the host cannot read it.
_DEVICE_TYPES = {"cuda": DLPACK_CUDA, "rocm": DLPACK_ROCM}

# DLPack's code of a type and its bits.
_TYPES = {
    ElementType.PRED: (6, 8),
    ElementType.S8: (0, 8),
    ElementType.S16: (0, 16),
    ElementType.S32: (0, 32),
    ElementType.S64: (0, 64),
    ElementType.U8: (1, 8),
    ElementType.U16: (1, 16),
    ElementType.U32: (1, 32),
    ElementType.U64: (1, 64),
    ElementType.F16: (2, 16),
    ElementType.F32: (2, 32),
    ElementType.F64: (2, 64),
    ElementType.BF16: (4, 16),
    ElementType.C64: (5, 64),
    ElementType.C128: (5, 128),
    ElementType.F8E3M4: (7, 8),
    ElementType.F8E4M3: (8, 8),
    ElementType.F8E4M3B11FNUZ: (9, 8),
    ElementType.F8E4M3FN: (10, 8),
    ElementType.F8E4M3FNUZ: (11, 8),
    ElementType.F8E5M2: (12, 8),
    ElementType.F8E5M2FNUZ: (13, 8),
    ElementType.F8E8M0FNU: (14, 8),
}
_OF_TYPE = {row: kind for kind, row in _TYPES.items()}


def device_of(BufferCore buffer):
    """``Buffer.__dlpack_device__``."""
    if buffer.is_on_cpu:
        return DLPACK_CPU, 0
    kind = _DEVICE_TYPES.get((<ClientScope>buffer.scope).platform)
    if kind is None:
        raise UnimplementedError(
            f"DLPack has no name for memory of '{buffer.client.platform_name}'; copy with numpy.asarray(buffer)"
        )
    return kind, buffer.device.local_hardware_id


def to_capsule(BufferCore buffer, stream, max_version, dl_device, copy):
    """``Buffer.__dlpack__``: return a capsule that keeps the buffer and its memory."""
    place = device_of(buffer)
    if dl_device is not None and tuple(dl_device) != place:
        raise BufferError(f"the buffer is on DLPack's device {place}, not on {dl_device}; copy it there first")
    if copy:
        raise BufferError(
            "a plugin's buffer is shared by DLPack, not copied; copy with buffer.copy_to or numpy.asarray"
        )
    if stream is not None and place[0] == DLPACK_CPU:
        raise BufferError(f"memory of the host has no streams: expected stream=None, found {stream!r}")
    if buffer.element_type not in _TYPES:
        raise UnimplementedError(
            f"DLPack has no type {buffer.element_type.name} as it lies on devices; copy with numpy.asarray(buffer)"
        )
    strides = _strides(buffer.shape, buffer.layout)
    if stream is None or stream in (-1, 1, 2):
        buffer.ready().result()
    else:
        buffer.wait_until_ready_on_stream(stream)
    owner = buffer.external_reference()
    if max_version is not None and tuple(max_version) >= (1, 0):
        return _versioned(buffer, owner, place, strides)
    return _plain(buffer, owner, place, strides)


cdef object _plain(BufferCore buffer, owner, place, strides):
    cdef dlpack_managed *managed = <dlpack_managed *>malloc(sizeof(dlpack_managed))
    if managed == NULL:
        raise MemoryError("no memory for a DLPack capsule")
    managed.deleter = _delete_plain
    managed.context = <void *>owner
    try:
        _fill(&managed.tensor, buffer, owner, place, strides)
    except BaseException:
        free(managed)
        raise
    Py_INCREF(owner)
    return PyCapsule_New(managed, _PLAIN, _drop_capsule)


cdef object _versioned(BufferCore buffer, owner, place, strides):
    cdef dlpack_versioned *managed = <dlpack_versioned *>malloc(sizeof(dlpack_versioned))
    if managed == NULL:
        raise MemoryError("no memory for a DLPack capsule")
    managed.major, managed.minor, managed.flags = 1, 0, 0
    managed.deleter = _delete_versioned
    managed.context = <void *>owner
    try:
        _fill(&managed.tensor, buffer, owner, place, strides)
    except BaseException:
        free(managed)
        raise
    Py_INCREF(owner)
    return PyCapsule_New(managed, _VERSIONED, _drop_capsule)


cdef int _fill(dlpack_tensor *tensor, BufferCore buffer, owner, place, strides) except -1:
    """Fill in the tensor; shape and strides lie in one piece of memory of their own."""
    cdef int rank = len(buffer.shape), index
    tensor.shape = <int64_t *>malloc((2 * rank or 1) * sizeof(int64_t))
    if tensor.shape == NULL:
        raise MemoryError("no memory for a DLPack capsule")
    tensor.strides = tensor.shape + rank
    for index in range(rank):
        tensor.shape[index] = buffer.shape[index]
        tensor.strides[index] = strides[index]
    tensor.data = <void *><size_t>owner.pointer
    tensor.device_type, tensor.device_id = place
    tensor.ndim = rank
    tensor.type_code, tensor.type_bits = _TYPES[buffer.element_type]
    tensor.type_lanes = 1
    tensor.byte_offset = 0
    return 0


cdef void _delete_plain(dlpack_managed *managed) noexcept nogil:
    # Any thread, with or without the GIL.
    _release(managed.context, managed.tensor.shape)
    free(managed)


cdef void _delete_versioned(dlpack_versioned *managed) noexcept nogil:
    # Any thread, with or without the GIL.
    _release(managed.context, managed.tensor.shape)
    free(managed)


cdef void _release(void *owner, int64_t *shape) noexcept nogil:
    free(shape)
    if gate_enter():
        _drop_owner(owner)
        gate_leave()


cdef void _drop_owner(void *owner) noexcept with gil:
    Py_DECREF(<object>owner)


cdef void _drop_capsule(object capsule) noexcept:
    """Give back the memory of a capsule that was never used."""
    if PyCapsule_IsValid(capsule, _PLAIN):
        _delete_plain(<dlpack_managed *>PyCapsule_GetPointer(capsule, _PLAIN))
    elif PyCapsule_IsValid(capsule, _VERSIONED):
        _delete_versioned(<dlpack_versioned *>PyCapsule_GetPointer(capsule, _VERSIONED))


def _strides(shape, layout):
    """Return the strides in elements of a dense layout.

    Raises:
        UnimplementedError: the layout is tiled, or strided.
    """
    if not isinstance(layout, TiledLayout) or layout.tiles:
        raise UnimplementedError(f"DLPack cannot express the layout {layout}; copy with numpy.asarray(buffer)")
    if sorted(layout.minor_to_major) != list(range(len(shape))):
        raise InternalError(
            f"the plugin gave the layout {layout} for a buffer of {len(shape)} dimensions, which cannot be right; "
            "report it to the plugin's vendor"
        )
    strides, step = [0] * len(shape), 1
    for dimension in layout.minor_to_major:
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return strides


def from_source(ClientScope client, source, device):
    """``Client.buffer_from_dlpack``: return a view of another library's memory, given back when the buffer is gone."""
    try:
        kind, number = source.__dlpack_device__()
    except AttributeError as error:
        raise InvalidArgumentError(
            f"expected an object with __dlpack__, found {type(source).__name__}; use buffer_from_host"
        ) from error
    place = default_device(client) if device is None else device
    expected = _DEVICE_TYPES.get(client.platform, DLPACK_CPU)
    if kind != expected or (expected != DLPACK_CPU and number != place.local_hardware_id):
        raise InvalidArgumentError(
            f"the memory is on DLPack's device ({int(kind)}, {number}), and {place} takes memory of device type "
            f"{expected}; copy it there first"
        )
    stream = place.stream_for_external_ready_events() if expected != DLPACK_CPU else None
    capsule = source.__dlpack__() if stream is None else source.__dlpack__(stream=stream)
    return _view(client, _Import(capsule), place, stream)


cdef object _view(ClientScope client, _Import memory, place, stream):
    cdef dlpack_tensor *tensor = memory.tensor
    cdef int index
    kind = _OF_TYPE.get((tensor.type_code, tensor.type_bits))
    if kind is None or tensor.type_lanes != 1:
        raise UnimplementedError(
            f"no element type has DLPack's code {tensor.type_code} and {tensor.type_bits} bits × {tensor.type_lanes}"
        )
    shape = tuple([tensor.shape[index] for index in range(tensor.ndim)])
    strides = None if tensor.strides == NULL else [tensor.strides[index] for index in range(tensor.ndim)]
    spec = ShapeSpec(shape, kind, _dense_order(shape, strides))
    return client.create_view_of_device_buffer(
        <size_t>tensor.data + tensor.byte_offset, spec, device=place, on_delete=memory.give_back, stream=stream
    )


def _dense_order(shape, strides):
    """Return the layout of dense strides; ``None`` for row-major.

    Raises:
        UnimplementedError: the strides leave gaps or overlap.
    """
    if strides is None:
        return None
    order = sorted(range(len(shape)), key=lambda d: (strides[d] if shape[d] > 1 else 0, -d))
    step = 1
    for dimension in order:
        if shape[dimension] > 1 and strides[dimension] != step:
            raise UnimplementedError(
                f"an array of shape {shape} with strides {strides} is not dense; make it contiguous first"
            )
        step *= max(shape[dimension], 1)
    layout = TiledLayout(tuple(order))
    return None if layout.is_row_major else layout


cdef class _Import:
    """The memory of a used capsule. Its deleter is called once: when the buffer is gone, or could not be made."""

    cdef dlpack_managed *managed
    cdef dlpack_versioned *versioned
    cdef dlpack_tensor *tensor

    def __init__(self, capsule):
        if PyCapsule_IsValid(capsule, _PLAIN):
            self.managed = <dlpack_managed *>PyCapsule_GetPointer(capsule, _PLAIN)
            self.tensor = &self.managed.tensor
            PyCapsule_SetName(capsule, _USED_PLAIN)
        elif PyCapsule_IsValid(capsule, _VERSIONED):
            self.versioned = <dlpack_versioned *>PyCapsule_GetPointer(capsule, _VERSIONED)
            self.tensor = &self.versioned.tensor
            PyCapsule_SetName(capsule, _USED_VERSIONED)
        else:
            raise InvalidArgumentError(f"expected an unused DLPack capsule, found {capsule!r}")

    def give_back(self):
        """Call the deleter, once."""
        cdef dlpack_managed *managed = self.managed
        cdef dlpack_versioned *versioned = self.versioned
        self.managed, self.versioned = NULL, NULL
        if managed != NULL and managed.deleter != NULL:
            managed.deleter(managed)
        if versioned != NULL and versioned.deleter != NULL:
            versioned.deleter(versioned)

    def __dealloc__(self):
        self.give_back()
