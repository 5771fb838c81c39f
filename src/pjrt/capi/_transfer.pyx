"""Asynchronous host-to-device transfers: buffers that are filled piece by piece."""

cimport cython
from libc.stdint cimport int64_t

from pjrt.capi._api cimport start
from pjrt.capi._buffer cimport new_buffer
from pjrt.capi._device cimport native_memory
from pjrt.capi._event cimport eager_future
from pjrt.capi._gen_abi cimport *
from pjrt.capi._memory cimport HostMemory
from pjrt.capi._pin cimport Pin
from pjrt.capi._scope cimport ClientScope, ClosableHandle, Handle
from pjrt.capi._values cimport Block, NamedValues, NativeLayout, int64_block, native_layout, whole

import numpy as np

from pjrt.api.checks import expect, expect_array
from pjrt.api.element_type import ElementType
from pjrt.api.errors import PjrtError
from pjrt.api.executable import default_device
from pjrt.api.buffer import AsyncHostToDeviceTransferManager
from pjrt.capi._documented import documented
from pjrt.capi._getter import Getter


@cython.no_gc_clear
cdef class TransferManagerCore(ClosableHandle):
    """A ``PJRT_AsyncHostToDeviceTransferManager``."""

    def buffer_size(self, index):
        cdef PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args args
        start(&args, PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args_STRUCT_SIZE)
        args.transfer_manager = <PJRT_AsyncHostToDeviceTransferManager *>self.use()
        args.buffer_index = <int>whole(index, "the number of a buffer", 32)
        self.call(SLOT_PJRT_AsyncHostToDeviceTransferManager_BufferSize, &args)
        return args.buffer_size

    def retrieve_buffer(self, index):
        cdef PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args args
        cdef Pin pin = Pin.of(self.scope)
        start(&args, PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args_STRUCT_SIZE)
        args.transfer_manager = <PJRT_AsyncHostToDeviceTransferManager *>self.use()
        args.buffer_index = <int>whole(index, "the number of a buffer", 32)
        self.call(SLOT_PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer, &args)
        return new_buffer(<ClientScope>self.scope, args.buffer_out)

    def transfer_data(self, index, data, offset=0, *, is_last_transfer=True):
        cdef PJRT_AsyncHostToDeviceTransferManager_TransferData_Args args
        cdef HostMemory memory = HostMemory.of(data, False, "the data of a transfer")
        start(&args, PJRT_AsyncHostToDeviceTransferManager_TransferData_Args_STRUCT_SIZE)
        args.transfer_manager = <PJRT_AsyncHostToDeviceTransferManager *>self.use()
        args.buffer_index = <int>whole(index, "the number of a buffer", 32)
        args.data = memory.at(0, memory.view.len)
        args.offset = whole(offset, "an offset in bytes as a whole number")
        args.transfer_size = memory.view.len
        args.is_last_transfer = is_last_transfer
        self.call(SLOT_PJRT_AsyncHostToDeviceTransferManager_TransferData, &args)
        return eager_future(self.scope, args.done_with_h2d_transfer, None, memory)

    def transfer_literal(self, index, array):
        cdef PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args args
        whole_array = expect_array(array)
        source = np.ascontiguousarray(whole_array).reshape(whole_array.shape)  # the former makes scalars vectors
        cdef HostMemory memory = HostMemory.of(source, False, "the array of a transfer")
        cdef Block dims = int64_block(source.shape)
        start(&args, PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args_STRUCT_SIZE)
        args.transfer_manager = <PJRT_AsyncHostToDeviceTransferManager *>self.use()
        args.buffer_index = <int>whole(index, "the number of a buffer", 32)
        args.data = memory.at(0, memory.view.len)
        args.shape_dims = <int64_t *>dims.data
        args.shape_num_dims = source.ndim
        args.shape_element_type = <PJRT_Buffer_Type><int>ElementType.of(source.dtype)
        self.call(SLOT_PJRT_AsyncHostToDeviceTransferManager_TransferLiteral, &args)
        return eager_future(self.scope, args.done_with_h2d_transfer, None, memory)

    def set_buffer_error(self, index, error):
        cdef PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args args
        cdef bytes message = expect(error, PjrtError, "an error as pjrt.PjrtError").message.encode()
        start(&args, PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args_STRUCT_SIZE)
        args.transfer_manager = <PJRT_AsyncHostToDeviceTransferManager *>self.use()
        args.buffer_index = <int>whole(index, "the number of a buffer", 32)
        args.error_code = <PJRT_Error_Code><int>error.code
        args.error_message = message
        args.error_message_size = len(message)
        self.call(SLOT_PJRT_AsyncHostToDeviceTransferManager_SetBufferError, &args)

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


cdef object transfer_manager(ClientScope scope, specs, memory_space):
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
        dims = int64_block(spec.shape)
        layout = native_layout(spec.layout)
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
