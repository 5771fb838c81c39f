"""Folders of PyTorch/XLA: what ``torch_xla.stablehlo.save_as_stablehlo`` and ``StableHLOGraphModule.save`` write.

The folder has programs in ``functions/NAME.bytecode`` (and as text in ``NAME.mlir``), each with its facts as JSON in
``functions/NAME.meta``, the parameters and buffers of the model in ``data/KEY``, and constants that the export made in
``constants/NUMBER``. The arrays are in NumPy's format. PyTorch is not needed to read them.

Structures are JSON of ``torch.utils._pytree.treespec_dumps``: a pair of a protocol number and a node. A node has the
name of a Python type (null for a leaf), the bytes that the type wrote about itself (``context``, mostly JSON inside the
JSON) and its children. None is a leaf in PyTorch.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, InvalidArgumentError, NotFoundError, PjrtError
from pjrt.api.program import Program
from pjrt.stablehlo.encodings.format import program_of
from pjrt.stablehlo.files.contents import FileContents, reading
from pjrt.stablehlo.ir.tree import DEEPEST, LEAF, Tree, TreeKind

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


_FUNCTIONS, _DATA, _CONSTANTS = "functions", "data", "constants"
_DEFAULT_FUNCTION = "forward"
_LARGEST_META = 1 << 28
NONE = "NoneType"
"""The Python type of an input that is None."""


class TorchSource(enum.StrEnum):
    """The source of a value that the program takes."""

    INPUT = "input_arg"
    PARAMETER = "parameter"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class TorchArgument:
    """An argument of the program.

    Attributes:
        source: whether the caller gives it, or the folder has it.
        name: the key in the model's ``state_dict`` of a parameter; empty for others.
        position: the position among the flat inputs of the caller, or among the constants; -1 for a parameter.
        element_type: the type of its elements.
        shape: its sizes; None for a dynamic one.
    """

    source: TorchSource
    name: str
    position: int
    element_type: ElementType
    shape: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class TorchInput:
    """A leaf of the arguments that the caller gives.

    Attributes:
        element_type: the type of its elements; None for a Python value, whose value the export wrote into the program.
        shape: its sizes; a dynamic one is a symbol, or None where the file states no symbol.
        argument: its position among the program's arguments; None if the program does not need it.
        python_type: the type of a Python value, such as ``int``; empty for a tensor.
    """

    element_type: ElementType | None
    shape: tuple[int | str | None, ...]
    argument: int | None = None
    python_type: str = ""


@dataclass(frozen=True, slots=True)
class TorchResult:
    """A result of the program.

    Attributes:
        element_type: the type of its elements.
        shape: its sizes at the shapes that the model was exported with.
    """

    element_type: ElementType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TorchFolder(FileContents):
    """The contents of a folder of PyTorch/XLA.

    Attributes:
        path: the folder.
        function: the name of the function that was read.
        functions: the names of all functions in the folder.
        program: the program of the function.
        arguments: the arguments of the program, in its order.
        inputs: the leaves of the arguments that the caller gives, in their order; None is no leaf.
        results: the results of the program.
        input_tree: the structure of ``inputs``: a tuple of the positional arguments and a dictionary of the others.
        output_tree: the structure of ``results``; None if the folder does not state it.
        weights: the arrays in the folder, by their positions among ``arguments``, mapped into memory from their files.
            It lacks parameters that were not saved (``save_weights=False``).
    """

    kind = "PyTorch/XLA folder"

    path: Path
    function: str
    functions: tuple[str, ...]
    program: Program
    arguments: tuple[TorchArgument, ...]
    inputs: tuple[TorchInput, ...]
    results: tuple[TorchResult, ...]
    input_tree: Tree
    output_tree: Tree | None
    weights: Mapping[int, np.ndarray[Any, Any]] = field(repr=False)

    def stated_platforms(self) -> Sequence[str]:
        return ()

    def stored_weights(self) -> Mapping[int, np.ndarray[Any, Any]]:
        return self.weights

    def names_of_weights(self) -> Mapping[int, str]:
        return {position: self.arguments[position].name for position in self.weights}

    @property
    def missing_weights(self) -> dict[int, str]:
        """The keys in ``state_dict`` of the parameters that were not saved, by their positions among ``arguments``."""
        return {
            index: argument.name
            for index, argument in enumerate(self.arguments)
            if argument.source is TorchSource.PARAMETER and index not in self.weights
        }


def is_torch_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a folder of PyTorch/XLA."""
    try:
        return bool(_function_names(Path(path)))
    except (OSError, ValueError):
        return False


def read_torch_folder(path: str | os.PathLike[str], function: str = "") -> TorchFolder:
    """Return the program in a folder of PyTorch/XLA, its weights, and the structure of its arguments and results.

    Args:
        path: the folder.
        function: the name of the function to read; by default the only one, or ``forward``.

    Raises:
        NotFoundError: the folder, the function or the file of a weight does not exist.
        InvalidArgumentError: it is no such folder, or a weight has another shape or type than the program takes.
        DataLossError: a file in it is truncated or corrupt.
    """
    folder = Path(path)
    with reading(path):
        names = _function_names(folder) if folder.is_dir() else ()
    if not names:
        if not folder.exists():
            raise NotFoundError(f"expected a folder of PyTorch/XLA, found nothing at {os.fspath(path)!r}")
        raise InvalidArgumentError(
            f"expected a folder of PyTorch/XLA with {_FUNCTIONS}/NAME.meta, found none in {os.fspath(path)!r}"
        )
    name = function or (names[0] if len(names) == 1 else _DEFAULT_FUNCTION)
    if name not in names:
        raise NotFoundError(f"{folder}: expected one of the functions {', '.join(names)}, found {name!r}")
    meta = folder / _FUNCTIONS / f"{name}.meta"
    with reading(meta):
        facts = _Facts(_json(meta))
    weights = {
        index: _weight(folder, argument)
        for index, argument in enumerate(facts.arguments)
        if argument.source is TorchSource.CONSTANT
        or (argument.source is TorchSource.PARAMETER and (folder / _DATA).is_dir())
    }
    return TorchFolder(
        path=folder,
        function=name,
        functions=names,
        program=_program(folder, name),
        arguments=facts.arguments,
        inputs=facts.inputs,
        results=facts.results,
        input_tree=facts.input_tree,
        output_tree=facts.output_tree,
        weights=weights,
    )


def _function_names(folder: Path) -> tuple[str, ...]:
    functions = folder / _FUNCTIONS
    if not functions.is_dir():
        return ()
    return tuple(sorted(file.stem for file in functions.iterdir() if file.suffix == ".meta"))


def _program(folder: Path, name: str) -> Program:
    files = [folder / _FUNCTIONS / f"{name}.{ending}" for ending in ("bytecode", "mlir")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise NotFoundError(f"{folder}: expected the program {files[0].name} or {files[1].name}, found neither")
    with reading(file):
        return program_of(file.read_bytes())


# The arrays.


def _weight(folder: Path, argument: TorchArgument) -> np.ndarray[Any, Any]:
    """Return an array that the folder has for an argument, mapped into memory."""
    if argument.source is TorchSource.PARAMETER:
        name, file = f"the parameter {argument.name!r}", folder / _DATA / argument.name
        if argument.name in ("", ".", "..") or any(separator in argument.name for separator in "/\\\0"):
            raise DataLossError(f"{folder}: expected the name of a file as the name of a parameter, found {name}")
    else:
        name, file = f"the constant {argument.position}", folder / _CONSTANTS / str(argument.position)
    with reading(file):
        if not file.is_file():
            raise NotFoundError(f"the program takes {name}, which is not in the folder")
        array = _array(file)
        element_type = ElementType.of(array.dtype)
        if element_type is not argument.element_type or not _fits(array.shape, argument.shape):
            raise InvalidArgumentError(
                f"expected {name} as {_spelled(argument.element_type, argument.shape)}, found "
                f"{_spelled(element_type, array.shape)}"
            )
    return array


def _array(file: Path) -> np.ndarray[Any, Any]:
    try:
        try:
            array: np.ndarray[Any, Any] = np.load(file, mmap_mode="r", allow_pickle=False)
        except ValueError:  # nothing can be mapped of an array without elements
            array = np.load(file, allow_pickle=False)
            if array.size:
                raise
        return array
    except (ValueError, EOFError, TypeError, MemoryError) as error:
        raise DataLossError(f"expected an array in NumPy's format: {error}") from error


def _fits(actual: tuple[int, ...], stated: tuple[int | None, ...]) -> bool:
    return len(actual) == len(stated) and all(
        size is None or size == have for have, size in zip(actual, stated, strict=True)
    )


def _spelled(element_type: ElementType, shape: tuple[int | None, ...]) -> str:
    return f"{element_type.mlir}[{','.join('?' if size is None else str(size) for size in shape)}]"


# The facts.


def _json(file: Path) -> Any:
    if file.stat().st_size > _LARGEST_META:
        raise DataLossError(f"expected the facts of a function as JSON, found {file.stat().st_size} bytes")
    try:
        return json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataLossError(f"expected the facts of a function as JSON: {error}") from error


class _Facts:
    """The facts in a file ``NAME.meta``."""

    def __init__(self, meta: Any) -> None:
        try:
            locations, signatures = meta["input_locations"], meta["input_signature"]
            if len(locations) != len(signatures):
                raise ValueError(f"{len(locations)} input_locations and {len(signatures)} types in input_signature")
            self.arguments = tuple(_argument(*pair) for pair in zip(locations, signatures, strict=True))
            self.results = tuple(_result(signature) for signature in meta["output_signature"])
            unused = {_position(location): _input(signature) for location, signature in meta.get("unused_inputs") or ()}
            specs = [meta.get(key) for key in ("input_pytree_spec", "output_pytree_spec")]
            if not all(isinstance(spec, str | None) for spec in specs):
                raise TypeError("a structure that is no text")
            trees = [parse_torch_tree(spec) if spec else None for spec in specs]
        except PjrtError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise DataLossError(f"expected the facts of a function as PyTorch/XLA writes them: {reason}") from error
        inputs = _inputs(self.arguments, unused)
        self.inputs = tuple(each for each in inputs if each.python_type != NONE)
        self.input_tree = call_tree(trees[0], inputs)
        self.output_tree = trees[1]
        if self.output_tree is not None and self.output_tree.num_leaves != len(self.results):
            raise DataLossError(
                f"expected a result for each of the {self.output_tree.num_leaves} leaves, found {len(self.results)}"
            )


def _argument(location: Any, signature: Any) -> TorchArgument:
    source, name = TorchSource(location["type_"]), location.get("name", "")
    if not isinstance(name, str):
        raise TypeError(f"the name {name!r}")
    position = -1 if source is TorchSource.PARAMETER else _position(location)
    element_type, shape = _tensor(signature)
    return TorchArgument(source, name, position, element_type, shape)


def _position(location: Any) -> int:
    position = location["position"]
    if not isinstance(position, int) or not 0 <= position < 1 << 20:
        raise ValueError(f"the position {position!r}")
    return position


def _input(signature: Any) -> TorchInput:
    """Return an input that the program does not need: a tensor, or a value of Python."""
    dtype = signature["dtype"]
    if isinstance(dtype, str) and dtype.startswith("<class '"):
        return TorchInput(None, (), python_type=dtype.removeprefix("<class '").removesuffix("'>"))
    return TorchInput(*_tensor(signature))


def _result(signature: Any) -> TorchResult:
    element_type, shape = _tensor({**signature, "dynamic_dims": []})
    return TorchResult(element_type, tuple(size for size in shape if size is not None))


def _tensor(signature: Any) -> tuple[ElementType, tuple[int | None, ...]]:
    shape, dynamic = signature["shape"], signature.get("dynamic_dims") or []
    if not all(isinstance(size, int) and size >= 0 for size in (*shape, *dynamic)):
        raise ValueError(f"the shape {shape!r}")
    dtype = signature["dtype"]
    element_type = _ELEMENT_TYPES.get(dtype) if isinstance(dtype, str) else None
    if element_type is None:
        raise InvalidArgumentError(f"expected an element type of PyTorch with a counterpart in PJRT, found {dtype!r}")
    return element_type, tuple(None if i in dynamic else size for i, size in enumerate(shape))


_ELEMENT_TYPES = {
    element_type.dtype.name: element_type
    for element_type in ElementType
    if element_type not in (ElementType.INVALID, ElementType.TOKEN, ElementType.S1, ElementType.U1)
}


def _inputs(arguments: tuple[TorchArgument, ...], unused: Mapping[int, TorchInput]) -> tuple[TorchInput, ...]:
    inputs = dict(unused)
    for index, argument in enumerate(arguments):
        if argument.source is TorchSource.INPUT:
            inputs[argument.position] = TorchInput(argument.element_type, argument.shape, index)
    if sorted(inputs) != list(range(len(inputs))):
        raise DataLossError(f"expected all inputs from 0 to {max(inputs)}, found only {sorted(inputs)[:20]}")
    return tuple(inputs[position] for position in range(len(inputs)))


def call_tree(stated: Tree | None, inputs: Sequence[TorchInput]) -> Tree:
    """Return the structure of the positional arguments and the others.

    Older versions state only the positional ones, or nothing. And None is a leaf in PyTorch, but not in other trees.
    """
    tree = stated or Tree(TreeKind.TUPLE, (LEAF,) * len(inputs))
    if tree.num_leaves != len(inputs):
        raise DataLossError(f"expected an input for each of the {tree.num_leaves} leaves, found {len(inputs)}")
    tree = without_none(tree, iter(inputs))
    if [child.kind for child in tree.children] == [TreeKind.TUPLE, TreeKind.DICT]:
        return tree
    return Tree(TreeKind.TUPLE, (tree, Tree(TreeKind.DICT)))


def without_none(tree: Tree, inputs: Iterator[TorchInput]) -> Tree:
    """Return a tree in which the leaves that stand for None are None."""
    if tree.kind is TreeKind.LEAF:
        return Tree(TreeKind.NONE) if next(inputs).python_type == NONE else tree
    children = tuple(without_none(child, inputs) for child in tree.children)
    return Tree(tree.kind, children, tree.keys, tree.name, tree.data)
