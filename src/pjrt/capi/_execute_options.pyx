"""Execute options for a call: callbacks of the host inside programs, donation, contexts, tasks."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pjrt.capi._api cimport Api, start
from pjrt.capi._event cimport lazy_future
from pjrt.capi._gate cimport gate_enter, gate_leave
from pjrt.capi._gen_abi cimport *
from pjrt.capi._memory cimport HostMemory
from pjrt.capi._pin cimport Pin
from pjrt.capi._scope cimport ClientScope, ClosableHandle, Handle
from pjrt.capi._values cimport Block, element_type, int64_block, read_int64s, whole

import logging

import numpy as np

from pjrt.api.errors import from_author
from pjrt.api.checks import expect, expect_int
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.loaded_executable import ExecuteContext, ExecuteOptions
from pjrt.api.buffer import CopyToDeviceStream
from pjrt.capi._documented import documented
from pjrt.capi._getter import Getter

_log = logging.getLogger("pjrt")


@cython.no_gc_clear
cdef class ExecuteCall:
    """The options of one execution, with the memory they point to.

    ``outlives`` is set where the plugin uses something in them until the execution is complete, not only in the call.
    """

    def __dealloc__(self):
        if self.held is not None:
            self.held.let_go()


cdef ExecuteCall execute_call(ClientScope scope, options, size_t num_devices):
    """Return the options for a call."""
    cdef ExecuteCall call = ExecuteCall.__new__(ExecuteCall)
    cdef bytes location
    start(&call.options, PJRT_ExecuteOptions_STRUCT_SIZE)
    expect(options, ExecuteOptions, "execute options as pjrt.ExecuteOptions or None")
    call.keep = []
    call.options.launch_id = <int>whole(options.launch_id, "a launch id as a whole number", 32)
    call.options.use_major_to_minor_data_layout_for_callbacks = options.use_major_to_minor_data_layout_for_callbacks
    if options.non_donatable_input_indices:
        indices = int64_block(sorted(options.non_donatable_input_indices))
        call.keep.append(indices)
        call.options.non_donatable_input_indices = <int64_t *>(<Block>indices).data
        call.options.num_non_donatable_input_indices = len(options.non_donatable_input_indices)
    if options.call_location:
        location = options.call_location.encode()
        call.keep.append(location)
        call.options.call_location = location
    if options.context is not None:
        _add_context(call, scope, options.context)
    if options.task_incarnations:
        _add_tasks(call, options.task_incarnations)
    if options.send_callbacks:
        _add_send_callbacks(call, options.send_callbacks, num_devices)
    if options.recv_callbacks:
        _add_recv_callbacks(call, scope, options.recv_callbacks, num_devices)
    if options.hlo_output_callbacks:
        _add_hlo_output_callbacks(call, options.hlo_output_callbacks)
    return call


cdef int _add_context(ExecuteCall call, ClientScope scope, context) except -1:
    """Add a context, and hold it until the execution is complete, even if it is closed meanwhile."""
    if not isinstance(context, ContextCore) or (<ContextCore>context).scope is not scope:
        raise InvalidArgumentError(
            f"{context!r} is no execute context of this client; make one with client.create_execute_context()"
        )
    call.options.context = <PJRT_ExecuteContext *>(<ContextCore>context).use()
    (<ContextCore>context).hold()
    call.held = context
    call.outlives = True
    return 0


cdef int _add_tasks(ExecuteCall call, incarnations) except -1:
    cdef size_t number = len(incarnations), index = 0
    cdef Block ids = Block.of(number * sizeof(int))
    cdef Block values = int64_block(incarnations.values())
    for task in incarnations:
        (<int *>ids.data)[index] = <int>whole(task, "the id of a task as a whole number", 32)
        index += 1
    call.keep += [ids, values]
    call.options.num_tasks = number
    call.options.task_ids = <int *>ids.data
    call.options.incarnation_ids = <int64_t *>values.data
    return 0


cdef size_t _width(callbacks, size_t num_devices, str what) except? 1:
    """Return the number of callbacks of each device, which is the same for all."""
    if <size_t>len(callbacks) != num_devices or len({len(row) for row in callbacks}) != 1:
        raise InvalidArgumentError(
            f"{what} are one sequence a device, all of one length; the execution has {num_devices} devices, "
            f"found {[len(row) for row in callbacks]}"
        )
    return len(callbacks[0])


cdef int _add_send_callbacks(ExecuteCall call, callbacks, size_t num_devices) except -1:
    cdef size_t width = _width(callbacks, num_devices, "send_callbacks"), row, column
    cdef Block rows = Block.of(num_devices * sizeof(void *))
    cdef Block infos = Block.of(num_devices * width * sizeof(PJRT_SendCallbackInfo))
    cdef PJRT_SendCallbackInfo *info = <PJRT_SendCallbackInfo *>infos.data
    for row in range(num_devices):
        (<PJRT_SendCallbackInfo **>rows.data)[row] = info
        for column in range(width):
            send = callbacks[row][column]
            info.channel_id = send.channel_id
            info.user_arg = <void *>send.callback
            info.send_callback = _on_send
            call.keep.append(send.callback)
            info += 1
    call.keep += [rows, infos]
    call.options.send_callbacks = <PJRT_SendCallbackInfo **>rows.data
    call.options.num_send_ops = width
    call.outlives = True
    return 0


cdef PJRT_Error *_on_send(
    PJRT_Chunk *chunk, PJRT_CallbackError *make_error, size_t total, c_bool done, void *user_arg
) noexcept nogil:
    # A thread of the plugin's, without the GIL. The chunk is ours to free, whatever happens.
    cdef PJRT_Error *error = NULL
    if gate_enter():
        error = _take_chunk(chunk, make_error, total, done, user_arg)
        gate_leave()
    else:
        error = make_error[0](PJRT_Error_Code_CANCELLED, b"the host is ending", 18)
    if chunk.deleter != NULL:
        chunk.deleter(chunk.data, chunk.deleter_arg)
    return error


cdef PJRT_Error *_take_chunk(
    PJRT_Chunk *chunk, PJRT_CallbackError *make_error, size_t total, c_bool done, void *user_arg
) noexcept with gil:
    cdef bytes message
    try:
        (<object>user_arg)(PyBytes_FromStringAndSize(<char *>chunk.data, chunk.size), total, bool(done))
    except BaseException as raised:
        error = from_author(raised)
        message = error.message.encode()
        return make_error[0](<PJRT_Error_Code><int>error.code, message, len(message))
    return NULL


cdef int _add_recv_callbacks(ExecuteCall call, ClientScope scope, callbacks, size_t num_devices) except -1:
    cdef size_t width = _width(callbacks, num_devices, "recv_callbacks"), row, column
    cdef Block rows = Block.of(num_devices * sizeof(void *))
    cdef Block infos = Block.of(num_devices * width * sizeof(PJRT_RecvCallbackInfo))
    cdef PJRT_RecvCallbackInfo *info = <PJRT_RecvCallbackInfo *>infos.data
    for row in range(num_devices):
        (<PJRT_RecvCallbackInfo **>rows.data)[row] = info
        for column in range(width):
            recv = callbacks[row][column]
            scope_and_callback = (scope, recv.callback)
            info.channel_id = recv.channel_id
            info.user_arg = <void *>scope_and_callback
            info.recv_callback = _on_recv
            call.keep.append(scope_and_callback)
            info += 1
    call.keep += [rows, infos]
    call.options.recv_callbacks = <PJRT_RecvCallbackInfo **>rows.data
    call.options.num_recv_ops = width
    call.outlives = True
    return 0


cdef void _on_recv(PJRT_CopyToDeviceStream *stream, void *user_arg) noexcept nogil:
    # A thread of the plugin's, without the GIL. The stream is ours; with the process ending it is left to the plugin.
    if gate_enter():
        _give_stream(stream, user_arg)
        gate_leave()


cdef void _give_stream(PJRT_CopyToDeviceStream *native, void *user_arg) noexcept with gil:
    scope, callback = <tuple>user_arg
    stream = PluginCopyToDeviceStream()
    try:
        (<Handle>stream).open(
            <ClientScope>scope, native, SLOT_PJRT_CopyToDeviceStream_Destroy  # CopyToDeviceStream: when it is dropped
        )
        callback(stream)
    except BaseException:
        _log.exception("the callback of a receive raised; the program receives no more from it")
        (<Handle>stream).free()  # now, not when the exception's frames go: the program waits for the stream


cdef int _add_hlo_output_callbacks(ExecuteCall call, callbacks) except -1:
    cdef size_t number = len(callbacks), index
    cdef Block infos = Block.of(number * sizeof(PJRT_HloOutputCallbackInfo))
    cdef PJRT_HloOutputCallbackInfo *info = <PJRT_HloOutputCallbackInfo *>infos.data
    for index in range(number):
        output = callbacks[index]
        info[index].user_arg = <void *>output.callback
        info[index].callback = _on_hlo_output
        info[index].callback_id = output.callback_id
        info[index].num_operands = output.num_operands
        call.keep.append(output.callback)
    call.keep.append(infos)
    call.options.hlo_output_callbacks = info
    call.options.num_hlo_output_callbacks = number
    call.outlives = True
    return 0


cdef void _on_hlo_output(
    int64_t replica,
    int64_t partition,
    const void *data,
    const int64_t *dims,
    size_t num_dims,
    PJRT_Buffer_Type kind,
    int64_t operand,
    void *user_arg
) noexcept nogil:
    # A thread of the plugin's, without the GIL; the data is the plugin's and lives only during the call.
    if gate_enter():
        _give_output(replica, partition, data, dims, num_dims, kind, operand, user_arg)
        gate_leave()


cdef void _give_output(
    int64_t replica,
    int64_t partition,
    const void *data,
    const int64_t *dims,
    size_t num_dims,
    PJRT_Buffer_Type kind,
    int64_t operand,
    void *user_arg
) noexcept with gil:
    try:
        shape = read_int64s(dims, num_dims, "the shape of an intermediate value")
        dtype = element_type(kind).dtype
        size = dtype.itemsize
        for length in shape:
            size *= length
        array = np.frombuffer(PyBytes_FromStringAndSize(<const char *>data, size), dtype).reshape(shape)
        (<object>user_arg)(replica, partition, array, operand)
    except BaseException:
        _log.exception("the callback of an intermediate value raised; the exception goes no further")


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


@cython.no_gc_clear
cdef class ContextCore(ClosableHandle):
    """A ``PJRT_ExecuteContext``."""

    def add_user_data(self, type_id, address):
        cdef PJRT_FFI_UserData_Add_Args args
        start(&args, PJRT_FFI_UserData_Add_Args_STRUCT_SIZE)
        args.context = <PJRT_ExecuteContext *>self.use()
        args.user_data.type_id = whole(type_id, "the id of an FFI type as a whole number")
        args.user_data.data = <void *><size_t>expect_int(address, "the address of user data as a whole number")
        self.call(SLOT_PJRT_FFI_UserData_Add, &args)

    def close(self):
        self.free()


@documented
class PluginExecuteContext(ContextCore, ExecuteContext):
    """The context of executions of a plugin, with the user data for its handlers (``PJRT_ExecuteContext``)."""

    __slots__ = ()


cdef object new_context(ClientScope scope):
    """``Client.create_execute_context``."""
    cdef PJRT_ExecuteContext_Create_Args args
    cdef Pin pin = Pin.of(scope)
    start(&args, PJRT_ExecuteContext_Create_Args_STRUCT_SIZE)
    scope.call(SLOT_PJRT_ExecuteContext_Create, &args)
    context = PluginExecuteContext()
    (<Handle>context).open(scope, args.context, SLOT_PJRT_ExecuteContext_Destroy)  # ExecuteContext.close
    return context
