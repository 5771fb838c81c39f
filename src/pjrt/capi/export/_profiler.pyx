"""Profiler: the sessions of a plugin that has a profiler. Its errors are ``PJRT_Error``s under another name."""

cimport cython
from libc.stdint cimport uint8_t
from libc.string cimport memcpy

from pjrt.abi.generated.declarations cimport *
from pjrt.capi.export._trampolines cimport (
    declare_size, define_plugin_trampoline, drop, keep, pjrt_check_size, pjrt_error_release, plugin_trampoline, put,
    trampoline
)

from pjrt.api.errors import InvalidArgumentError

cdef extern from "pjrt_support/error.h" nogil:
    void pjrt_error_read(const PJRT_Error *error, const char **message, size_t *size)
    PJRT_Error_Code pjrt_error_code(const PJRT_Error *error)

cdef enum:
    _CREATE = 7


cdef class _Session:
    cdef object profiler
    cdef bytes collected


cdef _Session _session(PLUGIN_Profiler *handle):
    return <_Session><void *>handle


cdef void _error_destroy(PLUGIN_Profiler_Error_Destroy_Args *args) noexcept nogil:
    if args.struct_size >= PLUGIN_Profiler_Error_Destroy_Args_FIRST_STRUCT_SIZE:  # it can return no error
        pjrt_error_release(<PJRT_Error *>args.error)


cdef void _error_message(PLUGIN_Profiler_Error_Message_Args *args) noexcept nogil:
    if args.struct_size >= PLUGIN_Profiler_Error_Message_Args_FIRST_STRUCT_SIZE:  # it can return no error
        pjrt_error_read(<const PJRT_Error *>args.error, &args.message, &args.message_size)


cdef PLUGIN_Profiler_Error *_error_get_code(PLUGIN_Profiler_Error_GetCode_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(
        args, PLUGIN_Profiler_Error_GetCode_Args_FIRST_STRUCT_SIZE, b"PLUGIN_Profiler_Error_GetCode_Args"
    )
    if error == NULL:
        args.code = <int>pjrt_error_code(<const PJRT_Error *>args.error)
    return <PLUGIN_Profiler_Error *>error


cdef int _create(table, void *raw) except -1:
    args = <PLUGIN_Profiler_Create_Args *>raw
    cdef _Session session = _Session()
    session.profiler = table.plugin.profiler(args.options[: args.options_size] if args.options_size else b"")
    args.profiler = <PLUGIN_Profiler *>keep(session)


cdef PLUGIN_Profiler_Error *_destroy(PLUGIN_Profiler_Destroy_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(
        args, PLUGIN_Profiler_Destroy_Args_FIRST_STRUCT_SIZE, b"PLUGIN_Profiler_Destroy_Args"
    )
    if error == NULL:
        drop(<void *>args.profiler)
    return <PLUGIN_Profiler_Error *>error


cdef int _start(void *raw) except -1:
    _session((<PLUGIN_Profiler_Destroy_Args *>raw).profiler).profiler.start()


cdef int _stop(void *raw) except -1:
    _session((<PLUGIN_Profiler_Destroy_Args *>raw).profiler).profiler.stop()


cdef int _collect(void *raw) except -1:
    args = <PLUGIN_Profiler_CollectData_Args *>raw
    cdef _Session session = _session(args.profiler)
    # Called twice: for the size without memory, which collects anew, then with memory of that size.
    cdef bytes profile
    with cython.critical_section(session):
        profile = session.collected
    if args.buffer == NULL or profile is None:
        profile = session.profiler.collect()
        with cython.critical_section(session):
            session.collected = profile
    if args.buffer != NULL:
        if args.buffer_size_in_bytes < <size_t>len(profile):
            raise InvalidArgumentError(f"the profile needs {len(profile)} bytes, found {args.buffer_size_in_bytes}")
        memcpy(args.buffer, <const char *>profile, len(profile))
    args.buffer_size_in_bytes = len(profile)


define_plugin_trampoline(
    _CREATE, _create, PLUGIN_Profiler_Create_Args_FIRST_STRUCT_SIZE, b"PLUGIN_Profiler_Create_Args"
)


cdef int fill_profiler(PLUGIN_Profiler_Api *api) except -1:
    """Set the functions of a profiler that are the same for all plugins."""
    api.struct_size = PLUGIN_Profiler_Api_STRUCT_SIZE
    api.error_destroy = _error_destroy
    api.error_message = _error_message
    api.error_get_code = _error_get_code
    api.destroy = _destroy
    put(&api.start, trampoline(_start))
    put(&api.stop, trampoline(_stop))
    put(&api.collect_data, trampoline(_collect))
    declare_size(<void *>api.start, PLUGIN_Profiler_Destroy_Args_FIRST_STRUCT_SIZE, b"PLUGIN_Profiler_Start_Args")
    declare_size(<void *>api.stop, PLUGIN_Profiler_Destroy_Args_FIRST_STRUCT_SIZE, b"PLUGIN_Profiler_Stop_Args")
    declare_size(
        <void *>api.collect_data, PLUGIN_Profiler_CollectData_Args_FIRST_STRUCT_SIZE,
        b"PLUGIN_Profiler_CollectData_Args",
    )


cdef void own_profiler(PJRT_Profiler_Extension *extension, PLUGIN_Profiler_Api *api, int plugin) noexcept:
    """Set the one function that each plugin has of its own, and point the extension at the functions."""
    put(&api.create, plugin_trampoline(plugin, _CREATE))
    extension.profiler_api = api
    extension.traceme_context_id = -1
