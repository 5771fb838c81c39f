"""Writing models in one file: a function of JAX with its weights, or the content of any other model file."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pjrt import stablehlo
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from pjrt.artifacts.file_format import signature_to_json
from pjrt.models.file_signature import of_jax_export
from pjrt.models.model_file import ModelFile
from pjrt.models.output_path import check_output_path, writing
from pjrt.stablehlo.facts.signatures import CallSignature
from pjrt.stablehlo.files.model_package import ModelPackage

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
"""The platforms that a model is saved for by default; other devices take the part for ``cpu``."""

_WEIGHTS = "weights"


def save_model(
    function: Callable[..., Any],
    params: Any,
    example: Any,
    path: str | os.PathLike[str],
    *,
    shapes: Any = None,
    constraints: Sequence[str] = (),
    platforms: Sequence[str] = PLATFORMS,
) -> None:
    """Write a function of JAX and its weights to one file, which ``load_model`` and every command take.

    The file has the program, the weights, and the names, nested structure and shardings of arguments and results. JAX
    is not needed to read it.

    Args:
        function: the function; its first argument is ``params``. Such as ``model.apply`` of Flax.
        params: the weights, nested in any way that JAX knows, such as a dictionary, the state of Flax's ``nnx`` or a
            module of Equinox. Leaves that are not arrays become part of the program. An array that is sharded over a
            mesh keeps its sharding.
        example: the other arguments: a tuple of the positional ones, or the only one. Arrays, or
            ``jax.ShapeDtypeStruct`` where the values do not matter.
        path: the file; an existing one is replaced.
        shapes: which sizes of the arguments are dynamic, as ``jax.export.symbolic_args_specs`` takes them: ``"b, ..."``
            for all arguments, or a tuple such as ``("b, n", None)`` with a text for each.
        constraints: what holds for dynamic sizes, such as ``"b >= 2"``.
        platforms: the platforms that the program is for.

    Raises:
        FailedPreconditionError: JAX is not installed, or flatbuffers, with which JAX writes programs.
        InvalidArgumentError: JAX cannot export the function, or the file cannot be written.
        UnimplementedError: a result is not an array.
    """
    check_output_path(path)
    for package in ("jax", "flatbuffers"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise FailedPreconditionError(
                f"{package} is needed to save a function of JAX, and it is not installed: pip install jax flatbuffers"
            ) from error
    weights, called = _split(function, params)
    try:
        code = _exported(called, weights, example, shapes, constraints, platforms)
    except Exception as error:  # of JAX, or of the function
        raise InvalidArgumentError(
            f"JAX cannot export the function with these arguments: {type(error).__name__}: {error}"
        ) from error
    export = stablehlo.read_jax_export(code)
    whole = of_jax_export(export)
    named = [parameter for parameter in whole.parameters if parameter.index < len(weights)]
    # JAX sorts the keys of a dictionary, and drops the arrays that the function does not use.
    kept = {each.argument: name for name, each in zip(sorted(weights), named, strict=True) if each.argument is not None}
    _write(
        ModelPackage(
            export.program,
            signature_to_json(_without_first(whole, len(weights))),
            tuple(export.platforms),
            {position: _on_host(weights[name]) for position, name in kept.items()},
            kept,
            export.writer(),
        ),
        path,
    )


def _split(function: Callable[..., Any], params: Any) -> tuple[dict[str, Any], Callable[..., Any]]:
    """Return the arrays in weights by name, and the function of these and the other arguments."""
    import jax

    paths, tree = jax.tree_util.tree_flatten_with_path(params)
    spelled = [jax.tree_util.keystr(path, simple=True, separator=".") or "weight" for path, _ in paths]
    if len(set(spelled)) != len(spelled):  # such as the keys 1 and "1"
        spelled = [jax.tree_util.keystr(path) for path, _ in paths]
    leaves = dict(zip(spelled, (leaf for _, leaf in paths), strict=True))
    keys = {name for name, leaf in leaves.items() if _is_key(leaf)}
    arrays = {name: leaf for name, leaf in leaves.items() if hasattr(leaf, "shape") and hasattr(leaf, "dtype")}
    implementations = {name: jax.random.key_impl(leaves[name]) for name in keys}
    weights = {name: jax.random.key_data(leaf) if name in keys else leaf for name, leaf in arrays.items()}

    def call(weights: Mapping[str, Any], *arguments: Any, **keywords: Any) -> Any:
        given = {
            name: jax.random.wrap_key_data(array, impl=implementations[name]) if name in keys else array
            for name, array in weights.items()
        }
        values = [given.get(name, leaf) for name, leaf in leaves.items()]
        return function(jax.tree_util.tree_unflatten(tree, values), *arguments, **keywords)

    call.__name__ = getattr(function, "__name__", "model")
    first = inspect.Parameter(_WEIGHTS, inspect.Parameter.POSITIONAL_ONLY)
    try:  # JAX takes the names of the arguments from here
        others = list(inspect.signature(function).parameters.values())[1:]
        call.__signature__ = inspect.Signature([first, *others])  # type: ignore[attr-defined]
    except (TypeError, ValueError):  # a function that states none, or a first parameter for any number of arguments
        pass
    return weights, call


def _is_key(leaf: Any) -> bool:
    """Whether a leaf is an array of keys for random numbers."""
    import jax

    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _exported(
    call: Callable[..., Any],
    weights: Mapping[str, Any],
    example: Any,
    shapes: Any,
    constraints: Sequence[str],
    platforms: Sequence[str],
) -> bytes:
    import jax
    from jax import export

    def described(array: Any, shape: Any = None) -> Any:
        if not hasattr(array, "shape") or not hasattr(array, "dtype"):
            return array  # a number of Python
        sharding = getattr(array, "sharding", None)
        is_over_mesh = isinstance(sharding, jax.sharding.NamedSharding) and sharding.num_devices > 1
        return jax.ShapeDtypeStruct(
            array.shape if shape is None else shape.shape,
            _computed(array.dtype),
            sharding=sharding if is_over_mesh else None,
        )

    arguments = example if isinstance(example, tuple) else (example,)
    specs = jax.tree.map(described, arguments)
    if shapes is not None:
        symbolic = export.symbolic_args_specs(specs, shapes, constraints=constraints)
        specs = jax.tree.map(described, specs, symbolic)
    taken = {name: described(array) for name, array in weights.items()}
    return bytes(export.export(jax.jit(call), platforms=tuple(platforms))(taken, *specs).serialize())


def _computed(dtype: Any) -> Any:
    """Return the type that JAX computes with: of 32 bits, unless it was told to have 64."""
    import jax

    return dtype if jax.dtypes.issubdtype(dtype, jax.dtypes.extended) else jax.dtypes.canonicalize_dtype(dtype)


def _on_host(array: Any) -> np.ndarray[Any, Any]:
    host = np.asarray(array)
    return host.astype(_computed(host.dtype), copy=False)


def _without_first(signature: CallSignature, count: int) -> CallSignature:
    """Return a signature without its first argument, which has some leaves."""
    assert signature.input_tree is not None
    positional, keywords = signature.input_tree.children
    others = replace(positional, children=positional.children[1:])
    parameters = [replace(each, index=each.index - count) for each in signature.parameters[count:]]
    return replace(
        signature,
        parameters=tuple(parameters),
        input_tree=replace(signature.input_tree, children=(others, keywords)),
    )


def save_file(file: ModelFile, path: str | os.PathLike[str]) -> None:
    """Write the content of any model file with a program as a model in one file.

    Raises:
        UnimplementedError: the file has an executable that was compiled before, and no program.
        InvalidArgumentError: the file cannot be written.
        PjrtError: the program is damaged, or is not one of arrays alone.
    """
    check_output_path(path)
    if file.program is None:
        raise UnimplementedError(
            f"{file.source or 'the model'}: expected a program, found a saved executable: give the file that it was "
            "compiled from"
        )
    program = file.program
    if stablehlo.artifact_version(program) is None:
        program = stablehlo.serialize(program, stablehlo.current_version())
    weights = file.weights
    given = {} if file.contents is None else file.contents.names_of_weights()
    names = {position: given.get(position) or f"argument_{position}" for position in weights}
    if len(set(names.values())) != len(names):
        names = {position: f"argument_{position}" for position in weights}
    _write(
        ModelPackage(program, signature_to_json(file.signature), tuple(file.platforms), weights, names, file.writer),
        path,
    )


def _write(package: ModelPackage, path: str | os.PathLike[str]) -> None:
    with writing(path):
        package.write(Path(path))
