"""FFI: handlers that programs call, and data for them.

A framework registers a handler with the plugin, not with a client: all clients of the plugin get it.
"""

from libc.stdint cimport int64_t, uintptr_t

from pjrt.abi.generated.declarations cimport *
from pjrt.capi.export._execute_options cimport add_user_data
from pjrt.capi.export._trampolines cimport define_plugin_trampoline, plugin_trampoline, put

import threading

from pjrt.api.errors import AlreadyExistsError
from pjrt.capi._program import function_at

cdef enum:
    _REGISTER_TYPE = 5
    _REGISTER_HANDLER = 6

_lock = threading.Lock()
_type_ids = {}


cdef int _register_type(table, void *raw) except -1:
    args = <PJRT_FFI_Type_Register_Args *>raw
    name = args.type_name[: args.type_name_size].decode("utf-8", "replace")
    # One set of ids for the whole process: types are C++ types, the same in every plugin.
    with _lock:
        type_id = args.type_id or _type_ids.get(name) or max(_type_ids.values(), default=0) + 1
        if _type_ids.setdefault(name, type_id) != type_id:
            raise AlreadyExistsError(f"the FFI type {name!r} has the id {_type_ids[name]}, found {type_id}")
    args.type_id = type_id


cdef int _register_handler(table, void *raw) except -1:
    args = <PJRT_FFI_Register_Handler_Args *>raw
    name = args.target_name[: args.target_name_size].decode("utf-8", "replace")
    address = <uintptr_t>args.handler
    # The handler may be one that this package made of a Python function: every device in Python can call that function.
    table.plugin.register_ffi_handler(name, function_at(address) or address, <int>args.traits)


define_plugin_trampoline(
    _REGISTER_TYPE, _register_type, PJRT_FFI_Type_Register_Args_FIRST_STRUCT_SIZE, b"PJRT_FFI_Type_Register_Args"
)
define_plugin_trampoline(
    _REGISTER_HANDLER, _register_handler, PJRT_FFI_Register_Handler_Args_FIRST_STRUCT_SIZE, b"PJRT_FFI_Register_Handler_Args"
)


cdef int fill_ffi(PJRT_FFI_Extension *extension) except -1:
    """Set the function of the FFI extension that is the same for all plugins."""
    extension.user_data_add = add_user_data


cdef void own_ffi(PJRT_FFI_Extension *extension, int plugin) noexcept:
    """Set the functions of the FFI extension that each plugin has of its own."""
    put(&extension.type_register, plugin_trampoline(plugin, _REGISTER_TYPE))
    put(&extension.register_handler, plugin_trampoline(plugin, _REGISTER_HANDLER))
