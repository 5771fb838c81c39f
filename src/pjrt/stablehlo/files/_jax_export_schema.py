"""The flatbuffer tables of ``jax.export`` files, by the number of each field.

The format grows at the end of a table, and no number is used again. The comments have the serialization version that
added a field; all others are as old as the format.
"""

from __future__ import annotations

from enum import IntEnum

from pjrt.api.element_type import ElementType
from pjrt.stablehlo.files import _jax_export_beginning

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
    FUNCTION_NAME = _jax_export_beginning.FUNCTION_NAME
    IN_TREE = _jax_export_beginning.IN_TREE
    IN_AVALS = 3
    OUT_TREE = _jax_export_beginning.OUT_TREE
    OUT_AVALS = 5
    NUM_DEVICES_16 = 6  # until 4
    IN_SHARDINGS = 7
    OUT_SHARDINGS = 8
    PLATFORMS = 9
    ORDERED_EFFECTS = 10
    UNORDERED_EFFECTS = 11
    DISABLED_CHECKS = 12
    MLIR_MODULE = _jax_export_beginning.MLIR_MODULE
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
