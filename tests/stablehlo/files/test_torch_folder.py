"""Folders of PyTorch/XLA: the program, its weights, and the structure of arguments and results."""

from __future__ import annotations

import collections
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch_folders
from hypothesis import given
from hypothesis import strategies as st

from pjrt import DataLossError, ElementType, InvalidArgumentError, NotFoundError, PjrtError, stablehlo
from pjrt.stablehlo import Tree, TreeKind, read_torch_folder
from pjrt.stablehlo.files.torch_folder import parse_torch_tree

Point = collections.namedtuple("Point", "x y")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A linear layer with a dynamic batch."""
    torch_folders.write_mlp(tmp_path / "model")
    return tmp_path / "model"


def test_everything_in_a_folder(folder: Path) -> None:
    model = read_torch_folder(folder)
    assert (model.function, model.functions, model.path) == ("forward", ("forward",), folder)
    assert [str(argument.source) for argument in model.arguments] == ["parameter", "input_arg", "constant", "parameter"]
    assert [argument.name for argument in model.arguments] == ["linear.weight", "", "", "linear.bias"]
    assert [argument.shape for argument in model.arguments] == [(3, 4), (None, 4), (), (3,)]
    assert str(model.input_tree) == "((*, None, *), {'flag': *})"
    assert [(each.python_type, each.argument) for each in model.inputs] == [("", 1), ("int", None), ("", None)]
    assert model.inputs[2].element_type is ElementType.PRED
    assert str(model.output_tree) == "{'y': *, 'x': [*]}"
    assert [result.shape for result in model.results] == [(2, 3), (2, 4)]
    assert model.missing_weights == {}


def test_weights_are_mapped_from_their_files(folder: Path) -> None:
    weights = read_torch_folder(folder).weights
    assert sorted(weights) == [0, 2, 3]
    assert all(isinstance(array, np.memmap) for array in weights.values())
    np.testing.assert_array_equal(weights[0], torch_folders.WEIGHT)
    np.testing.assert_array_equal(weights[2], np.float32(2))
    np.testing.assert_array_equal(weights[3], torch_folders.BIAS)


def test_the_program_is_read_as_from_a_file(folder: Path) -> None:
    program = stablehlo.read_file(folder)
    assert program == read_torch_folder(folder).program == stablehlo.read(folder)
    assert stablehlo.encoding_of(program) is stablehlo.Encoding.PORTABLE_ARTIFACT
    signature = stablehlo.signature(program)
    assert [argument.shape for argument in signature.arguments] == [
        argument.shape for argument in read_torch_folder(folder).arguments
    ]


def test_text_alone_is_enough(folder: Path) -> None:
    (folder / "functions" / "forward.bytecode").unlink()
    assert stablehlo.encoding_of(stablehlo.read_file(folder)) is stablehlo.Encoding.TEXT
    (folder / "functions" / "forward.mlir").unlink()
    with pytest.raises(NotFoundError, match=r"expected the program forward\.bytecode or forward\.mlir"):
        stablehlo.read_file(folder)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    torch_folders.write_mlp(tmp_path, save_weights=False)
    model = read_torch_folder(tmp_path)
    assert sorted(model.weights) == [2]
    assert model.missing_weights == {0: "linear.weight", 3: "linear.bias"}


def test_a_function_among_several(folder: Path) -> None:
    torch_folders.write_mlp(folder, name="train")
    assert read_torch_folder(folder).function == "forward"
    assert read_torch_folder(folder, "train").functions == ("forward", "train")
    with pytest.raises(NotFoundError, match="expected one of the functions forward, train, found 'test'"):
        read_torch_folder(folder, "test")


def test_older_versions_state_less(folder: Path) -> None:
    with rewritten(folder) as meta:
        for key in ("unused_inputs", "input_pytree_spec", "output_pytree_spec"):
            del meta[key]
        for signature in meta["input_signature"]:
            del signature["dynamic_dims"]
    model = read_torch_folder(folder)
    assert str(model.input_tree) == "((*,), {})"
    assert model.output_tree is None
    assert model.inputs[0].shape == (2, 4)


def test_a_structure_of_positional_arguments_only(folder: Path) -> None:
    with rewritten(folder) as meta:
        meta["input_pytree_spec"] = torch_folders.treespec(([0, None], 7, 0))
    assert str(read_torch_folder(folder).input_tree) == "(([*, None], *, *), {})"


def test_empty_and_narrow_arrays(tmp_path: Path) -> None:
    text = "module { func.func @main(%a: tensor<0x3xi8>) -> tensor<0x3xi8> { return %a : tensor<0x3xi8> } }"
    empty = np.zeros((0, 3), np.int8)
    torch_folders.write_torch_folder(tmp_path, text, [("parameter", "a", empty, ())], [empty])
    assert read_torch_folder(tmp_path).weights[0].shape == (0, 3)


class rewritten:  # noqa: N801
    """The facts of a function, to be changed inside a with statement."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "functions" / "forward.meta"

    def __enter__(self) -> Any:
        self.meta = json.loads(self.file.read_text())
        return self.meta

    def __exit__(self, *_: object) -> None:
        self.file.write_text(json.dumps(self.meta))


def replace(*path: str | int, by: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with rewritten(folder) as meta:
            owner = meta
            for step in path[:-1]:
                owner = owner[step]
            owner[path[-1]] = by

    return change


def write(name: str, content: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return change


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def save(name: str, array: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            np.save(file, array)

    return change


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (
            lambda f: (f / "data" / "linear.bias").unlink(),
            NotFoundError,
            "takes the parameter 'linear.bias', which is not",
        ),
        (remove("constants/0"), NotFoundError, "takes the constant 0, which is not in"),
        (save("data/linear.bias", np.zeros(4, np.float32)), InvalidArgumentError, r"as f32\[3\], found f32\[4\]"),
        (save("data/linear.bias", np.zeros(3, np.float64)), InvalidArgumentError, r"as f32\[3\], found f64\[3\]"),
        (save("data/linear.bias", np.array(["text"])), InvalidArgumentError, "linear.bias: the dtype <U4"),
        (
            write("data/linear.bias", pickle.dumps([1])),
            DataLossError,
            "linear.bias: expected an array in NumPy",
        ),
        (write("data/linear.bias", b""), DataLossError, "expected an array in NumPy's format"),
        (write("data/linear.bias", b"\x93NUMPY\x01\x00v\x00{'descr'"), DataLossError, "an array in NumPy's format"),
        (
            write("functions/forward.meta", b"{"),
            DataLossError,
            "forward.meta: expected the facts of a func",
        ),
        (write("functions/forward.meta", b"[" * 100000), DataLossError, "the facts of a function as JSON"),
        (write("functions/forward.meta", b"[]"), DataLossError, "as PyTorch/XLA writes them"),
        (write("functions/forward.meta", b"{}"), DataLossError, "no 'input_locations'"),
        (write("functions/forward.bytecode", b"ML\xefR"), DataLossError, "forward.bytecode: truncated MLIR bytecode"),
        (replace("input_locations", by=[]), DataLossError, "0 input_locations and 4 types"),
        (replace("input_locations", 0, "type_", by="buffer"), DataLossError, "'buffer' is not a valid TorchSource"),
        (
            replace("input_locations", 0, "name", by="../functions/forward.meta"),
            DataLossError,
            "expected the name of a file",
        ),
        (replace("input_locations", 0, "name", by="/etc/passwd"), DataLossError, "expected the name of a file"),
        (replace("input_locations", 0, "name", by=""), DataLossError, "expected the name of a file"),
        (replace("input_locations", 1, "position", by=-2), DataLossError, "the position -2"),
        (replace("input_locations", 1, "position", by=9), DataLossError, "all inputs from 0 to 9"),
        (replace("input_signature", 1, "dtype", by="qint8"), InvalidArgumentError, "found 'qint8'"),
        (replace("input_signature", 1, "shape", by=[-1]), DataLossError, r"the shape \[-1\]"),
        (replace("input_pytree_spec", by=torch_folders.treespec([0])), DataLossError, "each of the 1 leaves, found 4"),
        (replace("output_pytree_spec", by=torch_folders.treespec(0)), DataLossError, "each of the 1 leaves, found 2"),
        (replace("output_pytree_spec", by="[2, {}]"), InvalidArgumentError, "of protocol 1, found 2"),
        (replace("output_pytree_spec", by=7), DataLossError, "a structure that is no text"),
        (replace("output_pytree_spec", by="nonsense"), DataLossError, "a structure as PyTorch writes it"),
    ],
)
def test_what_is_damaged(folder: Path, damage: Callable[[Path], None], kind: type[PjrtError], message: str) -> None:
    damage(folder)
    with pytest.raises(kind, match=message):
        read_torch_folder(folder)


def test_what_is_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"functions/NAME\.meta, found none"):
        read_torch_folder(tmp_path)
    with pytest.raises(NotFoundError, match="found nothing at"):
        read_torch_folder(tmp_path / "missing")
    assert not stablehlo.is_torch_folder(tmp_path)
    assert not stablehlo.is_torch_folder(tmp_path / "missing\0")
    torch_folders.write_mlp(tmp_path)
    assert stablehlo.is_torch_folder(tmp_path)


VALUES = st.recursive(
    st.just(0.0),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3).map(collections.OrderedDict)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=10,
)


@given(VALUES)
def test_structures(value: Any) -> None:
    assert parse_torch_tree(torch_folders.treespec(value)) == Tree.of(value)


def test_other_structures() -> None:
    leaf = {"type": None, "context": None, "children_spec": []}
    counted = {"type": "collections.defaultdict", "children_spec": [leaf]}
    counted["context"] = json.dumps(
        {"default_factory_module": "builtins", "default_factory_name": "int", "dict_context": ["a"]}
    )
    assert str(parse_torch_tree(json.dumps([1, counted]))) == "{'a': *}"
    own = {"type": "transformers.Cache", "context": "[1]", "children_spec": [leaf, leaf]}
    tree = parse_torch_tree(json.dumps([1, own]))
    assert (tree.kind, tree.name, tree.data, str(tree)) == (
        TreeKind.CUSTOM,
        own["type"],
        b"[1]",
        "transformers.Cache(*, *)",
    )
    deep = leaf
    for _ in range(300):
        deep = {"type": "builtins.list", "context": "null", "children_spec": [deep]}
    with pytest.raises(DataLossError, match="nested more than 200 deep"):
        parse_torch_tree(json.dumps([1, deep]))
