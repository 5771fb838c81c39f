"""Structures as PyTorch writes them: JSON of ``torch.utils._pytree.treespec_dumps``, as trees.

The JSON is a pair of a protocol number and a node. A node has the name of a Python type (null for a leaf), the bytes
that the type wrote about itself (``context``, mostly JSON inside the JSON) and its children. None is a leaf in PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pjrt.api.errors import DataLossError, InvalidArgumentError, PjrtError
from pjrt.stablehlo.tree import DEEPEST, LEAF, Tree, TreeKind

_PROTOCOL = 1
_DICTS = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")
_LISTS = ("builtins.list", "collections.deque", "torch.fx.immutable_collections.immutable_list")
_IMMUTABLE_DICT = "torch.fx.immutable_collections.immutable_dict"
_NAMED_TUPLE = "collections.namedtuple"


def parse_torch_tree(text: str) -> Tree:
    """Return the structure in the JSON.

    Raises:
        InvalidArgumentError: it was written with a newer protocol.
        DataLossError: it is no such JSON.
    """
    try:
        protocol, node = json.loads(text)
        if not isinstance(protocol, int):
            raise TypeError(f"the protocol {protocol!r}")
        if protocol != _PROTOCOL:
            raise InvalidArgumentError(f"expected a structure of protocol {_PROTOCOL}, found {protocol}: upgrade pjrt")
        return _tree(node, 0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, PjrtError):
            raise
        raise DataLossError(f"expected a structure as PyTorch writes it, found {text[:80]!r} ({error})") from error


def _tree(node: Any, depth: int) -> Tree:
    if depth > DEEPEST:
        raise ValueError(f"nested more than {DEEPEST} deep")
    name, context = node["type"], node["context"]
    if name is None:
        return LEAF
    children = tuple(_tree(child, depth + 1) for child in node["children_spec"])
    if not isinstance(name, str):
        raise TypeError(f"the type {name!r}")
    if name == "builtins.tuple":
        return Tree(TreeKind.TUPLE, children)
    if name in _LISTS:
        return Tree(TreeKind.LIST, children)
    details = _details(context)
    if name in (*_DICTS, _IMMUTABLE_DICT):
        if name == "collections.defaultdict" and isinstance(details, dict):
            details = details["dict_context"]
        return Tree(TreeKind.DICT, children, _keys(details))
    if name == _NAMED_TUPLE:
        if isinstance(details, dict):
            return Tree(TreeKind.CUSTOM, children, _keys(details["fields"]), str(details["class_name"]))
        return Tree(TreeKind.CUSTOM, children, name=str(details))
    return Tree(TreeKind.CUSTOM, children, name=name, data=context.encode() if isinstance(context, str) else b"")


def _details(context: Any) -> Any:
    """Return what a type wrote about itself: most types write JSON into the JSON."""
    if isinstance(context, str):
        try:
            return json.loads(context)
        except ValueError:
            return context
    return context


def _keys(keys: Sequence[Any]) -> tuple[str, ...]:
    if not isinstance(keys, list) or not all(isinstance(key, str | int) for key in keys):
        raise TypeError(f"the keys {keys!r}")
    return tuple(map(str, keys))
