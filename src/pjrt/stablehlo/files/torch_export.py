"""Programs of ``torch.export``: files that ``torch.export.save`` writes (``.pt2``), and programs in memory.

Their graphs have PyTorch's operations, which torchax and JAX convert to StableHLO: ``pip install torch torchax jax``.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pjrt.api.checks import unexpected
from pjrt.api.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, PjrtError
from pjrt.api.program import Program
from pjrt.stablehlo.files.contents import FileContents
from pjrt.stablehlo.files.jax_export import ExportedArray, read_jax_export
from pjrt.stablehlo.files.torch_conversion import ERROR, Converted, convert
from pjrt.stablehlo.files.torch_folder import NONE, TorchInput, call_tree, without_none
from pjrt.stablehlo.files.torch_graph import refusing
from pjrt.stablehlo.files.torch_tree import parse_torch_tree
from pjrt.stablehlo.format import ZIP_MAGIC
from pjrt.stablehlo.reader import reading
from pjrt.stablehlo.safe_parse import run_module
from pjrt.stablehlo.tree import Tree


class ExportedProgram(Protocol):
    """A ``torch.export.ExportedProgram``; PyTorch's own class cannot be named without PyTorch."""

    @property
    def graph_module(self) -> Any:
        """The graph, as a module of PyTorch."""

    def run_decompositions(self) -> Any:
        """Return the program with simpler operations."""


@dataclass(frozen=True, slots=True)
class TorchExport(FileContents):
    """A program of ``torch.export``, converted to StableHLO.

    Attributes:
        program: the program.
        inputs: the leaves of the arguments that the caller gives, in their order; None is no leaf. A dynamic size is a
            symbol, named as in PyTorch.
        names: the names of the positional arguments, and then of the others; empty if the file does not state them.
        results: the results of the program.
        input_tree: the structure of ``inputs``: a tuple of the positional arguments and a dictionary of the others.
        output_tree: the structure of ``results``.
        weights: the parameters, buffers and constants of the model, by their positions among the arguments.
        weight_names: their names in the model's ``state_dict``, by position.
    """

    kind = "torch.export program"

    program: Program
    inputs: tuple[TorchInput, ...]
    names: tuple[str, ...]
    results: tuple[ExportedArray, ...]
    input_tree: Tree
    output_tree: Tree
    weights: Mapping[int, np.ndarray[Any, Any]] = field(repr=False)
    weight_names: Mapping[int, str] = field(repr=False)

    def stated_platforms(self) -> Sequence[str]:
        return ()

    def stored_weights(self) -> Mapping[int, np.ndarray[Any, Any]]:
        return self.weights


def is_torch_export(source: Any) -> bool:
    """Whether a source is a file of ``torch.export``, its bytes, or an ``ExportedProgram``."""
    if _is_program(source):
        return True
    if isinstance(source, bytes):
        return source.startswith(ZIP_MAGIC) and _is_archive(io.BytesIO(source))
    if not isinstance(source, str | os.PathLike):
        return False
    try:
        with open(source, "rb") as file:
            return file.seekable() and file.read(len(ZIP_MAGIC)) == ZIP_MAGIC and _is_archive(file)
    except (OSError, ValueError):
        return False


def read_torch_export(source: str | bytes | os.PathLike[str] | ExportedProgram) -> TorchExport:
    """Return a program of ``torch.export`` as StableHLO, with its weights.

    A subprocess converts it, because torchax changes PyTorch's global state, and JAX would take the devices of this
    process. A program in memory is converted in this process if torchax is imported already: the lowerings that were
    registered with it are known here alone.

    PyTorch reads the file. It may unpickle tensors alone, but evaluates expressions in the file: read only files that
    you trust.

    Args:
        source: a path, the bytes of a file, or a ``torch.export.ExportedProgram``.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: it is no such file, or PyTorch cannot read it.
        UnimplementedError: torchax cannot lower an operation, which the message names; or the program changes its
            state.
        FailedPreconditionError: PyTorch, JAX or torchax is not installed.
    """
    if _is_program(source) and "torchax" in sys.modules:
        return contents(convert(source))
    if _is_program(source) or isinstance(source, bytes):
        with tempfile.TemporaryDirectory(prefix="pjrt-torch-") as folder:
            path = Path(folder, "program.pt2")
            _save(source, path)
            return contents(_converted(path))
    if not isinstance(source, str | os.PathLike):
        raise unexpected(source, "the path of a file, its bytes or an ExportedProgram")
    with reading(source):
        if not is_torch_export(source):
            Path(source).open("rb").close()  # the error of a file that is missing or closed to the reader
            raise InvalidArgumentError("expected a file of torch.export.save, found another")
        return contents(_converted(Path(source)))


def _is_program(source: Any) -> bool:
    kind = type(source)
    return kind.__name__ == "ExportedProgram" and kind.__module__.startswith("torch.export")


def _save(source: Any, path: Path) -> None:
    if isinstance(source, bytes):
        path.write_bytes(source)
        return
    import torch

    with refusing("torch.export.save cannot write the program for the subprocess that converts it"):
        torch.export.save(source, path)


def _is_archive(file: Any) -> bool:
    """Whether a zip archive has a program of ``torch.export``; PyTorch before 2.8 had another layout."""
    try:
        names = zipfile.ZipFile(file).namelist()
    except zipfile.BadZipFile:
        return False
    inner = {name.partition("/")[2] for name in names} | set(names)
    return "serialized_exported_program.json" in inner or any(
        name.startswith("models/") and name.endswith(".json") for name in inner
    )


def _converted(path: Path) -> Converted:
    with tempfile.TemporaryDirectory(prefix="pjrt-torch-") as name:
        folder = Path(name)
        ended = run_module(convert.__module__, str(path), name, given=b"", time_limit=None)
        if ended is None:
            raise FailedPreconditionError(
                "expected a Python to start, which converts the file; found none: give the program as an "
                "ExportedProgram, from torch.export.load"
            )
        if (folder / ERROR).exists():
            code, message = json.loads((folder / ERROR).read_text(encoding="utf-8"))
            raise PjrtError.of(code, message)
        if ended.status:
            raise DataLossError(f"the conversion of the program ended with {ended}")
        return Converted.read(folder)


def contents(converted: Converted) -> TorchExport:
    """Return a converted program with its arguments and results as its caller sees them."""
    export, facts = read_jax_export(converted.program), converted.facts
    position_of = {index: position for position, index in enumerate(export.kept_arguments)}
    kept = {position_of[index]: index for index in range(len(facts.weights)) if index in position_of}
    tensors = enumerate(export.arguments[len(facts.weights) :], len(facts.weights))
    inputs = []
    for python_type in facts.inputs:
        if python_type:
            inputs.append(TorchInput(None, (), python_type=python_type))
        else:
            index, array = next(tensors)
            inputs.append(TorchInput(array.element_type, array.shape, position_of.get(index)))
    results = iter(TorchInput(None, (), python_type="" if is_array else NONE) for is_array in facts.results)
    return TorchExport(
        program=export.program,
        inputs=tuple(each for each in inputs if each.python_type != NONE),
        names=tuple(facts.names),
        results=export.results,
        input_tree=call_tree(parse_torch_tree(facts.input_tree), inputs),
        output_tree=without_none(parse_torch_tree(facts.output_tree), results),
        weights={position: converted.weights[index] for position, index in kept.items()},
        weight_names={position: facts.weights[index][0] for position, index in kept.items()},
    )
