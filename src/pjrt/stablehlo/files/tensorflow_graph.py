"""Graphs of TensorFlow, as far as the program in a SavedModel and its arguments are found in them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from pjrt.api.errors import DataLossError

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
