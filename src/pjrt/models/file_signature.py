"""Call signatures that files state beside their programs: ``jax.export``, PyTorch and SavedModels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pjrt import stablehlo
from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, InvalidArgumentError, UnimplementedError
from pjrt.artifacts.file_format import signature_from_json
from pjrt.stablehlo.facts.signatures import CallSignature, Parameter, Result
from pjrt.stablehlo.files.contents import FileContents
from pjrt.stablehlo.files.jax_export import ExportedArray, JaxExport
from pjrt.stablehlo.files.model_package import ModelPackage
from pjrt.stablehlo.files.saved_model import SavedModel
from pjrt.stablehlo.files.torch_export import TorchExport
from pjrt.stablehlo.files.torch_folder import TorchFolder, TorchInput
from pjrt.stablehlo.ir.tree import Tree
from pjrt.stablehlo.reading.parser import parse_module

_WRAPPED = "_wrapped_jax_export_main"
"""The function with the author's names, where ``main`` only computes the dimension variables and calls it."""

_ROOT = re.compile(r"[^\W\d]\w*")
_FLAT_INDEX = "[<flat index "
"""In the path of a leaf below a node whose field names are not in the file. The program has a name with them."""


def of_contents(contents: FileContents) -> CallSignature:
    """Return the call signature that a file states.

    Raises:
        UnimplementedError: an argument or a result is not an array.
        PjrtError: the program is damaged.
    """
    match contents:
        case JaxExport():
            return of_jax_export(contents)
        case TorchFolder():
            return of_torch_folder(contents)
        case TorchExport():
            return of_torch_export(contents)
        case SavedModel():
            return of_saved_model(contents)
        case ModelPackage():
            return of_model_package(contents)
    raise UnimplementedError(f"expected a file of a known format, found a {type(contents).__name__}")


def of_jax_export(export: JaxExport) -> CallSignature:
    """Return the call signature of an exported function.

    The positions of the parameters among the program's arguments are those behind the platform index, which
    ``pjrt.stablehlo.select_platform`` removes.

    Raises:
        UnimplementedError: the function has ordered effects, such as printing, which need tokens.
        PjrtError: the program is damaged.
    """
    if export.num_tokens:
        raise UnimplementedError(
            f"expected a function without ordered effects, whose program takes and returns arrays alone, found "
            f"{', '.join(export.ordered_effects)} of {export.function_name!r}"
        )
    module = stablehlo.to_module(export.program)
    parsed = parse_module(module, bodies=False)
    export.check(parsed.entry.type)
    count = len(export.kept_arguments)
    donated = [
        "tf.aliasing_output" in attributes or "jax.buffer_donor" in attributes
        for attributes in _last(parsed.entry.argument_attributes, count)
    ]
    named = parsed.functions.get(_WRAPPED, parsed.entry)
    names = _last(named.argument_names, count)
    own_names = dict(zip(export.kept_arguments, names, strict=True)) if len(names) == count else {}
    position_of = {index: position for position, index in enumerate(export.kept_arguments)}
    parameters = [
        Parameter(
            index,
            name,
            argument.element_type,
            argument.shape,
            _sharding(argument),
            donated=index in position_of and donated[position_of[index]],
            argument=position_of.get(index),
        )
        for index, (name, argument) in enumerate(
            zip(_names(export.input_tree, own_names), export.arguments, strict=True)
        )
    ]
    stated = [str(each.get("jax.result_info", "")) for each in parsed.entry.result_attributes]
    paths = _with_fields(export.output_tree.paths("result"), _last(stated, len(export.results)))
    results = [
        Result(index, path, result.element_type, result.shape, _sharding(result))
        for index, (path, result) in enumerate(zip(paths, export.results, strict=True))
    ]
    return CallSignature(tuple(parameters), tuple(results), export.input_tree, export.output_tree)


def of_torch_export(export: TorchExport) -> CallSignature:
    """Return the call signature of a program of ``torch.export``."""
    positional = export.input_tree.children[0]
    named = zip(export.names, positional.children, strict=False)
    own_names = dict(enumerate(path for name, child in named for path in child.paths(name)))
    inputs = zip(_names(export.input_tree, own_names), export.inputs, strict=True)
    parameters = [_torch_parameter(index, name, leaf) for index, (name, leaf) in enumerate(inputs)]
    changed = dict(export.weight_names) | {each.argument: each.name for each in parameters if each.argument is not None}
    paths = [*export.output_tree.paths("result"), *(changed[position] for position in export.updates.values())]
    outputs = zip(paths, export.results, strict=True)
    results = (Result(index, path, result.element_type, result.shape) for index, (path, result) in enumerate(outputs))
    return CallSignature(tuple(parameters), tuple(results), export.input_tree, export.output_tree, export.updates)


def of_torch_folder(folder: TorchFolder) -> CallSignature:
    """Return the call signature of a program of PyTorch/XLA.

    Parameters whose values were not saved come behind the inputs, by their keys in ``state_dict``; the structure of the
    inputs is unknown then.
    """
    inputs = zip(_names(folder.input_tree, {}), folder.inputs, strict=True)
    parameters = [_torch_parameter(index, name, leaf) for index, (name, leaf) in enumerate(inputs)]
    for position, name in folder.missing_weights.items():
        weight = folder.arguments[position]
        parameters.append(Parameter(len(parameters), name, weight.element_type, weight.shape, argument=position))
    input_tree = None if folder.missing_weights else folder.input_tree
    tree = folder.output_tree
    names = [""] * len(folder.results) if tree is None else tree.paths("result")
    # The folder states the sizes of results at the shapes that the model was exported with, not which are dynamic.
    info = stablehlo.signature(folder.program)
    results = [
        Result(index, name, result.element_type, result.shape)
        for index, (name, result) in enumerate(zip(names, info.results, strict=True))
    ]
    return CallSignature(tuple(parameters), tuple(results), input_tree, tree)


def _torch_parameter(index: int, name: str, leaf: TorchInput) -> Parameter:
    element_type = leaf.element_type or ElementType.PRED  # a value of Python, which is part of the program
    return Parameter(index, name, element_type, leaf.shape, argument=leaf.argument)


def of_saved_model(model: SavedModel) -> CallSignature:
    """Return the call signature of a program in a SavedModel: flat, with the names of the signature.

    Variables whose values are not in the folder are parameters, too.

    The positions of the parameters among the program's arguments are those behind the platform index.
    """
    program = stablehlo.select_platform(model.program, 0) if len(model.platforms) > 1 else model.program
    flat = CallSignature.of(stablehlo.signature(program))
    if (len(flat.parameters), len(flat.results)) != (len(model.arguments), len(model.results)):
        raise DataLossError(
            f"corrupt SavedModel: expected {len(model.arguments)} arguments and {len(model.results)} results of the "
            f"program, found {len(flat.parameters)} and {len(flat.results)}"
        )
    taken = [index for index in range(len(model.arguments)) if index not in model.weights]
    parameters = (
        replace(flat.parameters[position], index=index, name=model.arguments[position].name)
        for index, position in enumerate(taken)
    )
    results = (replace(each, name=name) for each, name in zip(flat.results, model.results, strict=True))
    return replace(flat, parameters=tuple(parameters), results=tuple(results))


def of_model_package(package: ModelPackage) -> CallSignature:
    """Return the call signature of a model in one file.

    Raises:
        DataLossError: the file states no signature, or not that of its program and weights.
        PjrtError: the program is damaged.
    """
    several = len(package.platforms) > 1
    found = stablehlo.signature(package.program)
    arguments = found.arguments[several:]
    try:
        stated = signature_from_json(package.signature, dynamic=True)
    except InvalidArgumentError as error:
        raise _damaged(error.message) from error
    types = {each.argument: _type(each) for each in stated.parameters if each.argument is not None}
    taken = sum(each.argument is not None for each in stated.parameters)
    for position, array in package.weights.items():
        types[position] = (ElementType.of(array.dtype), array.shape)
        taken += 1
    if taken != len(types) or [types.get(i) for i in range(taken)] != [(e.element_type, e.shape) for e in arguments]:
        raise _damaged("its arguments and weights are not those of its program")
    if list(map(_type, stated.results)) != [(each.element_type, each.shape) for each in found.results]:
        raise _damaged("its results are not those of its program")
    return stated


def _type(value: Result) -> tuple[ElementType, tuple[int | None, ...]]:
    return value.element_type, tuple(size if isinstance(size, int) else None for size in value.shape)


def _damaged(reason: str) -> DataLossError:
    return DataLossError(f"the model is damaged: {reason}; save it again")


def _names(tree: Tree, own_names: dict[int, str]) -> list[str]:
    """Return the name of each leaf of the arguments, such as ``cache['k']`` or ``args[1]['k']``.

    Args:
        tree: the structure of the arguments.
        own_names: the names in the program, by the leaf's index.
    """
    positional, keywords = tree.children
    names: list[str] = []
    for number, child in enumerate(positional.children):
        paths = child.paths()
        own = [own_names.get(len(names) + i, "") for i in range(len(paths))]
        roots = {
            match[0] if _FLAT_INDEX in path else name.removesuffix(path)
            for path, name in zip(paths, own, strict=True)
            if (match := _ROOT.match(name)) and (name.endswith(path) or _FLAT_INDEX in path)
        }
        root = roots.pop() if len(roots) == 1 else f"args[{number}]"
        names += _with_fields([root + path for path in paths], own)
    for key, child in zip(keywords.keys, keywords.children, strict=True):
        paths = child.paths(key)
        names += _with_fields(paths, [own_names.get(len(names) + i, "") for i in range(len(paths))])
    return names


def _with_fields(paths: Sequence[str], own_names: Sequence[str]) -> list[str]:
    """Return paths, or the name that the program has for a leaf where its path lacks the name of a field."""
    pairs = zip(paths, own_names, strict=True)
    return [name if name and _FLAT_INDEX in path else path for path, name in pairs]


def _sharding(array: ExportedArray) -> str:
    return "" if array.sharding is None else str(array.sharding)


def _last(values: Sequence[Any], count: int) -> Sequence[Any]:
    return values[len(values) - count :]
