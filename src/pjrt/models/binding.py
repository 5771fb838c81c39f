"""The binding of a call's arguments to the parameters of a model, and each argument's array."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

import pjrt.ifrt
from pjrt.api.buffer import Buffer
from pjrt.api.element_type import ElementType, are_python_numbers, number_array
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.loaded_executable import choices, key_of
from pjrt.api.shape_spec import format_shape
from pjrt.stablehlo.facts.signatures import Parameter
from pjrt.stablehlo.ir.tree import NodeTypes, Tree, TreeKind

Argument: TypeAlias = np.ndarray[Any, Any] | pjrt.ifrt.Array


def fitted(client: pjrt.ifrt.Client, parameter: Parameter, value: Any) -> Argument:
    """Return a value as an array of the parameter's type and shape.

    Numbers of Python, and lists of them, take the parameter's element type. An array on the client's devices stays
    there. Of a parameter that the program does not need, any value of Python will do.

    Raises:
        InvalidArgumentError: the value has another shape or element type, or is on the devices of another client.
    """
    if parameter.argument is None and not hasattr(value, "shape"):
        return np.zeros(
            [size if isinstance(size, int) else 0 for size in parameter.shape], parameter.element_type.dtype
        )
    return _checked(parameter, _array(client, parameter, value))


def wrong_count(parameters: Sequence[Parameter], count: int) -> InvalidArgumentError:
    """Return the error for a number of arguments that is not that of the parameters."""
    listed = "; ".join(map(str, parameters)) or "none"
    return InvalidArgumentError(f"expected {len(parameters)} arguments ({listed}), found {count}")


def fitted_on_host(parameter: Parameter, value: Any) -> np.ndarray[Any, Any]:
    """Return a value as an array of the parameter's type and shape on the host, also one that is on devices.

    Raises:
        InvalidArgumentError: as for ``fitted``.
    """
    return np.asarray(_checked(parameter, _host_array(parameter, value)))


def _checked(parameter: Parameter, array: Argument) -> Argument:
    if _element_type(array) is None:
        raise _misfit(parameter, array, "give an array of numbers")
    if not _is_of_shape(parameter, array.shape):
        raise _misfit(parameter, array, "give an array of that shape")
    found = _element_type(array)
    if found is not parameter.element_type:
        name = parameter.element_type.dtype.name
        raise _misfit(parameter, array, f"convert it, such as with array.astype({name!r})")
    return array


def _array(client: pjrt.ifrt.Client, parameter: Parameter, value: Any) -> Argument:
    if isinstance(value, pjrt.ifrt.Array):
        if value.client.pjrt_client is not client.pjrt_client:
            raise InvalidArgumentError(
                f"expected {parameter} on the devices of {client.pjrt_client!r}, found an array of "
                f"{value.client.pjrt_client!r}: copy it to the host with numpy.asarray first"
            )
        return value
    if isinstance(value, Buffer):
        return _of_buffer(client, value)
    return _host_array(parameter, value)


def _host_array(parameter: Parameter, value: Any) -> Argument:
    if are_python_numbers(value):
        try:
            return number_array(value, parameter.element_type)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{parameter}: {error.message}") from error
    try:
        array = np.asarray(value)
    except Exception as error:  # __array__ of any class
        raise InvalidArgumentError(
            f"expected {parameter}, found {type(value).__name__}, which is no array: {error}"
        ) from error
    if array.dtype.kind == "O":
        raise InvalidArgumentError(f"expected {parameter}, found {type(value).__name__}, which is no array")
    return array


def _of_buffer(client: pjrt.ifrt.Client, buffer: Buffer) -> Argument:
    if buffer.client is not client.pjrt_client:
        return np.asarray(buffer)
    sharding = pjrt.ifrt.SingleDeviceSharding(buffer.device, buffer.memory_space.kind)
    return pjrt.ifrt.Array(client, pjrt.ifrt.ArraySpec(buffer.shape, buffer.element_type, sharding), [buffer])


def _is_of_shape(parameter: Parameter, shape: tuple[int, ...]) -> bool:
    return len(shape) == len(parameter.shape) and all(
        wanted == size or not isinstance(wanted, int) for wanted, size in zip(parameter.shape, shape, strict=True)
    )


def _element_type(array: Argument) -> ElementType | None:
    if isinstance(array, pjrt.ifrt.Array):
        return array.element_type
    try:
        return ElementType.of(array.dtype)
    except InvalidArgumentError:  # a dtype without an element type, such as of text
        return None


def _misfit(parameter: Parameter, array: Argument, advice: str) -> InvalidArgumentError:
    found = _element_type(array)
    described = f"{array.dtype}{list(array.shape)}" if found is None else format_shape(found, array.shape)
    return InvalidArgumentError(f"expected {parameter}, found {described}: {advice}")


# The binding of a call, positional and by name, to flat arguments.

_ROOT = re.compile(r"[^\W\d]\w*(?=$|[\[.])")
_MISSING = object()


class Binding:
    """The names of a model's parameters, and their nested structure where the file states one.

    Args:
        parameters: the parameters.
        tree: the structure: a tuple of the positional arguments and a dictionary of the others, as JAX has it; None
            if the file states none.
    """

    def __init__(self, parameters: Sequence[Parameter], tree: Tree | None) -> None:
        self._parameters = parameters
        self._tree = tree
        self._slots = None if tree is None else _slots(parameters, tree)

    def leaves(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        """Return the value for each parameter.

        Where the file states a structure, each argument has a part of it. Where it states none, the values in nested
        arguments follow one another, those of a dictionary in the order of its keys; a keyword is the name of a
        parameter, or the part of it before the first bracket, with the rest as nested keys.

        Raises:
            InvalidArgumentError: arguments are missing, unknown, given twice, or of another structure.
        """
        return self._in_order(arguments, keywords) if self._slots is None else self._in_slots(arguments, keywords)

    def part(self, key: str | int | Parameter, value: Any) -> dict[int, Any]:
        """Return the values in one argument, by the index of their parameters.

        Args:
            key: the name of the argument or of one parameter, the number of a positional argument, or a parameter.
            value: its value, nested.

        Raises:
            InvalidArgumentError: there is no such argument, or the value has another structure.
        """
        if isinstance(key, Parameter):
            return {key.index: value}
        numbers = self._numbers
        if isinstance(key, int):
            positional = [slot for slot in self._slots or () if slot.is_positional]
            count = len(self._parameters) if self._slots is None else len(positional)
            if not 0 <= key < count:
                raise InvalidArgumentError(f"expected the number of one of {count} positional arguments, found {key}")
            if self._slots is None:
                leaves = _flattened(value)
                if key and _is_nested(value):
                    raise InvalidArgumentError(
                        f"expected the name of the nested argument {key}, because the program does not say where its "
                        "arrays begin"
                    )
                if key + len(leaves) > len(self._parameters):
                    raise wrong_count(self._parameters, len(leaves))
                return dict(enumerate(leaves, key))
            key = positional[key].name
        begin = 0
        for slot in self._slots or ():
            if slot.name == key:
                return dict(enumerate(slot.tree.flatten(value, key), begin))
            begin += slot.tree.num_leaves
        return {self._number(path, numbers): leaf for path, leaf in _named(key, value, numbers)}

    def whole(self, key: str | int, value: Any) -> Callable[[Sequence[Any], NodeTypes | None], Any]:
        """Return a function that makes one argument, as ``part`` takes it apart, of as many other leaves."""
        positional = [slot for slot in self._slots or () if slot.is_positional]
        if self._slots is not None and isinstance(key, int):
            return positional[key].tree.unflatten
        slot = next((slot for slot in self._slots or () if slot.name == key), None)
        if slot is not None:
            return slot.tree.unflatten
        return lambda leaves, _: _refilled(value, iter(leaves))

    def tree_without(self, indices: Collection[int]) -> Tree | None:
        """Return the structure without some parameters, by their indices; None if the file states none.

        An argument, or an entry of a dictionary, goes with the last of its parameters; an element of a tuple or a list
        becomes None.
        """
        if self._tree is None:
            return None
        positional, keywords = self._tree.children
        places = iter(range(len(self._parameters)))
        rest = [_without(child, indices, places) for child in positional.children]
        children = tuple(child for child in rest if child is not None)
        named = _without(keywords, indices, places) or replace(keywords, children=(), keys=())
        return replace(self._tree, children=(replace(positional, children=children), named))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return numbers_by_name(self._parameters)

    def _number(self, path: str, numbers: Mapping[str, int]) -> int:
        if path not in numbers:
            names = [each.name for each in self._parameters if each.name]
            raise InvalidArgumentError(
                f"expected the names of arguments ({choices(names, path)}), found {path}"
                if names
                else f"expected arguments by position, because the program has no names for them, found {path}"
            )
        return numbers[path]

    def _in_slots(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        assert self._slots is not None
        positional = [slot for slot in self._slots if slot.is_positional]
        if len(arguments) > len(positional):
            raise InvalidArgumentError(
                f"expected at most {len(positional)} positional arguments ({_listed(positional)}), "
                f"found {len(arguments)}"
            )
        values = dict(zip((slot.name for slot in positional), arguments, strict=False))
        for name, value in keywords.items():
            if name not in {slot.name for slot in self._slots}:
                raise InvalidArgumentError(f"expected the arguments {_listed(self._slots)}, found {name!r}")
            if name in values:
                raise InvalidArgumentError(f"expected one value for the argument {name}, found two")
            values[name] = value
        missing = [slot for slot in self._slots if slot.name not in values and slot.tree.num_leaves]
        if missing:
            raise InvalidArgumentError(
                f"expected the arguments {_listed(self._slots)}, found none for {_listed(missing)}"
            )
        leaves: list[Any] = []
        for slot in self._slots:
            if slot.name in values:
                leaves += slot.tree.flatten(values[slot.name], slot.name)
        return leaves

    def _in_order(self, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        flat = [leaf for argument in arguments for leaf in _flattened(argument)]
        if len(flat) > len(self._parameters):
            raise wrong_count(self._parameters, len(flat))
        if not keywords and len(flat) == len(self._parameters):
            return flat
        values = dict(enumerate(flat))
        numbers = self._numbers
        for keyword, value in keywords.items():
            for path, leaf in _named(keyword, value, numbers):
                number = self._number(path, numbers)
                if number in values:
                    raise InvalidArgumentError(f"expected one value for the argument {path}, found two")
                values[number] = leaf
        if len(values) < len(self._parameters):
            if not keywords:
                raise wrong_count(self._parameters, len(flat))
            missing = "; ".join(str(each) for each in self._parameters if each.index not in values)
            raise InvalidArgumentError(f"expected a value for each parameter, found none for {missing}")
        return [values[index] for index in range(len(self._parameters))]


def _without(tree: Tree, indices: Collection[int], places: Iterator[int]) -> Tree | None:
    """Return a tree without some of its leaves; None if that was all of it."""
    if tree.kind is TreeKind.LEAF:
        return None if next(places) in indices else tree
    children = [_without(child, indices, places) for child in tree.children]
    if children and not any(children):
        return None
    if tree.keys:
        kept = [(key, child) for key, child in zip(tree.keys, children, strict=True) if child is not None]
        return replace(tree, keys=tuple(key for key, _ in kept), children=tuple(child for _, child in kept))
    return replace(tree, children=tuple(Tree(TreeKind.NONE) if child is None else child for child in children))


class _Slot:
    """One argument of a call: its name and structure."""

    def __init__(self, name: str, tree: Tree, is_positional: bool) -> None:
        self.name = name
        self.tree = tree
        self.is_positional = is_positional


def _slots(parameters: Sequence[Parameter], tree: Tree) -> list[_Slot]:
    """Return the arguments of a structure; a positional one has the name that its parameters' names begin with."""
    positional, keywords = tree.children
    slots = []
    begin = 0
    for index, child in enumerate(positional.children):
        names = [each.name for each in parameters[begin : begin + child.num_leaves]]
        begin += child.num_leaves
        roots = {match[0] for name in names if (match := _ROOT.match(name))}
        slots.append(_Slot(roots.pop() if len(roots) == 1 else f"args[{index}]", child, True))
    repeated = {slot.name for slot in slots if [each.name for each in slots].count(slot.name) > 1} | {*keywords.keys}
    for index, slot in enumerate(slots):
        if slot.name in repeated:
            slot.name = f"args[{index}]"
    return slots + [_Slot(key, child, False) for key, child in zip(keywords.keys, keywords.children, strict=True)]


def spellings(name: str) -> tuple[str, str, str]:
    """Return the spellings of a parameter's name, the preferred one first.

    They are the name, its last key, and its keys with dots, as files of weights have them: ``params['a']['b'][0]``,
    ``b`` where that is the last one, and ``a.b.0``.
    """
    root = _ROOT.match(name)
    keys = _KEY.findall(name, root.end()) if root else []
    return name, key_of(name), ".".join("".join(key) for key in keys) or name


_KEY = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.(\w+)")

SPELLINGS = "params['a']['b'] is called by this name, by its last key b where that is unique, or as a.b"


def numbers_by_name(parameters: Sequence[Parameter]) -> dict[str, int]:
    """Return the index of each parameter by those of its spellings that no other parameter has."""
    numbers: dict[str, int] = {}
    for names in zip(*(spellings(each.name) for each in parameters), strict=True):
        counts = Counter(names)
        for each, name in zip(parameters, names, strict=True):
            if name and counts[name] == 1:
                numbers.setdefault(name, each.index)
    return numbers


def _named(keyword: str, value: Any, numbers: Mapping[str, int]) -> list[tuple[str, Any]]:
    """Return the paths and values in a keyword argument."""
    if keyword in numbers or not _is_nested(value):
        return [(keyword, value)]
    tree = Tree.of(value)
    return list(zip(tree.paths(keyword), tree.flatten(value, keyword), strict=True))


def _flattened(value: Any) -> list[Any]:
    """Return the values in a nested argument; a list of numbers alone is one value."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [leaf for key in sorted(value) for leaf in _flattened(value[key])]
    if isinstance(value, list | tuple) and _is_nested(value):
        return [leaf for inner in value for leaf in _flattened(inner)]
    return [value]


def _refilled(value: Any, leaves: Iterator[Any]) -> Any:
    """Return a nested argument with other leaves, in the order of ``_flattened``."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {key: _refilled(value[key], leaves) for key in sorted(value)}
    if isinstance(value, list | tuple) and _is_nested(value):
        return [_refilled(inner, leaves) for inner in value]
    return next(leaves)


def _is_nested(value: Any) -> bool:
    """Whether a value is a dictionary, or a list or tuple of more than numbers."""
    if isinstance(value, list | tuple):
        return any(hasattr(inner, "shape") or inner is None or _is_nested(inner) for inner in value)
    return isinstance(value, Mapping)


def _listed(slots: Sequence[_Slot]) -> str:
    return ", ".join(slot.name for slot in slots) or "none"
