"""The Profiler extension: traces of a plugin's work. It has a table of functions and errors of its own."""

cimport cython
from libc.stdint cimport uint8_t

from pjrt.capi._api cimport start, text
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport Scope
from pjrt.capi._values cimport Block

from pjrt.api.errors import FailedPreconditionError, InternalError, PjrtError, UnimplementedError
from pjrt.api.plugin import Profiler
from pjrt.capi._documented import documented

from cpython.bytes cimport PyBytes_FromStringAndSize

cdef size_t _LARGEST_TRACE = <size_t>1 << 36

ctypedef PLUGIN_Profiler_Error *(*profiler_function_t)(void *args) noexcept nogil


@cython.no_gc_clear
cdef class ProfilerCore:
    """A ``PLUGIN_Profiler``."""

    cdef Scope scope
    cdef const PLUGIN_Profiler_Api *table
    cdef PLUGIN_Profiler *native

    cdef int call(self, void *function, void *args, str name) except -1:
        """Call a function of this table; an error is converted and freed, as by ``Api.call``."""
        cdef PLUGIN_Profiler_Error *error
        if function == NULL:
            raise UnimplementedError(f"{self.scope.api.path}: the plugin leaves {name} out of its profiler")
        with nogil:
            error = (<profiler_function_t>function)(args)
        if error != NULL:
            raise self._take_error(error)
        return 0

    cdef object _take_error(self, PLUGIN_Profiler_Error *error):
        cdef PLUGIN_Profiler_Error_Message_Args message
        cdef PLUGIN_Profiler_Error_GetCode_Args code
        cdef PLUGIN_Profiler_Error_Destroy_Args destroy
        start(&message, PLUGIN_Profiler_Error_Message_Args_STRUCT_SIZE)
        message.error = error
        start(&code, PLUGIN_Profiler_Error_GetCode_Args_STRUCT_SIZE)
        code.error = error
        code.code = PJRT_Error_Code_UNKNOWN
        start(&destroy, PLUGIN_Profiler_Error_Destroy_Args_STRUCT_SIZE)
        destroy.error = error
        if self.table.error_message != NULL:
            self.table.error_message(&message)
        if self.table.error_get_code != NULL:
            self.table.error_get_code(&code)
        try:
            return PjrtError.of(code.code, text(message.message, message.message_size, "the message of an error"))
        finally:
            if self.table.error_destroy != NULL:
                self.table.error_destroy(&destroy)

    cdef PLUGIN_Profiler *use(self) except NULL:
        if self.native == NULL:
            raise FailedPreconditionError("this profiling session has no profiler: it was not created")
        return self.native

    def _create(self, options):
        cdef PLUGIN_Profiler_Create_Args args
        cdef bytes serialized = bytes(options)
        start(&args, PLUGIN_Profiler_Create_Args_STRUCT_SIZE)
        args.options = serialized
        args.options_size = len(serialized)
        self.call(<void *>self.table.create, &args, "PLUGIN_Profiler_Create")
        self.native = args.profiler

    def start(self):
        cdef PLUGIN_Profiler_Start_Args args
        start(&args, PLUGIN_Profiler_Destroy_Args_STRUCT_SIZE)
        args.profiler = self.use()
        self.call(<void *>self.table.start, &args, "PLUGIN_Profiler_Start")

    def stop(self):
        cdef PLUGIN_Profiler_Stop_Args args
        start(&args, PLUGIN_Profiler_Destroy_Args_STRUCT_SIZE)
        args.profiler = self.use()
        self.call(<void *>self.table.stop, &args, "PLUGIN_Profiler_Stop")

    def collect(self):
        cdef PLUGIN_Profiler_CollectData_Args args
        cdef Block trace
        start(&args, PLUGIN_Profiler_CollectData_Args_STRUCT_SIZE)
        args.profiler = self.use()
        # Asked twice: without a buffer the plugin gives the size, then it fills the buffer.
        self.call(<void *>self.table.collect_data, &args, "PLUGIN_Profiler_CollectData")
        if args.buffer_size_in_bytes > _LARGEST_TRACE:
            raise InternalError(f"the plugin gave a trace of {args.buffer_size_in_bytes} bytes, which cannot be right")
        trace = Block.of(args.buffer_size_in_bytes)
        args.buffer = <uint8_t *>trace.data
        self.call(<void *>self.table.collect_data, &args, "PLUGIN_Profiler_CollectData")
        return PyBytes_FromStringAndSize(<char *>trace.data, args.buffer_size_in_bytes)

    def __dealloc__(self):
        cdef PLUGIN_Profiler_Destroy_Args args
        if self.native != NULL:
            start(&args, PLUGIN_Profiler_Destroy_Args_STRUCT_SIZE)
            args.profiler = self.native
            self.native = NULL
            self.call(<void *>self.table.destroy, &args, "PLUGIN_Profiler_Destroy")


@documented
class PluginProfiler(ProfilerCore, Profiler):
    """A profiling session of a plugin (``PLUGIN_Profiler``)."""


def new_profiler(Scope scope, options):
    """``Plugin.profiler``."""
    cdef PJRT_Profiler_Extension *extension = <PJRT_Profiler_Extension *>scope.api.extension(
        PJRT_Extension_Type_Profiler, sizeof(PJRT_Extension_Base) + sizeof(void *)
    )
    if extension.profiler_api == NULL or extension.profiler_api.struct_size < PLUGIN_Profiler_Api_STRUCT_SIZE:
        raise UnimplementedError(
            f"{scope.api.path}: the plugin's Profiler extension has no table of functions, or an older one"
        )
    profiler = PluginProfiler()
    (<ProfilerCore>profiler).scope = scope
    (<ProfilerCore>profiler).table = extension.profiler_api
    profiler._create(options)
    return profiler
