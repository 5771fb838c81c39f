"""Files of ``jax.export``: a program with the trees, types and shardings of its arguments and results.

``jax.export.export(f)(x).serialize()`` writes a flatbuffer. It is read here without JAX.

The calling convention of the program: its arguments are first the platform index, if it is for several platforms (the
position of the actual platform among ``platforms``), then a token for each ordered effect, then the kept arguments. JAX
drops the arguments that the function does not use. The results are a token for each ordered effect, then all results.
Dimension variables are no arguments: the program computes them from the shapes of its arguments, and checks them by
custom calls of ``shape_assertion``.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, InvalidArgumentError, PjrtError
from pjrt.api.program import Program
from pjrt.stablehlo.encodings.format import encoding_of
from pjrt.stablehlo.files import _jax_export_schema as schema
from pjrt.stablehlo.files._jax_export_schema import INT8, INT16, UINT8, UINT16, UINT32, Exported, FlatBuffer, FlatTable
from pjrt.stablehlo.files.contents import FileContents, reading
from pjrt.stablehlo.ir.argument_shapes import symbols_in
from pjrt.stablehlo.ir.sharding import MOST_PARTITIONS, Axis, Mesh, MeshSharding, Sharding
from pjrt.stablehlo.ir.tree import DEEPEST, LEAF, Tree, TreeKind, shortened
from pjrt.stablehlo.ir.types import FunctionType, TensorType, ValueType


@dataclass(frozen=True, slots=True)
class NamedSharding:
    """A sharding over a mesh that has only axes, and gets its devices when the program is run.

    Attributes:
        mesh: the name and the size of each axis.
        spec: for each dimension the axes that cut it, the coarsest first; dimensions at the end may be missing.
        unreduced: the axes along which each device has one term of a sum.
        reduced: the axes along which a sum was already added up.
        memory_kind: the kind of memory; empty if none is stated.
        axis_types: ``Auto``, ``Explicit`` or ``Manual`` for each axis.
    """

    mesh: tuple[tuple[str, int], ...]
    spec: tuple[tuple[str, ...], ...]
    unreduced: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    memory_kind: str = ""
    axis_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sizes = dict(self.mesh)
        cut = [axis for axes in self.spec for axis in axes]
        if len(sizes) != len(self.mesh) or not 1 <= self.num_devices <= MOST_PARTITIONS:
            raise DataLossError(f"expected a mesh of named axes with 1 to {MOST_PARTITIONS} devices, found {self.mesh}")
        used = [*cut, *self.unreduced]
        unknown = [axis for axis in (*used, *self.reduced) if axis not in sizes]
        if unknown or len(set(used)) != len(used):
            raise DataLossError(f"expected axes of the mesh {', '.join(sizes)}, each once, found {self.spec}")

    @property
    def num_devices(self) -> int:
        """The number of devices of the mesh."""
        return math.prod(size for _, size in self.mesh)

    def tiling(self, rank: int) -> Sharding:
        """Return the tiles of an array with this many dimensions, for the devices in the mesh's order.

        Raises:
            DataLossError: the sharding is for more dimensions.
        """
        if len(self.spec) > rank:
            raise DataLossError(f"expected a sharding of {rank} dimensions, found {self}")
        cuts = tuple(tuple(map(Axis, axes)) for axes in (*self.spec, *[()] * (rank - len(self.spec))))
        mesh = Mesh.of(dict(self.mesh))
        return Sharding.of_axes(MeshSharding(mesh, cuts, unreduced=tuple(map(Axis, self.unreduced))))

    def __str__(self) -> str:
        names = ["None" if not axes else repr(axes[0] if len(axes) == 1 else axes) for axes in self.spec]
        sums = [f"unreduced={{{', '.join(map(repr, self.unreduced))}}}"] if self.unreduced else []
        return f"P({', '.join(names + sums)}) over {', '.join(f'{name}={size}' for name, size in self.mesh)}"


@dataclass(frozen=True, slots=True)
class ExportedArray:
    """An argument or result of an exported function.

    Attributes:
        element_type: the element type that the program has. Random keys are ``ui32`` there, and ``float0`` is ``i1``.
        shape: the sizes that the program has; a symbolic size is a text such as ``2*b``. Random keys have one dimension
            more than in JAX.
        jax_dtype: JAX's name of an element type that the program does not have, such as ``key<fry>`` or ``float0``;
            empty for all others.
        memory_space: ``device``, ``host`` or ``any``; empty in files that do not state it.
        sharding: the sharding by axes of a mesh; None if the file states none.
        hlo_sharding: the sharding as a serialized ``xla.OpSharding``, in files before 2026; empty if there is none.
    """

    element_type: ElementType
    shape: tuple[int | str, ...]
    jax_dtype: str = ""
    memory_space: str = ""
    sharding: NamedSharding | None = None
    hlo_sharding: bytes = field(default=b"", repr=False)

    @property
    def is_static(self) -> bool:
        """Whether all sizes are numbers."""
        return all(isinstance(size, int) for size in self.shape)

    def tiling(self) -> Sharding | None:
        """Return the tiles of the array on the devices; None if the file states no sharding.

        Raises:
            UnimplementedError: the sharding is of a kind that does not cut an array into tiles.
            DataLossError: the sharding is corrupt.
        """
        if self.sharding is not None:
            return self.sharding.tiling(len(self.shape))
        return Sharding.from_proto(self.hlo_sharding) if self.hlo_sharding else None

    def __str__(self) -> str:
        return f"{self.element_type.mlir}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class JaxExport(FileContents):
    """The contents of a file of ``jax.export``.

    Attributes:
        function_name: the name of the exported function.
        program: the program, as a portable artifact.
        input_tree: the structure of the arguments: a tuple of the positional ones and a dictionary of the others.
        arguments: the leaves of ``input_tree``, also those that the program does not take.
        output_tree: the structure of the results.
        results: the leaves of ``output_tree``.
        kept_arguments: the positions in ``arguments`` of those that the program takes, in order.
        num_devices: the number of devices that the program is for.
        platforms: the platforms that the program is for, such as ``cpu``, ``cuda``, ``rocm`` or ``tpu``.
        ordered_effects: the types of the effects that happen in order, by the names of their Python classes.
        unordered_effects: the types of other effects.
        disabled_checks: the safety checks that do not apply: ``platform`` or ``custom_call:TARGET``.
        uses_global_constants: whether the program has symbolic sizes or a platform index, inner functions included.
        serialization_version: the version in the file. (JAX writes 3 for all versions from 3 to 11.)
        calling_convention_version: the version of the program's calling convention.
        jax_version: the version of JAX that wrote the file; empty in files before July 2026.
        vjp: the derivative (vector-Jacobian product), if the file has one. Its arguments are those of the function and
            then a cotangent for each result.
    """

    kind = "jax.export file"

    function_name: str
    program: Program
    input_tree: Tree
    arguments: tuple[ExportedArray, ...]
    output_tree: Tree
    results: tuple[ExportedArray, ...]
    kept_arguments: tuple[int, ...]
    num_devices: int
    platforms: tuple[str, ...]
    ordered_effects: tuple[str, ...] = ()
    unordered_effects: tuple[str, ...] = ()
    disabled_checks: tuple[str, ...] = ()
    uses_global_constants: bool = False
    serialization_version: int = 0
    calling_convention_version: int = 0
    jax_version: str = ""
    vjp: JaxExport | None = field(default=None, repr=False)

    def stated_platforms(self) -> Sequence[str]:
        return self.platforms

    def stored_weights(self) -> Mapping[int, np.ndarray[Any, Any]]:
        return {}

    def writer(self) -> str:
        return spelled_writer(self.jax_version)

    @property
    def takes_platform_index(self) -> bool:
        """Whether the program's first argument is the platform index."""
        return len(self.platforms) > 1

    @property
    def num_tokens(self) -> int:
        """The number of tokens in front of the arguments and of the results of the program."""
        return (
            len(self.ordered_effects) if self.calling_convention_version >= schema.FIRST_CONVENTION_WITH_TOKENS else 0
        )

    @property
    def num_leading_arguments(self) -> int:
        """The number of the program's arguments in front of the kept ones: the platform index and tokens."""
        return int(self.takes_platform_index) + self.num_tokens

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols in the sizes of the arguments, sorted."""
        sizes = [size for argument in self.arguments for size in argument.shape if isinstance(size, str)]
        return tuple(sorted({symbol for size in sizes for symbol in symbols_in(size)}))

    def platform_index(self, platform: str) -> int:
        """Return the position of a platform among those that the program is for.

        Args:
            platform: JAX's name of the platform; ``gpu`` stands for ``cuda`` or ``rocm``.

        Raises:
            InvalidArgumentError: the program is not for this platform.
        """
        wanted = platform.lower()
        choices = ("cuda", "rocm") if wanted == "gpu" else (wanted,)
        for choice in choices:
            if choice in self.platforms:
                return self.platforms.index(choice)
        raise InvalidArgumentError(
            f"{self.function_name} was exported for {', '.join(self.platforms)}, not for {platform}: "
            f"export it with platforms=[..., {platform!r}]"
        )

    def check(self, type_: FunctionType) -> None:
        """Check that the program takes and returns the arrays that the file states.

        Args:
            type_: the type of the program's entry function.

        Raises:
            DataLossError: the program has other arguments or results, so the file is corrupt.
            InvalidArgumentError: it has, and the file is of a later version, which may state them in another way.
        """
        kept = [self.arguments[index] for index in self.kept_arguments]
        wrong = _difference("arguments", kept, self.num_leading_arguments, type_.arguments)
        wrong = wrong or _difference("results", self.results, self.num_tokens, type_.results)
        if wrong and self.serialization_version > schema.NEWEST_SERIALIZATION:
            raise InvalidArgumentError(
                f"the jax.export file is too new: {wrong}; expected a serialization version up to "
                f"{schema.NEWEST_SERIALIZATION}, found {self.serialization_version}; upgrade pjrt"
            )
        if wrong:
            raise DataLossError(f"corrupt jax.export file: {wrong}")


def spelled_writer(jax_version: str) -> str:
    """Return the name and version of the JAX that wrote a file, on one short line; empty if the file states none."""
    if not jax_version.isprintable() or len(jax_version) > _LONGEST_VERSION:
        jax_version = repr(jax_version[:_LONGEST_VERSION])
    return f"JAX {jax_version}" if jax_version else ""


_LONGEST_VERSION = 40


def _difference(what: str, stated: Sequence[ExportedArray], leading: int, actual: Sequence[ValueType]) -> str:
    """Return how what the file states differs from what the program has; nothing if it does not."""
    if len(actual) != leading + len(stated):
        return f"it states {leading + len(stated)} {what} of the program, which has {len(actual)}"
    for number, (array, type_) in enumerate(zip(stated, actual[leading:], strict=True), leading):
        sizes = tuple(size if isinstance(size, int) else None for size in array.shape)
        if not isinstance(type_, TensorType) or (type_.element, type_.shape) != (array.element_type, sizes):
            return f"of the {what} of the program it states number {number} as {array}, the program as {type_}"
    return ""


def read_jax_export(source: bytes | bytearray | memoryview | os.PathLike[str]) -> JaxExport:
    """Return the contents of a file of ``jax.export``. JAX is not needed; the program inside is not parsed.

    Args:
        source: the bytes of the file, or a path object.

    Warns:
        UserWarning: the file was written at a later serialization version. Fields that it added are left out.

    Raises:
        DataLossError: the file is truncated or corrupt.
        InvalidArgumentError: it is no such file, was written at a later calling convention, or at a later serialization
            version that states something in another way; the message names it.
        NotFoundError: the file does not exist.
    """

    if isinstance(source, os.PathLike):
        with reading(source):
            export, too_new = read(Path(source).read_bytes())
        prefix = f"{os.fspath(source)}: "
    else:
        (export, too_new), prefix = read(bytes(source)), ""
    if too_new:
        warnings.warn(
            f"{prefix}the jax.export file is newer than this pjrt, and what its version added is left out: {too_new}",
            stacklevel=2,
        )
    return export


_WHAT = "jax.export file"
_MOST_DERIVATIVES = 16
_LONGEST_SIZE = 20
_ORDERED_DICT = "collections.OrderedDict"


def read(code: bytes) -> tuple[JaxExport, str]:
    """Return the contents of the bytes, and how much newer they are than what is known; empty if they are not.

    Raises:
        DataLossError: the bytes are truncated or corrupt.
        InvalidArgumentError: the version is too old, or is a later one that states something needed in another way.
    """
    buffer = FlatBuffer(code, _WHAT)
    return _exported(buffer.root, 0), buffer.too_new


def _exported(table: FlatTable, depth: int) -> JaxExport:
    if depth > _MOST_DERIVATIVES:
        raise table.refused(f"has more than {_MOST_DERIVATIVES} derivatives inside each other")
    jax_version = table.text(Exported.JAX_VERSION) or ""
    serialization, convention = _versions(table, jax_version)
    meshes = [_mesh(mesh) for mesh in table.tables(Exported.UNIQUE_MESHES, "mesh")]
    shardings = [_named(named, meshes) for named in table.tables(Exported.UNIQUE_SHARDINGS, "sharding")]
    unique = [_array(aval) for aval in table.tables(Exported.UNIQUE_AVALS, "array type")]
    arguments = _arrays(table, _IN, unique, shardings, meshes)
    results = _arrays(table, _OUT, unique, shardings, meshes)
    kept = table.numbers(Exported.KEPT_ARGUMENTS, UINT16)
    if list(kept) != sorted(set(kept)) or (kept and kept[-1] >= len(arguments)):
        raise table.refused(f"keeps the arguments {kept[:9]} of {len(arguments)}")
    num_devices = table.number(Exported.NUM_DEVICES, UINT32) or table.number(Exported.NUM_DEVICES_16, INT16)
    for array in (*arguments, *results):
        if array.sharding is not None and array.sharding.num_devices not in (1, num_devices):
            raise table.refused(f"is for {num_devices} devices, and has a sharding {array.sharding}")
    input_tree = _tree(table, Exported.IN_TREE, "structure of the arguments", len(arguments))
    if [child.kind for child in input_tree.children] != [TreeKind.TUPLE, TreeKind.DICT]:
        raise table.refused(f"has arguments that are no tuple and dictionary: {shortened(input_tree)}")
    vjp = table.table(Exported.VJP, "derivative")
    return JaxExport(
        function_name=table.text(Exported.FUNCTION_NAME) or "",
        program=_program(table),
        input_tree=input_tree,
        arguments=arguments,
        output_tree=_tree(table, Exported.OUT_TREE, "structure of the results", len(results)),
        results=results,
        kept_arguments=kept,
        num_devices=num_devices,
        platforms=table.texts(Exported.PLATFORMS),
        ordered_effects=_effects(table, Exported.ORDERED_EFFECTS),
        unordered_effects=_effects(table, Exported.UNORDERED_EFFECTS),
        disabled_checks=tuple(_check(check) for check in table.tables(Exported.DISABLED_CHECKS, "disabled check")),
        uses_global_constants=table.number(Exported.USES_GLOBAL_CONSTANTS, UINT8) != 0,
        serialization_version=serialization,
        calling_convention_version=convention,
        jax_version=jax_version,
        vjp=None if vjp is None else _exported(vjp, depth + 1),
    )


def _versions(table: FlatTable, jax_version: str) -> tuple[int, int]:
    """Return the versions of the serialization and of the calling convention.

    A later serialization is read as the newest known one: what it added can be left out, if what is needed is still
    there. A later calling convention changes what the arguments of the program mean.
    """
    serialization = table.number(Exported.SERIALIZATION_VERSION, UINT16)
    convention = table.number(Exported.CALLING_CONVENTION, UINT16)
    writer = spelled_writer(jax_version)
    by = f", written by {writer}" if writer else ""
    oldest, newest = schema.OLDEST_SERIALIZATION, schema.NEWEST_SERIALIZATION
    expected = f"expected a serialization version from {oldest} to {newest}, found {serialization}{by}"
    if serialization < oldest:
        raise InvalidArgumentError(f"the {_WHAT} is too old: {expected}; export again with a newer JAX")
    if serialization > newest:
        table.buffer.too_new = f"{expected}; upgrade pjrt"
        missing = [name for name, slots in _NEEDED.items() if not any(map(table.has, slots))]
        if missing:
            raise table.refused(f"has no {', no '.join(missing)}")
    oldest, newest = schema.OLDEST_CONVENTION, schema.NEWEST_CONVENTION
    if not oldest <= convention <= newest:
        age, step = ("new", "upgrade pjrt") if convention > newest else ("old", "export again with a newer JAX")
        expected = f"expected a calling convention from {oldest} to {newest}, found {convention}{by}"
        raise InvalidArgumentError(f"the {_WHAT} is too {age}: {expected}; {step}")
    return serialization, convention


_NEEDED = {
    "structure of the arguments": (Exported.IN_TREE,),
    "structure of the results": (Exported.OUT_TREE,),
    "types of the arguments": (Exported.IN_AVALS, Exported.IN_AVAL_INDICES),
    "types of the results": (Exported.OUT_AVALS, Exported.OUT_AVAL_INDICES),
    "number of devices": (Exported.NUM_DEVICES_16, Exported.NUM_DEVICES),
    "platforms": (Exported.PLATFORMS,),
    "ordered effects": (Exported.ORDERED_EFFECTS,),
    "program": (Exported.MLIR_MODULE,),
    "calling convention": (Exported.CALLING_CONVENTION,),
    "kept arguments": (Exported.KEPT_ARGUMENTS,),
}
"""What JAX writes into each file, be it empty: a later version without it states it in another way."""


def _program(table: FlatTable) -> Program:
    program = Program(table.content(Exported.MLIR_MODULE) or b"")
    try:
        encoding_of(program)
    except PjrtError as error:
        raise table.refused(f"holds no program: {error.message}") from error
    return program


# Arguments and results.

_IN = (Exported.IN_AVALS, Exported.IN_AVAL_INDICES, Exported.IN_SHARDINGS, Exported.IN_SHARDING_INDICES)
_OUT = (Exported.OUT_AVALS, Exported.OUT_AVAL_INDICES, Exported.OUT_SHARDINGS, Exported.OUT_SHARDING_INDICES)

_MeshAxes = tuple[tuple[tuple[str, int], ...], tuple[str, ...]]
"""The axes of a mesh and their types."""


def _arrays(
    table: FlatTable,
    slots: Sequence[Exported],
    unique: Sequence[ExportedArray],
    shardings: Sequence[NamedSharding],
    meshes: Sequence[_MeshAxes],
) -> tuple[ExportedArray, ...]:
    """Return the arguments or the results: since version 10 by their place among unique ones, before one by one."""
    avals, aval_indices, own, own_indices = slots
    indices = table.numbers(aval_indices, UINT32)
    if indices:
        arrays = [unique[_checked(table, index, len(unique), "array types")] for index in indices]
    else:
        arrays = [_array(aval) for aval in table.tables(avals, "array type")]
    places = table.numbers(own_indices, UINT32)
    stated: list[tuple[NamedSharding | None, bytes]]
    if places:
        numbers = [_checked(table, place, len(shardings) + 1, "shardings") for place in places]
        stated = [(shardings[number - 1] if number else None, b"") for number in numbers]
    else:
        stated = [_sharding(sharding, meshes) for sharding in table.tables(own, "sharding")]
    if len(stated) not in (0, len(arrays)):
        raise table.refused(f"has {len(arrays)} array types and {len(stated)} shardings")
    stated = stated or [(None, b"")] * len(arrays)
    return tuple(
        ExportedArray(array.element_type, array.shape, array.jax_dtype, array.memory_space, named, proto)
        for array, (named, proto) in zip(arrays, stated, strict=True)
    )


def _array(table: FlatTable) -> ExportedArray:
    kind, number = table.number(schema.Aval.KIND, INT8), table.number(schema.Aval.DTYPE, INT8)
    if kind != 0:
        raise table.refused(f"is of kind {kind}, not an array")
    if not table.has(schema.Aval.SHAPE):
        raise table.refused("has no sizes")
    shape = tuple(_size(table, text) for text in table.texts(schema.Aval.SHAPE))
    memory_space = _spelled(table, "memory space", table.number(schema.Aval.MEMORY_SPACE, INT8), schema.MEMORY_SPACES)
    if number in schema.KEYS:
        name, words = schema.KEYS[number]
        return ExportedArray(ElementType.U32, (*shape, words), name, memory_space)
    if number == schema.FLOAT0:
        return ExportedArray(ElementType.PRED, shape, "float0", memory_space)
    element_type = schema.DTYPES.get(number)
    if element_type is None:
        raise InvalidArgumentError(
            f"{table.name} of the {_WHAT} has an element type with the unknown number {number}: upgrade pjrt"
        )
    return ExportedArray(element_type, shape, "", memory_space)


def _size(table: FlatTable, text: str) -> int | str:
    if text.isascii() and text.isdigit() and len(text) < _LONGEST_SIZE:
        return int(text)
    try:
        if symbols_in(text):
            return text
    except InvalidArgumentError:
        pass
    raise table.refused(f"has the size {text[:80]!r}")


def _sharding(table: FlatTable, meshes: Sequence[_MeshAxes]) -> tuple[NamedSharding | None, bytes]:
    kind = _spelled(table, "kind", table.number(schema.Sharding.KIND, INT8), schema.SHARDING_KINDS)
    named, proto = table.table(schema.Sharding.NAMED, table.name), table.content(schema.Sharding.HLO_PROTO)
    if named is not None:
        return _named(named, meshes), b""
    if proto is None and (kind or table.has_beyond(schema.Sharding.NAMED)):
        raise table.refused(f"has no {kind} sharding" if kind else "has a sharding of an unknown kind")
    return None, proto or b""


def _named(table: FlatTable, meshes: Sequence[_MeshAxes]) -> NamedSharding:
    if meshes:
        place = table.number(schema.NamedShardingTable.MESH_INDEX, UINT32)
        axes, types = meshes[_checked(table, place, len(meshes), "meshes")]
    else:
        mesh = table.table(schema.NamedShardingTable.MESH, f"mesh of {table.name}")
        if mesh is None:
            raise table.refused("has no mesh")
        axes, types = _mesh(mesh)
    spec = table.table(schema.NamedShardingTable.SPEC, f"axes of {table.name}")
    if spec is None or not spec.has(schema.Spec.DIMENSIONS):
        raise table.refused("has no axes")
    dimensions = spec.tables(schema.Spec.DIMENSIONS, "dimension")
    if spec.has_beyond(schema.Spec.UNREDUCED) or any(each.has_beyond(schema.SPEC_AXES) for each in dimensions):
        raise table.refused("has unknown fields of axes")  # they may change what each device has
    cut = tuple(dimension.texts(schema.SPEC_AXES) for dimension in dimensions)
    unreduced, reduced = (tuple(sorted(spec.texts(slot))) for slot in (schema.Spec.UNREDUCED, schema.Spec.REDUCED))
    memory_kind = table.text(schema.NamedShardingTable.MEMORY_KIND) or ""
    try:
        return NamedSharding(axes, cut, unreduced, reduced, memory_kind, types)
    except DataLossError as error:
        raise table.refused(f"is no sharding: {error.message}") from error


def _mesh(table: FlatTable) -> _MeshAxes:
    sizes, names = table.numbers(schema.Mesh.SIZES, UINT32), table.texts(schema.Mesh.NAMES)
    types = table.numbers(schema.Mesh.TYPES, INT8)
    if len(sizes) != len(names) or len(types) not in (0, len(names)):
        raise table.refused(f"has {len(sizes)} sizes, {len(names)} names and {len(types)} types of axes")
    return tuple(zip(names, sizes, strict=True)), tuple(
        _spelled(table, "type of axes", type_, schema.AXIS_TYPES) for type_ in types
    )


def _spelled(table: FlatTable, what: str, number: int, words: Sequence[str]) -> str:
    if not 0 <= number < len(words):
        raise table.refused(f"has an unknown {what}, number {number}")
    return words[number]


def _checked(table: FlatTable, index: int, count: int, of: str) -> int:
    if not 0 <= index < count:
        raise table.refused(f"refers to number {index} of {count} {of}")
    return index


# Structures.

_KINDS = {
    schema.TUPLE: TreeKind.TUPLE,
    schema.LIST: TreeKind.LIST,
    schema.DICT: TreeKind.DICT,
    schema.CUSTOM: TreeKind.CUSTOM,
}


def _tree(table: FlatTable, slot: Exported, name: str, num_leaves: int) -> Tree:
    outer = table.table(slot, name)
    if outer is None:
        raise table.refused(f"has no {name}")
    tree = _node(outer, 0)
    if tree.num_leaves != num_leaves:
        raise outer.refused(f"has {tree.num_leaves} leaves for {num_leaves} array types")
    return tree


def _node(table: FlatTable, depth: int) -> Tree:
    if depth > DEEPEST:
        raise table.refused(f"is nested more than {DEEPEST} deep")
    number = table.number(schema.PyTree.KIND, INT8)
    children = tuple(_node(child, depth + 1) for child in table.tables(schema.PyTree.CHILDREN, table.name))
    if number in (schema.LEAF, schema.NONE):
        if children:
            raise table.refused(f"has a leaf with {len(children)} children")
        return LEAF if number == schema.LEAF else Tree(TreeKind.NONE)
    kind = _KINDS.get(number)
    if kind is None:
        raise InvalidArgumentError(
            f"the {table.name} in the {_WHAT} has a node of the unknown kind {number}: upgrade pjrt"
        )
    keys, name, data = table.texts(schema.PyTree.KEYS), "", b""
    if kind is TreeKind.CUSTOM:
        name = table.text(schema.PyTree.CUSTOM_NAME) or ""
        data = table.content(schema.PyTree.CUSTOM_DATA) or b""
        keys = _fields(data, len(children))
        if name == _ORDERED_DICT and len(keys) == len(children):
            kind, name, data = TreeKind.DICT, "", b""
    elif kind is not TreeKind.DICT:
        keys = ()
    try:
        return Tree(kind, children, keys, name, data)
    except PjrtError as error:
        raise table.refused(f"is no structure: {error.message}") from error


def _fields(data: bytes, count: int) -> tuple[str, ...]:
    """Return the names of a custom node's children, which JAX writes as JSON for named tuples and ``OrderedDict``."""
    try:
        names = json.loads(data)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(names, list) or len(names) != count or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names) if len(set(names)) == len(names) else ()


# The rest.


def _effects(table: FlatTable, slot: Exported) -> tuple[str, ...]:
    """Return the types of effects: the file has them as Python prints a class."""
    names = (effect.text(schema.EFFECT_NAME) or "" for effect in table.tables(slot, "effect"))
    return tuple(name.removeprefix("<class '").removesuffix("'>") for name in names)


def _check(table: FlatTable) -> str:
    kind = table.number(schema.Check.KIND, INT8)
    if kind == schema.CUSTOM_CALL_CHECK:
        return f"custom_call:{table.text(schema.Check.TARGET) or ''}"
    if kind in (schema.PLATFORM_CHECK, schema.SHAPE_CHECK):
        return "platform" if kind == schema.PLATFORM_CHECK else "shape_assertions"
    return f"unknown check {kind}"
