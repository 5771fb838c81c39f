"""Topologies: descriptions of devices that need not be on this machine, and compiling for them."""

from libc.stdint cimport int64_t

cimport cython

from pjrt.capi._api cimport count, deleter_t, start, take_blob
from pjrt.capi._device cimport new_description
from pjrt.capi._executable cimport new_executable
from pjrt.capi._gen_abi cimport *
from pjrt.capi._getter cimport Constant, Getter
from pjrt.capi._layouts cimport topology_layout
from pjrt.capi._scope cimport ClientScope, Handle, Native, Scope, free_scope
from pjrt.capi._values cimport Block, NamedValues, NativeLayout, int64_block, native_layout, whole

from pjrt.api.capability import Feature
from pjrt.api.checks import expect, expect_bytes
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, InvalidArgumentError, PjrtError
from pjrt.api.shape_spec import expect_shape
from pjrt.api.program import from_caller
from pjrt.api.topology import TopologyDescription
from pjrt.capi._capabilities import of_devices
from pjrt.capi._documented import documented
from pjrt.capi._getter import read_constants
from pjrt.capi._program import doubted, prepared


cdef Getter _FINGERPRINT = Getter("PJRT_TopologyDescription_Fingerprint")  # TopologyDescription.fingerprint
cdef Getter _SERIALIZED = Getter("PJRT_TopologyDescription_Serialize")  # TopologyDescription.serialize


cdef class TopologyCore(Native):
    """A ``PJRT_TopologyDescription``: one of its own, or a client's, which the client frees."""

    cdef void *use(self) except? NULL:
        return self.handle.use()

    cdef int call(self, size_t slot, void *args) except -1:
        return self.handle.call(slot, args)

    cdef Scope home(self):
        return self.scope

    @property
    def library(self):
        return self.scope.api.path

    @property
    def device_descriptions(self):
        cdef PJRT_TopologyDescription_GetDeviceDescriptions_Args args
        cdef size_t index
        if self._descriptions is None:
            start(&args, PJRT_TopologyDescription_GetDeviceDescriptions_Args_STRUCT_SIZE)
            args.topology = <PJRT_TopologyDescription *>self.use()
            self.call(SLOT_PJRT_TopologyDescription_GetDeviceDescriptions, &args)
            number = count(args.num_descriptions, args.descriptions, "the devices of a topology")
            descriptions = tuple(
                [new_description(self.scope, args.descriptions[index]) for index in range(number)]
            )
            with cython.critical_section(self):
                if self._descriptions is None:
                    self._descriptions = descriptions
        return self._descriptions

    def compile(self, program, options=None, *, client=None, shapes=None):
        cdef PJRT_Compile_Args args
        cdef PJRT_Program native
        cdef bytes code, format_name, serialized_options
        from pjrt.stablehlo import with_partitioning

        ready, doubt = prepared(program, self.attributes_of_plugin, shapes)
        code, format_name = ready.code, str(ready.format).encode()
        serialized_options = with_partitioning(ready, options).to_proto()
        start(&native, PJRT_Program_STRUCT_SIZE)
        native.code = code
        native.code_size = len(code)
        native.format = format_name
        native.format_size = len(format_name)
        start(&args, PJRT_Compile_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.program = &native
        args.compile_options = serialized_options
        args.compile_options_size = len(serialized_options)
        if client is not None:
            if not isinstance(client, ClientScope) or (<ClientScope>client).api is not self.scope.api:
                raise InvalidArgumentError(
                    f"compiling can be tuned on a client of the same plugin only, found {client!r}"
                )
            args.client = <PJRT_Client *>(<ClientScope>client).native
            (<ClientScope>client).enter()
        try:
            with from_caller(framework=False):
                self.call(SLOT_PJRT_Compile, &args)
        except PjrtError as error:
            raise doubted(error, ready, doubt)
        finally:
            if client is not None:
                (<ClientScope>client).leave()
        return new_executable(free_scope(self.scope), self.platform_name, args.executable)

    def serialize(self):
        return _SERIALIZED.ask(self)

    def deserialize(self, serialized):
        return deserialize_topology(self.scope, serialized, self.attributes_of_plugin)

    def fingerprint(self):
        return _FINGERPRINT.ask(self)

    def phase_compiler(self):
        from pjrt.capi._phase_compiler import phase_compiler

        return phase_compiler(self)

    @property
    def tpu(self):
        from pjrt.capi._tpu_topology import tpu_topology

        return tpu_topology(self)

    def multi_slice(self, num_slices):
        from pjrt.capi._multi_slice import multi_slice

        return multi_slice(self, num_slices)

    def default_layout(self, element_type, shape):
        return topology_layout(self, element_type, shape)

    def make_canonical_shape(self, element_type, shape, layout=None, *, memory_space_kind_id):
        cdef PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args args
        cdef Block dims = int64_block(expect_shape(shape))
        cdef NativeLayout native = native_layout(layout)
        start(&args, PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.memory_space_kind_id = <int>whole(memory_space_kind_id, "the number of a kind of memory", 32)
        args.dims = <int64_t *>dims.data
        args.num_dims = len(shape)
        args.element_type = <PJRT_Buffer_Type><int>ElementType.of(element_type)
        args.layout = native.pointer
        self.call(SLOT_PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace, &args)
        return take_blob(
            args.serialized_shape,
            args.serialized_shape_size,
            "a serialized shape",
            <void *>args.serialized_shape,
            <deleter_t>args.serialized_shape_deleter,
        )

    def __repr__(self):
        if self.handle.native == NULL or self.scope.is_shut():
            return f"<{type(self).__name__} of a closed client>"
        return TopologyDescription.__repr__(self)


@documented
class PluginTopology(TopologyCore, TopologyDescription):
    """A topology of a plugin (``PJRT_TopologyDescription``)."""

    platform_name = Constant("PJRT_TopologyDescription_PlatformName")
    platform_version = Getter("PJRT_TopologyDescription_PlatformVersion")
    attributes = Constant("PJRT_TopologyDescription_Attributes")
    memory_space_kind_ids = Getter("PJRT_TopologyDescription_GetMemorySpaceKindIds")

    @property
    def capabilities(self):
        cdef TopologyCore core = <TopologyCore>self
        return of_devices(core.scope.api, core.attributes_of_plugin, self, None)

    def supports(self, program, options=None, *, effort=None):
        from pjrt.api.capability import try_compiling
        from pjrt.stablehlo import supports

        def compile():
            try_compiling(self, program, options)

        capabilities = self.capabilities
        can_compile = capabilities.has(Feature.AOT_TOPOLOGIES)
        return supports(program, options, capabilities, effort=effort, compile=compile if can_compile else None)


cdef class _DescribedBy(Scope):
    """The scope of the descriptions of a topology without a client: it keeps the topology for them."""

    cdef Handle topology


cdef object _new(Scope scope, Handle handle, attributes):
    cdef TopologyCore topology = <TopologyCore>PluginTopology()
    topology.scope = scope
    topology.handle = handle
    topology.attributes_of_plugin = attributes
    read_constants(topology, "platform_name")
    return topology


cdef Handle _handle(Scope scope, PJRT_TopologyDescription *native, size_t destroy_slot):
    if native == NULL:
        raise InternalError("the plugin gave no topology where one was expected; report it to its vendor")
    cdef Handle handle = Handle.__new__(Handle)
    handle.open(scope, native, destroy_slot)
    return handle


cdef object client_topology(Scope scope, PJRT_TopologyDescription *native, attributes):
    """Return the topology of a client, which the client frees."""
    return _new(scope, _handle(scope, native, 0), attributes)


cdef object own_topology(Scope scope, PJRT_TopologyDescription *native, attributes):
    """Return a topology that the plugin made for the caller, and take it over."""
    cdef _DescribedBy described = _DescribedBy.__new__(_DescribedBy)
    described.api = scope.api
    described.topology = _handle(
        free_scope(scope), native, SLOT_PJRT_TopologyDescription_Destroy  # TopologyDescription: when it is dropped
    )
    return _new(described, described.topology, attributes)


cdef object create_topology(Scope scope, name, options, attributes):
    """``Plugin.topology``."""
    cdef PJRT_TopologyDescription_Create_Args args
    cdef NamedValues values = NamedValues(options, "the options of a topology")
    cdef bytes encoded = expect(name, str, "the name of a topology as a str").encode()
    start(&args, PJRT_TopologyDescription_Create_Args_STRUCT_SIZE)
    args.topology_name = encoded
    args.topology_name_size = len(encoded)
    args.create_options = values.data
    args.num_options = values.size
    scope.call(SLOT_PJRT_TopologyDescription_Create, &args)
    return own_topology(scope, args.topology, attributes)


cdef object deserialize_topology(Scope scope, serialized, attributes):
    """``Plugin.deserialize_topology``."""
    cdef PJRT_TopologyDescription_Deserialize_Args args
    cdef bytes data = expect_bytes(serialized, "a serialized topology as bytes")
    start(&args, PJRT_TopologyDescription_Deserialize_Args_STRUCT_SIZE)
    args.serialized_topology = data
    args.serialized_topology_size = len(data)
    scope.call(SLOT_PJRT_TopologyDescription_Deserialize, &args)
    return own_topology(scope, args.topology, attributes)
