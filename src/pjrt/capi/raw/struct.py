"""Structs of the C API in memory: numbers, callbacks, and their reading and writing as Python values."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from pjrt.abi.schema import CALLBACKS, ENUMS, FUNCTIONS, STRUCTS, Field
from pjrt.abi.schema import Struct as StructSpec
from pjrt.api.errors import InvalidArgumentError
from pjrt.host_memory.array import aligned_empty

FLOATS = {4: ctypes.c_float, 8: ctypes.c_double}
"""The types of floating-point fields, by size."""

SIGNED = {1: ctypes.c_int8, 2: ctypes.c_int16, 4: ctypes.c_int32, 8: ctypes.c_int64}
"""The types of signed fields, by size."""

UNSIGNED = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}
"""The types of unsigned fields, by size."""

NUMBERS = frozenset({"STRUCT_SIZE", "COUNT", "SIGNED", "UNSIGNED", "ENUM"})
"""The kinds of fields that are numbers without a point."""


def load(at: int) -> int:
    """Return the address, or the unsigned number of eight bytes, at an address."""
    return int(ctypes.c_uint64.from_address(at).value)


def store(at: int, value: int) -> None:
    """Write an address, or an unsigned number of eight bytes, to an address."""
    ctypes.c_uint64.from_address(at).value = value


def store_number(at: int, size: int, value: int) -> None:
    """Write a number of some bytes to an address. A number that does not fit loses its higher bits, as in C."""
    UNSIGNED[size].from_address(at).value = value


def load_number(at: int, size: int, *, signed: bool) -> int:
    """Return the number of some bytes at an address."""
    return int((SIGNED if signed else UNSIGNED)[size].from_address(at).value)


# Memory that a call is given: the structs of its arguments, and what they point to.


class Memory:
    """Memory that a call is given; it lives as long as this object."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def allocate(self, size: int) -> int:
        """Return the address of new memory of zeros, aligned as host arrays are."""
        array = aligned_empty((max(size, 1),), np.dtype(np.uint8))
        array.fill(0)
        return self.keep(array)

    def copy(self, data: bytes | memoryview) -> int:
        """Return the address of a copy of some bytes, with a zero behind them."""
        address = self.allocate(len(data) + 1)
        if len(data):
            ctypes.memmove(address, np.frombuffer(data, np.uint8).ctypes.data, len(data))
        return address

    def keep(self, array: np.ndarray[Any, Any]) -> int:
        """Keep an array, and return its address."""
        self._kept.append(array)
        return int(array.ctypes.data)

    def keep_object(self, value: object) -> None:
        """Keep an object that the memory refers to, such as a function."""
        self._kept.append(value)


# Python functions as callbacks of the C API.

_P = ctypes.c_void_p
_INTEGERS = {1: ctypes.c_int8, 2: ctypes.c_int16, 4: ctypes.c_int32, 8: ctypes.c_int64}


def callback(kind: str, function: Callable[..., Any]) -> Any:
    """Return a Python function as a C function of the type of a callback; it lives as long as the returned object.

    Args:
        kind: the callback, such as ``PJRT_Event_OnReadyCallback``.
        function: is called with the parameters that the header states: numbers and addresses as ``int``, a null pointer
            as 0. A callback whose C function takes one struct is called with the address of that struct. It returns
            ``None``, or the address of what the C function returns.
    """
    prototype, returns = _prototype(kind)

    def call(*arguments: Any) -> Any:
        answer = function(*(0 if each is None else each for each in arguments))
        return answer if returns else None

    return prototype(call)


@functools.cache
def _prototype(kind: str) -> tuple[Any, bool]:
    spec = CALLBACKS[kind]
    fields = STRUCTS[spec.args].fields
    # Some callbacks take one struct, which has its own size; the schema writes the parameters of others as a struct.
    types = [_P] if "struct_size" in fields else [_parameter(field) for field in fields.values()]
    returns = spec.result != "NOTHING"
    return ctypes.CFUNCTYPE(_P if returns else None, *types), returns


def _parameter(field: Field) -> Any:
    if field.kind == "BOOL":
        return ctypes.c_bool
    if field.kind in ("SIGNED", "ENUM"):
        return _INTEGERS[field.size]
    if field.kind in ("COUNT", "UNSIGNED"):
        return ctypes.c_size_t if field.size == 8 else ctypes.c_uint32
    return _P


def address_of(function: Any) -> int:
    """Return the address of a C function that ``callback`` made."""
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def callback_error(maker: int, code: int, message: str) -> int:
    """Return the address of an error for a callback to return, made by the function that the plugin gave it.

    Args:
        maker: the callback's argument ``callback_error``: the address of a pointer to the function.
        code: the status code.
        message: the text.
    """
    text = message.encode()
    make = ctypes.CFUNCTYPE(_P, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t).from_address(maker)
    return int(make(int(code), text, len(text)) or 0)


def call_function(address: int, *arguments: int) -> int:
    """Call a function that the plugin gave, such as a deleter, with addresses as arguments; return what it returns."""
    return int(ctypes.CFUNCTYPE(_P, *[_P] * len(arguments))(address)(*arguments) or 0)


# Structs of the C API as Python values.


class Struct:
    """A struct of the C API: its name in C, and the values of some of its fields.

    ``Struct("PJRT_Program", code=text, format="mlir")``. A field that is not stated is zero, but for ``struct_size``
    and for the numbers of elements or bytes of other fields, which follow from those.

    Two structs have a short form, in which structs that a plugin returns come, too:

    * ``PJRT_NamedValue`` has ``name``, ``type`` and ``value``; without ``type`` it follows from the value.
    * ``PJRT_Buffer_MemoryLayout`` has ``type``, and either ``minor_to_major``, ``tile_dims`` and ``tile_dim_sizes``
      (type 0) or ``byte_strides`` (type 1).

    Attributes:
        kind: its name in C.
        fields: the values by the names of the fields, in their order.
    """

    __slots__ = ("fields", "kind")

    def __init__(self, kind: str, fields: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        self.kind = kind
        self.fields: Mapping[str, Any] = {**(fields or {}), **named}

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "fields")[name]
        except (AttributeError, KeyError):
            raise AttributeError(f"the struct has no field {name!r}") from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct):
            return NotImplemented
        return self.kind == other.kind and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.kind)

    def __reduce__(self) -> tuple[Any, ...]:
        return Struct, (self.kind, dict(self.fields))

    def __repr__(self) -> str:
        fields = "".join(f", {name}={value!r}" for name, value in self.fields.items())
        return f"Struct({self.kind!r}{fields})"


def named_value(name: str, value: Any) -> Struct:
    """Return an option as a ``PJRT_NamedValue``; the type follows from the value."""
    return Struct("PJRT_NamedValue", name=name.encode(), type=named_value_type(value), value=value)


def named_value_type(value: Any) -> int:
    """Return the number of ``PJRT_NamedValue_Type`` for a value: text, a boolean, a number, or a list of integers."""
    if isinstance(value, (str, bytes)):
        return 0
    if isinstance(value, bool):
        return 4
    return 1 if isinstance(value, int) else 3 if isinstance(value, float) else 2


# Structs of the C API that a plugin has written, read into Python values.

_MAX_COUNT = 1 << 32
"""The number of elements that a count is cut to: a plugin may have left the field unset."""


class StructReader:
    """A reader of structs that a plugin has written.

    Handles, functions and pointers are addresses; a null pointer is ``None``. A subclass may give them other values.

    Args:
        num_outputs: the number of elements of lists whose number no field has: the results of a program.
    """

    def __init__(self, num_outputs: int = 0) -> None:
        self._num_outputs = num_outputs

    def handle(self, kind: str, address: int) -> Any:
        """Return the value for a handle."""
        return address

    def pointer(self, address: int) -> Any:
        """Return the value for a function, or for an address that is not looked into."""
        return address

    def read(self, kind: str, address: int, names: Iterable[str] | None = None) -> Struct:
        """Read the named fields of a struct, or all."""
        if kind == "PJRT_NamedValue":
            return self._named_value(address)
        if kind == "PJRT_Buffer_MemoryLayout":
            return self._layout(address)
        spec = STRUCTS[kind]
        chosen = spec.fields if names is None else [name for name in names if name in spec.fields]
        values = {name: self.field(address, kind, spec.fields[name]) for name in chosen}
        return Struct(kind, values)

    def field(self, base: int, kind: str, field: Field) -> Any:
        """Read one field of the struct at an address."""
        at = base + field.offset
        if field.kind == "ARRAY":
            begin = at if "INLINE" in field.marks else load(at)
            count = self._count(base, kind, field)
            if not begin:
                return None
            if count is None:
                return self.pointer(begin)
            sizes = load(base + STRUCTS[kind].fields[field.inner_count].offset) if field.inner_count else 0
            return [
                self._element(
                    begin + i * field.element_size, field.element, field.element_size, field,
                    load(sizes + 8 * i) if sizes else None,
                )
                for i in range(count)
            ]  # fmt: skip
        if field.kind == "LISTS":
            begin = load(at)
            if not begin:
                return None
            count, inner = self._number(base, kind, field.count), self._num_outputs
            return [
                [self._element(load(begin + 8 * i) + 8 * j, field.element, 8, field, None) for j in range(inner)]
                for i in range(count)
            ]
        size = self._number(base, kind, field.count) if field.count else None
        return self._element(at, field.kind, field.size, field, size)

    def _number(self, base: int, kind: str, name: str) -> int:
        field = STRUCTS[kind].fields[name]
        return load_number(base + field.offset, field.size, signed=False)

    def _count(self, base: int, kind: str, field: Field) -> int | None:
        if "INLINE" in field.marks:
            return field.size // field.element_size
        if field.count:
            return min(self._number(base, kind, field.count), _MAX_COUNT)
        if kind == FUNCTIONS["PJRT_Executable_OutputDimensions"].args:
            ranks = self.field(base, kind, STRUCTS[kind].fields["dim_sizes"])
            return int(sum(ranks or []))
        return None

    def _element(self, at: int, kind: str, size: int, field: Field, count: int | None) -> Any:
        if kind in NUMBERS:
            return load_number(at, size, signed=kind != "UNSIGNED")
        if kind == "BOOL":
            return bool(ctypes.c_uint8.from_address(at).value)
        if kind == "FLOAT":
            return float(FLOATS[size].from_address(at).value)
        if kind == "STRUCT_VALUE":
            return self.read(field.type, at)
        address = load(at)
        if not address:
            return None
        if kind == "HANDLE":
            return self.handle(field.type, address)
        if kind in ("TEXT", "BYTES"):
            if count is None:
                return ctypes.string_at(address) if kind == "TEXT" else self.pointer(address)
            return ctypes.string_at(address, min(count, _MAX_COUNT))
        if kind == "STRUCT":
            return self.read(field.type, address)
        return self.pointer(address)

    def _named_value(self, at: int) -> Struct:
        spec = STRUCTS["PJRT_NamedValue"]
        by_number = {field.variant: field for field in spec.fields.values() if field.variant >= 0}
        number = self._number(at, spec.name, "type")
        field = by_number.get(number)
        value = None if field is None else self.field(at, spec.name, field)
        return Struct(
            spec.name, {"name": self.field(at, spec.name, spec.fields["name"]), "type": number, "value": value}
        )

    def _layout(self, at: int) -> Struct:
        spec = STRUCTS["PJRT_Buffer_MemoryLayout"]
        number = self._number(at, spec.name, "type")
        begin = at + spec.fields["tiled"].offset
        if number != 0:
            strides = STRUCTS["PJRT_Buffer_MemoryLayout_Strides"]
            values = self.field(begin, strides.name, strides.fields["byte_strides"])
            return Struct(spec.name, {"type": number, "byte_strides": values})
        tiles = STRUCTS["PJRT_Buffer_MemoryLayout_Tiled"]
        sizes = self.field(begin, tiles.name, tiles.fields["tile_dim_sizes"]) or []
        dims = load(begin + tiles.fields["tile_dims"].offset)
        return Struct(
            spec.name,
            {
                "type": number,
                "minor_to_major": self.field(begin, tiles.name, tiles.fields["minor_to_major"]),
                "tile_dim_sizes": sizes,
                "tile_dims": [load(dims + 8 * i) for i in range(sum(sizes))] if dims else None,
            },
        )


def read_struct(kind: str, address: int) -> Struct:
    """Return a struct of the C API at an address, such as one that a callback is given."""
    return StructReader().read(kind, address)


# Structs of the C API in memory, made from Python values.

_LAYOUT_KINDS = {0: "tiled", 1: "strides"}
_POINTERS = frozenset({"HANDLE", "TEXT", "BYTES", "POINTER", "USER_DATA", "STRUCT", "CALLBACK", "EXTENSIONS"})


class StructWriter:
    """A maker of the argument structs of one call.

    Attributes:
        memory: the memory of the structs and of everything that they point to.
    """

    def __init__(self) -> None:
        self.memory = Memory()

    def build(self, kind: str, fields: Mapping[str, Any]) -> int:
        """Return the address of a struct in new memory.

        Raises:
            InvalidArgumentError: the struct has no such field, or a value is of the wrong type.
        """
        size = fields.get("struct_size")
        # The bytes of a size that is stated are there, unless the number is nonsense on purpose.
        least = size if isinstance(size, int) and size < 1 << 20 else 0
        address = self.memory.allocate(max(STRUCTS[kind].size, least) + 8)
        self.write(address, kind, fields)
        return address

    def write(self, address: int, kind: str, fields: Mapping[str, Any]) -> None:
        """Write a struct into memory of its size, which is zero."""
        spec = STRUCTS[kind]
        fields = completed(kind, fields)
        for name, value in fields.items():
            try:
                self.write_field(address + spec.fields[name].offset, spec.fields[name], value, fields)
            except InvalidArgumentError:
                raise
            except (TypeError, KeyError, ValueError, ctypes.ArgumentError) as error:
                raise InvalidArgumentError(
                    f"{kind}.{name}: expected a value for a field of kind {spec.fields[name].kind}, found {value!r}"
                ) from error

    def write_field(self, at: int, field: Field, value: Any, fields: Mapping[str, Any]) -> None:
        """Write one field of a struct, of which these are all values."""
        if field.kind == "ARRAY" and "INLINE" in field.marks:
            self._elements(at, field, value, fields)
        elif field.kind == "ARRAY" and _is_list(value):
            begin = self.memory.allocate(len(value) * field.element_size)
            self._elements(begin, field, value, fields)
            store(at, begin)
        elif field.kind == "LISTS" and _is_list(value):
            lists = self.memory.allocate(8 * len(value))
            for i, each in enumerate(value):
                if _is_list(each):
                    begin = self.memory.allocate(len(each) * field.element_size)
                    self._elements(begin, field, each, fields)
                    store(lists + 8 * i, begin)
                else:
                    store(lists + 8 * i, self.address_of(each, field, fields))
            store(at, lists)
        elif field.kind in ("ARRAY", "LISTS"):
            store(at, self.address_of(value, field, fields))
        else:
            self._element(at, field.kind, field.size, value, field, fields)

    def _elements(self, begin: int, field: Field, values: Sequence[Any], fields: Mapping[str, Any]) -> None:
        for i, each in enumerate(values):
            self._element(begin + i * field.element_size, field.element, field.element_size, each, field, fields)

    def _element(self, at: int, kind: str, size: int, value: Any, field: Field, fields: Mapping[str, Any]) -> None:
        if kind in NUMBERS:
            store_number(at, size, _number(value, field))
        elif kind == "BOOL":
            store_number(at, 1, int(value or 0))
        elif kind == "FLOAT":
            FLOATS[size].from_address(at).value = value
        elif kind == "STRUCT_VALUE":
            if value is not None:
                self.write(at, field.type, _fields_of(value))
        elif kind == "STRUCT" and isinstance(value, (Struct, Mapping)):
            store(at, self.build(field.type, _fields_of(value)))
        elif kind == "CALLBACK" and callable(value):
            function = callback(field.type, value)
            self.memory.keep_object(function)
            store(at, address_of(function))
        elif kind in _POINTERS:
            store(at, self.address_of(value, field, fields))
        else:
            raise TypeError(kind)

    def address_of(self, value: Any, field: Field, fields: Mapping[str, Any]) -> int:
        """Return the address for a pointer: of a value that it points to, or a number that is one.

        Args:
            value: the value.
            field: the field with the pointer.
            fields: all values of its struct.
        """
        if value is None:
            return 0
        if isinstance(value, str):
            return self.memory.copy(value.encode())
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self.memory.copy(bytes(value))
        if isinstance(value, np.ndarray):
            return self.memory.keep(value)
        if isinstance(value, ctypes._SimpleCData | ctypes.Array | ctypes.Structure):
            self.memory.keep_object(value)
            return ctypes.addressof(value)
        return int(value) & (1 << 64) - 1


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _number(value: Any, field: Field) -> int:
    if isinstance(value, str):
        names = dict(ENUMS[field.type])
        if value not in names:
            raise InvalidArgumentError(f"{field.name}: expected one of {', '.join(names)}, found {value!r}")
        return names[value]
    return int(value or 0)


def _fields_of(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Struct):
        return value.fields
    if isinstance(value, Mapping):
        return value
    raise TypeError(type(value))


def _counts(spec: StructSpec, fields: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of elements and bytes that follow from the values of other fields."""
    counts: dict[str, int] = {}
    for name, value in fields.items():
        field = spec.fields[name]
        if field.count and field.count not in fields:
            number = _length(value, field)
            if number is not None:
                counts[field.count] = number
        if field.kind == "LISTS" and field.inner_count and field.inner_count not in fields and value:
            longest = max((len(each) for each in value if _is_list(each)), default=None) if _is_list(value) else None
            if longest is not None:
                counts[field.inner_count] = longest
    return counts


def _length(value: Any, field: Field) -> int | None:
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, np.ndarray):
        return int(value.nbytes if field.element_size in (0, 1) else value.size)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return len(bytes(value))
    return len(value) if _is_list(value) else None


def completed(kind: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a struct with those that follow from them: its size, and the numbers of elements and bytes.

    Raises:
        InvalidArgumentError: the struct has no such field.
    """
    spec = STRUCTS[kind]
    fields = _long_form(kind, fields)
    for name in fields:
        if name not in spec.fields:
            raise InvalidArgumentError(
                f"expected a field of {kind} ({', '.join(spec.fields)}), found {name!r}; correct the name"
            )
    size = {"struct_size": spec.size} if "struct_size" in spec.fields else {}
    return {**size, **_counts(spec, fields), **fields}


def _long_form(kind: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a struct with a union as the header has them."""
    if kind == "PJRT_NamedValue" and "value" in fields:
        rest = {name: value for name, value in fields.items() if name != "value"}
        value = fields["value"]
        number = rest.setdefault("type", named_value_type(value))
        by_number = {each.variant: each for each in STRUCTS[kind].fields.values() if each.variant >= 0}
        member = by_number.get(number)
        size = len(value.encode() if isinstance(value, str) else value) if number in (0, 2) and value else 1
        rest.setdefault("value_size", 0 if number in (0, 2) and not value else size)
        return rest if member is None or value is None else {**rest, member.name: value}
    if kind == "PJRT_Buffer_MemoryLayout" and not fields.keys() <= STRUCTS[kind].fields.keys():
        rest = {name: value for name, value in fields.items() if name in STRUCTS[kind].fields}
        inner = {name: value for name, value in fields.items() if name not in STRUCTS[kind].fields}
        number = rest.setdefault("type", 1 if "byte_strides" in inner else 0)
        if number == 0 and inner.get("tile_dim_sizes") is None:
            inner = {name: value for name, value in inner.items() if name not in ("tile_dims", "tile_dim_sizes")}
        return {**rest, _LAYOUT_KINDS.get(number, "tiled"): inner}
    return fields
