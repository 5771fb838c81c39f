"""Execute options as a framework gives them: launch ids, donation, callbacks to and from its memory, contexts.

A caller's struct may end before ours does; what lies behind its end is not looked at.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport free

from pjrt.capi._gen_abi cimport *
from pjrt.capi.export._trampolines cimport drop, trampoline, has_field, keep, pjrt_error_new, put, take_error

import dataclasses

import numpy as np

from pjrt.api.errors import UnimplementedError
from pjrt.api.execute_options import ExecuteOptions, HloOutputCallback, RecvCallback, SendCallback

cdef extern from "pjrt_support/error.h" nogil:
    char *pjrt_copy_bytes(const char *data, size_t size)


cdef object read_execute_options(PJRT_ExecuteOptions *options, size_t num_devices, client):
    """The options; ``None`` where they say nothing that is not the default."""
    cdef size_t index
    cdef int launch_id = 0
    cdef dict found = {}
    if options == NULL:
        return None
    if has_field(options, &options.launch_id, sizeof(int)):
        launch_id = options.launch_id
    if has_field(options, &options.num_non_donatable_input_indices, sizeof(size_t)):
        if options.num_non_donatable_input_indices and options.non_donatable_input_indices != NULL:
            found["non_donatable_input_indices"] = frozenset(
                [options.non_donatable_input_indices[index] for index in range(options.num_non_donatable_input_indices)]
            )
    if options.num_send_ops and options.send_callbacks != NULL:
        found["send_callbacks"] = [_sends(options.send_callbacks[i], options.num_send_ops) for i in range(num_devices)]
    if options.num_recv_ops and options.recv_callbacks != NULL:
        found["recv_callbacks"] = [_recvs(options.recv_callbacks[i], options.num_recv_ops) for i in range(num_devices)]
    if has_field(options, &options.context, sizeof(void *)) and options.context != NULL:
        context = (<object><void *>options.context).of_client(client)
        if context is not None:
            found["context"] = context
    if has_field(options, &options.call_location, sizeof(void *)) and options.call_location != NULL:
        if options.call_location[0]:
            found["call_location"] = options.call_location.decode("utf-8", "replace")
    if has_field(options, &options.incarnation_ids, sizeof(void *)) and options.num_tasks:
        found["task_incarnations"] = {
            options.task_ids[index]: options.incarnation_ids[index] for index in range(options.num_tasks)
        }
    if found and ("send_callbacks" in found or "recv_callbacks" in found):  # it is about them
        if has_field(options, &options.use_major_to_minor_data_layout_for_callbacks, sizeof(c_bool)):
            if options.use_major_to_minor_data_layout_for_callbacks:
                found["use_major_to_minor_data_layout_for_callbacks"] = True
    if has_field(options, &options.num_hlo_output_callbacks, sizeof(size_t)) and options.num_hlo_output_callbacks:
        found["hlo_output_callbacks"] = [
            _hlo_output(&options.hlo_output_callbacks[index]) for index in range(options.num_hlo_output_callbacks)
        ]
    if not found:
        return _of_launch_id(launch_id) if launch_id else None
    return ExecuteOptions(launch_id=launch_id, **found)


# JAX gives each execution a launch id and nothing else; a frozen class takes a microsecond to make one of.
cdef object _DEFAULT_OPTIONS = ExecuteOptions()
cdef list _FIELDS = [
    (getattr(ExecuteOptions, field.name).__set__, getattr(_DEFAULT_OPTIONS, field.name))
    for field in dataclasses.fields(ExecuteOptions)
]
cdef object _set_launch_id = ExecuteOptions.launch_id.__set__


cdef object _of_launch_id(object launch_id):
    options = ExecuteOptions.__new__(ExecuteOptions)
    for set_field, value in _FIELDS:
        set_field(options, value)
    _set_launch_id(options, launch_id)
    return options


cdef list _sends(PJRT_SendCallbackInfo *infos, size_t number):
    cdef _Send send
    cdef size_t index
    callbacks = []
    for index in range(number):
        send = _Send()
        send.info = infos[index]
        callbacks.append(SendCallback(infos[index].channel_id, send))
    return callbacks


cdef class _Send:
    """A framework's callback that takes what a program sends."""

    cdef PJRT_SendCallbackInfo info

    def __call__(self, bytes data, size_t total_size, bint done):
        cdef PJRT_Chunk chunk
        cdef PJRT_CallbackError make_error = _make_error
        cdef PJRT_Error *error
        chunk.data = pjrt_copy_bytes(data, len(data))
        if chunk.data == NULL:
            raise MemoryError(f"no {len(data)} bytes of memory for what the program sends")
        chunk.size = len(data)
        chunk.deleter = _free_chunk
        chunk.deleter_arg = NULL
        with nogil:
            error = self.info.send_callback(&chunk, &make_error, total_size, done, self.info.user_arg)
        if error != NULL:
            raise take_error(error)


cdef PJRT_Error *_make_error(PJRT_Error_Code code, const char *message, size_t size) noexcept nogil:
    return pjrt_error_new(code, message, size)


cdef void _free_chunk(void *data, void *arg) noexcept nogil:
    free(data)


cdef list _recvs(PJRT_RecvCallbackInfo *infos, size_t number):
    cdef _Recv recv
    cdef size_t index
    callbacks = []
    for index in range(number):
        recv = _Recv()
        recv.info = infos[index]
        callbacks.append(RecvCallback(infos[index].channel_id, recv))
    return callbacks


cdef class _Recv:
    """A framework's callback that gives what a program receives; the stream becomes the framework's."""

    cdef PJRT_RecvCallbackInfo info

    def __call__(self, stream):
        cdef PJRT_CopyToDeviceStream *handle = <PJRT_CopyToDeviceStream *>keep(stream)
        with nogil:
            self.info.recv_callback(handle, self.info.user_arg)


cdef object _hlo_output(PJRT_HloOutputCallbackInfo *info):
    cdef _HloOutput output = _HloOutput()
    output.info = info[0]
    return HloOutputCallback(info.callback_id, info.num_operands, output)


cdef class _HloOutput:
    """A framework's callback that takes intermediate values."""

    cdef PJRT_HloOutputCallbackInfo info

    def __call__(self, int64_t replica, int64_t partition, array, int64_t operand):
        from pjrt.api.element_type import ElementType

        cdef size_t rank = array.ndim
        cdef PJRT_Buffer_Type type = <PJRT_Buffer_Type><int>ElementType.of(array.dtype)
        dense = np.ascontiguousarray(array)
        sizes = np.array(array.shape, np.int64)
        cdef const void *data = <const void *><size_t>dense.ctypes.data
        cdef const int64_t *dims = <const int64_t *><size_t>sizes.ctypes.data
        with nogil:
            self.info.callback(replica, partition, data, dims, rank, type, operand, self.info.user_arg)


class _Context:
    """A context that a framework makes, before it is known for which client: what the framework hangs on it."""

    def __init__(self):
        self._user_data = []

    def add_user_data(self, type_id, address):
        self._user_data.append((type_id, address))

    def of_client(self, client):
        """The client's own context with the same data; none where there is no data, or where the client has no contexts:
        JAX hangs data of its own on every execution, and no handler inside such a client could ask for it.
        """
        if not self._user_data:
            return None
        try:
            context = client.create_execute_context()
        except UnimplementedError:
            return None
        for type_id, address in self._user_data:
            context.add_user_data(type_id, address)
        return context


cdef int _create_context(void *raw) except -1:
    (<PJRT_ExecuteContext_Create_Args *>raw).context = <PJRT_ExecuteContext *>keep(_Context())
    return 0


cdef PJRT_Error *_destroy_context(PJRT_ExecuteContext_Destroy_Args *args) noexcept nogil:
    drop(<void *>args.context)
    return NULL


cdef int fill_table(PJRT_Api *table) except -1:
    """The functions of execute contexts."""
    put(table, SLOT_PJRT_ExecuteContext_Create, trampoline(_create_context))
    table.PJRT_ExecuteContext_Destroy = _destroy_context
    return 0
