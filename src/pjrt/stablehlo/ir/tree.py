"""Trees: the nested structure of a program's arguments and results (JAX's ``PyTreeDef``).

A program takes and returns a flat list of arrays. The framework that wrote it knew them as nested tuples, lists and
dictionaries, and files state that structure beside the program. The path of a leaf is spelled as JAX spells it:
``[0]['cache']['k']``, ``.bias``.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError

DEEPEST = 200
"""The deepest nesting of a tree."""

_SHOWN_DIFFERENCES = 5


class TreeKind(enum.StrEnum):
    """The kind of a tree's node."""

    LEAF = "leaf"
    NONE = "None"
    TUPLE = "tuple"
    LIST = "list"
    DICT = "dict"
    CUSTOM = "custom node"


class CustomNode(tuple[Any, ...]):
    """The children of a node whose Python type this process does not know.

    Attributes:
        name: the name that the type was registered with.
        data: the bytes that the type wrote about itself.
        fields: the names of the children; () if the file does not state them.
    """

    name: str
    data: bytes
    fields: tuple[str, ...]

    def __new__(cls, children: Sequence[Any], name: str, data: bytes = b"", fields: tuple[str, ...] = ()) -> CustomNode:
        node = super().__new__(cls, children)
        node.name, node.data, node.fields = name, data, fields
        return node

    def __getattr__(self, name: str) -> Any:
        """Return the child with this name."""
        fields = self.__dict__.get("fields", ())
        if name in fields:
            return self[fields.index(name)]
        raise AttributeError(f"{self.__dict__.get('name', 'custom node')} has no field {name!r}")

    def __repr__(self) -> str:
        children = (f"{name}={child!r}" for name, child in zip(self._labels(), self, strict=True))
        return f"{self.name}({', '.join(children)})"

    def _labels(self) -> Sequence[str]:
        return self.fields or [str(index) for index in range(len(self))]


NodeTypes = Mapping[str, Callable[..., Any]]
"""Makes a custom node from its children, by the name that its type was registered with (a named tuple's type does)."""


@dataclass(frozen=True, slots=True, repr=False)
class Tree:
    """A nested structure without its leaves.

    Attributes:
        kind: the kind of the outermost node.
        children: the structures inside it, in the order of their leaves.
        keys: the keys of a dictionary, or the field names of a custom node (() if the file does not state them).
        name: the registered name of a custom node.
        data: the bytes that a custom node's type wrote about itself.
    """

    kind: TreeKind
    children: tuple[Tree, ...] = ()
    keys: tuple[str, ...] = ()
    name: str = ""
    data: bytes = b""
    _is_flat: bool = field(init=False, compare=False)
    """Whether all children are leaves, as those of most dictionaries of weights are."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_is_flat", all(child.kind is TreeKind.LEAF for child in self.children))
        needs_keys = self.kind is TreeKind.DICT or (self.kind is TreeKind.CUSTOM and self.keys)
        if needs_keys and len(self.keys) != len(self.children):
            raise InvalidArgumentError(
                f"expected a key for each of the {len(self.children)} children of a {self.kind}, found {len(self.keys)}"
            )
        if len(set(self.keys)) != len(self.keys):
            raise InvalidArgumentError(f"expected different keys in a {self.kind}, found {', '.join(self.keys)}")

    @staticmethod
    def of(value: Any) -> Tree:
        """Return the structure of nested tuples, named tuples, lists, dictionaries and None; all else is a leaf.

        The keys of a dictionary are sorted, as JAX sorts them.

        Raises:
            InvalidArgumentError: a key is not text, or the nesting is deeper than ``DEEPEST``.
        """
        return _structure(value, 0)

    @property
    def num_leaves(self) -> int:
        """The number of leaves."""
        return 1 if self.kind is TreeKind.LEAF else sum(child.num_leaves for child in self.children)

    def paths(self, root: str = "") -> tuple[str, ...]:
        """Return the path of each leaf, such as ``[0]['cache']['k']``, in the order of the leaves.

        Args:
            root: the name of the whole value, in front of each path: ``result`` for ``result['a']['x']``.
        """
        return tuple(self._walk(root))

    def flatten(self, value: Any, root: str = "") -> list[Any]:
        """Return the leaves of a value that has this structure.

        A tuple may stand for a list and a list for a tuple. A custom node may be given as its own type (a named tuple),
        as a tuple or list of its children, or as a dictionary by field name. Where the structure has a leaf, a list of
        numbers is one.

        Args:
            value: the nested value.
            root: the name of the value in messages, such as ``result``.

        Raises:
            InvalidArgumentError: the value has another structure. The message lists the paths that are missing, those
                that are unexpected, and the nodes that are of another kind.
        """
        leaves: list[Any] = []
        if self._gather(value, leaves) and not any(map(_is_nested, set(map(type, leaves)))):
            return leaves
        leaves.clear()
        differences: list[str] = []
        self._collect(value, root, leaves, differences)
        if differences:
            shown = "; ".join(differences[:_SHOWN_DIFFERENCES])
            more = len(differences) - _SHOWN_DIFFERENCES
            rest = f"; and {more} more differences" if more > 0 else ""
            raise InvalidArgumentError(f"expected the structure {shortened(self)}, found another: {shown}{rest}")
        return leaves

    def unflatten(self, leaves: Sequence[Any], types: NodeTypes | None = None) -> Any:
        """Return the nested value with these leaves.

        Args:
            leaves: the leaves, in the order of ``paths``.
            types: makes custom nodes, by name; a node without an entry becomes a ``CustomNode``.

        Raises:
            InvalidArgumentError: the number of leaves is another.
        """
        if len(leaves) != self.num_leaves:
            raise InvalidArgumentError(f"expected {self.num_leaves} leaves for {shortened(self)}, found {len(leaves)}")
        return self._build(iter(leaves), types or {})

    def __str__(self) -> str:
        children = [str(child) for child in self.children]
        match self.kind:
            case TreeKind.LEAF:
                return "*"
            case TreeKind.NONE:
                return "None"
            case TreeKind.TUPLE:
                return f"({children[0]},)" if len(children) == 1 else f"({', '.join(children)})"
            case TreeKind.LIST:
                return f"[{', '.join(children)}]"
            case TreeKind.DICT:
                return "{" + ", ".join(f"{k!r}: {c}" for k, c in zip(self.keys, children, strict=True)) + "}"
            case TreeKind.CUSTOM:
                if self.keys:
                    children = [f"{key}={child}" for key, child in zip(self.keys, children, strict=True)]
                return f"{self.name}({', '.join(children)})"

    def __repr__(self) -> str:
        return f"<Tree {self}>"

    def _steps(self) -> list[str]:
        """Return the last step of the path to each child."""
        if self.kind is TreeKind.DICT:
            return [f"[{key!r}]" for key in self.keys]
        if self.kind is TreeKind.CUSTOM:
            return [f".{key}" for key in self.keys] or [f"[<flat index {i}>]" for i in range(len(self.children))]
        return [f"[{index}]" for index in range(len(self.children))]

    def _walk(self, path: str) -> Iterator[str]:
        if self.kind is TreeKind.LEAF:
            yield path
        for step, child in zip(self._steps(), self.children, strict=True):
            yield from child._walk(path + step)

    def _build(self, leaves: Iterator[Any], types: NodeTypes) -> Any:
        if self.kind is TreeKind.LEAF:
            return next(leaves)
        children = [child._build(leaves, types) for child in self.children]
        match self.kind:
            case TreeKind.TUPLE:
                return tuple(children)
            case TreeKind.LIST:
                return children
            case TreeKind.DICT:
                return dict(zip(self.keys, children, strict=True))
            case TreeKind.CUSTOM if self.name in types:
                return types[self.name](*children)
            case TreeKind.CUSTOM:
                return CustomNode(children, self.name, self.data, self.keys)
        return None

    def _gather(self, value: Any, leaves: list[Any]) -> bool:
        """Append the leaves of a value of plain dictionaries, tuples and lists; return whether it is one, and fits.

        What the leaves are is not looked at: each call of a model with nested weights comes here.
        """
        kind = self.kind
        if kind is TreeKind.DICT:
            if type(value) is not dict or len(value) != len(self.keys):
                return False
            try:
                inner = [value[key] for key in self.keys]
            except KeyError:
                return False
        elif kind is TreeKind.TUPLE or kind is TreeKind.LIST:
            inner = value
            if (type(value) is not tuple and type(value) is not list) or len(value) != len(self.children):
                return False
        elif kind is TreeKind.LEAF:
            leaves.append(value)
            return True
        else:
            return kind is TreeKind.NONE and value is None
        if self._is_flat:
            leaves += inner
            return True
        return all(child._gather(each, leaves) for child, each in zip(self.children, inner, strict=True))

    def _collect(self, value: Any, path: str, leaves: list[Any], differences: list[str]) -> None:
        """Append the leaves of a value, and what is different about it."""
        place = path or "the whole value"
        if self.kind is TreeKind.LEAF:
            if not _is_leaf(value):
                differences.append(f"{place}: expected an array, found {_kind_of(value)}")
            leaves.append(value)
        elif self.kind is TreeKind.NONE:
            if value is not None:
                differences.append(f"{place}: expected None, found {_kind_of(value)}")
        else:
            children = self._children_of(value, path, differences)
            for step, child, inner in zip(self._steps(), self.children, children, strict=True):
                if inner is not _MISSING:
                    child._collect(inner, path + step, leaves, differences)

    def _children_of(self, value: Any, path: str, differences: list[str]) -> list[Any]:
        """Return the value's children in this node's order; ``_MISSING`` for those that it lacks."""
        steps = self._steps()
        if isinstance(value, Mapping) and self.keys:
            differences += [f"unexpected {path}[{key!r}]" for key in value if key not in self.keys]
            children = [value.get(key, _MISSING) for key in self.keys]
        elif self.kind is not TreeKind.DICT and isinstance(value, list | tuple):
            differences += [f"unexpected {path}[{index}]" for index in range(len(steps), len(value))]
            children = [*value[: len(steps)], *[_MISSING] * (len(steps) - len(value))]
        elif self.kind is TreeKind.CUSTOM and self.keys and all(hasattr(value, key) for key in self.keys):
            return [getattr(value, key) for key in self.keys]
        elif not self.children and isinstance(value, Mapping) and self.kind is TreeKind.DICT:
            differences += [f"unexpected {path}[{key!r}]" for key in value]
            return []
        else:
            expected = f"{self.kind} {self.name}".rstrip()
            differences.append(f"{path or 'the whole value'}: expected a {expected}, found {_kind_of(value)}")
            return [_MISSING] * len(steps)
        for step, child, inner in zip(steps, self.children, children, strict=True):
            if inner is _MISSING and child.kind is TreeKind.NONE and self.kind is TreeKind.DICT:
                continue  # a key whose value is None holds nothing
            if inner is _MISSING:
                differences.append(f"missing {path}{step}")
        return children


def _is_nested(kind: type) -> bool:
    """Whether values of a type are more than a leaf, or none."""
    return issubclass(kind, (Mapping, list, tuple, type(None)))


LEAF = Tree(TreeKind.LEAF)
"""The tree that is one leaf."""

_MISSING = object()


def shortened(tree: Tree, most: int = 120) -> str:
    """Return a tree's spelling, cut if it is longer than ``most`` characters."""
    text = str(tree)
    return text if len(text) <= most else f"{text[: most - 2]} … ({tree.num_leaves} leaves)"


def _structure(value: Any, depth: int) -> Tree:
    if depth > DEEPEST:
        raise InvalidArgumentError(f"expected at most {DEEPEST} nested tuples, lists and dictionaries, found more")
    if value is None:
        return Tree(TreeKind.NONE)
    if isinstance(value, Mapping):
        wrong = next((key for key in value if not isinstance(key, str)), None)
        if wrong is not None:
            raise InvalidArgumentError(f"expected text as the keys of a dictionary, found {wrong!r}")
        keys = tuple(value) if isinstance(value, OrderedDict) else tuple(sorted(value))
        return Tree(TreeKind.DICT, tuple(_structure(value[key], depth + 1) for key in keys), keys)
    if isinstance(value, list | tuple):
        children = tuple(_structure(child, depth + 1) for child in value)
        if isinstance(value, CustomNode):
            return Tree(TreeKind.CUSTOM, children, value.fields, value.name, value.data)
        fields = getattr(value, "_fields", None)
        if fields is not None:
            return Tree(TreeKind.CUSTOM, children, tuple(fields), type(value).__name__)
        return Tree(TreeKind.LIST if isinstance(value, list) else TreeKind.TUPLE, children)
    return LEAF


def _is_leaf(value: Any) -> bool:
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        numbers = (Number, np.generic)
        return all(isinstance(item, numbers) or (isinstance(item, list | tuple) and _is_leaf(item)) for item in value)
    return value is not None and not isinstance(value, Mapping) and not hasattr(value, "_fields")


def _kind_of(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, Mapping):
        return f"a dictionary with the keys {', '.join(map(repr, value)) or '(none)'}"
    if isinstance(value, list | tuple):
        name = type(value).__name__
        return f"a {name} of {len(value)} values"
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
