"""The extensions of exported plugins: Layouts, MemoryDescriptions, Shardings, AbiVersion, FFI, and Profiler where there is one.

A client may lack what an extension shows; then its functions answer ``UNIMPLEMENTED`` with the client's own words, as
everywhere else.
"""

from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport malloc

from pjrt.capi._gen_abi cimport *
from pjrt.capi._values cimport Block, element_type, read_int64s
from pjrt.capi.export._buffer cimport buffer_record
from pjrt.capi.export._client cimport client_record
from pjrt.capi.export._device cimport DescriptionHandle, DescriptionRecord, MemoryDescriptionHandle, pointers
from pjrt.capi.export._trampolines cimport drop, trampoline, keep, put
from pjrt.capi.export._executable cimport ExecutableRecord, executable_record, string_list
from pjrt.capi.export._ffi cimport fill_ffi, own_ffi
from pjrt.capi.export._owned_bytes cimport give_bytes
from pjrt.capi.export._profiler cimport fill_profiler, own_profiler
from pjrt.capi.export._topology cimport TopologyHandle, TopologyRecord

from pjrt.api.errors import UnimplementedError

cdef struct _Chain:
    PJRT_Layouts_Extension layouts
    PJRT_MemoryDescriptions_Extension memory_descriptions
    PJRT_Shardings_Extension shardings
    PJRT_AbiVersion_Extension abi_version
    PJRT_FFI_Extension ffi
    PJRT_Profiler_Extension profiler
    PLUGIN_Profiler_Api profiler_functions


# What is the same in the extensions of all plugins.
cdef _Chain _shared
cdef bint _shared_is_filled = False


cdef PJRT_Extension_Base *chain(int plugin, bint has_profiler, bint has_abi_versions) except NULL:
    """The extensions of one plugin, the first of the chain; they live as long as its table."""
    _fill_shared()
    cdef _Chain *made = <_Chain *>malloc(sizeof(_Chain))
    if made == NULL:
        raise MemoryError("no memory for the extensions of a plugin")
    made[0] = _shared
    own_ffi(&made.ffi, plugin)
    own_profiler(&made.profiler, &made.profiler_functions, plugin)
    cdef PJRT_Extension_Base *last = NULL
    if has_profiler:
        last = _link(&made.profiler.base, PJRT_Extension_Type_Profiler, PJRT_Profiler_Extension_STRUCT_SIZE, last)
    last = _link(&made.ffi.base, PJRT_Extension_Type_FFI, PJRT_FFI_Extension_STRUCT_SIZE, last)
    if has_abi_versions:
        last = _link(
            &made.abi_version.base, PJRT_Extension_Type_AbiVersion, PJRT_AbiVersion_Extension_STRUCT_SIZE, last
        )
    last = _link(&made.shardings.base, PJRT_Extension_Type_Shardings, PJRT_Shardings_Extension_STRUCT_SIZE, last)
    last = _link(
        &made.memory_descriptions.base,
        PJRT_Extension_Type_MemoryDescriptions,
        PJRT_MemoryDescriptions_Extension_STRUCT_SIZE,
        last,
    )
    return _link(&made.layouts.base, PJRT_Extension_Type_Layouts, PJRT_Layouts_Extension_STRUCT_SIZE, last)


cdef int _fill_shared() except -1:
    global _shared_is_filled
    if _shared_is_filled:
        return 0
    _fill_layouts(&_shared.layouts)
    _fill_memory_descriptions(&_shared.memory_descriptions)
    _fill_shardings(&_shared.shardings)
    _fill_abi_version(&_shared.abi_version)
    fill_ffi(&_shared.ffi)
    fill_profiler(&_shared.profiler_functions)
    _shared_is_filled = True
    return 0


cdef PJRT_Extension_Base *_link(
    PJRT_Extension_Base *extension, PJRT_Extension_Type kind, size_t size, PJRT_Extension_Base *behind
) noexcept:
    extension.struct_size = size
    extension.type = kind
    extension.next = behind
    return extension


# Layouts. A layout's handle is its text, as bytes.

cdef PJRT_Layouts_MemoryLayout *_give_layout(layout) except NULL:
    return <PJRT_Layouts_MemoryLayout *>keep(str(layout).encode())


cdef PJRT_Error *_layout_destroy(PJRT_Layouts_MemoryLayout_Destroy_Args *args) noexcept nogil:
    drop(<void *>args.layout)
    return NULL


cdef int _layout_serialize(void *raw) except -1:
    args = <PJRT_Layouts_MemoryLayout_Serialize_Args *>raw
    return give_bytes(
        <bytes><void *>args.layout,
        &args.serialized_bytes,
        &args.serialized_bytes_size,
        <void **>&args.serialized_layout,
        <void **>&args.serialized_layout_deleter,
    )


cdef int _client_default_layout(void *raw) except -1:
    args = <PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args *>raw
    shape = read_int64s(args.dims, args.num_dims, "the dimensions of a shape")
    args.layout = _give_layout(client_record(args.client).client.default_layout(element_type(args.type), shape))
    return 0


cdef int _topology_default_layout(void *raw) except -1:
    args = <PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args *>raw
    shape = read_int64s(args.dims, args.num_dims, "the dimensions of a shape")
    topology = (<TopologyRecord>(<TopologyHandle *>args.topology_description).record).topology
    args.layout = _give_layout(topology.default_layout(element_type(args.type), shape))
    return 0


cdef int _buffer_layout(void *raw) except -1:
    args = <PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args *>raw
    args.layout = _give_layout(buffer_record(args.buffer).buffer.layout)
    return 0


cdef class _LayoutList:
    """Layouts that belong to an executable."""

    cdef list strings
    cdef Block handles


cdef _LayoutList _layouts(ExecutableRecord record, str attribute):
    cdef _LayoutList found = record.lists.get(attribute)
    if found is None:
        found = _LayoutList()
        found.strings = [str(layout).encode() for layout in getattr(record.executable, attribute)]
        found.handles = pointers([<uintptr_t><void *>text for text in found.strings])
        record.lists[attribute] = found
    return found


cdef int _output_layouts(void *raw) except -1:
    args = <PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args *>raw
    found = _layouts(executable_record(args.executable), "output_layouts")
    args.num_outputs = len(found.strings)
    args.layouts = <PJRT_Layouts_MemoryLayout **>found.handles.data
    return 0


cdef int _parameter_layouts(void *raw) except -1:
    args = <PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args *>raw
    found = _layouts(executable_record(args.executable), "parameter_layouts")
    args.num_parameters = len(found.strings)
    args.layouts = <PJRT_Layouts_MemoryLayout **>found.handles.data
    return 0


cdef int _fill_layouts(PJRT_Layouts_Extension *extension) except -1:
    extension.PJRT_Layouts_MemoryLayout_Destroy = _layout_destroy
    put(&extension.PJRT_Layouts_MemoryLayout_Serialize, 0, trampoline(_layout_serialize))
    put(&extension.PJRT_Layouts_PJRT_Client_GetDefaultLayout, 0, trampoline(_client_default_layout))
    put(&extension.PJRT_Layouts_PJRT_Buffer_MemoryLayout, 0, trampoline(_buffer_layout))
    put(&extension.PJRT_Layouts_PJRT_Topology_GetDefaultLayout, 0, trampoline(_topology_default_layout))
    put(&extension.PJRT_Layouts_PJRT_Executable_GetOutputLayouts, 0, trampoline(_output_layouts))
    put(&extension.PJRT_Layouts_PJRT_Executable_GetParameterLayouts, 0, trampoline(_parameter_layouts))
    return 0


# MemoryDescriptions: read when the device's description was.

cdef PJRT_Error *_memory_descriptions(PJRT_DeviceDescription_MemoryDescriptions_Args *args) noexcept nogil:
    cdef DescriptionHandle *handle = <DescriptionHandle *>args.device_description
    args.memory_descriptions = <const PJRT_MemoryDescription *const *>handle.memory_descriptions
    args.num_memory_descriptions = handle.num_memory_descriptions
    args.default_memory_index = 0 if handle.num_memory_descriptions else <size_t>-1
    return NULL


cdef PJRT_Error *_memory_description_kind(PJRT_MemoryDescription_Kind_Args *args) noexcept nogil:
    cdef MemoryDescriptionHandle *handle = <MemoryDescriptionHandle *>args.memory_description
    args.kind = handle.kind.data
    args.kind_size = handle.kind.size
    args.kind_id = handle.kind_id
    return NULL


cdef int _fill_memory_descriptions(PJRT_MemoryDescriptions_Extension *extension) except -1:
    extension.PJRT_DeviceDescription_MemoryDescriptions = _memory_descriptions
    extension.PJRT_MemoryDescription_Kind = _memory_description_kind
    return 0


# Shardings.

cdef int _parameter_shardings(void *raw) except -1:
    args = <PJRT_Shardings_PJRT_Executable_ParameterShardings_Args *>raw
    cdef ExecutableRecord record = executable_record(args.executable)
    args.shardings, args.sharding_sizes = NULL, NULL
    if record.executable.parameter_shardings is not None:
        string_list(record, "parameter_shardings", &args.num_parameters, &args.shardings, &args.sharding_sizes)
    return 0


cdef int _output_shardings(void *raw) except -1:
    args = <PJRT_Shardings_PJRT_Executable_OutputShardings_Args *>raw
    cdef ExecutableRecord record = executable_record(args.executable)
    args.shardings, args.sharding_sizes = NULL, NULL
    if record.executable.output_shardings is not None:
        string_list(record, "output_shardings", &args.num_outputs, &args.shardings, &args.sharding_sizes)
    return 0


cdef int _fill_shardings(PJRT_Shardings_Extension *extension) except -1:
    put(&extension.PJRT_Shardings_PJRT_Executable_ParameterShardings, 0, trampoline(_parameter_shardings))
    put(&extension.PJRT_Shardings_PJRT_Executable_OutputShardings, 0, trampoline(_output_shardings))
    return 0


# AbiVersion. The handles are the API's own objects.

cdef object _version(const void *handle):
    return <object><void *>handle


cdef int _client_runtime_abi_version(void *raw) except -1:
    args = <PJRT_Client_RuntimeAbiVersion_Args *>raw
    args.abi_version = <PJRT_RuntimeAbiVersion *>keep(client_record(args.client).client.runtime_abi_version())
    return 0


cdef int _executable_abi_version(void *raw) except -1:
    args = <PJRT_Executable_GetAbiVersion_Args *>raw
    args.abi_version = <PJRT_ExecutableAbiVersion *>keep(executable_record(args.executable).executable.abi_version())
    return 0


cdef PJRT_Error *_runtime_destroy(PJRT_RuntimeAbiVersion_Destroy_Args *args) noexcept nogil:
    drop(<void *>args.abi_version)
    return NULL


cdef PJRT_Error *_executable_destroy(PJRT_ExecutableAbiVersion_Destroy_Args *args) noexcept nogil:
    drop(<void *>args.abi_version)
    return NULL


cdef int _compatible_with_runtime(void *raw) except -1:
    args = <PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args *>raw
    _version(args.abi_version).check_compatible_with(_version(args.other_abi_version))
    return 0


cdef int _compatible_with_executable(void *raw) except -1:
    args = <PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable_Args *>raw
    _version(args.abi_version).check_compatible_with(_version(args.executable_abi_version))
    return 0


cdef int _runtime_to_proto(void *raw) except -1:
    args = <PJRT_RuntimeAbiVersion_ToProto_Args *>raw
    return give_bytes(
        _version(args.abi_version).to_proto(),
        &args.serialized_proto,
        &args.serialized_proto_size,
        <void **>&args.serialized_proto_holder,
        <void **>&args.serialized_proto_deleter,
    )


cdef int _executable_to_proto(void *raw) except -1:
    args = <PJRT_ExecutableAbiVersion_ToProto_Args *>raw
    return give_bytes(
        _version(args.abi_version).to_proto(),
        &args.serialized_proto,
        &args.serialized_proto_size,
        <void **>&args.serialized_proto_holder,
        <void **>&args.serialized_proto_deleter,
    )


cdef int _runtime_platform_id(void *raw) except -1:
    args = <PJRT_RuntimeAbiVersion_PlatformId_Args *>raw
    args.platform_id = _version(args.abi_version).platform_id
    return 0


cdef int _executable_platform_id(void *raw) except -1:
    args = <PJRT_ExecutableAbiVersion_PlatformId_Args *>raw
    args.platform_id = _version(args.abi_version).platform_id
    return 0


cdef int _from_proto(void *raw) except -1:
    raise UnimplementedError("an ABI version cannot be made from a proto without a client; ask a client for its version")


cdef int _fill_abi_version(PJRT_AbiVersion_Extension *extension) except -1:
    extension.runtime_abi_version_destroy = _runtime_destroy
    extension.executable_abi_version_destroy = _executable_destroy
    put(&extension.client_runtime_abi_version, 0, trampoline(_client_runtime_abi_version))
    put(&extension.executable_get_abi_version, 0, trampoline(_executable_abi_version))
    put(&extension.runtime_abi_version_is_compatible_with_runtime, 0, trampoline(_compatible_with_runtime))
    put(&extension.runtime_abi_version_is_compatible_with_executable, 0, trampoline(_compatible_with_executable))
    put(&extension.runtime_abi_version_to_proto, 0, trampoline(_runtime_to_proto))
    put(&extension.runtime_abi_version_platform_id, 0, trampoline(_runtime_platform_id))
    put(&extension.executable_abi_version_to_proto, 0, trampoline(_executable_to_proto))
    put(&extension.executable_abi_version_platform_id, 0, trampoline(_executable_platform_id))
    put(&extension.runtime_abi_version_from_proto, 0, trampoline(_from_proto))
    put(&extension.executable_abi_version_from_proto, 0, trampoline(_from_proto))
    return 0
