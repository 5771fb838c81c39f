"""SavedModels of TensorFlow that hold StableHLO, such as ``jax2tf.convert`` makes.

A SavedModel is a folder. Its ``saved_model.pb`` has graphs of TensorFlow's operations; one of them, ``XlaCallModule``,
holds a program. TensorFlow is not needed to read it. Graphs of other operations are not programs, and the values of
variables, which are in ``variables/``, are not read: they are arguments of the program that the caller gives.
"""

from __future__ import annotations

import enum
import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pjrt.api.errors import DataLossError, InvalidArgumentError, NotFoundError, PjrtError, UnimplementedError
from pjrt.api.program import Program
from pjrt.stablehlo._jax_export_schema import NEWEST_CONVENTION, OLDEST_CONVENTION
from pjrt.stablehlo.format import encoding_of
from pjrt.stablehlo.reader import naming

_FILE = "saved_model.pb"
_DEFAULT_SIGNATURE = "serving_default"
_MODULE = "XlaCallModule"
_CALLS = ("StatefulPartitionedCall", "PartitionedCall")
_SAME_VALUE = ("Identity", "IdentityN", "PreventGradient", "StopGradient", "EnsureShape")
_MOST_STEPS = 100_000


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
        name: the name of the input in the signature, or of the variable or operation in the graph.
    """

    source: SavedModelSource
    name: str


@dataclass(frozen=True, slots=True)
class SavedModel:
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
    """

    path: Path
    signature: str
    signatures: tuple[str, ...]
    program: Program
    arguments: tuple[SavedModelArgument, ...]
    results: tuple[str, ...]
    platforms: tuple[str, ...]
    calling_convention_version: int


def is_saved_model(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the folder of a SavedModel."""
    try:
        return (Path(path) / _FILE).is_file()
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
    with naming(folder / _FILE):
        model = _parsed((folder / _FILE).read_bytes())
        if not model.meta_graphs:
            raise DataLossError("corrupt SavedModel: it has no graph")
        return _read(folder, model.meta_graphs[0], signature)


def _read(folder: Path, meta_graph: Any, signature: str) -> SavedModel:
    stated = {_text(entry.key): entry.value for entry in meta_graph.signatures}
    names = tuple(sorted(name for name in stated if not name.startswith("__")))  # those are for loading
    chosen = signature or (names[0] if len(names) == 1 else _DEFAULT_SIGNATURE)
    if chosen not in names:
        raise NotFoundError(f"expected one of the signatures {', '.join(names) or '(none)'}, found {chosen!r}")
    graph = _Graph(meta_graph.graph)
    inputs = {_text(entry.value.name): _text(entry.key) for entry in stated[chosen].inputs}
    outputs = {_text(entry.key): _text(entry.value.name) for entry in stated[chosen].outputs}
    origins = {name: graph.origin(graph.main_scope, tensor) for name, tensor in outputs.items()}
    modules = {(origin.scope, origin.node.name): origin for origin in origins.values() if origin.op == _MODULE}
    if len(modules) != 1 or any(origin.op != _MODULE for origin in origins.values()):
        raise UnimplementedError(
            f"expected the results of {chosen!r} from one {_MODULE}, found them from "
            f"{', '.join(sorted({origin.op for origin in origins.values()})) or 'nothing'}: only programs in StableHLO "
            "can be read, such as jax2tf.convert writes with native serialization"
        )
    ((scope, _), module) = next(iter(modules.items()))
    attributes = {_text(entry.key): entry.value for entry in module.node.attributes}
    if "function_list" in attributes and attributes["function_list"].list.functions:
        raise UnimplementedError(f"expected a program on its own, found an {_MODULE} that calls TensorFlow functions")
    result_names = {origins[name].position: name for name in sorted(origins, reverse=True)}
    count = len(attributes["Tout"].list.types) if "Tout" in attributes else max(result_names) + 1
    return SavedModel(
        path=folder,
        signature=chosen,
        signatures=names,
        program=_program(attributes),
        arguments=tuple(
            graph.argument(scope, _text(tensor), inputs) for tensor in module.node.inputs if not tensor.startswith(b"^")
        ),
        results=tuple(result_names.get(index, "") for index in range(count)),
        platforms=tuple(_text(name).lower() for name in attributes["platforms"].list.texts)
        if "platforms" in attributes
        else (),
        calling_convention_version=_version(attributes),
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


class _Origin(NamedTuple):
    """The operation that a value comes from.

    Attributes:
        scope: the calls around it, the outermost first.
        node: the operation.
        op: its kind.
        position: the position of the value among its results.
    """

    scope: tuple[str, ...]
    node: Any
    op: str
    position: int


class _Graph:
    """The operations of a graph and of the functions that it calls."""

    main_scope: tuple[str, ...] = ()

    def __init__(self, graph: Any) -> None:
        self._nodes = {"": {_text(node.name): node for node in graph.nodes}}
        self._functions = {_text(function.signature.name): function for function in graph.library.functions}
        for name, function in self._functions.items():
            self._nodes[name] = {_text(node.name): node for node in function.nodes}
        self._steps = 0

    def origin(self, scope: tuple[str, ...], tensor: str) -> _Origin:
        """Return the operation that computes a tensor, behind calls and operations that only pass values on.

        Args:
            scope: the calls around the tensor: the names of their nodes, the outermost first.
            tensor: the tensor's name, such as ``node:0`` in a graph and ``node:output:0`` in a function.
        """
        while True:
            self._count()
            name, index = _split(tensor)
            function = self._function(scope)
            arguments = [_text(argument.name) for argument in function.signature.inputs] if function is not None else []
            if name in arguments:  # it is an input of the call
                tensor = self._input(scope[:-1], scope[-1], arguments.index(name))
                scope = scope[:-1]
                continue
            node = self._node(scope, name)
            op = _text(node.op)
            if op in _SAME_VALUE:
                tensor = self._input(scope, name, index)
            elif op in _CALLS:
                scope = (*scope, name)
                tensor = self._result(scope, index)
            else:
                return _Origin(scope, node, op, index)

    def argument(self, scope: tuple[str, ...], tensor: str, inputs: dict[str, str]) -> SavedModelArgument:
        """Return the origin of a value that the program takes.

        Args:
            scope: the calls around it.
            tensor: its name.
            inputs: the names of the signature's inputs, by their tensors.
        """
        origin = self.origin(scope, tensor)
        name = _text(origin.node.name)
        if origin.op == "Placeholder" and not origin.scope:
            key = inputs.get(f"{name}:{origin.position}", inputs.get(name))
            if key is not None:
                return SavedModelArgument(SavedModelSource.INPUT, key)
        if origin.op == "ReadVariableOp":
            variable = self.origin(origin.scope, self._input(origin.scope, name, 0))
            names = {_text(entry.key): _text(entry.value.text) for entry in variable.node.attributes}
            return SavedModelArgument(SavedModelSource.VARIABLE, names.get("shared_name") or _text(variable.node.name))
        return SavedModelArgument(SavedModelSource.OTHER, name)

    def _count(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise DataLossError("corrupt SavedModel: its operations refer to each other in a circle")

    def _function(self, scope: tuple[str, ...]) -> Any:
        """Return the function that the innermost call of a scope calls; None for the graph itself."""
        if not scope:
            return None
        called = {_text(entry.key): entry.value for entry in self._node(scope[:-1], scope[-1]).attributes}
        name = _text(called["f"].function.name) if "f" in called else ""
        if name not in self._functions:
            raise DataLossError(f"corrupt SavedModel: it calls the function {name!r}, which it does not have")
        return self._functions[name]

    def _node(self, scope: tuple[str, ...], name: str) -> Any:
        self._count()
        function = self._function(scope)
        nodes = self._nodes["" if function is None else _text(function.signature.name)]
        if name not in nodes:
            raise DataLossError(f"corrupt SavedModel: it uses the operation {name!r}, which it does not have")
        return nodes[name]

    def _input(self, scope: tuple[str, ...], name: str, index: int) -> str:
        inputs = [_text(tensor) for tensor in self._node(scope, name).inputs if not tensor.startswith(b"^")]
        if index >= len(inputs):
            raise DataLossError(f"corrupt SavedModel: {name!r} has {len(inputs)} inputs, and number {index} is used")
        return inputs[index]

    def _result(self, scope: tuple[str, ...], index: int) -> str:
        function = self._function(scope)
        returned = {_text(entry.key): _text(entry.value) for entry in function.results}
        outputs = [_text(output.name) for output in function.signature.outputs]
        if index >= len(outputs) or outputs[index] not in returned:
            raise DataLossError(f"corrupt SavedModel: {scope[-1]!r} has no result {index}")
        return returned[outputs[index]]


def _split(tensor: str) -> tuple[str, int]:
    """Return the operation and the index in ``node``, ``node:1`` or ``node:output:1``."""
    name, *rest = tensor.split(":")
    last = rest[-1] if rest else "0"
    if not (last.isascii() and last.isdigit() and len(last) < 6):
        raise DataLossError(f"corrupt SavedModel: the value {tensor[:80]!r} has no position")
    return name, int(last)


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


# TensorFlow's messages, as far as they are read: their fields by number and type. Maps are lists of entries.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "SavedModel": {"meta_graphs": (2, "[MetaGraph]")},
    "MetaGraph": {"graph": (2, "Graph"), "signatures": (5, "[SignatureEntry]")},
    "Graph": {"nodes": (1, "[Node]"), "library": (2, "Library")},
    "Library": {"functions": (1, "[Function]")},
    "Function": {"signature": (1, "Op"), "nodes": (3, "[Node]"), "results": (4, "[ResultEntry]")},
    "Op": {"name": (1, "bytes"), "inputs": (2, "[Argument]"), "outputs": (3, "[Argument]")},
    "Argument": {"name": (1, "bytes")},
    "ResultEntry": {"key": (1, "bytes"), "value": (2, "bytes")},
    "Node": {
        "name": (1, "bytes"),
        "op": (2, "bytes"),
        "inputs": (3, "[bytes]"),
        "attributes": (5, "[AttributeEntry]"),
    },
    "AttributeEntry": {"key": (1, "bytes"), "value": (2, "Attribute")},
    "Attribute": {
        "list": (1, "List"),
        "text": (2, "bytes"),
        "number": (3, "int64"),
        "function": (10, "FunctionName"),
    },
    "List": {"texts": (2, "[bytes]"), "types": (6, "[int64]"), "functions": (9, "[FunctionName]")},
    "FunctionName": {"name": (1, "bytes")},
    "SignatureEntry": {"key": (1, "bytes"), "value": (2, "Signature")},
    "Signature": {"inputs": (1, "[TensorEntry]"), "outputs": (2, "[TensorEntry]")},
    "TensorEntry": {"key": (1, "bytes"), "value": (2, "Tensor")},
    "Tensor": {"name": (1, "bytes")},
}


def _parsed(code: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return _message_class().FromString(code)
    except DecodeError as error:
        raise DataLossError(f"expected a SavedModel of TensorFlow, found {len(code)} other bytes: {error}") from error


@functools.cache
def _message_class() -> Any:
    from pjrt.api.protobuf import message_classes

    return message_classes("pjrt.tensorflow", _MESSAGES)["SavedModel"]
