"""Files of ``jax.export``: a program with the trees, types and shardings of its arguments and results.

``jax.export.export(f)(x).serialize()`` writes a flatbuffer. It is read here without JAX.

The calling convention of the program: its arguments are first the platform index, if it is for several platforms (the
position of the actual platform among ``platforms``), then a token for each ordered effect, then the kept arguments. JAX
drops the arguments that the function does not use. The results are a token for each ordered effect, then all results.
Dimension variables are no arguments: the program computes them from the shapes of its arguments, and checks them by
custom calls of ``shape_assertion``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, InvalidArgumentError
from pjrt.api.program import Program
from pjrt.stablehlo.files.contents import FileContents
from pjrt.stablehlo.files.named_sharding import NamedSharding
from pjrt.stablehlo.reader import reading
from pjrt.stablehlo.shapes.symbolic_size import symbols_in
from pjrt.stablehlo.shardings.sharding import Sharding
from pjrt.stablehlo.tree import Tree
from pjrt.stablehlo.types import FunctionType, TensorType, ValueType


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
        from pjrt.stablehlo.files._jax_export_schema import FIRST_CONVENTION_WITH_TOKENS

        return len(self.ordered_effects) if self.calling_convention_version >= FIRST_CONVENTION_WITH_TOKENS else 0

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
        from pjrt.stablehlo.files._jax_export_schema import NEWEST_SERIALIZATION

        kept = [self.arguments[index] for index in self.kept_arguments]
        wrong = _difference("arguments", kept, self.num_leading_arguments, type_.arguments)
        wrong = wrong or _difference("results", self.results, self.num_tokens, type_.results)
        if wrong and self.serialization_version > NEWEST_SERIALIZATION:
            raise InvalidArgumentError(
                f"the jax.export file is too new: {wrong}; expected a serialization version up to "
                f"{NEWEST_SERIALIZATION}, found {self.serialization_version}; upgrade pjrt"
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
    from pjrt.stablehlo.files import _jax_export_reader

    if isinstance(source, os.PathLike):
        with reading(source):
            export, too_new = _jax_export_reader.read(Path(source).read_bytes())
        prefix = f"{os.fspath(source)}: "
    else:
        (export, too_new), prefix = _jax_export_reader.read(bytes(source)), ""
    if too_new:
        warnings.warn(
            f"{prefix}the jax.export file is newer than this pjrt, and what its version added is left out: {too_new}",
            stacklevel=2,
        )
    return export
