"""Call signatures in saved executables, as values of JSON."""

from __future__ import annotations

import base64
from typing import Any

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError
from pjrt.stablehlo.call_signature import CallSignature, Parameter, Result
from pjrt.stablehlo.tree import DEEPEST, Tree, TreeKind


def to_json(signature: CallSignature) -> dict[str, Any]:
    """Return a call signature as a value of JSON."""
    return {
        "parameters": [
            {**_result(each), "donated": each.donated, "argument": each.argument} for each in signature.parameters
        ],
        "results": [_result(each) for each in signature.results],
        "input_tree": None if signature.input_tree is None else _tree(signature.input_tree),
        "output_tree": None if signature.output_tree is None else _tree(signature.output_tree),
    }


def from_json(value: Any) -> CallSignature:
    """Return the call signature in a value of JSON.

    Raises:
        InvalidArgumentError: the value is no call signature.
    """
    try:
        parameters = tuple(
            Parameter(
                *_read_result(index, each),
                donated=_is(bool, each["donated"]),
                argument=_read_position(each["argument"]),
            )
            for index, each in enumerate(_is(list, value["parameters"]))
        )
        results = tuple(Result(*_read_result(index, each)) for index, each in enumerate(_is(list, value["results"])))
        trees = [None if value[name] is None else _read_tree(value[name], 0) for name in ("input_tree", "output_tree")]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"expected the signature of a program, found {type(error).__name__}: {error}"
        ) from error
    for tree, leaves in zip(trees, (parameters, results), strict=True):
        if tree is not None and tree.num_leaves != len(leaves):
            raise InvalidArgumentError(f"expected {len(leaves)} leaves in {tree}, found {tree.num_leaves}")
    if any(each.is_dynamic for each in (*results, *(each for each in parameters if each.argument is not None))):
        raise InvalidArgumentError("expected static shapes of the arguments and results of an executable")
    return CallSignature(parameters, results, *trees)


def _result(value: Result) -> dict[str, Any]:
    return {
        "name": value.name,
        "element_type": value.element_type.name,
        "shape": list(value.shape),
        "sharding": value.sharding,
    }


def _read_result(index: int, value: Any) -> tuple[int, str, ElementType, tuple[int | str | None, ...], str]:
    shape = tuple(_read_size(size) for size in _is(list, value["shape"]))
    return index, _is(str, value["name"]), ElementType[value["element_type"]], shape, _is(str, value["sharding"])


def _read_size(size: Any) -> int | str | None:
    if size is None or isinstance(size, str):
        return size
    return _read_count(size)


def _read_position(value: Any) -> int | None:
    return None if value is None else _read_count(value)


def _read_count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"expected a number from 0 up, found {value!r}")
    return value


def _tree(tree: Tree) -> dict[str, Any]:
    written: dict[str, Any] = {"kind": tree.kind.value}
    if tree.children:
        written["children"] = [_tree(child) for child in tree.children]
    if tree.keys:
        written["keys"] = list(tree.keys)
    if tree.name:
        written["name"] = tree.name
    if tree.data:
        written["data"] = base64.b64encode(tree.data).decode()
    return written


def _read_tree(value: Any, depth: int) -> Tree:
    if depth > DEEPEST:
        raise ValueError(f"a tree of more than {DEEPEST} levels")
    return Tree(
        TreeKind(_is(dict, value)["kind"]),
        tuple(_read_tree(child, depth + 1) for child in _is(list, value.get("children", []))),
        tuple(_is(str, key) for key in _is(list, value.get("keys", []))),
        _is(str, value.get("name", "")),
        base64.b64decode(_is(str, value.get("data", "")), validate=True),
    )


def _is(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, found {type(value).__name__}")
    return value
