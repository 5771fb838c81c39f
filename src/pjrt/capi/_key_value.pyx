"""The key-value store for a plugin's client: calls of the plugin into a Python ``KeyValueStore``.

The plugin calls from any thread, without the GIL. A value is copied into memory that the plugin gives back; an
exception becomes an error of the plugin's own kind, with its code and message. Once the gate is shut, every call is
answered with CANCELLED.
"""

from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pjrt.capi._gate cimport gate_enter, gate_leave
from pjrt.capi._gen_abi cimport *

from pjrt.api.errors import from_author
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.key_value_store import KeyValueStore


cdef int offer_store(PJRT_Client_Create_Args *args, store) except -1:
    """Fill in the callbacks, none for ``None``. The store must be kept as long as the client lives."""
    if store is None:
        return 0
    if not isinstance(store, KeyValueStore):
        raise InvalidArgumentError(f"key_value_store must be a pjrt.KeyValueStore, found {type(store).__name__}")
    args.kv_get_callback = _get
    args.kv_get_user_arg = <void *>store
    args.kv_try_get_callback = _try_get
    args.kv_try_get_user_arg = <void *>store
    args.kv_put_callback = _put
    args.kv_put_user_arg = <void *>store
    return 0


cdef PJRT_Error *_ending(PJRT_CallbackError *make_error) noexcept nogil:
    return make_error[0](PJRT_Error_Code_CANCELLED, b"the host is ending", 18)


cdef PJRT_Error *_get(PJRT_KeyValueGetCallback_Args *args) noexcept nogil:
    cdef PJRT_Error *error
    if not gate_enter():
        return _ending(args.callback_error)
    error = _python_get(args)
    gate_leave()
    return error


cdef PJRT_Error *_try_get(PJRT_KeyValueTryGetCallback_Args *args) noexcept nogil:
    cdef PJRT_Error *error
    if not gate_enter():
        return _ending(args.callback_error)
    error = _python_try_get(args)
    gate_leave()
    return error


cdef PJRT_Error *_put(PJRT_KeyValuePutCallback_Args *args) noexcept nogil:
    cdef PJRT_Error *error
    if not gate_enter():
        return _ending(args.callback_error)
    error = _python_put(args)
    gate_leave()
    return error


cdef PJRT_Error *_python_get(PJRT_KeyValueGetCallback_Args *args) noexcept with gil:
    try:
        value = (<object>args.user_arg).get(_key(args.key, args.key_size), args.timeout_in_ms / 1000)
        args.value = _copied(value, &args.value_size)
        args.value_deleter_callback = _free_value
    except BaseException as error:
        return _error(args.callback_error, error)
    return NULL


cdef PJRT_Error *_python_try_get(PJRT_KeyValueTryGetCallback_Args *args) noexcept with gil:
    try:
        value = (<object>args.user_arg).try_get(_key(args.key, args.key_size))
        args.value = _copied(value, &args.value_size)
        args.value_deleter_callback = _free_value
    except BaseException as error:
        return _error(args.callback_error, error)
    return NULL


cdef PJRT_Error *_python_put(PJRT_KeyValuePutCallback_Args *args) noexcept with gil:
    try:
        (<object>args.user_arg).put(_key(args.key, args.key_size), <bytes>args.value[:args.value_size])
    except BaseException as error:
        return _error(args.callback_error, error)
    return NULL


cdef str _key(const char *key, size_t size):
    """Return a key as text; bytes that are not UTF-8 stay distinct."""
    return (<bytes>key[:size]).decode("utf-8", "surrogateescape")


cdef char *_copied(value, size_t *size) except NULL:
    cdef bytes data = bytes(value)
    cdef char *copy = <char *>malloc(len(data) or 1)
    if copy == NULL:
        raise MemoryError(f"no {len(data)} bytes of memory for a value of the key-value store")
    memcpy(copy, <char *>data, len(data))
    size[0] = len(data)
    return copy


cdef void _free_value(char *value) noexcept nogil:
    free(value)


cdef PJRT_Error *_error(PJRT_CallbackError *make_error, raised):
    """Return an exception as an error of the plugin's own kind."""
    error = from_author(raised)
    cdef bytes message = error.message.encode()
    return make_error[0](<PJRT_Error_Code><int>error.code, message, len(message))
