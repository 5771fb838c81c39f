"""Types of arrays as a framework states them: an element type, dimensions and a layout.

What no array has is an error of the framework, and not of the device: it has the code INVALID_ARGUMENT.
"""

from libc.stdint cimport int64_t

from pjrt.abi.generated.declarations cimport *
from pjrt.capi._api cimport read_int64s, read_layout

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.shape_spec import StridedLayout

cdef list _ELEMENT_TYPES = list(ElementType)
cdef int64_t _MOST_ELEMENTS = 1 << 58  # of 16 bytes each, that is more memory than an address reaches


cdef object stated_element_type(int number):
    """Return the element type with a number.

    Raises:
        InvalidArgumentError: no type has the number, or the framework is newer than this package.
    """
    if 0 <= number < len(_ELEMENT_TYPES):
        return _ELEMENT_TYPES[number]
    raise InvalidArgumentError(f"expected an element type from 0 to {len(_ELEMENT_TYPES) - 1}, found {number}")


cdef tuple stated_shape(const int64_t *dims, size_t num_dims, str what):
    """Return the dimensions of an array.

    Raises:
        InvalidArgumentError: there are dimensions without an array of them, a dimension is negative, or there are more
            elements than can be counted.
    """
    cdef size_t index
    cdef int64_t total = 1
    if num_dims and dims == NULL:
        raise InvalidArgumentError(f"expected {num_dims} numbers for {what}, found a null pointer")
    for index in range(num_dims):
        if dims[index] < 0:
            raise InvalidArgumentError(f"expected {what} of 0 or more, found {dims[index]}")
        if dims[index] and total > _MOST_ELEMENTS // dims[index]:
            raise InvalidArgumentError(f"expected {what} with at most {_MOST_ELEMENTS} elements, found more")
        total *= max(dims[index], 1)
    return read_int64s(dims, num_dims, what)


cdef object stated_layout(const PJRT_Buffer_MemoryLayout *layout):
    """Return a layout; ``None`` for a null one, which stands for the default.

    Raises:
        InvalidArgumentError: the layout is of no kind that the C API has.
    """
    if layout == NULL:
        return None
    if <int>layout.type not in (PJRT_Buffer_MemoryLayout_Type_Tiled, PJRT_Buffer_MemoryLayout_Type_Strides):
        raise InvalidArgumentError(f"expected a layout of kind 0 (tiles) or 1 (strides), found {<int>layout.type}")
    return read_layout(layout)


cdef tuple dense_strides(layout, shape, size_t itemsize):
    """Return the byte strides of a dense array whose dimensions have the order of a layout; tiles are left out.

    Raises:
        InvalidArgumentError: the layout has another number of dimensions.
    """
    if isinstance(layout, StridedLayout):
        strides_of = layout.byte_strides
        # Of equal strides, which dimensions of one element have, the last dimension is the most minor one.
        order = sorted(reversed(range(len(strides_of))), key=lambda dimension: strides_of[dimension])
    else:
        order = layout.minor_to_major
    if len(order) != len(shape):
        raise InvalidArgumentError(f"expected a layout of {len(shape)} dimensions, found {layout}")
    strides = [0] * len(shape)
    step = itemsize
    for dimension in order:
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return tuple(strides)
