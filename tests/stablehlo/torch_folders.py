"""Folders as PyTorch/XLA writes them, written here without it: PyTorch/XLA takes 7 GB.

The layout is that of ``torch_xla/stablehlo.py`` and of ``torch.utils._pytree.treespec_dumps``: JSON with the fields of
their data classes, and arrays by ``numpy.save`` in files without an ending.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pjrt import Program
from pjrt.stablehlo import serialize

MLP = """
module @IrToHlo.12 attributes {mhlo.cross_program_prefetches = []} {
  func.func @main(%weight: tensor<3x4xf32>, %x: tensor<?x4xf32>, %scale: tensor<f32>, %bias: tensor<3xf32>)
      -> (tensor<?x3xf32>, tensor<?x4xf32>) {
    %0 = stablehlo.transpose %weight, dims = [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
    %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0]
      : (tensor<?x4xf32>, tensor<4x3xf32>) -> tensor<?x3xf32>
    %size = stablehlo.get_dimension_size %1, dim = 0 : (tensor<?x3xf32>) -> tensor<i32>
    %rows = stablehlo.reshape %size : (tensor<i32>) -> tensor<1xi32>
    %three = stablehlo.constant dense<3> : tensor<1xi32>
    %shape = stablehlo.concatenate %rows, %three, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %2 = stablehlo.dynamic_broadcast_in_dim %bias, %shape, dims = [1]
      : (tensor<3xf32>, tensor<2xi32>) -> tensor<?x3xf32>
    %3 = stablehlo.add %1, %2 : tensor<?x3xf32>
    %4 = stablehlo.dynamic_broadcast_in_dim %scale, %shape, dims = [] : (tensor<f32>, tensor<2xi32>) -> tensor<?x3xf32>
    %5 = stablehlo.multiply %3, %4 : tensor<?x3xf32>
    return %5, %x : tensor<?x3xf32>, tensor<?x4xf32>
  }
}
"""

WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)
BIAS = np.array([1, -1, 0.5], np.float32)


def write_mlp(folder: Path, **options: Any) -> None:
    """Write a linear layer whose batch is dynamic: its arguments are ``(x, None, 7, flag=…)``, and it scales by 2."""
    write_torch_folder(
        folder,
        MLP,
        [
            ("parameter", "linear.weight", WEIGHT, ()),
            ("input_arg", 0, np.zeros((2, 4), np.float32), (0,)),
            ("constant", 0, np.array(2.0, np.float32), ()),
            ("parameter", "linear.bias", BIAS, ()),
        ],
        [np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32)],
        unused=[(1, None), (2, 7), (3, np.zeros(5, np.bool_))],
        inputs=((0, None, 7), {"flag": 0}),
        outputs={"y": 0, "x": [0]},
        **options,
    )


def write_torch_folder(
    folder: Path,
    text: str,
    arguments: Sequence[tuple[str, str | int, Any, Sequence[int]]],
    results: Sequence[Any],
    *,
    unused: Sequence[tuple[int, Any]] = (),
    inputs: Any = None,
    outputs: Any = None,
    name: str = "forward",
    save_weights: bool = True,
    with_text: bool = True,
) -> None:
    """Write a folder.

    Args:
        folder: where to write it.
        text: the program.
        arguments: for each argument of the program its kind, its key or position, an array, and the dynamic dimensions.
        results: an array for each result.
        unused: the position and value of each input that the program does not take.
        inputs: a value with the structure of the inputs; None to state none.
        outputs: a value with the structure of the results; None to state none.
        name: the name of the function.
        save_weights: whether to save parameters.
        with_text: whether to write the program as text, too.
    """
    for inner in ("functions", "constants", *(["data"] if save_weights else [])):
        (folder / inner).mkdir(parents=True, exist_ok=True)
    locations, signatures = [], []
    for kind, where, array, dynamic in arguments:
        key, position = (where, -1) if isinstance(where, str) else ("", where)
        locations.append({"type_": kind, "position": position, "name": key})
        signatures.append(signature(array, dynamic))
        file = {"parameter": folder / "data" / key, "constant": folder / "constants" / str(position)}.get(kind)
        if file is not None and (save_weights or kind != "parameter"):
            with file.open("wb") as opened:
                np.save(opened, array)
    meta = {
        "name": name,
        "stablehlo_version": "0.0.0",
        "input_signature": signatures,
        "output_signature": [signature(array) for array in results],
        "input_locations": locations,
        "unused_inputs": [
            [{"type_": "input_arg", "position": position, "name": ""}, signature(value)] for position, value in unused
        ],
        "input_pytree_spec": None if inputs is None else treespec(inputs),
        "output_pytree_spec": None if outputs is None else treespec(outputs),
    }
    (folder / "functions" / f"{name}.meta").write_text(json.dumps(meta))
    code = serialize(Program(text.encode()), "1.0.0").code
    (folder / "functions" / f"{name}.bytecode").write_bytes(code)
    if with_text:
        (folder / "functions" / f"{name}.mlir").write_text(text)


def signature(value: Any, dynamic: Sequence[int] = ()) -> dict[str, Any]:
    if not hasattr(value, "dtype"):
        return {"shape": [], "dtype": str(type(value)), "dynamic_dims": []}
    return {"shape": list(value.shape), "dtype": str(value.dtype), "dynamic_dims": list(dynamic)}


def treespec(value: Any) -> str:
    """Return the JSON of PyTorch for the structure of a value; None is a leaf."""
    return json.dumps((1, _node(value)))


def _node(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        kind = "collections.OrderedDict" if isinstance(value, OrderedDict) else "builtins.dict"
        return _schema(kind, json.dumps(list(value)), value.values())
    if hasattr(value, "_fields"):
        fields = {"class_name": type(value).__name__, "fields": value._fields}
        return _schema("collections.namedtuple", json.dumps(fields), value)
    if isinstance(value, list | tuple):
        return _schema(f"builtins.{type(value).__name__}", "null", value)
    return _schema(None, None, ())


def _schema(kind: str | None, context: str | None, children: Any) -> dict[str, Any]:
    return {"type": kind, "context": context, "children_spec": [_node(child) for child in children]}
