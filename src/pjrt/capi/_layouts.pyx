"""The Layouts extension: how arrays lie on devices when the plugin chooses."""

from libc.stdint cimport int64_t

from pjrt.capi._api cimport count, deleter_t, start, take_blob
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport Handle, Native
from pjrt.capi._values cimport Block, int64_block

from pjrt.api.checks import expect
from pjrt.api.element_type import ElementType
from pjrt.api.shape_spec import TiledLayout
from pjrt.api.shape_spec import expect_shape


cdef object _read(Native native, PJRT_Layouts_MemoryLayout *layout):
    """Return a layout, parsed from XLA's spelling."""
    cdef PJRT_Layouts_MemoryLayout_Serialize_Args args
    start(&args, PJRT_Layouts_MemoryLayout_Serialize_Args_STRUCT_SIZE)
    args.layout = layout
    native.call(SLOT_PJRT_Layouts_MemoryLayout_Serialize, &args)
    spelling = take_blob(
        args.serialized_bytes,
        args.serialized_bytes_size,
        "a layout",
        args.serialized_layout,
        <deleter_t>args.serialized_layout_deleter,
    )
    return TiledLayout.parse(spelling.decode(errors="replace"))


cdef object _take(Native native, PJRT_Layouts_MemoryLayout *layout):
    """Return a layout that the plugin made for the caller, and free it."""
    cdef PJRT_Layouts_MemoryLayout_Destroy_Args args
    try:
        return _read(native, layout)
    finally:
        start(&args, PJRT_Layouts_MemoryLayout_Destroy_Args_STRUCT_SIZE)
        args.layout = layout
        native.call(SLOT_PJRT_Layouts_MemoryLayout_Destroy, &args)


cdef object buffer_layout(Handle buffer):
    """Return the layout of a buffer."""
    cdef PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args args
    start(&args, PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args_STRUCT_SIZE)
    args.buffer = <PJRT_Buffer *>buffer.use()
    buffer.call(SLOT_PJRT_Layouts_PJRT_Buffer_MemoryLayout, &args)
    return _take(buffer.scope, args.layout)


cdef object client_layout(Native client, element_type, shape):
    """Return the layout that a client's devices give to an array."""
    cdef PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args args
    cdef Block dims = int64_block(expect_shape(shape))
    start(&args, PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>client.use()
    args.type = <PJRT_Buffer_Type><int>expect(element_type, ElementType, "an element type as pjrt.ElementType")
    args.dims = <int64_t *>dims.data
    args.num_dims = len(shape)
    client.call(SLOT_PJRT_Layouts_PJRT_Client_GetDefaultLayout, &args)
    return _take(client, args.layout)


cdef object topology_layout(Native topology, element_type, shape):
    """Return the layout that a topology's devices give to an array."""
    cdef PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args args
    cdef Block dims = int64_block(expect_shape(shape))
    start(&args, PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args_STRUCT_SIZE)
    args.topology_description = <PJRT_TopologyDescription *>topology.use()
    args.type = <PJRT_Buffer_Type><int>expect(element_type, ElementType, "an element type as pjrt.ElementType")
    args.dims = <int64_t *>dims.data
    args.num_dims = len(shape)
    topology.call(SLOT_PJRT_Layouts_PJRT_Topology_GetDefaultLayout, &args)
    return _take(topology, args.layout)


cdef tuple output_layouts(Handle executable):
    """Return the layouts of an executable's results; they stay the plugin's."""
    cdef PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args args
    cdef size_t index
    start(&args, PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args_STRUCT_SIZE)
    args.executable = <PJRT_Executable *>executable.use()
    executable.call(SLOT_PJRT_Layouts_PJRT_Executable_GetOutputLayouts, &args)
    number = count(args.num_outputs, args.layouts, "the layouts of the results")
    return tuple([_read(executable.scope, args.layouts[index]) for index in range(number)])


cdef tuple parameter_layouts(Handle executable):
    """Return the layouts that an executable expects of its parameters; they stay the plugin's."""
    cdef PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args args
    cdef size_t index
    start(&args, PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args_STRUCT_SIZE)
    args.executable = <PJRT_Executable *>executable.use()
    executable.call(SLOT_PJRT_Layouts_PJRT_Executable_GetParameterLayouts, &args)
    number = count(args.num_parameters, args.layouts, "the layouts of the parameters")
    return tuple([_read(executable.scope, args.layouts[index]) for index in range(number)])
