"""Execute options as a framework gives them: launch ids, donation, callbacks to and from its memory, contexts.

An older caller's struct ends before ours does; fields behind its end are not read.
"""

from libc.stdint cimport int64_t
from libc.stdlib cimport free

from pjrt.capi._gen_abi cimport *
from pjrt.capi.export._trampolines cimport (
    drop, has_field, keep, pjrt_check_size, pjrt_error_new, put, take_error, trampoline
)

import dataclasses

import numpy as np

from pjrt.api.errors import UnimplementedError
from pjrt.api.execute_options import ExecuteOptions, HloOutputCallback, RecvCallback, SendCallback

cdef extern from "pjrt_support/error.h" nogil:
    char *pjrt_copy_bytes(const char *data, size_t size)


cdef object read_execute_options(PJRT_ExecuteOptions *options, size_t num_devices, client):
    """Return the options; ``None`` if all of them are the default."""
    cdef size_t device, index
    cdef int launch_id = 0
    cdef dict named = {}
    if options == NULL:
        return None
    if has_field(options, &options.launch_id, sizeof(int)):
        launch_id = options.launch_id
    if has_field(options, &options.num_non_donatable_input_indices, sizeof(size_t)):
        if options.num_non_donatable_input_indices and options.non_donatable_input_indices != NULL:
            named["non_donatable_input_indices"] = frozenset(
                [options.non_donatable_input_indices[index] for index in range(options.num_non_donatable_input_indices)]
            )
    if options.num_send_ops and options.send_callbacks != NULL:
        named["send_callbacks"] = [
            [_send(&options.send_callbacks[device][index]) for index in range(options.num_send_ops)]
            for device in range(num_devices)
        ]
    if options.num_recv_ops and options.recv_callbacks != NULL:
        named["recv_callbacks"] = [
            [_recv(&options.recv_callbacks[device][index]) for index in range(options.num_recv_ops)]
            for device in range(num_devices)
        ]
    if has_field(options, &options.context, sizeof(void *)) and options.context != NULL:
        context = (<object><void *>options.context).of_client(client)
        if context is not None:
            named["context"] = context
    if has_field(options, &options.call_location, sizeof(void *)) and options.call_location != NULL:
        if options.call_location[0]:
            named["call_location"] = options.call_location.decode("utf-8", "replace")
    if has_field(options, &options.incarnation_ids, sizeof(void *)) and options.num_tasks:
        named["task_incarnations"] = {
            options.task_ids[index]: options.incarnation_ids[index] for index in range(options.num_tasks)
        }
    if "send_callbacks" in named or "recv_callbacks" in named:  # the field is about their data
        if has_field(options, &options.use_major_to_minor_data_layout_for_callbacks, sizeof(c_bool)):
            if options.use_major_to_minor_data_layout_for_callbacks:
                named["use_major_to_minor_data_layout_for_callbacks"] = True
    if has_field(options, &options.num_hlo_output_callbacks, sizeof(size_t)) and options.num_hlo_output_callbacks:
        named["hlo_output_callbacks"] = [
            _hlo_output(&options.hlo_output_callbacks[index]) for index in range(options.num_hlo_output_callbacks)
        ]
    if not named:
        return _of_launch_id(launch_id) if launch_id else None
    return ExecuteOptions(launch_id=launch_id, **named)


# JAX gives each execution a launch id and nothing else, and the constructor of a frozen dataclass takes a microsecond.
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


cdef object _send(PJRT_SendCallbackInfo *info):
    cdef _Send send = _Send()
    send.info = info[0]
    return SendCallback(info.channel_id, send)


cdef class _Send:
    """A framework's callback that takes the data that a program sends."""

    cdef PJRT_SendCallbackInfo info

    def __call__(self, bytes data, size_t total_size, bint done):
        cdef PJRT_Chunk chunk
        cdef PJRT_CallbackError make_error = pjrt_error_new
        cdef PJRT_Error *error
        chunk.data = pjrt_copy_bytes(data, len(data))
        if chunk.data == NULL:
            raise MemoryError(f"no {len(data)} bytes of memory for the data that the program sends")
        chunk.size = len(data)
        chunk.deleter = _free_chunk
        chunk.deleter_arg = NULL
        with nogil:
            error = self.info.send_callback(&chunk, &make_error, total_size, done, self.info.user_arg)
        if error != NULL:
            raise take_error(error)


cdef void _free_chunk(void *data, void *arg) noexcept nogil:
    free(data)


cdef object _recv(PJRT_RecvCallbackInfo *info):
    cdef _Recv recv = _Recv()
    recv.info = info[0]
    return RecvCallback(info.channel_id, recv)


cdef class _Recv:
    """A framework's callback that fills a stream, which it then owns, with the data that a program receives."""

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
    """The data that a framework adds to an execute context before it runs anything: the client is not known yet."""

    def __init__(self):
        self._user_data = []

    def add_user_data(self, type_id, address):
        self._user_data.append((type_id, address))

    def of_client(self, client):
        """Return the client's context with the same data; ``None`` if there is no data or the client has no contexts.

        JAX adds data of its own to every execution; in a client without contexts no handler could ask for it.
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


cdef PJRT_Error *_destroy_context(PJRT_ExecuteContext_Destroy_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(
        args, PJRT_ExecuteContext_Destroy_Args_FIRST_STRUCT_SIZE, b"PJRT_ExecuteContext_Destroy_Args"
    )
    if error == NULL:
        drop(<void *>args.context)
    return error


cdef int fill_table(PJRT_Api *table) except -1:
    """Set the functions of execute contexts."""
    put(&table.PJRT_ExecuteContext_Create, trampoline(_create_context))
    table.PJRT_ExecuteContext_Destroy = _destroy_context
