"""One plugin's table of functions, and the funnel: the one way to call any of them; values that cross; callbacks.

A call is: declare the argument struct, ``start`` it (zero it, stamp its size), fill it, ``Api.call`` the slot. The slot
is checked to lie inside the plugin's table, or inside the struct of its extension, and not to be null. An error that
comes back is converted (code, message, payloads) and freed. The GIL is released around every call.
"""

import atexit
import logging
import math
import operator
import weakref
from collections.abc import Mapping

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from pjrt.abi.generated.declarations cimport *

from pjrt.api.checks import expect, expect_int
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InternalError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.shape_spec import StridedLayout, TiledLayout, expect_layout, expect_shape, format_shape
from pjrt.api.waits import time_left
from pjrt.abi.schema import EXTENSIONS, FUNCTIONS, TABLE

cdef extern from "pjrt_support/inspection.h" nogil:
    ctypedef struct pjrt_memory_range:
        const void *start
        size_t size
    bint pjrt_readable(const pjrt_memory_range *ranges, size_t count)

cdef size_t _HEAD = SLOT_PJRT_Error_Destroy
# A slot from here on is that of an extension's function: its upper bits are 1 + the kind of the extension.
cdef size_t _FIRST_SLOT_OF_EXTENSIONS = <size_t>1 << 16
cdef size_t _LONGEST_TEXT = 1 << 28
cdef size_t _TRUSTED_SIZE = 1 << 14
cdef size_t _LARGEST_BLOB = 1 << 40
cdef size_t _MOST_ITEMS = 1 << 24
_OLDEST_MINOR = 29
_REARRANGED_MINOR = 56
_log = logging.getLogger("pjrt")
_newer = set()  # the plugins of which it was said that they are newer than this package


@cython.no_gc_clear
cdef class Api:
    """The function table of a loaded plugin (``PJRT_Api``).

    ``no_gc_clear`` keeps it whole for as long as a handle of the plugin is to be freed through it.
    """

    @staticmethod
    cdef Api of(const PJRT_Api *table, str path, object owner):
        """Return the table that ``GetPjrtApi`` returned, checked; it and ``owner`` live as long as the process.

        Raises:
            FailedPreconditionError: the table is null, too short, or of a version that this package does not speak.
        """
        cdef Api api = Api.__new__(Api)
        if table == NULL:
            raise FailedPreconditionError(
                f"{path}: GetPjrtApi returned null, so the plugin has no functions; it may need settings or hardware, "
                "see its documentation"
            )
        cdef size_t least = _HEAD
        cdef pjrt_memory_range head
        head.start, head.size = table, least
        if not pjrt_readable(&head, 1):
            raise FailedPreconditionError(
                f"{path}: GetPjrtApi returned the address {<size_t>table:#x}, which cannot be read; the library is no "
                "PJRT plugin, or a broken one"
            )
        if table.struct_size < least:
            raise FailedPreconditionError(
                f"{path}: the plugin's PJRT_Api is {table.struct_size} bytes long, expected at least {least}; it is "
                "no PJRT plugin, or a broken one"
            )
        api.table = table
        api.path = path
        api._owner = owner
        api.major_version = table.pjrt_api_version.major_version
        api.minor_version = table.pjrt_api_version.minor_version
        api._check_version()
        api.readable = min(<size_t>table.struct_size, api._expected_size())
        api._extensions = api._walk_extensions()
        return api

    def _check_version(self):
        theirs = f"{self.major_version}.{self.minor_version}"
        ours = f"{PJRT_API_MAJOR}.{PJRT_API_MINOR}"
        if self.major_version != PJRT_API_MAJOR:
            raise FailedPreconditionError(
                f"{self.path}: the plugin speaks PJRT C API {theirs}, this package {ours}; "
                f"versions with different first numbers cannot talk: use a plugin of {PJRT_API_MAJOR}.x"
            )
        if self.minor_version < _OLDEST_MINOR:
            raise FailedPreconditionError(
                f"{self.path}: the plugin speaks PJRT C API {theirs}; the oldest version this package speaks is "
                f"{PJRT_API_MAJOR}.{_OLDEST_MINOR}: use a newer plugin"
            )
        if self.minor_version == _REARRANGED_MINOR:
            raise FailedPreconditionError(
                f"{self.path}: the plugin speaks PJRT C API {theirs}, whose functions lie in an order that the next "
                "version took back: use a plugin of another version"
            )
        if self.minor_version > PJRT_API_MINOR and self.path not in _newer:
            _newer.add(self.path)
            _log.warning(
                "%s: the plugin speaks PJRT C API %s, this package %s: it works, without what is new in the plugin; "
                "update pjrt to use that", self.path, theirs, ours
            )

    cdef size_t _expected_size(self) except? 0:
        """Return how far the table of the plugin's version goes.

        The minor version decides, not only the table's size: between 0.105 and 0.113 the last slots had other meanings.
        """
        cdef size_t number = sum(1 for each in TABLE if each.minor <= self.minor_version)
        return _HEAD + number * sizeof(void *)

    def _walk_extensions(self):
        """Return address and size of each extension by its type. The chain may hold unknown types, or be a circle."""
        cdef PJRT_Extension_Base *link = self.table.extension_start
        extensions = {}
        if self.minor_version < 45:  # extensions had no size before
            return extensions
        seen = set()
        while link != NULL and <size_t>link not in seen and len(seen) < 1000:
            seen.add(<size_t>link)
            if link.struct_size < sizeof(PJRT_Extension_Base):
                break
            extensions.setdefault(<int>link.type, (<size_t>link, <size_t>link.struct_size))
            link = link.next
        return extensions

    @property
    def extensions(self):
        """The plugin's extensions by name, each with what it is about, in the order of the plugin's chain.

        One of a type that this package does not know goes by its number, as ``extension 25``.
        """
        return dict(
            EXTENSIONS[kind] if 0 <= kind < len(EXTENSIONS) else (f"extension {kind}", "not known to this package")
            for kind in self._extensions
        )

    @property
    def functions(self):
        """The names of the functions that the plugin's table has, in the table's order."""
        cdef size_t slot = _HEAD
        names = []
        for each in TABLE:
            if slot + sizeof(void *) <= self.readable and (<function_t *>(<const char *>self.table + slot))[0] != NULL:
                names.append(each.name)
            slot += sizeof(void *)
        return tuple(names)

    cdef void *extension(self, int kind, size_t needed) except NULL:
        """Return an extension's struct.

        Raises:
            UnimplementedError: the plugin does not have the extension, or one of less than ``needed`` bytes.
        """
        # Handles may be freed when the module's names are gone, at the end of the interpreter: they serve errors only.
        entry = self._extensions.get(kind)
        if entry is None:
            raise UnimplementedError(
                f"{self.path}: the plugin has no {EXTENSIONS[kind][0]} extension; see plugin.extensions for those it has"
            )
        address, size = entry
        if size < needed:
            raise UnimplementedError(
                f"{self.path}: the plugin's {EXTENSIONS[kind][0]} extension is an older one ({size} bytes), which does not offer "
                "this; use a newer plugin"
            )
        return <void *><size_t>address

    cdef function_t find_in_extension(self, size_t slot) except? NULL:
        """Return the function of an extension, or null where the plugin leaves it out.

        Raises:
            UnimplementedError: the plugin does not have the extension, or an older one.
        """
        cdef size_t offset = slot % _FIRST_SLOT_OF_EXTENSIONS
        cdef int kind = <int>(slot // _FIRST_SLOT_OF_EXTENSIONS) - 1
        return (<function_t *>(<const char *>self.extension(kind, offset + sizeof(void *)) + offset))[0]

    cdef function_t find(self, size_t slot) except NULL:
        """Return the function of a slot.

        Raises:
            UnimplementedError: the plugin does not have it.
        """
        cdef function_t function = NULL
        if slot >= _FIRST_SLOT_OF_EXTENSIONS:
            function = self.find_in_extension(slot)
        elif slot + sizeof(void *) <= self.readable:
            function = (<function_t *>(<const char *>self.table + slot))[0]
        if function == NULL:
            self._refuse(slot)
        return function

    def _refuse(self, size_t slot):
        if slot >= _FIRST_SLOT_OF_EXTENSIONS:
            kind = EXTENSIONS[slot // _FIRST_SLOT_OF_EXTENSIONS - 1][0]
            position = (slot % _FIRST_SLOT_OF_EXTENSIONS - sizeof(PJRT_Extension_Base)) // sizeof(void *)
            names = [each.name for each in FUNCTIONS.values() if each.extension == kind]
            raise UnimplementedError(f"{self.path}: the plugin leaves {names[position]} out of its {kind} extension")
        missing = TABLE[(slot - _HEAD) // sizeof(void *)]
        version = f"{self.major_version}.{self.minor_version}"
        if slot + sizeof(void *) <= self.readable:
            raise UnimplementedError(
                f"{self.path}: the plugin (PJRT C API {version}) leaves {missing.name} out; ask its vendor, or do without"
            )
        exists = f"exists since PJRT C API 0.{missing.minor}" if missing.minor else "is not among its functions"
        raise UnimplementedError(
            f"{self.path}: the plugin speaks PJRT C API {version}, and {missing.name} {exists}; use a newer plugin"
        )

    cdef int call(self, size_t slot, void *args) except -1:
        """Call a function of the plugin with arguments that the caller started and filled."""
        cdef function_t function = self.find(slot)
        cdef PJRT_Error *error
        with nogil:
            error = function(args)
        if error != NULL:
            raise self.take_error(error)
        return 0

    cdef int drop(self, size_t slot, void *handle) except -1:
        """Call a destroy function of the table. The argument structs of all of them are alike: the handle alone."""
        cdef PJRT_Buffer_Destroy_Args args
        start(&args, PJRT_Buffer_Destroy_Args_STRUCT_SIZE)
        args.buffer = <PJRT_Buffer *>handle
        return self.call(slot, &args)

    cdef object take_error(self, PJRT_Error *error):
        """Return the exception for an error, and free the error."""
        try:
            return self.read_error(error)
        finally:
            self.destroy_error(error)

    cdef object read_error(self, PJRT_Error *error):
        """Return the exception for an error, which stays the caller's."""
        cdef PJRT_Error_Message_Args message
        cdef PJRT_Error_GetCode_Args code
        start(&message, PJRT_Error_Message_Args_STRUCT_SIZE)
        message.error = error
        (<void (*)(void *) noexcept nogil><void *>self.find(SLOT_PJRT_Error_Message))(&message)  # PjrtError.message
        start(&code, PJRT_Error_GetCode_Args_STRUCT_SIZE)
        code.code = PJRT_Error_Code_UNKNOWN
        code.error = error
        self._swallow(self.find(SLOT_PJRT_Error_GetCode)(&code))  # PjrtError.code
        description = text(message.message, message.message_size, "the message of an error")
        return PjrtError.of(code.code, description, self._payloads(error))

    cdef object _payloads(self, PJRT_Error *error):
        cdef PJRT_Error_ForEachPayload_Args args
        payloads = {}
        if SLOT_PJRT_Error_ForEachPayload + sizeof(void *) > self.readable:
            return payloads
        try:
            start(&args, PJRT_Error_ForEachPayload_Args_STRUCT_SIZE)
            args.error = error
            args.visitor = _visit_payload
            args.user_arg = <void *>payloads
            self._swallow(self.find(SLOT_PJRT_Error_ForEachPayload)(&args))  # PjrtError.payloads
        except UnimplementedError:
            pass
        return payloads

    cdef void _swallow(self, PJRT_Error *error) noexcept:
        """Free an error about an error: the first one is the one to report."""
        if error != NULL:
            self.destroy_error(error)

    cdef void destroy_error(self, PJRT_Error *error) noexcept:
        cdef PJRT_Error_Destroy_Args args
        start(&args, PJRT_Error_Destroy_Args_STRUCT_SIZE)
        args.error = error
        if SLOT_PJRT_Error_Destroy + sizeof(void *) <= self.readable and self.table.PJRT_Error_Destroy != NULL:
            self.table.PJRT_Error_Destroy(&args)  # PjrtError: when it is raised


cdef void _visit_payload(
    const char *key, size_t key_size, const char *value, size_t value_size, void *payloads
) noexcept with gil:
    # Called inside Error_ForEachPayload, in a thread that Python knows.
    try:
        (<dict>payloads)[text(key, key_size, "the key of a payload")] = blob(value, value_size, "a payload")
    except Exception:
        pass  # a payload that cannot be read is left out of the error that is being reported


cdef void start(void *args, size_t size) noexcept nogil:
    """Zero an argument struct and stamp its size."""
    memset(args, 0, size)
    (<size_t *>args)[0] = size


cdef int _refuse_bytes(const char *data, size_t size, str what) except -1:
    raise InternalError(
        f"the plugin gave {what} as {size} bytes at {<size_t>data:#x}, which cannot be right; report it to the "
        "plugin's vendor"
    )


cdef bint _is_there(const void *data, size_t size) noexcept:
    """Whether memory of the plugin is there. What is long is looked at: a length may be one that was never set."""
    cdef pjrt_memory_range there
    there.start, there.size = data, size
    return data != NULL and (size <= _TRUSTED_SIZE or pjrt_readable(&there, 1))


cdef str text(const char *data, size_t size, str what):
    """Return a string of the plugin. Bytes that are not UTF-8 are replaced, so that the rest can be read."""
    if size == 0:
        return ""
    if size > _LONGEST_TEXT or not _is_there(data, size):
        _refuse_bytes(data, size, what)
    return PyUnicode_DecodeUTF8(data, size, "replace")


cdef bytes blob(const char *data, size_t size, str what):
    """Return a copy of bytes of the plugin."""
    if size == 0:
        return b""
    if size > _LARGEST_BLOB or not _is_there(data, size):
        _refuse_bytes(data, size, what)
    return PyBytes_FromStringAndSize(data, size)


cdef bytes take_blob(const char *data, size_t size, str what, void *owner, deleter_t deleter):
    """Return a copy of bytes that the plugin made for the caller, and give them back to it by their deleter."""
    try:
        return blob(data, size, what)
    finally:
        if deleter != NULL:
            with nogil:
                deleter(owner)


cdef size_t count(size_t number, const void *array, str what) except? 1:
    """Return the length of an array of the plugin.

    Raises:
        InternalError: no array can be so long, or the array is null.
    """
    if number and (number > _MOST_ITEMS or not _is_there(array, number * sizeof(int))):
        raise InternalError(
            f"the plugin gave {what} as {number} items at {<size_t>array:#x}, which cannot be right; report it to the "
            "plugin's vendor"
        )
    return number


# Values that cross the boundary in both directions: named values, layouts, lists of numbers.


cdef bytes encoded(value, str what):
    """Return a name for a plugin, which may take it for a text that a null ends.

    Raises:
        InvalidArgumentError: the value is no ``str``, or has a null, or half of a pair of surrogates.
    """
    cdef bytes code
    try:
        code = expect(value, str, what).encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"expected {what} that UTF-8 can spell, found {value!r}: {error.reason}") from error
    if b"\0" in code:
        raise InvalidArgumentError(f"expected {what} without null characters, found {value!r}")
    return code


cdef object _LIMIT = 1 << 63
cdef size_t _MOST_DIMENSIONS = 64
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
        key = encoded(name, f"the names of {what} as strings")
        self.keep.append(key)
        target.name = key
        target.name_size = len(key)
        target.value_size = 1
        if isinstance(value, bool):
            target.type = PJRT_NamedValue_kBool
            target.bool_value = value
        elif isinstance(value, (str, bytes)):
            string = value if isinstance(value, bytes) else encoded(value, f"{what}: the value of {name!r} as a str")
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
    unknown = []
    for index in range(count(number, values, what)):
        value = &values[index]
        if value.struct_size < PJRT_NamedValue_STRUCT_SIZE:
            raise InternalError(
                f"the plugin gave {what} with a named value of {value.struct_size} bytes, expected "
                f"{<size_t>PJRT_NamedValue_STRUCT_SIZE}; report it to its vendor"
            )
        name = text(value.name, value.name_size, what)
        if PJRT_NamedValue_kString <= value.type <= PJRT_NamedValue_kBool:
            by_name[name] = _read_value(value, what)
        else:
            unknown.append(f"{name} (of type {<int>value.type})")
    if unknown:  # a newer plugin, whose other values serve all the same
        _log.warning("%s: left out are values of types that this package does not know: %s", what, ", ".join(unknown))
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
    return bool(value.bool_value)


cdef class NativeLayout:
    pass


cdef NativeLayout fitting_layout(layout, size_t rank):
    """Return the struct for a layout of an array that the plugin is to make.

    Raises:
        InvalidArgumentError: the layout is not one of so many dimensions, or a tile of it has no size.
    """
    if layout is not None:
        tiles = getattr(expect_layout(layout), "tiles", ())
        number = len(layout.byte_strides if isinstance(layout, StridedLayout) else layout.minor_to_major)
        if <size_t>number != rank:
            raise InvalidArgumentError(
                f"expected a layout of {rank} dimensions, as many as the array has, found {layout} of {number}; "
                f"row-major is TiledLayout.row_major({rank})"
            )
        if not all(tiles) or any(size < 1 and size != -1 for tile in tiles for size in tile):
            raise InvalidArgumentError(f"expected tiles with sizes from 1 up (-1 joins two dimensions), found {layout}")
    return native_layout(layout)


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


cdef Block shape_block(shape, element_type):
    """Return the dimensions of an array that is to be made.

    Raises:
        InvalidArgumentError: no device can hold such an array, or its element type is none.
    """
    sizes = expect_shape(shape)
    kind = ElementType.of(element_type)
    elements = math.prod([max(size, 1) for size in sizes])
    if kind is ElementType.INVALID or len(sizes) > _MOST_DIMENSIONS or elements * max(kind.bits, 8) >= 8 * _LIMIT:
        raise InvalidArgumentError(
            f"expected an array of at most {_MOST_DIMENSIONS} dimensions and 2**63 bytes, found "
            f"{format_shape(kind, sizes)}"
        )
    return int64_block(sizes)


cdef size_t address(value, str what) except? 0:
    """Return an address in memory, which the caller gives as a number.

    Raises:
        InvalidArgumentError: the value is no whole number from 1 up, or no address has so many bits.
    """
    number = expect_int(value, what)
    if not 0 < number < 2 * _LIMIT:
        raise InvalidArgumentError(f"expected {what}, from 1 up and of at most 64 bits, found {number}")
    return number


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


# The gate: the way into Python for threads of a plugin, and the end of it when the interpreter ends.
#
# Rule for every callback that a plugin may make: enter the gate before taking the GIL, leave it after giving the GIL
# back; where the gate is shut, answer without Python. At exit the clients are closed first, while Python still works, so
# that plugins can finish what they do; then the gate is shut.

cdef extern from "pjrt_support/gate.h" nogil:
    ctypedef struct pjrt_gate:
        pass
    bint pjrt_gate_enter(pjrt_gate *gate)
    void pjrt_gate_leave(pjrt_gate *gate)
    bint pjrt_gate_shut(pjrt_gate *gate, int milliseconds)

# Callbacks that are inside get this long to leave, even where no other time is left.
cdef double _LEAST_PATIENCE_SECONDS = 0.2
cdef pjrt_gate _gate

close_at_exit = weakref.WeakSet()
"""Objects whose method ``_close_at_exit`` is called before the gate is shut."""


cdef bint gate_enter() noexcept nogil:
    return pjrt_gate_enter(&_gate)


cdef void gate_leave() noexcept nogil:
    pjrt_gate_leave(&_gate)


def shut():
    """Close what is open, and turn callbacks away from now on."""
    for open_thing in list(close_at_exit):
        try:
            open_thing._close_at_exit()
        except Exception as error:
            import sys

            sys.stderr.write(f"pjrt: {open_thing!r} could not be closed at exit: {error}\n")
    cdef int patience = <int>(1000 * max(time_left(), _LEAST_PATIENCE_SECONDS))
    with nogil:
        pjrt_gate_shut(&_gate, patience)


atexit.register(shut)


# Tickets: Python objects for callbacks that a plugin makes once, and must not be trusted to make only once.

cdef extern from "pjrt_support/ticket.h" nogil:
    void *pjrt_ticket_new(void *thing)
    void *pjrt_ticket_redeem(void *ticket)


cdef void *ticket_for(thing) except NULL:
    """Return a ticket that stands for an object, and keep the object until the ticket is redeemed."""
    cdef void *ticket = pjrt_ticket_new(<void *>thing)
    if ticket == NULL:
        raise MemoryError("no memory to have a plugin call back")
    Py_INCREF(thing)
    return ticket


cdef object redeem(void *ticket):
    """Return the object that a ticket stands for, which is spent by that; ``None`` for one that was spent, or null."""
    cdef void *thing = pjrt_ticket_redeem(ticket)
    if thing == NULL:
        return None
    owner = <object>thing
    Py_DECREF(owner)
    return owner
