"""Model files: the program in a file of any supported format, with the names and types of its arguments and results."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pjrt import stablehlo
from pjrt.api.errors import FailedPreconditionError, PjrtError
from pjrt.api.partitioning import Partitioning
from pjrt.api.program import Program
from pjrt.artifacts import file_format
from pjrt.artifacts.saved_executable import SavedExecutable
from pjrt.stablehlo.argument_shapes import Shapes as ArgumentShapes
from pjrt.stablehlo.argument_shapes import resolve_shapes
from pjrt.stablehlo.call_signature import CallSignature, Parameter, Result
from pjrt.stablehlo.tree import Tree


class ModelFile:
    """A file that holds a program, or an executable that was compiled before.

    Reading a file does not parse its program: ``program`` is at hand at once, the facts are parsed at their first use.

    Attributes:
        kind: the file's format, such as ``MLIR text`` or ``saved executable``.
        source: the path, for messages; empty for a program without a file.
        program: the program; None for a saved executable.
        executable: the saved executable; None for a program.
    """

    def __init__(
        self,
        kind: str,
        *,
        source: str = "",
        program: Program | None = None,
        executable: SavedExecutable | None = None,
    ) -> None:
        self.kind = kind
        self.source = source
        self.program = program
        self.executable = executable

    @staticmethod
    def read(path: str | os.PathLike[str]) -> ModelFile:
        """Read a file of any supported format; the name of the file does not matter.

        Raises:
            NotFoundError: there is no such file.
            InvalidArgumentError: the file is of no supported format.
            DataLossError: the file is damaged.
        """
        source = os.fspath(path)
        if _is_saved_executable(source):
            return ModelFile("saved executable", source=source, executable=SavedExecutable.read(path))
        return ModelFile.of(stablehlo.read_file(path), source)

    @staticmethod
    def of(
        model: ModelFile | Program | SavedExecutable | str | bytes | os.PathLike[str], source: str = ""
    ) -> ModelFile:
        """Return a program or an executable as a model file; read the file at a path.

        Args:
            model: a program, its text or bytes, a saved executable, or the path of a file. A ``str`` is a path unless
                it has several lines.
            source: its origin, for messages.
        """
        if isinstance(model, ModelFile):
            return model
        if isinstance(model, SavedExecutable):
            return ModelFile("saved executable", source=source, executable=model)
        if isinstance(model, os.PathLike) or (isinstance(model, str) and "\n" not in model):
            return ModelFile.read(model)
        program = stablehlo.read(model)
        return ModelFile(str(stablehlo.encoding_of(program)), source=source, program=program)

    @functools.cached_property
    def signature(self) -> CallSignature:
        """The arguments and results, as the caller sees them.

        Raises:
            UnimplementedError: an argument or a result is not an array, such as a token; or the types in a saved
                executable are unknown.
            PjrtError: the program is damaged.
        """
        try:
            if self.executable is not None:
                return self.executable.signature
            assert self.program is not None
            return CallSignature.of(stablehlo.signature(self.program))
        except PjrtError as error:
            raise self.named(error) from error

    @property
    def parameters(self) -> Sequence[Parameter]:
        """The arrays that the model takes, in order."""
        return self.signature.parameters

    @property
    def results(self) -> Sequence[Result]:
        """The arrays that the model returns, in order."""
        return self.signature.results

    @property
    def input_tree(self) -> Tree | None:
        """The nested structure of the arguments; None if the file states none."""
        return self.signature.input_tree

    @property
    def output_tree(self) -> Tree | None:
        """The nested structure of the results; None if the file states none."""
        return self.signature.output_tree

    @property
    def weights(self) -> Mapping[int, np.ndarray[Any, Any]]:
        """The arrays in the file, by their positions among the arguments of the program."""
        return {}

    @property
    def platforms(self) -> Sequence[str]:
        """The platforms that the file is for; empty if it is for any."""
        return () if self.executable is None else (self.executable.platform_name,)

    def program_for(self, platform: str, shapes: ArgumentShapes | None = None) -> Program:
        """Return the program as a platform compiles it.

        Args:
            platform: the platform's name. A file that is for several platforms and not for this one is compiled as for
                ``cpu``, or else as for its first platform.
            shapes: the shapes of the parameters, as for ``pjrt.stablehlo.refine``; None leaves dynamic shapes dynamic.

        Raises:
            FailedPreconditionError: the file has an executable that was compiled before, and no program.
            InvalidArgumentError: the shapes do not fit the parameters or each other.
        """
        if self.program is None:
            raise FailedPreconditionError(
                f"{self.source or 'the saved executable'}: expected a program, found a saved executable for "
                f"{self.platforms[0]!r}: give the file that it was compiled from"
            )
        program = stablehlo.select_platform(self.program, self._platform_index(platform))
        if shapes is None or not any(parameter.is_dynamic for parameter in self.parameters):
            return program
        of_arguments: list[Sequence[int] | None] = [None] * self._num_arguments(program)
        for parameter, shape in zip(self.parameters, resolve_shapes(shapes, self.parameters), strict=True):
            if parameter.argument is not None:
                of_arguments[parameter.argument] = shape
        return stablehlo.refine(program, of_arguments)

    def _num_arguments(self, program: Program) -> int:
        return len(stablehlo.signature(program).arguments)

    def _platform_index(self, platform: str) -> int:
        wanted = (platform, "cpu")
        return next((self.platforms.index(name) for name in wanted if name in self.platforms), 0)

    @functools.cached_property
    def partitioning(self) -> Partitioning:
        """The number of replicas and partitions that the program states."""
        if self.executable is not None:
            return Partitioning(self.executable.num_replicas, self.executable.num_partitions)
        assert self.program is not None
        return stablehlo.partitioning_of(self.program)

    def named(self, error: PjrtError) -> PjrtError:
        """Return an error with the file's name in its message."""
        if not self.source or error.message.startswith(self.source):
            return error
        return PjrtError.of(error.code, f"{self.source}: {error.message}")

    def __repr__(self) -> str:
        return f"<ModelFile {self.source or 'without a file'}: {self.kind}>"


def _is_saved_executable(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file_format.is_saved_executable(file.read(file_format.MAGIC_SIZE))
    except (OSError, ValueError):  # the reader of programs reports it
        return False
