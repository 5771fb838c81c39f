"""DLPack: memory shared between buffers and arrays of other libraries, in both directions."""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyCapsule_SetName
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from pjrt.capi._buffer cimport BufferCore
from pjrt.capi._gate cimport gate_enter, gate_leave
from pjrt.capi._scope cimport ClientScope

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, InvalidArgumentError, UnimplementedError
from pjrt.api.shape_spec import TiledLayout
from pjrt.api.executable import default_device
from pjrt.api.shape_spec import ShapeSpec

cdef extern from "pjrt_support/dlpack.h" nogil:
    enum:
        DLPACK_CPU
        DLPACK_CUDA
        DLPACK_ROCM
    ctypedef struct dlpack_tensor:
        void *data
        int32_t device_type
        int32_t device_id
        int32_t ndim
        uint8_t type_code
        uint8_t type_bits
        uint16_t type_lanes
        int64_t *shape
        int64_t *strides
        uint64_t byte_offset
    ctypedef struct dlpack_managed:
        dlpack_tensor tensor
        void *context
        void (*deleter)(dlpack_managed *self) noexcept nogil
    ctypedef struct dlpack_versioned:
        uint32_t major
        uint32_t minor
        void *context
        void (*deleter)(dlpack_versioned *self) noexcept nogil
        uint64_t flags
        dlpack_tensor tensor

cdef const char *_PLAIN = b"dltensor"
cdef const char *_VERSIONED = b"dltensor_versioned"
cdef const char *_USED_PLAIN = b"used_dltensor"
cdef const char *_USED_VERSIONED = b"used_dltensor_versioned"

# The platforms whose memory DLPack has a name for, where the host cannot read it.
_DEVICE_TYPES = {"cuda": DLPACK_CUDA, "rocm": DLPACK_ROCM}

# DLPack's code of a type and its bits.
_TYPES = {
    ElementType.PRED: (6, 8),
    ElementType.S8: (0, 8),
    ElementType.S16: (0, 16),
    ElementType.S32: (0, 32),
    ElementType.S64: (0, 64),
    ElementType.U8: (1, 8),
    ElementType.U16: (1, 16),
    ElementType.U32: (1, 32),
    ElementType.U64: (1, 64),
    ElementType.F16: (2, 16),
    ElementType.F32: (2, 32),
    ElementType.F64: (2, 64),
    ElementType.BF16: (4, 16),
    ElementType.C64: (5, 64),
    ElementType.C128: (5, 128),
    ElementType.F8E3M4: (7, 8),
    ElementType.F8E4M3: (8, 8),
    ElementType.F8E4M3B11FNUZ: (9, 8),
    ElementType.F8E4M3FN: (10, 8),
    ElementType.F8E4M3FNUZ: (11, 8),
    ElementType.F8E5M2: (12, 8),
    ElementType.F8E5M2FNUZ: (13, 8),
    ElementType.F8E8M0FNU: (14, 8),
}
_OF_TYPE = {row: kind for kind, row in _TYPES.items()}


def device_of(BufferCore buffer):
    """``Buffer.__dlpack_device__``."""
    if buffer.is_on_cpu:
        return DLPACK_CPU, 0
    kind = _DEVICE_TYPES.get((<ClientScope>buffer.scope).platform)
    if kind is None:
        raise UnimplementedError(
            f"DLPack has no name for memory of '{buffer.client.platform_name}'; copy with numpy.asarray(buffer)"
        )
    return kind, buffer.device.local_hardware_id


def to_capsule(BufferCore buffer, stream, max_version, dl_device, copy):
    """``Buffer.__dlpack__``: return a capsule that keeps the buffer and its memory."""
    place = device_of(buffer)
    if dl_device is not None and tuple(dl_device) != place:
        raise BufferError(f"the buffer is on DLPack's device {place}, not on {dl_device}; copy it there first")
    if copy:
        raise BufferError(
            "a plugin's buffer is shared by DLPack, not copied; copy with buffer.copy_to or numpy.asarray"
        )
    if stream is not None and place[0] == DLPACK_CPU:
        raise BufferError(f"memory of the host has no streams: expected stream=None, found {stream!r}")
    if buffer.element_type not in _TYPES:
        raise UnimplementedError(
            f"DLPack has no type {buffer.element_type.name} as it lies on devices; copy with numpy.asarray(buffer)"
        )
    strides = _strides(buffer.shape, buffer.layout)
    if stream is None or stream in (-1, 1, 2):
        buffer.ready().result()
    else:
        buffer.wait_until_ready_on_stream(stream)
    owner = buffer.external_reference()
    if max_version is not None and tuple(max_version) >= (1, 0):
        return _versioned(buffer, owner, place, strides)
    return _plain(buffer, owner, place, strides)


cdef object _plain(BufferCore buffer, owner, place, strides):
    cdef dlpack_managed *managed = <dlpack_managed *>malloc(sizeof(dlpack_managed))
    if managed == NULL:
        raise MemoryError("no memory for a DLPack capsule")
    managed.deleter = _delete_plain
    managed.context = <void *>owner
    try:
        _fill(&managed.tensor, buffer, owner, place, strides)
    except BaseException:
        free(managed)
        raise
    Py_INCREF(owner)
    return PyCapsule_New(managed, _PLAIN, _drop_capsule)


cdef object _versioned(BufferCore buffer, owner, place, strides):
    cdef dlpack_versioned *managed = <dlpack_versioned *>malloc(sizeof(dlpack_versioned))
    if managed == NULL:
        raise MemoryError("no memory for a DLPack capsule")
    managed.major, managed.minor, managed.flags = 1, 0, 0
    managed.deleter = _delete_versioned
    managed.context = <void *>owner
    try:
        _fill(&managed.tensor, buffer, owner, place, strides)
    except BaseException:
        free(managed)
        raise
    Py_INCREF(owner)
    return PyCapsule_New(managed, _VERSIONED, _drop_capsule)


cdef int _fill(dlpack_tensor *tensor, BufferCore buffer, owner, place, strides) except -1:
    """Fill in the tensor; shape and strides lie in one piece of memory of their own."""
    cdef int rank = len(buffer.shape), index
    tensor.shape = <int64_t *>malloc((2 * rank or 1) * sizeof(int64_t))
    if tensor.shape == NULL:
        raise MemoryError("no memory for a DLPack capsule")
    tensor.strides = tensor.shape + rank
    for index in range(rank):
        tensor.shape[index] = buffer.shape[index]
        tensor.strides[index] = strides[index]
    tensor.data = <void *><size_t>owner.pointer
    tensor.device_type, tensor.device_id = place
    tensor.ndim = rank
    tensor.type_code, tensor.type_bits = _TYPES[buffer.element_type]
    tensor.type_lanes = 1
    tensor.byte_offset = 0
    return 0


cdef void _delete_plain(dlpack_managed *managed) noexcept nogil:
    # Any thread, with or without the GIL.
    _release(managed.context, managed.tensor.shape)
    free(managed)


cdef void _delete_versioned(dlpack_versioned *managed) noexcept nogil:
    # Any thread, with or without the GIL.
    _release(managed.context, managed.tensor.shape)
    free(managed)


cdef void _release(void *owner, int64_t *shape) noexcept nogil:
    free(shape)
    if gate_enter():
        _drop_owner(owner)
        gate_leave()


cdef void _drop_owner(void *owner) noexcept with gil:
    Py_DECREF(<object>owner)


cdef void _drop_capsule(object capsule) noexcept:
    """Give back the memory of a capsule that was never used."""
    if PyCapsule_IsValid(capsule, _PLAIN):
        _delete_plain(<dlpack_managed *>PyCapsule_GetPointer(capsule, _PLAIN))
    elif PyCapsule_IsValid(capsule, _VERSIONED):
        _delete_versioned(<dlpack_versioned *>PyCapsule_GetPointer(capsule, _VERSIONED))


def _strides(shape, layout):
    """Return the strides in elements of a dense layout.

    Raises:
        UnimplementedError: the layout is tiled, or strided.
    """
    if not isinstance(layout, TiledLayout) or layout.tiles:
        raise UnimplementedError(f"DLPack cannot express the layout {layout}; copy with numpy.asarray(buffer)")
    if sorted(layout.minor_to_major) != list(range(len(shape))):
        raise InternalError(
            f"the plugin gave the layout {layout} for a buffer of {len(shape)} dimensions, which cannot be right; "
            "report it to the plugin's vendor"
        )
    strides, step = [0] * len(shape), 1
    for dimension in layout.minor_to_major:
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return strides


def from_source(ClientScope client, source, device):
    """``Client.buffer_from_dlpack``: return a view of another library's memory, given back when the buffer is gone."""
    try:
        kind, number = source.__dlpack_device__()
    except AttributeError as error:
        raise InvalidArgumentError(
            f"expected an object with __dlpack__, found {type(source).__name__}; use buffer_from_host"
        ) from error
    place = default_device(client) if device is None else device
    expected = _DEVICE_TYPES.get(client.platform, DLPACK_CPU)
    if kind != expected or (expected != DLPACK_CPU and number != place.local_hardware_id):
        raise InvalidArgumentError(
            f"the memory is on DLPack's device ({int(kind)}, {number}), and {place} takes memory of device type "
            f"{expected}; copy it there first"
        )
    stream = place.stream_for_external_ready_events() if expected != DLPACK_CPU else None
    capsule = source.__dlpack__() if stream is None else source.__dlpack__(stream=stream)
    return _view(client, _Import(capsule), place, stream)


cdef object _view(ClientScope client, _Import memory, place, stream):
    cdef dlpack_tensor *tensor = memory.tensor
    cdef int index
    kind = _OF_TYPE.get((tensor.type_code, tensor.type_bits))
    if kind is None or tensor.type_lanes != 1:
        raise UnimplementedError(
            f"no element type has DLPack's code {tensor.type_code} and {tensor.type_bits} bits × {tensor.type_lanes}"
        )
    shape = tuple([tensor.shape[index] for index in range(tensor.ndim)])
    strides = None if tensor.strides == NULL else [tensor.strides[index] for index in range(tensor.ndim)]
    spec = ShapeSpec(shape, kind, _dense_order(shape, strides))
    return client.create_view_of_device_buffer(
        <size_t>tensor.data + tensor.byte_offset, spec, device=place, on_delete=memory.give_back, stream=stream
    )


def _dense_order(shape, strides):
    """Return the layout of dense strides; ``None`` for row-major.

    Raises:
        UnimplementedError: the strides leave gaps or overlap.
    """
    if strides is None:
        return None
    order = sorted(range(len(shape)), key=lambda d: (strides[d] if shape[d] > 1 else 0, -d))
    step = 1
    for dimension in order:
        if shape[dimension] > 1 and strides[dimension] != step:
            raise UnimplementedError(
                f"an array of shape {shape} with strides {strides} is not dense; make it contiguous first"
            )
        step *= max(shape[dimension], 1)
    layout = TiledLayout(tuple(order))
    return None if layout.is_row_major else layout


cdef class _Import:
    """The memory of a used capsule. Its deleter is called once: when the buffer is gone, or could not be made."""

    cdef dlpack_managed *managed
    cdef dlpack_versioned *versioned
    cdef dlpack_tensor *tensor

    def __init__(self, capsule):
        if PyCapsule_IsValid(capsule, _PLAIN):
            self.managed = <dlpack_managed *>PyCapsule_GetPointer(capsule, _PLAIN)
            self.tensor = &self.managed.tensor
            PyCapsule_SetName(capsule, _USED_PLAIN)
        elif PyCapsule_IsValid(capsule, _VERSIONED):
            self.versioned = <dlpack_versioned *>PyCapsule_GetPointer(capsule, _VERSIONED)
            self.tensor = &self.versioned.tensor
            PyCapsule_SetName(capsule, _USED_VERSIONED)
        else:
            raise InvalidArgumentError(f"expected an unused DLPack capsule, found {capsule!r}")

    def give_back(self):
        """Call the deleter, once."""
        cdef dlpack_managed *managed = self.managed
        cdef dlpack_versioned *versioned = self.versioned
        self.managed, self.versioned = NULL, NULL
        if managed != NULL and managed.deleter != NULL:
            managed.deleter(managed)
        if versioned != NULL and versioned.deleter != NULL:
            versioned.deleter(versioned)

    def __dealloc__(self):
        self.give_back()
