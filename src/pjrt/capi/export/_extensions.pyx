"""The extensions of exported plugins: Layouts, MemoryDescriptions, Shardings, AbiVersion, FFI, and Profiler.

If a client does not support an extension, the extension's functions return ``UNIMPLEMENTED`` with the client's message.
"""

from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport malloc

from pjrt.abi.generated.declarations cimport *
from pjrt.capi.export._array_type cimport stated_element_type, stated_shape
from pjrt.capi.export._buffer cimport buffer_record
from pjrt.capi.export._client cimport client_record
from pjrt.capi.export._executable cimport ExecutableRecord, executable_record, string_list
from pjrt.capi.export._ffi cimport fill_ffi, own_ffi
from pjrt.capi.export._gen_handles cimport PJRT_DeviceDescription_MemoryDescriptions, PJRT_MemoryDescription_Kind
from pjrt.capi.export._owned_bytes cimport give_bytes
from pjrt.capi.export._profiler cimport fill_profiler, own_profiler
from pjrt.capi.export._topology cimport topology_record
from pjrt.capi.export._trampolines cimport declare_sizes, drop, keep, pjrt_check_size, put, trampoline

from pjrt.api.errors import UnimplementedError

cdef struct _Chain:
    PJRT_Layouts_Extension layouts
    PJRT_MemoryDescriptions_Extension memory_descriptions
    PJRT_Shardings_Extension shardings
    PJRT_AbiVersion_Extension abi_version
    PJRT_FFI_Extension ffi
    PJRT_Profiler_Extension profiler
    PLUGIN_Profiler_Api profiler_functions


# The functions that are the same for all plugins.
cdef _Chain _shared
cdef bint _shared_is_filled = False


cdef PJRT_Extension_Base *chain(int plugin, bint has_profiler, bint has_abi_versions) except NULL:
    """Return the first extension of a new chain for one plugin; the chain lives as long as the plugin's table."""
    _fill_shared()
    cdef _Chain *links = <_Chain *>malloc(sizeof(_Chain))
    if links == NULL:
        raise MemoryError("no memory for the extensions of a plugin")
    links[0] = _shared
    own_ffi(&links.ffi, plugin)
    own_profiler(&links.profiler, &links.profiler_functions, plugin)
    cdef PJRT_Extension_Base *last = NULL
    if has_profiler:
        last = _link(&links.profiler.base, PJRT_Extension_Type_Profiler, PJRT_Profiler_Extension_STRUCT_SIZE, last)
    last = _link(&links.ffi.base, PJRT_Extension_Type_FFI, PJRT_FFI_Extension_STRUCT_SIZE, last)
    if has_abi_versions:
        last = _link(
            &links.abi_version.base, PJRT_Extension_Type_AbiVersion, PJRT_AbiVersion_Extension_STRUCT_SIZE, last
        )
    last = _link(&links.shardings.base, PJRT_Extension_Type_Shardings, PJRT_Shardings_Extension_STRUCT_SIZE, last)
    last = _link(
        &links.memory_descriptions.base,
        PJRT_Extension_Type_MemoryDescriptions,
        PJRT_MemoryDescriptions_Extension_STRUCT_SIZE,
        last,
    )
    return _link(&links.layouts.base, PJRT_Extension_Type_Layouts, PJRT_Layouts_Extension_STRUCT_SIZE, last)


cdef int _fill_shared() except -1:
    global _shared_is_filled
    if _shared_is_filled:
        return 0
    _fill_layouts(&_shared.layouts)
    _shared.memory_descriptions.PJRT_DeviceDescription_MemoryDescriptions = PJRT_DeviceDescription_MemoryDescriptions
    _shared.memory_descriptions.PJRT_MemoryDescription_Kind = PJRT_MemoryDescription_Kind
    _fill_shardings(&_shared.shardings)
    _fill_abi_version(&_shared.abi_version)
    fill_ffi(&_shared.ffi)
    fill_profiler(&_shared.profiler_functions)
    declare_sizes(&_shared.layouts, PJRT_Extension_Type_Layouts + 1)
    declare_sizes(&_shared.shardings, PJRT_Extension_Type_Shardings + 1)
    declare_sizes(&_shared.abi_version, PJRT_Extension_Type_AbiVersion + 1)
    declare_sizes(&_shared.ffi, PJRT_Extension_Type_FFI + 1)
    _shared_is_filled = True


cdef PJRT_Extension_Base *_link(
    PJRT_Extension_Base *extension, PJRT_Extension_Type kind, size_t size, PJRT_Extension_Base *behind
) noexcept:
    extension.struct_size = size
    extension.type = kind
    extension.next = behind
    return extension


# Layouts. A layout's handle is its serialized form, a bytes object.

cdef PJRT_Layouts_MemoryLayout *_give_layout(layout) except NULL:
    return <PJRT_Layouts_MemoryLayout *>keep(str(layout).encode())


cdef PJRT_Error *_layout_destroy(PJRT_Layouts_MemoryLayout_Destroy_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(
        args, PJRT_Layouts_MemoryLayout_Destroy_Args_FIRST_STRUCT_SIZE, b"PJRT_Layouts_MemoryLayout_Destroy_Args"
    )
    if error == NULL:
        drop(<void *>args.layout)
    return error


cdef int _layout_serialize(void *raw) except -1:
    args = <PJRT_Layouts_MemoryLayout_Serialize_Args *>raw
    give_bytes(<bytes><void *>args.layout, &args.serialized_bytes)


cdef int _client_default_layout(void *raw) except -1:
    args = <PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args *>raw
    shape = stated_shape(args.dims, args.num_dims, "the dimensions of a shape")
    args.layout = _give_layout(client_record(args.client).client.default_layout(stated_element_type(args.type), shape))


cdef int _topology_default_layout(void *raw) except -1:
    args = <PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args *>raw
    shape = stated_shape(args.dims, args.num_dims, "the dimensions of a shape")
    topology = topology_record(args.topology_description).topology
    args.layout = _give_layout(topology.default_layout(stated_element_type(args.type), shape))


cdef int _buffer_layout(void *raw) except -1:
    args = <PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args *>raw
    args.layout = _give_layout(buffer_record(args.buffer).buffer().layout)


cdef class _LayoutList:
    cdef PJRT_Layouts_MemoryLayout **layouts
    cdef size_t number
    cdef list owners


cdef _LayoutList _layouts(ExecutableRecord record, str attribute):
    """Return layouts that belong to an executable, read once."""
    cdef _LayoutList layouts = record.lists.get(attribute)
    if layouts is None:
        layouts = _LayoutList()
        layouts.owners = [str(layout).encode() for layout in getattr(record.executable, attribute)]
        addresses = [<uintptr_t><void *>layout for layout in layouts.owners]
        record.data.add_pointers(addresses, &layouts.layouts, &layouts.number)
        layouts = record.lists.setdefault(attribute, layouts)
    return layouts


cdef int _output_layouts(void *raw) except -1:
    args = <PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args *>raw
    layouts = _layouts(executable_record(args.executable), "output_layouts")
    args.layouts, args.num_outputs = layouts.layouts, layouts.number


cdef int _parameter_layouts(void *raw) except -1:
    args = <PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args *>raw
    layouts = _layouts(executable_record(args.executable), "parameter_layouts")
    args.layouts, args.num_parameters = layouts.layouts, layouts.number


cdef int _fill_layouts(PJRT_Layouts_Extension *extension) except -1:
    extension.PJRT_Layouts_MemoryLayout_Destroy = _layout_destroy
    put(&extension.PJRT_Layouts_MemoryLayout_Serialize, trampoline(_layout_serialize))
    put(&extension.PJRT_Layouts_PJRT_Client_GetDefaultLayout, trampoline(_client_default_layout))
    put(&extension.PJRT_Layouts_PJRT_Buffer_MemoryLayout, trampoline(_buffer_layout))
    put(&extension.PJRT_Layouts_PJRT_Topology_GetDefaultLayout, trampoline(_topology_default_layout))
    put(&extension.PJRT_Layouts_PJRT_Executable_GetOutputLayouts, trampoline(_output_layouts))
    put(&extension.PJRT_Layouts_PJRT_Executable_GetParameterLayouts, trampoline(_parameter_layouts))


# Shardings.

cdef int _parameter_shardings(void *raw) except -1:
    args = <PJRT_Shardings_PJRT_Executable_ParameterShardings_Args *>raw
    cdef ExecutableRecord record = executable_record(args.executable)
    args.shardings, args.sharding_sizes, args.num_parameters = NULL, NULL, 0
    if record.executable.parameter_shardings is not None:
        string_list(record, "parameter_shardings", &args.num_parameters, &args.shardings, &args.sharding_sizes)


cdef const char *_REPLICATED = b""  # an OpSharding whose fields have their defaults
cdef size_t _REPLICATED_SIZE = 0


cdef int _output_shardings(void *raw) except -1:
    args = <PJRT_Shardings_PJRT_Executable_OutputShardings_Args *>raw
    cdef ExecutableRecord record = executable_record(args.executable)
    args.shardings, args.sharding_sizes, args.num_outputs = NULL, NULL, 0
    if record.executable.output_shardings is not None:
        string_list(record, "output_shardings", &args.num_outputs, &args.shardings, &args.sharding_sizes)
        if args.num_outputs == 0:  # XLA asks for the sharding of the empty tuple, which a program without results has
            args.shardings, args.sharding_sizes, args.num_outputs = &_REPLICATED, &_REPLICATED_SIZE, 1


cdef int _fill_shardings(PJRT_Shardings_Extension *extension) except -1:
    put(&extension.PJRT_Shardings_PJRT_Executable_ParameterShardings, trampoline(_parameter_shardings))
    put(&extension.PJRT_Shardings_PJRT_Executable_OutputShardings, trampoline(_output_shardings))


# AbiVersion. The handles are the Python objects themselves. A function for runtimes and the same for executables share
# an implementation: their argument structs differ in the names of types alone.

cdef object _version(const void *handle):
    return <object><void *>handle


cdef int _client_runtime_abi_version(void *raw) except -1:
    args = <PJRT_Client_RuntimeAbiVersion_Args *>raw
    args.abi_version = <PJRT_RuntimeAbiVersion *>keep(client_record(args.client).client.runtime_abi_version())


cdef int _executable_abi_version(void *raw) except -1:
    args = <PJRT_Executable_GetAbiVersion_Args *>raw
    args.abi_version = <PJRT_ExecutableAbiVersion *>keep(executable_record(args.executable).executable.abi_version())


cdef PJRT_Error *_runtime_destroy(PJRT_RuntimeAbiVersion_Destroy_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(
        args, PJRT_RuntimeAbiVersion_Destroy_Args_FIRST_STRUCT_SIZE, b"PJRT_RuntimeAbiVersion_Destroy_Args"
    )
    if error == NULL:
        drop(<void *>args.abi_version)
    return error


cdef PJRT_Error *_executable_destroy(PJRT_ExecutableAbiVersion_Destroy_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(
        args, PJRT_ExecutableAbiVersion_Destroy_Args_FIRST_STRUCT_SIZE, b"PJRT_ExecutableAbiVersion_Destroy_Args"
    )
    if error == NULL:
        drop(<void *>args.abi_version)
    return error


cdef int _check_compatible(void *raw) except -1:
    args = <PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args *>raw
    _version(args.abi_version).check_compatible_with(_version(args.other_abi_version))


cdef int _to_proto(void *raw) except -1:
    args = <PJRT_RuntimeAbiVersion_ToProto_Args *>raw
    give_bytes(_version(args.abi_version).to_proto(), &args.serialized_proto)


cdef int _platform_id(void *raw) except -1:
    args = <PJRT_RuntimeAbiVersion_PlatformId_Args *>raw
    args.platform_id = _version(args.abi_version).platform_id


cdef int _from_proto(void *raw) except -1:
    raise UnimplementedError("an ABI version cannot be made from a proto without a client; get it from a client")


cdef int _fill_abi_version(PJRT_AbiVersion_Extension *extension) except -1:
    extension.runtime_abi_version_destroy = _runtime_destroy
    extension.executable_abi_version_destroy = _executable_destroy
    put(&extension.client_runtime_abi_version, trampoline(_client_runtime_abi_version))
    put(&extension.executable_get_abi_version, trampoline(_executable_abi_version))
    put(&extension.runtime_abi_version_is_compatible_with_runtime, trampoline(_check_compatible))
    put(&extension.runtime_abi_version_is_compatible_with_executable, trampoline(_check_compatible))
    put(&extension.runtime_abi_version_to_proto, trampoline(_to_proto))
    put(&extension.runtime_abi_version_platform_id, trampoline(_platform_id))
    put(&extension.executable_abi_version_to_proto, trampoline(_to_proto))
    put(&extension.executable_abi_version_platform_id, trampoline(_platform_id))
    put(&extension.runtime_abi_version_from_proto, trampoline(_from_proto))
    put(&extension.executable_abi_version_from_proto, trampoline(_from_proto))
