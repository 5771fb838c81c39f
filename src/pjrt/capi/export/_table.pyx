"""The table of one exported plugin, and the functions that belong to a plugin, not to one of its objects."""

cimport cython
from cpython.pycapsule cimport PyCapsule_New
from libc.stdlib cimport calloc, free

from pjrt.abi.generated.declarations cimport *
from pjrt.capi._api cimport NamedValues, read_named_values
from pjrt.capi.export cimport (
    _buffer, _client, _device, _event, _executable, _execute_options, _from_host, _loaded_executable, _to_host,
    _topology, _transfer
)
from pjrt.capi.export._client cimport ClientRecord
from pjrt.capi.export._extensions cimport chain
from pjrt.capi.export._gen_handles cimport fill_getters
from pjrt.capi.export._key_value_store cimport key_value_store
from pjrt.capi.export._topology cimport TopologyRecord
from pjrt.capi.export._trampolines cimport (
    add_plugin, declare_sizes, define_plugin_trampoline, keep, pjrt_check_size, pjrt_error_release, plugin_trampoline,
    put, remove_plugin
)

import threading

cdef extern from "pjrt_support/error.h" nogil:
    void pjrt_error_read(const PJRT_Error *error, const char **message, size_t *size)
    PJRT_Error_Code pjrt_error_code(const PJRT_Error *error)
    void pjrt_error_visit(const PJRT_Error *error, PJRT_Error_PayloadVisitor visitor, void *user_arg)

cdef enum:
    _INITIALIZE
    _ATTRIBUTES
    _CREATE_CLIENT
    _CREATE_TOPOLOGY
    _DESERIALIZE_TOPOLOGY

_filling = threading.RLock()  # the functions that all tables share are set by the first one
CAPSULE_NAME = "pjrt_c_api"
cdef bytes _capsule_name = CAPSULE_NAME.encode()


cdef class Table:
    """The ``PJRT_Api`` of a plugin in Python; it lives as long as the process, as the ABI wants."""

    cdef PJRT_Api *table
    cdef readonly object plugin
    cdef NamedValues attributes
    cdef dict _declared  # the same, as Python values
    cdef list _earlier  # attributes that callers may have pointers to

    def __init__(self, plugin):
        cdef int number
        self.plugin = plugin
        self.table = <PJRT_Api *>calloc(1, sizeof(PJRT_Api))
        if self.table == NULL:
            raise MemoryError("no memory for the table of a plugin")
        self._declared, self._earlier = None, []
        try:
            self.renew_attributes()
            number = add_plugin(self)
            try:
                with _filling:
                    self._fill(number)
            except BaseException:
                remove_plugin(number)
                raise
        except BaseException:
            free(self.table)
            self.table = NULL
            raise

    def renew_attributes(self):
        """Read the plugin's attributes again, and keep the earlier ones, which callers may have pointers to."""
        attributes = dict(self.plugin.attributes)
        values = NamedValues(attributes, "the attributes of a plugin")
        with cython.critical_section(self):
            if attributes != self._declared:
                self._earlier.append(self.attributes)
                self.attributes = values
                self._declared = attributes

    def _fill(self, int number):
        cdef PJRT_Api *table = self.table
        table.struct_size = PJRT_Api_STRUCT_SIZE
        table.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE
        table.pjrt_api_version.major_version = PJRT_API_MAJOR
        table.pjrt_api_version.minor_version = PJRT_API_MINOR
        table.PJRT_Error_Destroy = _error_destroy
        table.PJRT_Error_Message = _error_message
        table.PJRT_Error_GetCode = _error_get_code
        table.PJRT_Error_ForEachPayload = _error_for_each_payload
        put(&table.PJRT_Plugin_Initialize, plugin_trampoline(number, _INITIALIZE))
        put(&table.PJRT_Plugin_Attributes, plugin_trampoline(number, _ATTRIBUTES))
        put(&table.PJRT_Client_Create, plugin_trampoline(number, _CREATE_CLIENT))
        put(&table.PJRT_TopologyDescription_Create, plugin_trampoline(number, _CREATE_TOPOLOGY))
        put(&table.PJRT_TopologyDescription_Deserialize, plugin_trampoline(number, _DESERIALIZE_TOPOLOGY))
        _copy_shared_functions(table)
        # Last: nothing after it can fail and leave the extensions behind.
        table.extension_start = chain(number, self.plugin.has_profiler, self.plugin.has_abi_versions)

    @property
    def address(self):
        """The address of the table."""
        return <size_t>self.table



def capsule_of(size_t table):
    """Return a table as a capsule, as JAX's ``register_plugin`` takes it.

    Args:
        table: the address of a ``PJRT_Api`` that lives as long as the process.
    """
    return PyCapsule_New(<void *>table, _capsule_name, NULL)


cdef PJRT_Api _shared
cdef bint _shared_is_filled = False


cdef int _copy_shared_functions(PJRT_Api *table) except -1:
    """Set the functions that are the same for all plugins, because their handles belong to one of them."""
    global _shared_is_filled
    if not _shared_is_filled:
        fill_getters(&_shared)
        _buffer.fill_table(&_shared)
        _client.fill_table(&_shared)
        _device.fill_table(&_shared)
        _event.fill_table(&_shared)
        _executable.fill_table(&_shared)
        _execute_options.fill_table(&_shared)
        _from_host.fill_table(&_shared)
        _loaded_executable.fill_table(&_shared)
        _to_host.fill_table(&_shared)
        _topology.fill_table(&_shared)
        _transfer.fill_table(&_shared)
        declare_sizes(&_shared, 0)
        _shared_is_filled = True
    cdef void **source = <void **>(<char *>&_shared)
    cdef void **target = <void **>(<char *>table)
    cdef size_t slot
    for slot in range(SLOT_PJRT_Error_Destroy // sizeof(void *), PJRT_Api_STRUCT_SIZE // sizeof(void *)):
        if target[slot] == NULL:
            target[slot] = source[slot]


cdef int _initialize(plugin, void *raw) except -1:
    pass


cdef int _attributes(plugin, void *raw) except -1:
    args = <PJRT_Plugin_Attributes_Args *>raw
    cdef Table table = <Table>plugin
    cdef NamedValues attributes
    with cython.critical_section(table):
        attributes = table.attributes
    args.attributes = attributes.data
    args.num_attributes = attributes.size


cdef int _create_client(plugin, void *raw) except -1:
    args = <PJRT_Client_Create_Args *>raw
    options = read_named_values(args.create_options, args.num_options, "the create options")
    exported = (<Table>plugin).plugin
    client = exported.client_for_framework(options, key_value_store(args))
    try:
        record = ClientRecord.of(client, exported)
        (<Table>plugin).renew_attributes()
    except BaseException:
        exported.release(client)
        raise
    keep(record)
    args.client = <PJRT_Client *>&record.handle


cdef int _create_topology(plugin, void *raw) except -1:
    args = <PJRT_TopologyDescription_Create_Args *>raw
    name = args.topology_name[: args.topology_name_size].decode("utf-8", "replace") if args.topology_name_size else ""
    options = read_named_values(args.create_options, args.num_options, "the create options")
    topology = (<Table>plugin).plugin.topology(name, **options)
    args.topology = TopologyRecord.of(topology, (<Table>plugin).plugin.platform_name, None).give()


cdef int _deserialize_topology(plugin, void *raw) except -1:
    args = <PJRT_TopologyDescription_Deserialize_Args *>raw
    topology = (<Table>plugin).plugin.deserialize_topology(args.serialized_topology[: args.serialized_topology_size])
    args.topology = TopologyRecord.of(topology, (<Table>plugin).plugin.platform_name, None).give()


define_plugin_trampoline(
    _INITIALIZE, _initialize, PJRT_Plugin_Initialize_Args_FIRST_STRUCT_SIZE, b"PJRT_Plugin_Initialize_Args"
)
define_plugin_trampoline(
    _ATTRIBUTES, _attributes, PJRT_Plugin_Attributes_Args_FIRST_STRUCT_SIZE, b"PJRT_Plugin_Attributes_Args"
)
define_plugin_trampoline(
    _CREATE_CLIENT, _create_client, PJRT_Client_Create_Args_FIRST_STRUCT_SIZE, b"PJRT_Client_Create_Args"
)
define_plugin_trampoline(
    _CREATE_TOPOLOGY, _create_topology, PJRT_TopologyDescription_Create_Args_FIRST_STRUCT_SIZE, b"PJRT_TopologyDescription_Create_Args"
)
define_plugin_trampoline(
    _DESERIALIZE_TOPOLOGY, _deserialize_topology, PJRT_TopologyDescription_Deserialize_Args_FIRST_STRUCT_SIZE, b"PJRT_TopologyDescription_Deserialize_Args"
)


cdef void _error_destroy(PJRT_Error_Destroy_Args *args) noexcept nogil:
    if args.struct_size >= PJRT_Error_Destroy_Args_FIRST_STRUCT_SIZE:  # it can return no error
        pjrt_error_release(args.error)


cdef void _error_message(PJRT_Error_Message_Args *args) noexcept nogil:
    if args.struct_size >= PJRT_Error_Message_Args_FIRST_STRUCT_SIZE:  # it can return no error
        pjrt_error_read(args.error, &args.message, &args.message_size)


cdef PJRT_Error *_error_get_code(PJRT_Error_GetCode_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(args, PJRT_Error_GetCode_Args_FIRST_STRUCT_SIZE, b"PJRT_Error_GetCode_Args")
    if error == NULL:
        args.code = pjrt_error_code(args.error)
    return error


cdef PJRT_Error *_error_for_each_payload(PJRT_Error_ForEachPayload_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(args, PJRT_Error_ForEachPayload_Args_FIRST_STRUCT_SIZE, b"PJRT_Error_ForEachPayload_Args")
    if error == NULL:
        pjrt_error_visit(args.error, args.visitor, args.user_arg)
    return error
