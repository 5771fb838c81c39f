"""SavedModels of TensorFlow that hold StableHLO, such as ``jax2tf.convert`` makes.

A SavedModel is a folder. Its ``saved_model.pb`` has graphs of TensorFlow's operations; one of them, ``XlaCallModule``,
holds a program. TensorFlow is not needed to read them. Graphs of other operations are not programs.

The values of its variables are in ``variables/``, in the format of TensorFlow's checkpoints, tensor bundles:
``NAME.index`` is a sorted table of LevelDB that has for each tensor its type, shape and place. The values are in files
such as ``NAME.data-00000-of-00001``, one tensor after the other.
"""

from __future__ import annotations

import enum
import functools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, InvalidArgumentError, NotFoundError, PjrtError, UnimplementedError
from pjrt.api.program import Program
from pjrt.stablehlo.encodings.format import encoding_of
from pjrt.stablehlo.encodings.hlo_proto import varint
from pjrt.stablehlo.files._jax_export_schema import NEWEST_CONVENTION, OLDEST_CONVENTION
from pjrt.stablehlo.files.contents import SAVED_MODEL_FILE, FileContents, reading

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER_SIZE = 48
_TRAILER_SIZE = 5  # behind each block: one byte for the compression, four for a checksum
_LONGEST_KEY = 4096
_MOST_SHARDS = 100_000


class TensorBundle:
    """The tensors of a checkpoint.

    Args:
        prefix: the path of its files without their endings.

    Raises:
        NotFoundError: the index does not exist.
        DataLossError: the index is truncated or corrupt.
        UnimplementedError: the index is compressed, or the values are of a machine with another byte order.
    """

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        with reading(prefix.with_suffix(".index")):
            entries = dict(_table(prefix.with_suffix(".index").read_bytes()))
            header = _parsed("Header", entries.pop("", b""))
            if header.is_big_endian:
                raise UnimplementedError("expected a checkpoint of a little-endian machine, found a big-endian one")
            self._num_shards = header.num_shards
            self._entries = {key: _parsed("Entry", content) for key, content in entries.items()}

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the tensors."""
        return tuple(self._entries)

    def array(self, key: str) -> np.ndarray[Any, Any]:
        """Return a tensor, mapped into memory from its file.

        Raises:
            NotFoundError: the checkpoint has no such tensor.
            DataLossError: its file is truncated, or its place is corrupt.
            UnimplementedError: it is saved in slices, or no numbers.
        """
        entry = self._entries.get(key)
        if entry is None:
            raise NotFoundError(f"expected one of the tensors {', '.join(self.keys)[:300]}, found {key!r}")
        element_type = _ELEMENT_TYPES.get(entry.dtype)
        if element_type is None or entry.slices:
            raise UnimplementedError(f"expected the whole tensor {key!r} of numbers, found slices or another type")
        shape, dtype = tuple(dim.size for dim in entry.shape.dims), element_type.dtype
        if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != entry.size:
            raise DataLossError(f"corrupt checkpoint: {key!r} is {shape} of {dtype}, and has {entry.size} bytes")
        if not 0 <= entry.shard < self._num_shards <= _MOST_SHARDS:
            raise DataLossError(f"corrupt checkpoint: {key!r} is in part {entry.shard} of {self._num_shards}")
        file = self._prefix.with_name(f"{self._prefix.name}.data-{entry.shard:05}-of-{self._num_shards:05}")
        with reading(file):
            if entry.offset < 0 or entry.offset + entry.size > file.stat().st_size:
                raise DataLossError(
                    f"truncated checkpoint: {key!r} ends at byte {entry.offset + entry.size} of {file.stat().st_size}"
                )
            if entry.size == 0:
                return np.zeros(shape, dtype)
            return np.memmap(file, dtype, "r", entry.offset, shape)


# The table.


def _table(code: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the keys and values of a sorted table."""
    if len(code) < _FOOTER_SIZE or not code.endswith(_MAGIC):
        raise DataLossError(f"expected the index of a checkpoint, found {len(code)} bytes that do not end like one")
    footer = len(code) - _FOOTER_SIZE
    _, position = _handle(code, footer, len(code))  # of metadata
    left = len(code)
    for _, handle in _entries(code, _handle(code, position, len(code))[0]):
        begin, size = _handle(handle, 0, len(handle))[0]
        left -= size
        if left < 0:
            raise DataLossError("corrupt checkpoint: the blocks of its index overlap")
        for key, value in _entries(code, (begin, size)):
            yield key.decode(errors="replace"), value


def _handle(code: bytes, position: int, end: int) -> tuple[tuple[int, int], int]:
    """Return where a block begins and its size, and the position behind both."""
    begin, position = varint(code, position, end)
    size, position = varint(code, position, end)
    return (begin, size), position


def _entries(code: bytes, handle: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block. A key states how much of the key before it begins with."""
    begin, size = handle
    end = begin + size
    if size < 4 or end + _TRAILER_SIZE > len(code):
        raise DataLossError(f"corrupt checkpoint: a block at the bytes {begin} to {end} of {len(code)}")
    if code[end] != 0:
        raise UnimplementedError("expected a checkpoint with an index that is not compressed")
    end -= 4 + 4 * int.from_bytes(code[end - 4 : end], "little")  # places at which keys begin anew
    key, position = b"", begin
    while position < end:
        shared, position = varint(code, position, end)
        unshared, position = varint(code, position, end)
        length, position = varint(code, position, end)
        stop = position + unshared + length
        if shared > len(key) or stop > end or shared + unshared > _LONGEST_KEY:
            raise DataLossError(f"corrupt checkpoint: an entry of its index at byte {position}")
        key = key[:shared] + code[position : position + unshared]
        yield key, code[position + unshared : stop]
        position = stop


# TensorFlow's messages in it: their fields by number and type.
_BUNDLE_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Header": {"num_shards": (1, "int64"), "is_big_endian": (2, "int64")},
    "Entry": {
        "dtype": (1, "int64"),
        "shape": (2, "Shape"),
        "shard": (3, "int64"),
        "offset": (4, "int64"),
        "size": (5, "int64"),
        "slices": (7, "[bytes]"),
    },
    "Shape": {"dims": (2, "[Dim]")},
    "Dim": {"size": (1, "int64")},
}

_ELEMENT_TYPES = {
    1: ElementType.F32,
    2: ElementType.F64,
    3: ElementType.S32,
    4: ElementType.U8,
    5: ElementType.S16,
    6: ElementType.S8,
    8: ElementType.C64,
    9: ElementType.S64,
    10: ElementType.PRED,
    14: ElementType.BF16,
    17: ElementType.U16,
    18: ElementType.C128,
    19: ElementType.F16,
    22: ElementType.U32,
    23: ElementType.U64,
    24: ElementType.F8E5M2,
    25: ElementType.F8E4M3FN,
}
"""The element types of TensorFlow's ``DataType`` whose elements are whole bytes."""


def _parsed(name: str, content: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return _message_classes()[name].FromString(content)
    except DecodeError as error:
        raise DataLossError(f"corrupt checkpoint: its index holds no {name.lower()}: {error}") from error


@functools.cache
def _message_classes() -> dict[str, Any]:
    from pjrt.api.protobuf import message_classes

    return message_classes("pjrt.tensor_bundle", _BUNDLE_MESSAGES)


CALLS = ("StatefulPartitionedCall", "PartitionedCall")
"""The operations that call a function of the graph."""

SAME_VALUE = ("Identity", "IdentityN", "PreventGradient", "StopGradient", "EnsureShape")
"""The operations that return their inputs."""

_MOST_STEPS = 100_000


def attributes_of(node: Any) -> dict[str, Any]:
    """Return the attributes of an operation by name."""
    return {text(entry.key): entry.value for entry in node.attributes}


class Origin(NamedTuple):
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


class Graph:
    """The operations of a graph and of the functions that it calls."""

    main_scope: tuple[str, ...] = ()

    def __init__(self, graph: Any) -> None:
        self._nodes = {"": {text(node.name): node for node in graph.nodes}}
        self._functions = {text(function.signature.name): function for function in graph.library.functions}
        for name, function in self._functions.items():
            self._nodes[name] = {text(node.name): node for node in function.nodes}
        self._steps = 0

    def origin(self, scope: tuple[str, ...], tensor: str) -> Origin:
        """Return the operation that computes a tensor, behind calls and operations that only pass values on.

        Args:
            scope: the calls around the tensor: the names of their nodes, the outermost first.
            tensor: the tensor's name, such as ``node:0`` in a graph and ``node:output:0`` in a function.
        """
        while True:
            self._count()
            name, index = _split(tensor)
            function = self._function(scope)
            arguments = [text(argument.name) for argument in function.signature.inputs] if function is not None else []
            if name in arguments:  # it is an input of the call
                tensor = self.input(scope[:-1], scope[-1], arguments.index(name))
                scope = scope[:-1]
                continue
            node = self._node(scope, name)
            op = text(node.op)
            if op in SAME_VALUE:
                tensor = self.input(scope, name, index)
            elif op in CALLS:
                scope = (*scope, name)
                tensor = self._result(scope, index)
            else:
                return Origin(scope, node, op, index)

    def operations(self, scope: tuple[str, ...], op: str) -> Iterator[Any]:
        """Yield the operations of a kind in the graph or in a called function."""
        function = self._function(scope)
        for node in self._nodes["" if function is None else text(function.signature.name)].values():
            if text(node.op) == op:
                yield node

    def _count(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise DataLossError("corrupt SavedModel: its operations refer to each other in a circle")

    def _function(self, scope: tuple[str, ...]) -> Any:
        """Return the function that the innermost call of a scope calls; None for the graph itself."""
        if not scope:
            return None
        called = attributes_of(self._node(scope[:-1], scope[-1]))
        name = text(called["f"].function.name) if "f" in called else ""
        if name not in self._functions:
            raise DataLossError(f"corrupt SavedModel: it calls the function {name!r}, which it does not have")
        return self._functions[name]

    def _node(self, scope: tuple[str, ...], name: str) -> Any:
        self._count()
        function = self._function(scope)
        nodes = self._nodes["" if function is None else text(function.signature.name)]
        if name not in nodes:
            raise DataLossError(f"corrupt SavedModel: it uses the operation {name!r}, which it does not have")
        return nodes[name]

    def input(self, scope: tuple[str, ...], name: str, index: int) -> str:
        """Return the name of an input of an operation."""
        inputs = [text(tensor) for tensor in self._node(scope, name).inputs if not tensor.startswith(b"^")]
        if index >= len(inputs):
            raise DataLossError(f"corrupt SavedModel: {name!r} has {len(inputs)} inputs, and number {index} is used")
        return inputs[index]

    def _result(self, scope: tuple[str, ...], index: int) -> str:
        function = self._function(scope)
        returned = {text(entry.key): text(entry.value) for entry in function.results}
        outputs = [text(output.name) for output in function.signature.outputs]
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


def text(content: bytes) -> str:
    """Return a name as text."""
    return content.decode(errors="replace")


# TensorFlow's messages, as far as they are read: their fields by number and type. Maps are lists of entries.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "SavedModel": {"meta_graphs": (2, "[MetaGraph]")},
    "MetaGraph": {"graph": (2, "Graph"), "saver": (3, "Saver"), "signatures": (5, "[SignatureEntry]")},
    "Saver": {"restore": (3, "bytes")},
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
        "tensor": (8, "Constant"),
        "function": (10, "FunctionName"),
    },
    "List": {"texts": (2, "[bytes]"), "types": (6, "[int64]"), "functions": (9, "[FunctionName]")},
    "Constant": {"texts": (8, "[bytes]")},
    "FunctionName": {"name": (1, "bytes")},
    "SignatureEntry": {"key": (1, "bytes"), "value": (2, "Signature")},
    "Signature": {"inputs": (1, "[TensorEntry]"), "outputs": (2, "[TensorEntry]")},
    "TensorEntry": {"key": (1, "bytes"), "value": (2, "Tensor")},
    "Tensor": {"name": (1, "bytes")},
}


def parse(code: bytes) -> Any:
    """Return the ``SavedModel`` message in the bytes.

    Raises:
        DataLossError: the bytes are no such message.
    """
    from google.protobuf.message import DecodeError

    try:
        return _message_class().FromString(code)
    except DecodeError as error:
        raise DataLossError(f"expected a SavedModel of TensorFlow, found {len(code)} other bytes: {error}") from error


@functools.cache
def _message_class() -> Any:
    from pjrt.api.protobuf import message_classes

    return message_classes("pjrt.tensorflow", _MESSAGES)["SavedModel"]


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

    def names_of_weights(self) -> Mapping[int, str]:
        return {position: self.arguments[position].name for position in self.weights}


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
