"""Execute options as a framework gives them: launch ids, donation, callbacks to and from its memory, contexts.

An older caller's struct ends before ours does; fields behind its end are not read.
"""

from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport free

from pjrt.abi.generated.declarations cimport *
from pjrt.capi.export._client cimport ClientRecord
from pjrt.capi.export._trampolines cimport (
    has_field, keep, pjrt_check_size, pjrt_error_new, pjrt_error_of_text, take_error
)

import numpy as np

from pjrt.api.client import Client
from pjrt.api.errors import UnimplementedError
from pjrt.api.loaded_executable import ExecuteOptions, HloOutputCallback, RecvCallback, SendCallback

cdef extern from "pjrt_support/error.h" nogil:
    char *pjrt_copy_bytes(const char *data, size_t size)

cdef extern from "pjrt_support/execute_context.h" nogil:
    ctypedef struct pjrt_context_data:
        int64_t type_id
        void *address
        pjrt_context_data *next
    ctypedef struct pjrt_context:
        pass
    pjrt_context *pjrt_context_new()
    bint pjrt_context_add(pjrt_context *context, int64_t type_id, void *address)
    const pjrt_context_data *pjrt_context_last(pjrt_context *context)
    void pjrt_context_free(pjrt_context *context)


cdef object read_execute_options(PJRT_ExecuteOptions *options, size_t num_devices, ClientRecord client):
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
        context = _context_of_client(<pjrt_context *>options.context, client)
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
    if launch_id:
        named["launch_id"] = launch_id
    return _checked_options(named) if named else None


cdef bint is_plain(PJRT_ExecuteOptions *options, int *launch_id) noexcept nogil:
    """Whether a program with a value path runs the same with these options as with a launch id alone, which is set.

    Such a program asks for no context and no location of its call, which frameworks add to each execution.
    """
    launch_id[0] = 0
    if options == NULL:
        return True
    if has_field(options, &options.launch_id, sizeof(int)):
        launch_id[0] = options.launch_id
    if options.num_send_ops or options.num_recv_ops:
        return False
    if has_field(options, &options.num_non_donatable_input_indices, sizeof(size_t)):
        if options.num_non_donatable_input_indices:
            return False
    if has_field(options, &options.incarnation_ids, sizeof(void *)) and options.num_tasks:
        return False
    if has_field(options, &options.num_hlo_output_callbacks, sizeof(size_t)) and options.num_hlo_output_callbacks:
        return False
    return True


cdef object _checked_options(dict named):
    """Return the options with these values, which are right because this module made them.

    JAX gives options to each execution, and to check them would take longer than all the rest.
    """
    options = ExecuteOptions.__new__(ExecuteOptions)
    options.__dict__.update(named)
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


cdef object _context_of_client(pjrt_context *context, ClientRecord client):
    """Return the client's context with the same data; ``None`` if there is no data or the client has no contexts.

    JAX adds data of its own to every execution; in a client without contexts no handler could ask for it.
    """
    cdef const pjrt_context_data *data = pjrt_context_last(context)
    cdef list user_data
    if data == NULL or not client.has_contexts:
        return None
    try:
        own = client.client.create_execute_context()
    except UnimplementedError:
        return None
    user_data = []
    while data != NULL:
        user_data.append((data.type_id, <uintptr_t>data.address))
        data = data.next
    for type_id, address in reversed(user_data):
        own.add_user_data(type_id, address)
    return own


cdef PJRT_Error *_create_context(PJRT_ExecuteContext_Create_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(
        args, PJRT_ExecuteContext_Create_Args_FIRST_STRUCT_SIZE, b"PJRT_ExecuteContext_Create_Args"
    )
    if error != NULL:
        return error
    args.context = <PJRT_ExecuteContext *>pjrt_context_new()
    if args.context == NULL:
        return pjrt_error_of_text(PJRT_Error_Code_RESOURCE_EXHAUSTED, b"no memory for an execute context")
    return NULL


cdef PJRT_Error *_destroy_context(PJRT_ExecuteContext_Destroy_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(
        args, PJRT_ExecuteContext_Destroy_Args_FIRST_STRUCT_SIZE, b"PJRT_ExecuteContext_Destroy_Args"
    )
    if error == NULL:
        pjrt_context_free(<pjrt_context *>args.context)
    return error


cdef PJRT_Error *add_user_data(PJRT_FFI_UserData_Add_Args *args) noexcept nogil:
    """Add an address to a context; the function of the FFI extension."""
    cdef PJRT_Error *error = pjrt_check_size(
        args, PJRT_FFI_UserData_Add_Args_FIRST_STRUCT_SIZE, b"PJRT_FFI_UserData_Add_Args"
    )
    if error != NULL:
        return error
    if args.context == NULL:
        return pjrt_error_of_text(
            PJRT_Error_Code_INVALID_ARGUMENT, b"expected an execute context, found a null pointer"
        )
    if pjrt_context_add(<pjrt_context *>args.context, args.user_data.type_id, args.user_data.data):
        return NULL
    return pjrt_error_of_text(PJRT_Error_Code_RESOURCE_EXHAUSTED, b"no memory for data of an execute context")


cdef int fill_table(PJRT_Api *table) except -1:
    """Set the functions of execute contexts."""
    table.PJRT_ExecuteContext_Create = _create_context
    table.PJRT_ExecuteContext_Destroy = _destroy_context
