"""A framework's key-value store, as a ``KeyValueStore``."""

from pjrt.capi._api cimport start
from pjrt.abi.generated.declarations cimport *
from pjrt.capi.export._trampolines cimport has_field, pjrt_error_new, take_error

from pjrt.api.errors import UnimplementedError
from pjrt.api.key_value_store import KeyValueStore


cdef object key_value_store(PJRT_Client_Create_Args *args):
    """Return the store of a client that a framework creates; ``None`` if the framework has none."""
    cdef _Callbacks callbacks
    if args.kv_get_callback == NULL or args.kv_put_callback == NULL:
        return None
    callbacks = _Callbacks()
    callbacks.get = args.kv_get_callback
    callbacks.get_arg = args.kv_get_user_arg
    callbacks.put = args.kv_put_callback
    callbacks.put_arg = args.kv_put_user_arg
    if has_field(args, &args.kv_try_get_user_arg, sizeof(void *)):
        callbacks.try_get = args.kv_try_get_callback
        callbacks.try_get_arg = args.kv_try_get_user_arg
    return _FrameworkStore(callbacks)


cdef class _Callbacks:
    cdef PJRT_KeyValueGetCallback get
    cdef void *get_arg
    cdef PJRT_KeyValueTryGetCallback try_get
    cdef void *try_get_arg
    cdef PJRT_KeyValuePutCallback put
    cdef void *put_arg


class _FrameworkStore(KeyValueStore):
    """The store of the framework that made the client; its callbacks are called without the GIL."""

    def __init__(self, callbacks):
        self._callbacks = callbacks

    def get(self, key, timeout):
        cdef _Callbacks callbacks = self._callbacks
        cdef PJRT_KeyValueGetCallback_Args args
        cdef PJRT_CallbackError make_error = pjrt_error_new
        cdef PJRT_Error *error
        cdef bytes name = key.encode()
        start(&args, PJRT_KeyValueGetCallback_Args_STRUCT_SIZE)
        args.key = name
        args.key_size = len(name)
        args.timeout_in_ms = max(0, min(round(timeout * 1000), 2**31 - 1))
        args.callback_error = &make_error
        args.user_arg = callbacks.get_arg
        with nogil:
            error = callbacks.get(&args)
        return _value_of(error, args.value, args.value_size, args.value_deleter_callback)

    def try_get(self, key):
        cdef _Callbacks callbacks = self._callbacks
        cdef PJRT_KeyValueTryGetCallback_Args args
        cdef PJRT_CallbackError make_error = pjrt_error_new
        cdef PJRT_Error *error
        cdef bytes name = key.encode()
        if callbacks.try_get == NULL:
            raise UnimplementedError("the framework's key-value store has no try_get; use get with a timeout")
        start(&args, PJRT_KeyValueTryGetCallback_Args_STRUCT_SIZE)
        args.key = name
        args.key_size = len(name)
        args.callback_error = &make_error
        args.user_arg = callbacks.try_get_arg
        with nogil:
            error = callbacks.try_get(&args)
        return _value_of(error, args.value, args.value_size, args.value_deleter_callback)

    def put(self, key, value):
        cdef _Callbacks callbacks = self._callbacks
        cdef PJRT_KeyValuePutCallback_Args args
        cdef PJRT_CallbackError make_error = pjrt_error_new
        cdef PJRT_Error *error
        cdef bytes name = key.encode(), data = bytes(value)
        start(&args, PJRT_KeyValuePutCallback_Args_STRUCT_SIZE)
        args.key = name
        args.key_size = len(name)
        args.value = data
        args.value_size = len(data)
        args.callback_error = &make_error
        args.user_arg = callbacks.put_arg
        with nogil:
            error = callbacks.put(&args)
        if error != NULL:
            raise take_error(error)


ctypedef void (*_ValueDeleter)(char *value) noexcept nogil


cdef bytes _value_of(PJRT_Error *error, char *value, size_t size, _ValueDeleter delete_value):
    """Return a copy of the value that a callback returned, and free the value; raise its error."""
    if error != NULL:
        raise take_error(error)
    try:
        return value[:size]
    finally:
        if delete_value != NULL:
            delete_value(value)
