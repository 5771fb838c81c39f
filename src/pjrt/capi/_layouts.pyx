"""The Layouts extension: how arrays lie on devices when the plugin chooses."""

from libc.stdint cimport int64_t

from pjrt.capi._api cimport count, start, text
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport Handle, Scope
from pjrt.capi._values cimport Block, int64_block

from pjrt.api.element_type import ElementType
from pjrt.api.checks import expect
from pjrt.api.layout import TiledLayout
from pjrt.api.shape_spec import expect_shape

# How far the extension reached before it knew of topologies and executables.
cdef size_t _FIRST_SIZE = PJRT_Layouts_Extension_STRUCT_SIZE - 3 * sizeof(void *)


cdef PJRT_Layouts_Extension *_extension(Scope scope, size_t size) except NULL:
    return <PJRT_Layouts_Extension *>scope.api.extension(PJRT_Extension_Type_Layouts, size, "Layouts")


cdef object _read(Scope scope, PJRT_Layouts_MemoryLayout *layout):
    """A layout as XLA spells it, parsed."""
    cdef PJRT_Layouts_MemoryLayout_Serialize_Args args
    start(&args, PJRT_Layouts_MemoryLayout_Serialize_Args_STRUCT_SIZE)
    args.layout = layout
    scope.call_extension(
        <void *>_extension(scope, _FIRST_SIZE).PJRT_Layouts_MemoryLayout_Serialize,
        &args,
        "PJRT_Layouts_MemoryLayout_Serialize",
    )
    try:
        return TiledLayout.parse(text(args.serialized_bytes, args.serialized_bytes_size, "a layout"))
    finally:
        if args.serialized_layout_deleter != NULL:
            with nogil:
                args.serialized_layout_deleter(args.serialized_layout)


cdef object _take(Scope scope, PJRT_Layouts_MemoryLayout *layout):
    """Reads a layout that is ours, and frees it."""
    cdef PJRT_Layouts_MemoryLayout_Destroy_Args args
    try:
        return _read(scope, layout)
    finally:
        start(&args, PJRT_Layouts_MemoryLayout_Destroy_Args_STRUCT_SIZE)
        args.layout = layout
        scope.call_extension(
            <void *>_extension(scope, _FIRST_SIZE).PJRT_Layouts_MemoryLayout_Destroy,
            &args,
            "PJRT_Layouts_MemoryLayout_Destroy",
        )


cdef object buffer_layout(Handle buffer):
    """The layout of a buffer."""
    cdef PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args args
    cdef PJRT_Layouts_Extension *extension = _extension(buffer.scope, _FIRST_SIZE)
    start(&args, PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args_STRUCT_SIZE)
    args.buffer = <PJRT_Buffer *>buffer.use()
    buffer.call_extension(
        <void *>extension.PJRT_Layouts_PJRT_Buffer_MemoryLayout, &args, "PJRT_Layouts_PJRT_Buffer_MemoryLayout"
    )
    return _take(buffer.scope, args.layout)


cdef object client_layout(Scope scope, PJRT_Client *client, element_type, shape):
    """The layout that a client's devices give to an array."""
    cdef PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args args
    cdef Block dims = int64_block(expect_shape(shape))
    cdef PJRT_Layouts_Extension *extension = _extension(scope, _FIRST_SIZE)
    start(&args, PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args_STRUCT_SIZE)
    args.client = client
    args.type = <PJRT_Buffer_Type><int>expect(element_type, ElementType, "an element type as pjrt.ElementType")
    args.dims = <int64_t *>dims.data
    args.num_dims = len(shape)
    scope.call_extension(
        <void *>extension.PJRT_Layouts_PJRT_Client_GetDefaultLayout, &args, "PJRT_Layouts_PJRT_Client_GetDefaultLayout"
    )
    return _take(scope, args.layout)


cdef object topology_layout(Scope scope, PJRT_TopologyDescription *topology, element_type, shape):
    """The layout that a topology's devices give to an array."""
    cdef PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args args
    cdef Block dims = int64_block(expect_shape(shape))
    cdef PJRT_Layouts_Extension *extension = _extension(scope, _FIRST_SIZE + sizeof(void *))
    start(&args, PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args_STRUCT_SIZE)
    args.topology_description = topology
    args.type = <PJRT_Buffer_Type><int>expect(element_type, ElementType, "an element type as pjrt.ElementType")
    args.dims = <int64_t *>dims.data
    args.num_dims = len(shape)
    scope.call_extension(
        <void *>extension.PJRT_Layouts_PJRT_Topology_GetDefaultLayout,
        &args,
        "PJRT_Layouts_PJRT_Topology_GetDefaultLayout",
    )
    return _take(scope, args.layout)


cdef tuple output_layouts(Handle executable):
    """The layouts of an executable's results; they stay the plugin's."""
    cdef PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args args
    cdef PJRT_Layouts_Extension *extension = _extension(executable.scope, _FIRST_SIZE + 2 * sizeof(void *))
    cdef size_t index
    start(&args, PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args_STRUCT_SIZE)
    args.executable = <PJRT_Executable *>executable.use()
    executable.call_extension(
        <void *>extension.PJRT_Layouts_PJRT_Executable_GetOutputLayouts,
        &args,
        "PJRT_Layouts_PJRT_Executable_GetOutputLayouts",
    )
    number = count(args.num_outputs, args.layouts, "the layouts of the results")
    return tuple([_read(executable.scope, args.layouts[index]) for index in range(number)])


cdef tuple parameter_layouts(Handle executable):
    """The layouts that an executable expects of its parameters; they stay the plugin's."""
    cdef PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args args
    cdef PJRT_Layouts_Extension *extension = _extension(executable.scope, PJRT_Layouts_Extension_STRUCT_SIZE)
    cdef size_t index
    start(&args, PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args_STRUCT_SIZE)
    args.executable = <PJRT_Executable *>executable.use()
    executable.call_extension(
        <void *>extension.PJRT_Layouts_PJRT_Executable_GetParameterLayouts,
        &args,
        "PJRT_Layouts_PJRT_Executable_GetParameterLayouts",
    )
    number = count(args.num_parameters, args.layouts, "the layouts of the parameters")
    return tuple([_read(executable.scope, args.layouts[index]) for index in range(number)])
