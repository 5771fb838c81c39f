"""Model files: the program in a file of any supported format, with the names and types of its arguments and results."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pjrt import stablehlo
from pjrt.api.checks import expect
from pjrt.api.compile_options import Partitioning
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError, naming
from pjrt.api.executable import Executable
from pjrt.api.program import Program
from pjrt.api.shape_spec import Shapes as ArgumentShapes
from pjrt.artifacts import file_format
from pjrt.stablehlo.encodings import jaxlib
from pjrt.stablehlo.encodings.format import (
    ZIP_MAGIC,
    is_text,
    looks_like_hlo_text,
    looks_like_jax_export,
    looks_like_model_package,
    may_lack_entry,
)
from pjrt.stablehlo.facts.signatures import CallSignature, Parameter, Result
from pjrt.stablehlo.files.contents import FileContents
from pjrt.stablehlo.ir.argument_shapes import resolve_shapes
from pjrt.stablehlo.ir.tree import Tree
from pjrt.stablehlo.reading.plain_signature import can_read

if TYPE_CHECKING:
    from pjrt.api.client import Client
    from pjrt.artifacts.saved_executable import SavedExecutable
    from pjrt.stablehlo.facts.signatures import Signature
    from pjrt.stablehlo.files.torch_export import ExportedProgram

SAVED = "saved executable"
"""The kind of a file with an executable that was compiled before."""

HLO_TEXT = "HLO text"
"""The kind of a file with HLO text, which is an HLO proto once it is read."""

_BEGINNING = 1 << 16


class ModelFile:
    """A file that holds a program, or an executable that was compiled before.

    Reading a file does not parse its program: that happens when a fact about it is first asked for.

    Attributes:
        kind: the file's format, such as ``MLIR text`` or ``saved executable``.
        source: the path, for messages; empty for a program without a file.
        program: the program as it is in the file; None for a saved executable. ``program_for`` returns what is
            compiled.
        executable: the saved executable; None for a program.
        contents: the contents of a file that has more than a program, such as one of ``jax.export``; None for others.
    """

    def __init__(
        self,
        kind: str,
        *,
        source: str = "",
        program: Program | None = None,
        executable: SavedExecutable | None = None,
        contents: FileContents | None = None,
    ) -> None:
        self.kind = kind
        self.source = source
        self.program = program
        self.executable = executable
        self.contents = contents

    @staticmethod
    def read(path: str | os.PathLike[str], entry: str = "") -> ModelFile:
        """Read a file or folder of any supported format; its name does not matter.

        Args:
            path: the path.
            entry: the function of the program that is run; by default ``main``, or else the only public one.

        Raises:
            NotFoundError: there is no such file, or no such function.
            InvalidArgumentError: the file is of no supported format, or states which function is run.
            DataLossError: the file is damaged.
        """
        return ModelFile._read(os.fspath(path))._with_entry(entry)

    @staticmethod
    def _read(source: str) -> ModelFile:
        if os.path.isdir(source):  # the readers of folders are imported for folders alone: that takes time
            if stablehlo.is_torch_folder(source):
                return ModelFile._of_contents(stablehlo.read_torch_folder(source), source)
            if stablehlo.is_saved_model(source):
                return ModelFile._of_contents(stablehlo.read_saved_model(source), source)
        beginning = _beginning(source)
        if looks_like_model_package(beginning):
            return ModelFile._of_contents(stablehlo.read_model_package(Path(source)), source)
        if beginning.startswith(ZIP_MAGIC) and stablehlo.is_torch_export(source):
            return ModelFile._of_contents(stablehlo.read_torch_export(source), source)
        if file_format.is_saved_executable(beginning):
            return ModelFile(SAVED, source=source, executable=_saved_executable().read(source))
        if looks_like_jax_export(beginning):
            return ModelFile._of_contents(stablehlo.read_jax_export(Path(source)), source)
        kind = HLO_TEXT if looks_like_hlo_text(beginning) else ""
        return ModelFile._of_program(stablehlo.read_file(source), source, kind)

    @staticmethod
    def of(
        model: ModelFile | Program | SavedExecutable | FileContents | ExportedProgram | str | bytes | os.PathLike[str],
        source: str = "",
        entry: str = "",
    ) -> ModelFile:
        """Return a program or an executable as a model file; read the file at a path.

        Args:
            model: a program, its text or bytes, the bytes of a file, a saved executable, a
                ``torch.export.ExportedProgram``, or the path of a file. A ``str`` of one line that does not begin as
                MLIR text does is a path.
            source: its origin, for messages.
            entry: as of ``read``.
        """
        return ModelFile._of(model, source)._with_entry(entry)

    @staticmethod
    def _of(
        model: ModelFile | Program | SavedExecutable | FileContents | ExportedProgram | str | bytes | os.PathLike[str],
        source: str,
    ) -> ModelFile:
        if isinstance(model, ModelFile):
            return model
        if isinstance(model, Executable):
            saved = expect(model, _saved_executable(), "a program or a saved executable")
            return ModelFile(SAVED, source=source, executable=saved)
        if isinstance(model, FileContents):
            return ModelFile._of_contents(model, source)
        if isinstance(model, (bytearray, memoryview)):  # JAX serializes to the first
            model = bytes(model)
        if isinstance(model, bytes) and looks_like_model_package(model):
            return ModelFile._of_contents(stablehlo.read_model_package(model), source)
        exported = _torch_export(model)
        if exported is not None:
            return ModelFile._of_contents(exported, source)
        if isinstance(model, os.PathLike) or (
            isinstance(model, str) and "\n" not in model and not is_text(model.encode())
        ):
            return ModelFile._read(os.fspath(model))
        if isinstance(model, bytes) and file_format.is_saved_executable(model):
            return ModelFile(SAVED, source=source, executable=_saved_executable().from_bytes(model))
        if isinstance(model, bytes) and looks_like_jax_export(model):
            return ModelFile._of_contents(stablehlo.read_jax_export(model), source)
        code = model.encode() if isinstance(model, str) else model
        kind = HLO_TEXT if isinstance(code, bytes) and looks_like_hlo_text(code) else ""
        return ModelFile._of_program(stablehlo.read(cast("Program | str | bytes", model)), source, kind)

    @staticmethod
    def _of_program(program: Program, source: str, kind: str = "") -> ModelFile:
        return ModelFile(kind or str(stablehlo.encoding_of(program)), source=source, program=program)

    def _with_entry(self, name: str) -> ModelFile:
        """Return a file that runs a function; without a name one with ``main``, so that each device runs the same."""
        if self.program is None or self.contents is not None:
            if name:
                raise InvalidArgumentError(
                    f"{self.source}: expected a program of MLIR to choose {name!r} of, found: {self.kind}"
                )
            return self
        if not name and not may_lack_entry(self.program):
            return self
        with naming(self.source):
            return ModelFile(self.kind, source=self.source, program=stablehlo.with_entry(self.program, name))

    @staticmethod
    def _of_contents(contents: FileContents, source: str) -> ModelFile:
        return ModelFile(contents.kind, source=source, program=contents.program, contents=contents)

    @functools.cached_property
    def signature(self) -> CallSignature:
        """The arguments and results, as the caller sees them.

        Raises:
            UnimplementedError: an argument or a result is not an array, such as a token; or the types in a saved
                executable are unknown.
            PjrtError: the program is damaged.
        """
        with naming(self.source):
            if self.executable is not None:
                return self.executable.signature
            if self.contents is not None:
                from pjrt.models.file_signature import of_contents  # it imports the readers of all formats

                return of_contents(self.contents)
            return CallSignature.of(self._program_signature)

    @functools.cached_property
    def _program_signature(self) -> Signature:
        """The arguments and results of the program in the file."""
        assert self.program is not None
        return stablehlo.signature(self.program)

    @property
    def is_readable(self) -> bool:
        """Whether the arguments and results of the program can be read here; of bytecode jaxlib reads them."""
        return self.program is None or self.contents is not None or jaxlib.is_installed() or can_read(self.program)

    def learn_signature(self, client: Client) -> None:
        """Have a device's compiler tell the arguments and results of a program that is not readable.

        XLA's plugins tell them in the program that they have optimized.

        Raises:
            PjrtError: the device does not compile the program, or does not return what it compiled.
        """
        assert self.program is not None
        with naming(self.source):
            executable = client.compile(self.program)
            optimized = executable.optimized_program()
            self.__dict__["_program_signature"] = stablehlo.signature(optimized, trusted=True)

    def signature_of(self, program: Program) -> Signature:
        """Return the arguments and results of a program from ``program_for``, which a compiler has read."""
        if program is self.program and self.contents is None:
            return self._program_signature
        return stablehlo.signature(program, trusted=True)

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
        if self.executable is not None:
            return self.executable.weights
        return {} if self.contents is None else self.contents.stored_weights()

    @property
    def platforms(self) -> Sequence[str]:
        """The platforms that the file is for; empty if it is for any."""
        if self.executable is not None:
            return (self.executable.platform_name,)
        return () if self.contents is None else self.contents.stated_platforms()

    @property
    def writer(self) -> str:
        """What wrote the file, such as ``JAX 0.12.0``; empty if the file does not state it."""
        return "" if self.contents is None else self.contents.writer()

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
        program = self.program
        if len(self.platforms) > 1:
            program = stablehlo.select_platform(program, self._platform_index(platform))
        if shapes is None:
            return program
        resolved = resolve_shapes(shapes, self.parameters)
        if not any(parameter.is_dynamic for parameter in self.parameters):
            return program
        of_arguments = {position: array.shape for position, array in self.weights.items()}
        for parameter, shape in zip(self.parameters, resolved, strict=True):
            if parameter.argument is not None:
                of_arguments[parameter.argument] = shape
        return stablehlo.refine(program, [of_arguments[position] for position in range(len(of_arguments))])

    def compiled_signature(self, program: Program) -> CallSignature:
        """Return the signature of an executable that ``program`` was compiled to; the weights of the file are no part.

        Args:
            program: the program, from ``program_for``, with static shapes.

        Raises:
            UnimplementedError: an argument or a result is not an array, or has a dynamic shape.
        """
        signature = self.signature.with_types(stablehlo.signature(program))
        needed = (each for each in signature.parameters if each.argument is not None)
        dynamic = next((each for each in (*needed, *signature.results) if each.is_dynamic), None)
        if dynamic is not None:
            raise UnimplementedError(f"expected static shapes of an executable, found {dynamic}")
        return signature

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

    def __repr__(self) -> str:
        return f"<ModelFile {self.source or 'without a file'}: {self.kind}>"


def _torch_export(model: Any) -> FileContents | None:
    """Return the program of ``torch.export`` that a model is; None for others, which do not need its reader."""
    may_be = model.startswith(ZIP_MAGIC) if isinstance(model, bytes) else type(model).__name__ == "ExportedProgram"
    return stablehlo.read_torch_export(model) if may_be and stablehlo.is_torch_export(model) else None


def _saved_executable() -> type[SavedExecutable]:
    # Most models are programs, and start faster without it.
    from pjrt.artifacts.saved_executable import SavedExecutable

    return SavedExecutable


def _beginning(path: str) -> bytes:
    """Return the first bytes of a file; none of a pipe, which could not be read again."""
    try:
        with open(path, "rb") as file:
            return file.read(_BEGINNING) if file.seekable() else b""
    except (OSError, ValueError):  # the reader of programs reports it
        return b""
