"""Topologies shown to a framework, and compiling for them."""

cimport cython
from libc.stdint cimport uint64_t, uintptr_t

from pjrt.abi.generated.declarations cimport *
from pjrt.capi.export._array_type cimport stated_element_type, stated_layout, stated_shape
from pjrt.capi.export._client cimport ClientRecord, client_record
from pjrt.capi.export._device cimport DeviceDescriptionRecord, own_kind_id, shown_kind_id
from pjrt.capi.export._executable cimport ExecutableRecord
from pjrt.capi.export._gen_handles cimport TopologyDescriptionHandle
from pjrt.capi.export._handle_data cimport HandleData
from pjrt.capi.export._owned_bytes cimport OwnedBytes, give_bytes
from pjrt.capi.export._program cimport read_options, read_program
from pjrt.capi.export._trampolines cimport keep, put, trampoline

from pjrt.api.program import from_caller
from pjrt.capi.reports import stated_capabilities


cdef class TopologyRecord:
    @staticmethod
    cdef TopologyRecord of(topology, str platform_name, client):
        cdef TopologyRecord record = TopologyRecord.__new__(TopologyRecord)
        cdef TopologyDescriptionHandle *handle = &record.handle
        cdef HandleData data = HandleData()
        record.topology = topology
        record.data = data
        record.descriptions = [DeviceDescriptionRecord.of(each) for each in topology.device_descriptions]
        addresses = [<uintptr_t>&(<DeviceDescriptionRecord>each).handle for each in record.descriptions]
        attributes = {**topology.attributes, **stated_capabilities(topology if client is None else client)}
        handle.record = <void *>record
        data.add_string(platform_name or topology.platform_name, &handle.platform_name, &handle.platform_name_size)
        data.add_string(topology.platform_version, &handle.platform_version, &handle.platform_version_size)
        data.add_pointers(addresses, &handle.descriptions, &handle.num_descriptions)
        data.add_named_values(
            attributes, "the attributes of a topology", &handle.attributes, &handle.num_attributes
        )
        return record

    cdef PJRT_TopologyDescription *give(self) noexcept:
        """Return the handle, which is the framework's from now on until it destroys it."""
        keep(self)
        return <PJRT_TopologyDescription *>&self.handle


cdef TopologyRecord topology_record(const PJRT_TopologyDescription *topology):
    """Return the record behind a topology's handle."""
    return <TopologyRecord>(<TopologyDescriptionHandle *>topology).record


cdef int _serialize(void *raw) except -1:
    args = <PJRT_TopologyDescription_Serialize_Args *>raw
    give_bytes(topology_record(args.topology).topology.serialize(), &args.serialized_bytes)


cdef int _fingerprint(void *raw) except -1:
    args = <PJRT_TopologyDescription_Fingerprint_Args *>raw
    args.fingerprint = <uint64_t>topology_record(args.topology).topology.fingerprint()


cdef int _compile(void *raw) except -1:
    args = <PJRT_Compile_Args *>raw
    client = None if args.client == NULL else client_record(args.client).client
    topology = topology_record(args.topology).topology
    options = read_options(args.compile_options, args.compile_options_size)
    program = read_program(args.program, topology)
    with from_caller(framework=True):
        executable = topology.compile(program, options, client=client)
    args.executable = <PJRT_Executable *>ExecutableRecord.of(executable).give()


cdef int _memory_space_kind_ids(void *raw) except -1:
    args = <PJRT_TopologyDescription_GetMemorySpaceKindIds_Args *>raw
    cdef TopologyRecord record = topology_record(args.topology)
    cdef const int *numbers
    cdef size_t count
    if record.kind_ids == NULL:
        kind_ids = [shown_kind_id(kind_id) for kind_id in record.topology.memory_space_kind_ids]
        record.data.add_ints(kind_ids, &numbers, &count)
        with cython.critical_section(record):
            record.num_kind_ids = count
            record.kind_ids = numbers
    args.memory_space_kind_ids = record.kind_ids
    args.num_memory_space_kind_ids = record.num_kind_ids


cdef int _make_canonical_shape(void *raw) except -1:
    args = <PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args *>raw
    cdef OwnedBytes owned  # the struct has no holder: its deleter takes the bytes themselves
    cdef bytes shape = topology_record(args.topology).topology.make_canonical_shape(
        stated_element_type(args.element_type),
        stated_shape(args.dims, args.num_dims, "the dimensions of a shape"),
        stated_layout(args.layout),
        memory_space_kind_id=own_kind_id(args.memory_space_kind_id),
    )
    give_bytes(shape, &owned.start)
    args.serialized_shape, args.serialized_shape_size = owned.start, owned.size
    args.serialized_shape_deleter = <void (*)(const char *) noexcept nogil>owned.deleter


cdef int _of_client(void *raw) except -1:
    args = <PJRT_Client_TopologyDescription_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    if record.topology is None:
        topology = TopologyRecord.of(record.client.topology, record.platform_name, record.client)
        with cython.critical_section(record):
            if record.topology is None:  # set once: frameworks have the address of its handle
                record.topology = topology
    args.topology = <PJRT_TopologyDescription *>&(<TopologyRecord>record.topology).handle


cdef int fill_table(PJRT_Api *table) except -1:
    """Set the functions of topologies, but for their getters and the two that make one."""
    put(&table.PJRT_TopologyDescription_Serialize, trampoline(_serialize))
    put(&table.PJRT_TopologyDescription_Fingerprint, trampoline(_fingerprint))
    put(&table.PJRT_Client_TopologyDescription, trampoline(_of_client))
    put(&table.PJRT_Compile, trampoline(_compile))
    put(&table.PJRT_TopologyDescription_GetMemorySpaceKindIds, trampoline(_memory_space_kind_ids))
    put(&table.PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace, trampoline(_make_canonical_shape))
