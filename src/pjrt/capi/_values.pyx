"""Values that cross the boundary in both directions: named values, layouts, lists of numbers."""

from libc.stdlib cimport free, malloc

from pjrt.capi._api cimport count, start, text
from pjrt.capi._gen_abi cimport *

import operator
from collections.abc import Mapping

from pjrt.api.checks import expect, expect_int
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, InvalidArgumentError
from pjrt.api.shape_spec import StridedLayout, TiledLayout, expect_layout

cdef object _LIMIT = 1 << 63
cdef int64_t _MOST_ELEMENTS = 1 << 58  # of 16 bytes each, that is more memory than an address reaches
cdef list _ELEMENT_TYPES = [ElementType(number) for number in range(len(ElementType))]


cdef class Block:
    @staticmethod
    cdef Block of(size_t size):
        cdef Block block = Block.__new__(Block)
        block.data = malloc(size or 1)
        if block.data == NULL:
            raise MemoryError(f"no {size} bytes of memory for a call")
        return block

    def __dealloc__(self):
        free(self.data)


cdef class NamedValues:
    def __init__(self, values, str what):
        """Convert a mapping; the type of each value decides the type on the other side.

        Raises:
            InvalidArgumentError: a value has none of the five types, or an integer needs more than 64 bits.
        """
        self.size = len(expect(values, Mapping, f"{what} as a mapping of values by name"))
        self.block = Block.of(self.size * sizeof(PJRT_NamedValue))
        self.data = <PJRT_NamedValue *>self.block.data
        self.keep = []
        for index, (name, value) in enumerate(values.items()):
            self._fill(&self.data[index], name, value, what)

    cdef int _fill(self, PJRT_NamedValue *target, name, value, str what) except -1:
        cdef bytes key, string
        cdef Block numbers
        start(target, PJRT_NamedValue_STRUCT_SIZE)
        if not isinstance(name, str):
            raise InvalidArgumentError(f"the names of {what} are strings, found {name!r}")
        key = name.encode()
        self.keep.append(key)
        target.name = key
        target.name_size = len(key)
        target.value_size = 1
        if isinstance(value, bool):
            target.type = PJRT_NamedValue_kBool
            target.bool_value = value
        elif isinstance(value, (str, bytes)):
            string = value.encode() if isinstance(value, str) else value
            self.keep.append(string)
            target.type = PJRT_NamedValue_kString
            target.string_value = string
            target.value_size = len(string)
        elif isinstance(value, float):
            target.type = PJRT_NamedValue_kFloat
            target.float_value = value
        elif hasattr(value, "__index__"):
            target.type = PJRT_NamedValue_kInt64
            target.int64_value = _int64(value, what, name)
        elif isinstance(value, (list, tuple)) and all(hasattr(item, "__index__") for item in value):
            numbers = int64_block([_int64(item, what, name) for item in value])
            self.keep.append(numbers)
            target.type = PJRT_NamedValue_kInt64List
            target.int64_array_value = <int64_t *>numbers.data
            target.value_size = len(value)
        else:
            raise InvalidArgumentError(
                f"{what}: the value of {name!r} must be a str (or bytes), bool, int, float or a list of int, found "
                f"{type(value).__name__}"
            )
        return 0


def _int64(value, what, name):
    number = operator.index(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise InvalidArgumentError(f"{what}: the value of {name!r} must fit 64 bits, found {number}")
    return number


cdef dict read_named_values(const PJRT_NamedValue *values, size_t number, str what):
    """Return named values of the plugin as a dict; lists become tuples."""
    cdef const PJRT_NamedValue *value
    cdef size_t index
    by_name = {}
    for index in range(count(number, values, what)):
        value = &values[index]
        if value.struct_size < PJRT_NamedValue_STRUCT_SIZE:
            raise InternalError(
                f"the plugin gave {what} with a named value of {value.struct_size} bytes, expected "
                f"{<size_t>PJRT_NamedValue_STRUCT_SIZE}; report it to its vendor"
            )
        by_name[text(value.name, value.name_size, what)] = _read_value(value, what)
    return by_name


cdef object _read_value(const PJRT_NamedValue *value, str what):
    if value.type == PJRT_NamedValue_kString:
        return text(value.string_value, value.value_size, what)
    if value.type == PJRT_NamedValue_kInt64:
        return value.int64_value
    if value.type == PJRT_NamedValue_kInt64List:
        return read_int64s(value.int64_array_value, value.value_size, what)
    if value.type == PJRT_NamedValue_kFloat:
        return value.float_value
    if value.type == PJRT_NamedValue_kBool:
        return bool(value.bool_value)
    raise InternalError(f"the plugin gave {what} with a named value of the unknown type {<int>value.type}")


cdef class NativeLayout:
    pass


cdef NativeLayout native_layout(layout):
    """Return the struct for a layout; for ``None`` a null pointer, which stands for the plugin's default."""
    cdef NativeLayout native = NativeLayout.__new__(NativeLayout)
    if layout is None:
        return native
    expect_layout(layout)
    start(&native.value, PJRT_Buffer_MemoryLayout_STRUCT_SIZE)
    native.pointer = &native.value
    if isinstance(layout, StridedLayout):
        native.block = int64_block(layout.byte_strides)
        native.value.type = PJRT_Buffer_MemoryLayout_Type_Strides
        start(&native.value.strides, PJRT_Buffer_MemoryLayout_Strides_STRUCT_SIZE)
        native.value.strides.byte_strides = <int64_t *>native.block.data
        native.value.strides.num_byte_strides = len(layout.byte_strides)
        return native
    _fill_tiled(native, layout)
    return native


cdef int _fill_tiled(NativeLayout native, layout) except -1:
    cdef size_t rank = len(layout.minor_to_major)
    cdef size_t num_tiles = len(layout.tiles)
    sizes = [size for tile in layout.tiles for size in tile]
    native.block = int64_block([*layout.minor_to_major, *sizes, *(len(tile) for tile in layout.tiles)])
    native.value.type = PJRT_Buffer_MemoryLayout_Type_Tiled
    start(&native.value.tiled, PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE)
    cdef int64_t *numbers = <int64_t *>native.block.data
    native.value.tiled.minor_to_major = numbers
    native.value.tiled.minor_to_major_size = rank
    native.value.tiled.tile_dims = numbers + rank
    native.value.tiled.tile_dim_sizes = <size_t *>(numbers + rank + <size_t>len(sizes))
    native.value.tiled.num_tiles = num_tiles
    return 0


cdef object read_layout(const PJRT_Buffer_MemoryLayout *layout):
    """Return a layout of the plugin."""
    cdef size_t tile, position = 0
    if layout.type == PJRT_Buffer_MemoryLayout_Type_Strides:
        return StridedLayout(read_int64s(layout.strides.byte_strides, layout.strides.num_byte_strides, "a layout"))
    if layout.type != PJRT_Buffer_MemoryLayout_Type_Tiled:
        raise InternalError(f"the plugin gave a layout of the unknown type {<int>layout.type}")
    tiles = []
    for tile in range(count(layout.tiled.num_tiles, layout.tiled.tile_dim_sizes, "the tiles of a layout")):
        size = count(layout.tiled.tile_dim_sizes[tile], layout.tiled.tile_dims, "a tile of a layout")
        tiles.append(tuple(layout.tiled.tile_dims[position + i] for i in range(size)))
        position += size
    return TiledLayout(
        read_int64s(layout.tiled.minor_to_major, layout.tiled.minor_to_major_size, "a layout"), tuple(tiles)
    )


cdef Block int64_block(numbers):
    """Return whole numbers as an array of ``int64_t``."""
    cdef Block block = Block.of(len(numbers) * sizeof(int64_t))
    cdef size_t index = 0
    for number in numbers:
        (<int64_t *>block.data)[index] = whole(number, "whole numbers")
        index += 1
    return block


cdef int64_t whole(value, str what, int bits=64) except? -1:
    """Return a value as a whole number of so many bits.

    Raises:
        InvalidArgumentError: the value is no whole number, or needs more bits.
    """
    cdef object number = expect_int(value, what), limit = _LIMIT >> (64 - bits)
    if not -limit <= number < limit:
        raise InvalidArgumentError(f"expected {what} of at most {bits} bits, found {number}")
    return number


cdef tuple read_int64s(const int64_t *numbers, size_t number, str what):
    """Return an array of ``int64_t`` of the plugin as a tuple."""
    cdef size_t index
    return tuple([numbers[index] for index in range(count(number, numbers, what))])


cdef tuple read_shape(const int64_t *numbers, size_t number, str what):
    """Return the dimensions of an array of the plugin.

    Raises:
        InternalError: no array has such dimensions: one is negative, or there are more elements than can be counted.
    """
    cdef tuple shape = read_int64s(numbers, number, what)
    cdef size_t index
    cdef int64_t total = 1
    for index in range(number):
        if numbers[index] < 0 or (numbers[index] and total > _MOST_ELEMENTS // numbers[index]):
            raise InternalError(
                f"the plugin gave {what} as {shape}, which cannot be right; report it to the plugin's vendor"
            )
        total *= max(numbers[index], 1)
    return shape


cdef object element_type(int number):
    """Return the element type with a number.

    Raises:
        InternalError: no type has the number, or the plugin is newer than this package.
    """
    if 0 <= number < len(_ELEMENT_TYPES):
        return _ELEMENT_TYPES[number]
    raise InternalError(
        f"the plugin gave the element type {number}, which this package does not know; it knows 0 to "
        f"{len(_ELEMENT_TYPES) - 1}"
    )
