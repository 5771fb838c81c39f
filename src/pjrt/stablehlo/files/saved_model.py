"""SavedModels of TensorFlow that hold StableHLO, such as ``jax2tf.convert`` makes.

A SavedModel is a folder. Its ``saved_model.pb`` has graphs of TensorFlow's operations; one of them, ``XlaCallModule``,
holds a program. The values of its variables are in ``variables/``. TensorFlow is not needed to read them. Graphs of
other operations are not programs.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.api.errors import DataLossError, InvalidArgumentError, NotFoundError, PjrtError, UnimplementedError
from pjrt.api.program import Program
from pjrt.stablehlo.files._jax_export_schema import NEWEST_CONVENTION, OLDEST_CONVENTION
from pjrt.stablehlo.files.contents import FileContents
from pjrt.stablehlo.files.tensor_bundle import TensorBundle
from pjrt.stablehlo.files.tensorflow_graph import Graph, attributes_of, parse, text
from pjrt.stablehlo.format import encoding_of
from pjrt.stablehlo.reader import SAVED_MODEL_FILE, reading

_DEFAULT_SIGNATURE = "serving_default"
_VARIABLES = Path("variables", "variables")
_MODULE = "XlaCallModule"


class SavedModelSource(enum.StrEnum):
    """The source of a value that the program takes."""

    INPUT = "input"
    VARIABLE = "variable"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class SavedModelArgument:
    """An argument of the program.

    Attributes:
        source: whether it is an input of the signature, a variable of the model, or computed by other operations.
        name: the name of the input in the signature, or of the variable or operation.
        node: the name of a variable's operation in the graph; empty for others.
    """

    source: SavedModelSource
    name: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class SavedModel(FileContents):
    """The program in a SavedModel of TensorFlow.

    Attributes:
        path: the folder.
        signature: the name of the signature that was read.
        signatures: the names of all signatures.
        program: the program.
        arguments: the arguments of the program behind the platform index, in order.
        results: for each result of the program its name in the signature; empty for one that the signature does not
            return.
        platforms: the platforms that the program is for, in TensorFlow's spelling in lower case, such as ``cpu``. If
            there are several, the first argument of the program is the index of the platform.
        calling_convention_version: the version of the program's calling convention, as for ``JaxExport``.
        weights: the values of variables, by their positions among ``arguments``, mapped into memory from their files;
            empty if the folder has no ``variables``.
    """

    kind = "SavedModel of TensorFlow"

    path: Path
    signature: str
    signatures: tuple[str, ...]
    program: Program
    arguments: tuple[SavedModelArgument, ...]
    results: tuple[str, ...]
    platforms: tuple[str, ...]
    calling_convention_version: int
    weights: Mapping[int, np.ndarray[Any, Any]] = field(repr=False)

    def stated_platforms(self) -> Sequence[str]:
        return self.platforms

    def stored_weights(self) -> Mapping[int, np.ndarray[Any, Any]]:
        return self.weights


def is_saved_model(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the folder of a SavedModel."""
    try:
        return (Path(path) / SAVED_MODEL_FILE).is_file()
    except (OSError, ValueError):
        return False


def read_saved_model(path: str | os.PathLike[str], signature: str = "") -> SavedModel:
    """Return the program in a SavedModel of TensorFlow, and the origin of its arguments.

    Args:
        path: the folder.
        signature: the name of the signature to read; by default ``serving_default``, or the only one.

    Raises:
        NotFoundError: the folder or the signature does not exist.
        UnimplementedError: the signature computes with other operations than one ``XlaCallModule``.
        InvalidArgumentError: the program has a calling convention that is too old or too new.
        DataLossError: the file is truncated or corrupt.
    """
    folder = Path(path)
    with reading(folder / SAVED_MODEL_FILE):
        model = parse((folder / SAVED_MODEL_FILE).read_bytes())
        if not model.meta_graphs:
            raise DataLossError("corrupt SavedModel: it has no graph")
        return _read(folder, model.meta_graphs[0], signature)


def _read(folder: Path, meta_graph: Any, signature: str) -> SavedModel:
    stated = {text(entry.key): entry.value for entry in meta_graph.signatures}
    names = tuple(sorted(name for name in stated if not name.startswith("__")))  # those are for loading
    chosen = signature or (names[0] if len(names) == 1 else _DEFAULT_SIGNATURE)
    if chosen not in names:
        raise NotFoundError(f"expected one of the signatures {', '.join(names) or '(none)'}, found {chosen!r}")
    graph = Graph(meta_graph.graph)
    inputs = {text(entry.value.name): text(entry.key) for entry in stated[chosen].inputs}
    outputs = {text(entry.key): text(entry.value.name) for entry in stated[chosen].outputs}
    origins = {name: graph.origin(graph.main_scope, tensor) for name, tensor in outputs.items()}
    modules = {(origin.scope, origin.node.name): origin for origin in origins.values() if origin.op == _MODULE}
    if len(modules) != 1 or any(origin.op != _MODULE for origin in origins.values()):
        raise UnimplementedError(
            f"expected the results of {chosen!r} from one {_MODULE}, found them from "
            f"{', '.join(sorted({origin.op for origin in origins.values()})) or 'nothing'}: only programs in StableHLO "
            "can be read, such as jax2tf.convert writes with native serialization"
        )
    ((scope, _), module) = next(iter(modules.items()))
    attributes = attributes_of(module.node)
    if "function_list" in attributes and attributes["function_list"].list.functions:
        raise UnimplementedError(f"expected a program on its own, found an {_MODULE} that calls TensorFlow functions")
    result_names = {origins[name].position: name for name in sorted(origins, reverse=True)}
    count = len(attributes["Tout"].list.types) if "Tout" in attributes else max(result_names) + 1
    tensors = [text(tensor) for tensor in module.node.inputs if not tensor.startswith(b"^")]
    arguments = tuple(_argument(graph, scope, tensor, inputs) for tensor in tensors)
    return SavedModel(
        path=folder,
        signature=chosen,
        signatures=names,
        program=_program(attributes),
        arguments=arguments,
        results=tuple(result_names.get(index, "") for index in range(count)),
        platforms=tuple(text(name).lower() for name in attributes["platforms"].list.texts)
        if "platforms" in attributes
        else (),
        calling_convention_version=_version(attributes),
        weights=_weights(folder, graph, text(meta_graph.saver.restore), arguments),
    )


def _program(attributes: dict[str, Any]) -> Program:
    program = Program(attributes["module"].text if "module" in attributes else b"")
    try:
        encoding_of(program)
    except PjrtError as error:
        raise DataLossError(f"corrupt SavedModel: its {_MODULE} holds no program: {error.message}") from error
    return program


def _version(attributes: dict[str, Any]) -> int:
    version = int(attributes["version"].number) if "version" in attributes else 0
    if not OLDEST_CONVENTION <= version <= NEWEST_CONVENTION:
        raise InvalidArgumentError(
            f"expected a calling convention from {OLDEST_CONVENTION} to {NEWEST_CONVENTION}, found {version}: "
            + ("upgrade pjrt" if version > NEWEST_CONVENTION else "save the model again with a newer JAX")
        )
    return version


def _argument(graph: Graph, scope: tuple[str, ...], tensor: str, inputs: dict[str, str]) -> SavedModelArgument:
    """Return the origin of a value that the program takes.

    Args:
        graph: the graph.
        scope: the calls around the program.
        tensor: the name of the value.
        inputs: the names of the signature's inputs, by their tensors.
    """
    origin = graph.origin(scope, tensor)
    name = text(origin.node.name)
    if origin.op == "Placeholder" and not origin.scope:
        key = inputs.get(f"{name}:{origin.position}", inputs.get(name))
        if key is not None:
            return SavedModelArgument(SavedModelSource.INPUT, key)
    if origin.op == "ReadVariableOp":
        variable = graph.origin(origin.scope, graph.input(origin.scope, name, 0))
        attributes = attributes_of(variable.node)
        shared = text(attributes["shared_name"].text) if "shared_name" in attributes else ""
        node = text(variable.node.name)
        return SavedModelArgument(SavedModelSource.VARIABLE, shared or node, node)
    return SavedModelArgument(SavedModelSource.OTHER, name)


def _weights(
    folder: Path, graph: Graph, restore: str, arguments: tuple[SavedModelArgument, ...]
) -> dict[int, np.ndarray[Any, Any]]:
    """Return the values of variables among the arguments; none if the folder has none.

    The names in the checkpoint are those with which the graph's own restore function reads the variables.
    """
    variables = {
        index: argument.node for index, argument in enumerate(arguments) if argument.source is SavedModelSource.VARIABLE
    }
    if not variables or not (folder / _VARIABLES).with_suffix(".index").is_file():
        return {}
    keys = dict(_checkpoint_keys(graph, restore)) if restore else {}
    bundle = TensorBundle(folder / _VARIABLES)
    return {index: bundle.array(keys[node]) for index, node in variables.items() if node in keys}


def _checkpoint_keys(graph: Graph, restore: str) -> Iterator[tuple[str, str]]:
    """Yield the names of variables' operations, and the names of their values in the checkpoint."""
    scope = (restore.split(":")[0],)
    for assignment in graph.operations(scope, "AssignVariableOp"):
        name = text(assignment.name)
        value = graph.origin(scope, graph.input(scope, name, 1))
        variable = graph.origin(scope, graph.input(scope, name, 0))
        if value.op != "RestoreV2":
            continue
        names = graph.origin(value.scope, graph.input(value.scope, text(value.node.name), 1))
        attributes = attributes_of(names.node)
        keys = attributes["value"].tensor.texts if "value" in attributes else ()
        if value.position < len(keys):
            yield text(variable.node.name), text(keys[value.position])
