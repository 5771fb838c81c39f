"""The MultiSlice extension, and those functions of Megascale that make its configurations."""

cimport cython
from libc.stdint cimport int32_t

from pjrt.capi._api cimport count, start
from pjrt.capi._gen_abi cimport *
from pjrt.capi._getter cimport Getter
from pjrt.capi._scope cimport Handle, free_scope
from pjrt.capi._topology cimport TopologyCore
from pjrt.capi._values cimport whole

from pjrt.api.errors import InternalError
from pjrt.api.topology import MultiSliceConfig
from pjrt.capi._documented import documented


cdef Getter _SERIALIZED = Getter("PJRT_MultiSlice_Config_Serialize")


@cython.no_gc_clear
cdef class MultiSliceCore(Handle):
    """A ``PJRT_MultiSlice_Config``."""

    @property
    def num_devices_per_slice(self):
        cdef PJRT_MultiSlice_Config_NumDevicesPerSlice_Args args
        cdef size_t index
        start(&args, PJRT_MultiSlice_Config_NumDevicesPerSlice_Args_STRUCT_SIZE)
        args.config = <PJRT_MultiSlice_Config *>self.use()
        self.call(SLOT_PJRT_MultiSlice_Config_NumDevicesPerSlice, &args)
        try:
            count(args.num_devices_per_slice_map, args.num_devices, "the devices of the slices")
            number = count(args.num_devices_per_slice_map, args.slice_ids, "the slices")
            return dict(sorted([(args.slice_ids[index], args.num_devices[index]) for index in range(number)]))
        finally:
            if args.devices_per_slice_map_deleter != NULL:
                with nogil:
                    args.devices_per_slice_map_deleter(args.devices_per_slice_map)

    def serialize(self):
        return _SERIALIZED.ask(self)

    def global_device_id(self, slice_id, device_id):
        cdef PJRT_Megascale_DeviceId_To_MegascaleId_Args args
        start(&args, PJRT_Megascale_DeviceId_To_MegascaleId_Args_STRUCT_SIZE)
        args.slice_id = <int32_t>whole(slice_id, "the number of a slice", 32)
        args.per_slice_device_id = <int32_t>whole(device_id, "the number of a device", 32)
        self.call(SLOT_PJRT_Megascale_DeviceId_To_MegascaleId, &args)
        return args.megascale_id

    def slice_and_device(self, global_device_id):
        cdef PJRT_Megascale_MegascaleId_To_DeviceId_Args args
        start(&args, PJRT_Megascale_MegascaleId_To_DeviceId_Args_STRUCT_SIZE)
        args.megascale_id = whole(global_device_id, "the number of a device")
        self.call(SLOT_PJRT_Megascale_MegascaleId_To_DeviceId, &args)
        return args.slice_id, args.per_slice_device_id

    cdef int destroy(self, void *native) except -1:
        cdef PJRT_MultiSlice_Config_Destroy_Args args
        start(&args, PJRT_MultiSlice_Config_Destroy_Args_STRUCT_SIZE)
        args.config = <PJRT_MultiSlice_Config *>native
        return self.scope.api.call(SLOT_PJRT_MultiSlice_Config_Destroy, &args)


@documented
class PluginMultiSliceConfig(MultiSliceCore, MultiSliceConfig):
    """A plugin's configuration of several slices (``PJRT_MultiSlice_Config``)."""

    __slots__ = ()

    num_slices = Getter("PJRT_MultiSlice_Config_NumSlices")
    slice_id = Getter("PJRT_MultiSlice_Config_SliceId")


def multi_slice(TopologyCore topology, num_slices):
    """``TopologyDescription.multi_slice``."""
    cdef PJRT_Megascale_CreateAoTConfig_Args args
    topology.scope.api.find(SLOT_PJRT_MultiSlice_Config_Destroy)  # nothing is made that could not be freed
    start(&args, PJRT_Megascale_CreateAoTConfig_Args_STRUCT_SIZE)
    args.topology = <PJRT_TopologyDescription *>topology.use()
    args.num_slices = <int32_t>whole(num_slices, "the number of slices", 32)
    topology.call(SLOT_PJRT_Megascale_CreateAoTConfig, &args)
    if args.multi_slice_config == NULL:
        raise InternalError("the plugin gave no configuration of slices; report it to its vendor")
    config = PluginMultiSliceConfig()
    (<MultiSliceCore>config).open(free_scope(topology.scope), args.multi_slice_config, 0)
    return config
