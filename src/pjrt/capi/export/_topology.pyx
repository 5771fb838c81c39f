"""Topologies shown to a framework, and compiling for them."""

from libc.stdint cimport uint64_t, uintptr_t

from pjrt.capi._gen_abi cimport *
from pjrt.capi._values cimport Block, NamedValues, element_type, read_int64s, read_layout
from pjrt.capi.export._client cimport ClientRecord, client_record
from pjrt.capi.export._device cimport DescriptionRecord, own_kind_id, pointers, shown_kind_id
from pjrt.capi.export._trampolines cimport drop, trampoline, keep, put
from pjrt.capi.export._executable cimport ExecutableRecord
from pjrt.capi.export._owned_bytes cimport give_bytes
from pjrt.capi.export._program cimport read_options, read_program
from pjrt.capi.export._strings cimport Strings

from pjrt.capi._capabilities import stated

cdef class TopologyRecord:
    @staticmethod
    cdef TopologyRecord of(topology, str platform_name, client):
        cdef TopologyRecord record = TopologyRecord.__new__(TopologyRecord)
        cdef DescriptionRecord description
        record.topology = topology
        record.strings = Strings()
        record.descriptions = [DescriptionRecord.of(one) for one in topology.device_descriptions]
        addresses = []
        for description in record.descriptions:
            addresses.append(<uintptr_t>&description.handle)
        record.pointers = pointers(addresses)
        attributes = {**topology.attributes, **stated(topology if client is None else client)}
        record.attributes = NamedValues(attributes, "the attributes of a topology")
        cdef TopologyHandle *handle = &record.handle
        handle.record = <void *>record
        handle.platform_name = record.strings.add(platform_name or topology.platform_name)
        handle.platform_version = record.strings.add(topology.platform_version)
        handle.descriptions = <void **>record.pointers.data
        handle.num_descriptions = len(addresses)
        handle.attributes = record.attributes.data
        handle.num_attributes = record.attributes.size
        return record


cdef TopologyRecord _record(const PJRT_TopologyDescription *topology):
    return <TopologyRecord>(<TopologyHandle *>topology).record


cdef PJRT_Error *_platform_name(PJRT_TopologyDescription_PlatformName_Args *args) noexcept nogil:
    args.platform_name = (<TopologyHandle *>args.topology).platform_name.data
    args.platform_name_size = (<TopologyHandle *>args.topology).platform_name.size
    return NULL


cdef PJRT_Error *_platform_version(PJRT_TopologyDescription_PlatformVersion_Args *args) noexcept nogil:
    args.platform_version = (<TopologyHandle *>args.topology).platform_version.data
    args.platform_version_size = (<TopologyHandle *>args.topology).platform_version.size
    return NULL


cdef PJRT_Error *_descriptions(PJRT_TopologyDescription_GetDeviceDescriptions_Args *args) noexcept nogil:
    args.descriptions = <PJRT_DeviceDescription **>(<TopologyHandle *>args.topology).descriptions
    args.num_descriptions = (<TopologyHandle *>args.topology).num_descriptions
    return NULL


cdef PJRT_Error *_attributes(PJRT_TopologyDescription_Attributes_Args *args) noexcept nogil:
    args.attributes = (<TopologyHandle *>args.topology).attributes
    args.num_attributes = (<TopologyHandle *>args.topology).num_attributes
    return NULL


cdef PJRT_Error *_destroy(PJRT_TopologyDescription_Destroy_Args *args) noexcept nogil:
    if args.topology != NULL:
        drop((<TopologyHandle *>args.topology).record)
    return NULL


cdef int _serialize(void *raw) except -1:
    args = <PJRT_TopologyDescription_Serialize_Args *>raw
    return give_bytes(
        _record(args.topology).topology.serialize(),
        &args.serialized_bytes,
        &args.serialized_bytes_size,
        <void **>&args.serialized_topology,
        <void **>&args.serialized_topology_deleter,
    )


cdef int _fingerprint(void *raw) except -1:
    args = <PJRT_TopologyDescription_Fingerprint_Args *>raw
    args.fingerprint = <uint64_t>_record(args.topology).topology.fingerprint()
    return 0


cdef int _compile(void *raw) except -1:
    args = <PJRT_Compile_Args *>raw
    client = None if args.client == NULL else client_record(args.client).client
    executable = _record(args.topology).topology.compile(
        read_program(args.program, _record(args.topology).topology), read_options(args.compile_options, args.compile_options_size), client=client
    )
    args.executable = <PJRT_Executable *>ExecutableRecord.of(executable).give()
    return 0


cdef int _memory_space_kind_ids(void *raw) except -1:
    args = <PJRT_TopologyDescription_GetMemorySpaceKindIds_Args *>raw
    cdef TopologyRecord record = _record(args.topology)
    cdef size_t index
    if record.kind_ids is None:
        ids = list(record.topology.memory_space_kind_ids)
        block = Block.of((len(ids) + 1) * sizeof(int))
        for index in range(<size_t>len(ids)):
            (<int *>block.data)[index + 1] = shown_kind_id(ids[index])
        (<int *>block.data)[0] = len(ids)
        record.kind_ids = block
    args.memory_space_kind_ids = <int *>record.kind_ids.data + 1
    args.num_memory_space_kind_ids = (<int *>record.kind_ids.data)[0]
    return 0


cdef int _make_canonical_shape(void *raw) except -1:
    args = <PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args *>raw
    cdef void *holder = NULL
    cdef void *deleter = NULL
    cdef bytes shape = _record(args.topology).topology.make_canonical_shape(
        element_type(args.element_type),
        read_int64s(args.dims, args.num_dims, "the dimensions of a shape"),
        None if args.layout == NULL else read_layout(args.layout),
        memory_space_kind_id=own_kind_id(args.memory_space_kind_id),
    )
    return give_bytes(shape, &args.serialized_shape, &args.serialized_shape_size, &holder, <void **>&args.serialized_shape_deleter)


cdef int _of_client(void *raw) except -1:
    args = <PJRT_Client_TopologyDescription_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    if record.topology is None:
        record.topology = TopologyRecord.of(record.client.topology, record.platform_name, record.client)
    args.topology = <PJRT_TopologyDescription *>&(<TopologyRecord>record.topology).handle
    return 0


cdef int fill_table(PJRT_Api *table) except -1:
    """The functions of topologies, but for the two that make one."""
    table.PJRT_TopologyDescription_PlatformName = _platform_name
    table.PJRT_TopologyDescription_PlatformVersion = _platform_version
    table.PJRT_TopologyDescription_GetDeviceDescriptions = _descriptions
    table.PJRT_TopologyDescription_Attributes = _attributes
    table.PJRT_TopologyDescription_Destroy = _destroy
    put(table, SLOT_PJRT_TopologyDescription_Serialize, trampoline(_serialize))
    put(table, SLOT_PJRT_TopologyDescription_Fingerprint, trampoline(_fingerprint))
    put(table, SLOT_PJRT_Client_TopologyDescription, trampoline(_of_client))
    put(table, SLOT_PJRT_Compile, trampoline(_compile))
    put(table, SLOT_PJRT_TopologyDescription_GetMemorySpaceKindIds, trampoline(_memory_space_kind_ids))
    put(table, SLOT_PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace, trampoline(_make_canonical_shape))
    return 0
