"""The flatbuffers of ``jax.export`` files: their tables, by the number of each field, and the reading of these.

A flatbuffer is tables that point forward to other tables, texts and vectors. No offset is followed before it is known
to lie inside the buffer. Tables may share what they point to, so a small file could spell a huge structure: a budget of
bytes that may be read, as many as the buffer has, bounds it. Real files share nothing.

The format of the files grows at the end of a table, and no number is used again. The comments have the serialization
version that added a field; all others are as old as the format.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, InvalidArgumentError, PjrtError
from pjrt.stablehlo.encodings.format import JAX_FUNCTION_NAME, JAX_IN_TREE, JAX_MLIR_MODULE, JAX_OUT_TREE

UINT8, UINT16, UINT32 = Struct("<B"), Struct("<H"), Struct("<I")
INT8, INT16, _INT32 = Struct("<b"), Struct("<h"), Struct("<i")

_OFFSET = 4
_FIRST_SLOT = 4
_LARGEST = 1 << 31
"""Flatbuffers have signed 32-bit offsets in them, so none is larger."""


class FlatBuffer:
    """The bytes of a flatbuffer, and how many of them may still be read.

    Attributes:
        code: the bytes.
        what: what they are, for messages.
        too_new: how much newer they are than what can be read, for messages; empty if they are not.
    """

    __slots__ = ("_left", "code", "too_new", "what")

    def __init__(self, code: bytes, what: str) -> None:
        if len(code) > _LARGEST:
            raise DataLossError(f"not a {what}: its {len(code)} bytes are more than a flatbuffer's largest, {_LARGEST}")
        self.code = code
        self.what = what
        self.too_new = ""
        self._left = len(code)

    @property
    def root(self) -> FlatTable:
        """The outermost table."""
        return FlatTable(self, self.target(0, "root"))

    def damaged(self, field: str, message: str) -> DataLossError:
        """Return the error of a field that cannot be."""
        return DataLossError(f"corrupt {self.what}: {field} {message}")

    def refused(self, field: str, message: str) -> PjrtError:
        """Return the error of a field that cannot be, though it lies where it should: damage, or a later format."""
        if not self.too_new:
            return self.damaged(field, message)
        return InvalidArgumentError(f"the {self.what} is too new: {field} {message}; {self.too_new}")

    def check(self, begin: int, size: int, field: str) -> None:
        """Check that a piece lies inside the buffer.

        Raises:
            DataLossError: it does not.
        """
        if begin < 0 or begin + size > len(self.code):
            raise self.damaged(field, f"is at the bytes {begin} to {begin + size} of only {len(self.code)}")

    def spend(self, size: int, field: str) -> None:
        """Count bytes as read.

        Raises:
            DataLossError: more bytes were read than the buffer has, so parts of it are read again and again.
        """
        self._left -= size
        if self._left < 0:
            raise self.damaged(field, "shares its contents with others until they are more than the file has")

    def number(self, position: int, kind: Struct, field: str) -> int:
        """Return the number at a position."""
        self.check(position, kind.size, field)
        return int(kind.unpack_from(self.code, position)[0])

    def target(self, position: int, field: str) -> int:
        """Return where the offset at a position points."""
        target = position + self.number(position, UINT32, field)
        self.check(target, _OFFSET, field)
        return target


class FlatTable:
    """One table; its fields are read by their slot, the first being 0.

    Args:
        buffer: the flatbuffer.
        position: where the table begins.
        name: what it is, for messages.
    """

    __slots__ = ("_num_slots", "_size", "_vtable", "buffer", "name", "position")

    def __init__(self, buffer: FlatBuffer, position: int, name: str = "root") -> None:
        self.buffer = buffer
        self.name = name
        self.position = position
        vtable = self._vtable = position - buffer.number(position, _INT32, name)
        size, self._size = (buffer.number(vtable + at, UINT16, name) for at in (0, 2))
        buffer.check(vtable, size, name)
        buffer.check(position, self._size, name)
        if size < _FIRST_SLOT or size % 2 or self._size < _OFFSET:
            raise buffer.damaged(name, f"has a table of fields of {size} bytes, and is {self._size} bytes long")
        buffer.spend(_OFFSET, name)
        self._num_slots = (size - _FIRST_SLOT) // 2

    def has(self, slot: int) -> bool:
        """Whether the field is there."""
        return self._offset(slot) != 0

    def has_beyond(self, slot: int) -> bool:
        """Whether a field behind this one is there: one that a later version of the format added."""
        return any(map(self.has, range(slot + 1, self._num_slots)))

    def number(self, slot: int, kind: Struct, default: int = 0) -> int:
        """Return a number; ``default`` where the field is missing."""
        place = self._place(slot, kind.size)
        return default if place is None else self.buffer.number(place, kind, self._field(slot))

    def text(self, slot: int) -> str | None:
        """Return a text; None where the field is missing."""
        place = self._place(slot, _OFFSET)
        return None if place is None else self._text_at(place, self._field(slot))

    def content(self, slot: int) -> bytes | None:
        """Return a vector of bytes; None where the field is missing."""
        place = self._place(slot, _OFFSET)
        return None if place is None else self._bytes_at(place, self._field(slot))

    def table(self, slot: int, name: str) -> FlatTable | None:
        """Return a table; None where the field is missing."""
        place = self._place(slot, _OFFSET)
        return None if place is None else FlatTable(self.buffer, self.buffer.target(place, name), name)

    def tables(self, slot: int, name: str) -> list[FlatTable]:
        """Return the tables of a vector; none where the field is missing."""
        places = self._elements(slot, _OFFSET)
        return [
            FlatTable(self.buffer, self.buffer.target(place, f"{name}[{i}]"), f"{name}[{i}]")
            for i, place in enumerate(places)
        ]

    def texts(self, slot: int) -> tuple[str, ...]:
        """Return the texts of a vector; none where the field is missing."""
        field = self._field(slot)
        return tuple(self._text_at(place, field) for place in self._elements(slot, _OFFSET))

    def numbers(self, slot: int, kind: Struct) -> tuple[int, ...]:
        """Return the numbers of a vector; none where the field is missing."""
        field = self._field(slot)
        return tuple(self.buffer.number(place, kind, field) for place in self._elements(slot, kind.size))

    def refused(self, message: str) -> PjrtError:
        """Return the error of a table that cannot be."""
        return self.buffer.refused(self.name, message)

    def _field(self, slot: int) -> str:
        return f"field {slot} of {self.name}"

    def _offset(self, slot: int) -> int:
        if slot >= self._num_slots:
            return 0
        return self.buffer.number(self._vtable + _FIRST_SLOT + 2 * slot, UINT16, self.name)

    def _place(self, slot: int, width: int) -> int | None:
        offset = self._offset(slot)
        if offset == 0:
            return None
        if offset < _OFFSET or offset + width > self._size:
            raise self.buffer.damaged(self._field(slot), f"is at byte {offset} of a table of {self._size} bytes")
        return self.position + offset

    def _elements(self, slot: int, width: int) -> range:
        """Return where the elements of a vector begin."""
        place, field = self._place(slot, _OFFSET), self._field(slot)
        if place is None:
            return range(0)
        begin, length = self._vector(place, width, field)
        return range(begin, begin + length * width, width)

    def _vector(self, place: int, width: int, field: str) -> tuple[int, int]:
        """Return where the elements begin, and how many there are."""
        target = self.buffer.target(place, field)
        length = self.buffer.number(target, UINT32, field)
        self.buffer.check(target + _OFFSET, length * width, field)
        self.buffer.spend(length * width, field)
        return target + _OFFSET, length

    def _bytes_at(self, place: int, field: str) -> bytes:
        begin, length = self._vector(place, 1, field)
        return self.buffer.code[begin : begin + length]

    def _text_at(self, place: int, field: str) -> str:
        content = self._bytes_at(place, field)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise self.buffer.damaged(field, f"is not UTF-8: {content[:40]!r}") from error


OLDEST_SERIALIZATION, NEWEST_SERIALIZATION = 1, 12
"""The serialization versions that are known. Versions 3 to 11 all write 3 into the file, so that older JAX reads it;
the fields show which one it is. A later version is read as the newest, as far as it states what is needed."""

OLDEST_CONVENTION, NEWEST_CONVENTION = 6, 10
"""The calling conventions of the program that can be read."""

FIRST_CONVENTION_WITH_TOKENS = 9
"""The calling convention since which ordered effects are tokens among the arguments and results of the program."""


class Exported(IntEnum):
    """The root table, and that of a derivative inside it."""

    SERIALIZATION_VERSION = 0
    FUNCTION_NAME = JAX_FUNCTION_NAME
    IN_TREE = JAX_IN_TREE
    IN_AVALS = 3
    OUT_TREE = JAX_OUT_TREE
    OUT_AVALS = 5
    NUM_DEVICES_16 = 6  # until 4
    IN_SHARDINGS = 7
    OUT_SHARDINGS = 8
    PLATFORMS = 9
    ORDERED_EFFECTS = 10
    UNORDERED_EFFECTS = 11
    DISABLED_CHECKS = 12
    MLIR_MODULE = JAX_MLIR_MODULE
    CALLING_CONVENTION = 14
    KEPT_ARGUMENTS = 15
    USES_GLOBAL_CONSTANTS = 16
    VJP = 17
    NUM_DEVICES = 18  # 5
    UNIQUE_AVALS = 19  # 10, as all that follow
    UNIQUE_MESHES = 20
    UNIQUE_SHARDINGS = 21
    IN_AVAL_INDICES = 22
    OUT_AVAL_INDICES = 23
    IN_SHARDING_INDICES = 24  # 0 for none, and one more than the place in UNIQUE_SHARDINGS
    OUT_SHARDING_INDICES = 25
    JAX_VERSION = 26  # 12


class PyTree(IntEnum):
    """The structure of arguments or results."""

    KIND = 0
    CHILDREN = 1
    KEYS = 2
    CUSTOM_NAME = 3  # 3
    CUSTOM_DATA = 4  # 3


class Aval(IntEnum):
    """An array without its values."""

    KIND = 0
    SHAPE = 1  # texts, because a size may be an expression
    DTYPE = 2
    MEMORY_SPACE = 3  # 5


class Sharding(IntEnum):
    """A sharding of one argument or result."""

    KIND = 0  # until 8
    HLO_PROTO = 1  # until 8
    NAMED = 2  # 6


class NamedShardingTable(IntEnum):
    """A sharding that names the axes of a mesh."""

    MESH = 0
    SPEC = 1
    MEMORY_KIND = 2
    MESH_INDEX = 3  # 10


class Mesh(IntEnum):
    """A mesh without its devices."""

    SIZES = 0
    NAMES = 1
    TYPES = 2
    DEVICE = 3  # 8


class MeshDevice(IntEnum):
    """The kind of device that a mesh is made of."""

    KIND = 0
    NUM_CORES = 1
    PLATFORM = 2  # 11


class Spec(IntEnum):
    """The axes along which an array is cut."""

    DIMENSIONS = 0
    REDUCED = 1
    UNREDUCED = 2


SPEC_AXES = 0
"""The field with the axes of one dimension."""

EFFECT_NAME = 0
"""The field with the name of an effect's type."""


class Check(IntEnum):
    """A safety check that was disabled."""

    KIND = 0
    TARGET = 1


LEAF, NONE, TUPLE, LIST, DICT, CUSTOM = range(6)
"""The kinds of nodes of a structure."""

PLATFORM_CHECK, CUSTOM_CALL_CHECK, SHAPE_CHECK = range(3)
"""The kinds of disabled checks."""

SHARDING_KINDS = ("", "HLO", "named")
MEMORY_SPACES = ("", "device", "host", "any")
AXIS_TYPES = ("", "Auto", "Explicit", "Manual")

FLOAT0 = 22
"""The type of derivatives by integers: an array of i1 in the program."""

KEYS = {27: ("key<fry>", 2), 28: ("key<rbg>", 4), 29: ("key<urbg>", 4)}
"""The types of random keys, each with its JAX name and the number of ui32 that a key is in the program."""

DTYPES = {
    0: ElementType.PRED,
    1: ElementType.S8,
    2: ElementType.S16,
    3: ElementType.S32,
    4: ElementType.S64,
    5: ElementType.U8,
    6: ElementType.U16,
    7: ElementType.U32,
    8: ElementType.U64,
    9: ElementType.F16,
    10: ElementType.F32,
    11: ElementType.F64,
    12: ElementType.C64,
    13: ElementType.C128,
    14: ElementType.BF16,
    15: ElementType.S4,
    16: ElementType.U4,
    17: ElementType.F8E4M3B11FNUZ,
    18: ElementType.F8E4M3FN,
    19: ElementType.F8E4M3FNUZ,
    20: ElementType.F8E5M2,
    21: ElementType.F8E5M2FNUZ,
    23: ElementType.F8E4M3,
    24: ElementType.F8E3M4,
    25: ElementType.F8E8M0FNU,
    26: ElementType.F4E2M1FN,
}
