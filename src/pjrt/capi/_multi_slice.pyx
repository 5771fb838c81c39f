"""The MultiSlice extension, and what of Megascale makes its configurations."""

cimport cython
from libc.stdint cimport int32_t

from pjrt.capi._api cimport blob, count, start
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport Handle, free_scope
from pjrt.capi._topology cimport TopologyCore
from pjrt.capi._values cimport whole

from pjrt.api.errors import InternalError
from pjrt.api.multi_slice import MultiSliceConfig
from pjrt.capi._documented import documented


@cython.no_gc_clear
cdef class MultiSliceCore(Handle):
    """A ``PJRT_MultiSlice_Config``."""

    cdef void *_function(self, size_t at) except? NULL:
        return self.scope.api.extension_function(PJRT_Extension_Type_MultiSlice, at, "MultiSlice")

    cdef void *_megascale(self, size_t at) except? NULL:
        return self.scope.api.extension_function(PJRT_Extension_Type_Megascale, at, "Megascale")

    @property
    def num_slices(self):
        cdef PJRT_MultiSlice_Config_NumSlices_Args args
        start(&args, PJRT_MultiSlice_Config_NumSlices_Args_STRUCT_SIZE)
        args.config = <PJRT_MultiSlice_Config *>self.use()
        self.call_extension(
            self._function(AT_MultiSlice_config_num_slices), &args, "PJRT_MultiSlice_Config_NumSlices"
        )
        return args.num_slices

    @property
    def slice_id(self):
        cdef PJRT_MultiSlice_Config_SliceId_Args args
        start(&args, PJRT_MultiSlice_Config_SliceId_Args_STRUCT_SIZE)
        args.config = <PJRT_MultiSlice_Config *>self.use()
        self.call_extension(self._function(AT_MultiSlice_config_slice_id), &args, "PJRT_MultiSlice_Config_SliceId")
        return args.slice_id

    @property
    def num_devices_per_slice(self):
        cdef PJRT_MultiSlice_Config_NumDevicesPerSlice_Args args
        cdef size_t index
        start(&args, PJRT_MultiSlice_Config_NumDevicesPerSlice_Args_STRUCT_SIZE)
        args.config = <PJRT_MultiSlice_Config *>self.use()
        self.call_extension(
            self._function(AT_MultiSlice_config_num_devices_per_slice),
            &args,
            "PJRT_MultiSlice_Config_NumDevicesPerSlice",
        )
        try:
            count(args.num_devices_per_slice_map, args.num_devices, "the devices of the slices")
            number = count(args.num_devices_per_slice_map, args.slice_ids, "the slices")
            return dict(sorted([(args.slice_ids[index], args.num_devices[index]) for index in range(number)]))
        finally:
            if args.devices_per_slice_map_deleter != NULL:
                with nogil:
                    args.devices_per_slice_map_deleter(args.devices_per_slice_map)

    def serialize(self):
        cdef PJRT_MultiSlice_Config_Serialize_Args args
        start(&args, PJRT_MultiSlice_Config_Serialize_Args_STRUCT_SIZE)
        args.config = <PJRT_MultiSlice_Config *>self.use()
        self.call_extension(self._function(AT_MultiSlice_config_serialize), &args, "PJRT_MultiSlice_Config_Serialize")
        try:
            return blob(args.serialized, args.size, "a configuration of slices")
        finally:
            if args.serialized_config_deleter != NULL:
                with nogil:
                    args.serialized_config_deleter(args.serialized_config)

    def global_device_id(self, slice_id, device_id):
        cdef PJRT_Megascale_DeviceId_To_MegascaleId_Args args
        start(&args, PJRT_Megascale_DeviceId_To_MegascaleId_Args_STRUCT_SIZE)
        args.slice_id = <int32_t>whole(slice_id, "the number of a slice", 32)
        args.per_slice_device_id = <int32_t>whole(device_id, "the number of a device", 32)
        self.call_extension(
            self._megascale(AT_Megascale_device_id_to_megascale_id), &args, "PJRT_Megascale_DeviceId_To_MegascaleId"
        )
        return args.megascale_id

    def slice_and_device(self, global_device_id):
        cdef PJRT_Megascale_MegascaleId_To_DeviceId_Args args
        start(&args, PJRT_Megascale_MegascaleId_To_DeviceId_Args_STRUCT_SIZE)
        args.megascale_id = whole(global_device_id, "the number of a device")
        self.call_extension(
            self._megascale(AT_Megascale_megascale_id_to_device_id), &args, "PJRT_Megascale_MegascaleId_To_DeviceId"
        )
        return args.slice_id, args.per_slice_device_id

    cdef int destroy(self, void *native) except -1:
        cdef PJRT_MultiSlice_Config_Destroy_Args args
        start(&args, PJRT_MultiSlice_Config_Destroy_Args_STRUCT_SIZE)
        args.config = <PJRT_MultiSlice_Config *>native
        return self.scope.api.call_extension(
            self._function(AT_MultiSlice_config_destroy), &args, "PJRT_MultiSlice_Config_Destroy"
        )


@documented
class PluginMultiSliceConfig(MultiSliceCore, MultiSliceConfig):
    """A plugin's configuration of several slices (``PJRT_MultiSlice_Config``)."""

    __slots__ = ()


def multi_slice(TopologyCore topology, num_slices):
    """``TopologyDescription.multi_slice``."""
    cdef PJRT_Megascale_CreateAoTConfig_Args args
    cdef void *function = topology.scope.api.extension_function(
        PJRT_Extension_Type_Megascale, AT_Megascale_create_aot_config, "Megascale"
    )
    # Made before there is something to free: without the extension that frees it nothing is made.
    topology.scope.api.extension(PJRT_Extension_Type_MultiSlice, PJRT_MultiSlice_Extension_STRUCT_SIZE, "MultiSlice")
    start(&args, PJRT_Megascale_CreateAoTConfig_Args_STRUCT_SIZE)
    args.topology = <PJRT_TopologyDescription *>topology.handle.use()
    args.num_slices = <int32_t>whole(num_slices, "the number of slices", 32)
    topology.handle.call_extension(function, &args, "PJRT_Megascale_CreateAoTConfig")
    if args.multi_slice_config == NULL:
        raise InternalError("the plugin gave no configuration of slices; report it to its vendor")
    config = PluginMultiSliceConfig()
    (<MultiSliceCore>config).open(free_scope(topology.scope), args.multi_slice_config, 0)
    return config
