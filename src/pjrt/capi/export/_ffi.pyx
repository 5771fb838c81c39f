"""FFI: handlers that programs call, and data for them. A registration is for the plugin: its clients all get it."""

from libc.stdint cimport int64_t, uintptr_t

from pjrt.capi._gen_abi cimport *
from pjrt.capi.export._trampolines cimport define_plugin_trampoline, trampoline, plugin_trampoline, put

import threading

from pjrt.api.errors import AlreadyExistsError
from pjrt.capi._ffi_handler import function_at

cdef enum:
    _REGISTER_TYPE = 5
    _REGISTER_HANDLER = 6

_lock = threading.Lock()
_type_ids = {}


cdef int _register_type(table, void *raw) except -1:
    args = <PJRT_FFI_Type_Register_Args *>raw
    name = args.type_name[: args.type_name_size].decode("utf-8", "replace")
    # Ids are the process's: types are C++ types, and the same in every plugin.
    with _lock:
        wanted = args.type_id or _type_ids.get(name) or max(_type_ids.values(), default=0) + 1
        if _type_ids.setdefault(name, wanted) != wanted:
            raise AlreadyExistsError(f"the FFI type {name!r} has the id {_type_ids[name]}, found {wanted}")
    args.type_id = wanted
    return 0


cdef int _register_handler(table, void *raw) except -1:
    args = <PJRT_FFI_Register_Handler_Args *>raw
    name = args.target_name[: args.target_name_size].decode("utf-8", "replace")
    address = <uintptr_t>args.handler
    # A caller in this process may have made the handler of a Python function, which every device of ours can call.
    table.plugin.register_ffi_handler(name, function_at(address) or address, <int>args.traits)
    return 0


cdef int _add_user_data(void *raw) except -1:
    args = <PJRT_FFI_UserData_Add_Args *>raw
    context = <object><void *>args.context
    context.add_user_data(args.user_data.type_id, <uintptr_t>args.user_data.data)
    return 0


define_plugin_trampoline(_REGISTER_TYPE, _register_type)
define_plugin_trampoline(_REGISTER_HANDLER, _register_handler)


cdef int fill_ffi(PJRT_FFI_Extension *extension) except -1:
    """Set the function of the FFI extension that is the same for all plugins."""
    put(&extension.user_data_add, 0, trampoline(_add_user_data))
    return 0


cdef void own_ffi(PJRT_FFI_Extension *extension, int plugin) noexcept:
    """Set the functions of the FFI extension that one plugin has of its own."""
    put(&extension.type_register, 0, plugin_trampoline(plugin, _REGISTER_TYPE))
    put(&extension.register_handler, 0, plugin_trampoline(plugin, _REGISTER_HANDLER))
