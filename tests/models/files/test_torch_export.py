"""Models of ``torch.export``: the conversion, which needs PyTorch, and calls of a stored one, which do not."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch_program
from torch_program import FACTOR, MOST, SHIFT, arguments, expected

import pjrt
from pjrt import stablehlo
from pjrt.artifacts.file_format import signature_from_json, signature_to_json
from pjrt.models import ModelFile
from pjrt.stablehlo.files import torch_export

DEVICES = ["cpu", "reference", pytest.param("iree", marks=pytest.mark.full)]


@pytest.fixture(scope="module")
def contents() -> stablehlo.TorchExport:
    return torch_export.contents(torch_program.stored())


def check(model: pjrt.Model, batch: int) -> None:
    given = arguments(batch)
    results = model(given, FACTOR, None, shift=SHIFT)
    np.testing.assert_allclose(results["y"], expected(given["x"]), rtol=1e-5, atol=1e-5)
    doubled, nothing, seven = results["rest"]
    np.testing.assert_array_equal(doubled, 2 * given["ids"])
    assert nothing is None
    assert np.asarray(seven) == 7


@pytest.mark.parametrize("device", DEVICES)
def test_a_program_is_called(contents: stablehlo.TorchExport, device: str) -> None:
    with pjrt.load_model(contents, device) as model:
        for batch in (1, 5):
            check(model, batch)
        size = contents.inputs[0].shape[0]
        assert [str(each) for each in model.parameters] == [
            f"argument 0 (batch['x']): f32[{size},4]",
            f"argument 1 (batch['ids']): s64[{size}]",
            "argument 2 (factor): pred[]",
            "argument 3 (shift): f32[3]",
        ]
        assert [each.name for each in model.results] == ["result['y']", "result['rest'][0]", "result['rest'][2]"]


def test_arguments_have_names(contents: stablehlo.TorchExport) -> None:
    with pjrt.load_model(contents, "reference") as model:
        given = arguments(2)
        results = model(batch=given, factor=FACTOR, shift=SHIFT)  # None need not be given
        np.testing.assert_allclose(results["y"], expected(given["x"]), rtol=1e-5)
        with pytest.raises(pjrt.InvalidArgumentError, match="expected the arguments batch, factor"):
            model(given, FACTOR, shfit=SHIFT)


def test_wrong_sizes_are_refused(contents: stablehlo.TorchExport) -> None:
    with pjrt.load_model(contents, "reference") as model:
        given = arguments(3)
        with pytest.raises(pjrt.InvalidArgumentError, match="the shapes contradict each other"):
            model({**given, "ids": given["ids"][:2]}, FACTOR, shift=SHIFT)
        with pytest.raises(pjrt.InvalidArgumentError, match=f"<= {MOST}"):
            model(arguments(MOST + 1), FACTOR, shift=SHIFT)


def test_an_executable_keeps_everything(contents: stablehlo.TorchExport, tmp_path: Path) -> None:
    file = ModelFile.of(contents)
    program = file.program_for("reference", {"batch['x']": (3, 4)})
    with pjrt.client("reference") as client:
        signature = file.compiled_signature(program)
        pjrt.save_executable(client.compile(program), tmp_path / "m.bin", program=signature, weights=file.weights)
        with pjrt.load_model(tmp_path / "m.bin", client) as model:
            check(model, 3)


def counting() -> stablehlo.TorchExport:
    """Return a program that counts in a weight, and adds the count to its second argument in place."""
    jax = pytest.importorskip("jax")
    types = [jax.ShapeDtypeStruct((2,), np.float32)] * 3
    function = jax.jit(lambda count, x, y: (2 * x, count + x, y + count + x))
    facts = torch_export.Facts(
        weights=[("count", "F32", (2,))],
        inputs=["", ""],
        results=[True],
        input_tree=tree_of(2),
        output_tree='[1, {"type": null, "context": null, "children_spec": []}]',
        names=["x", "y"],
        updates=[0, 2],
    )
    program = bytes(jax.export.export(function, platforms=["cpu"])(*types).serialize())
    return torch_export.contents(torch_export.Converted(program, facts, [np.zeros(2, np.float32)]))


def tree_of(count: int) -> str:
    leaf = {"type": None, "context": None, "children_spec": []}
    arguments = {"type": "builtins.tuple", "context": "null", "children_spec": [leaf] * count}
    keywords = {"type": "builtins.dict", "context": "[]", "children_spec": []}
    return json.dumps([1, {"type": "builtins.tuple", "context": "null", "children_spec": [arguments, keywords]}])


@pytest.mark.parametrize("device", DEVICES)
def test_weights_and_arguments_change(device: str, tmp_path: Path) -> None:
    file = ModelFile.of(counting())
    with pjrt.client(device) as client:
        executable = client.compile(file.program_for(device))
        signature = file.compiled_signature(file.program_for(device))
        pjrt.save_executable(executable, tmp_path / "m.bin", program=signature, weights=file.weights)
        for source in (file, ModelFile.read(str(tmp_path / "m.bin"))):
            model = pjrt.load_model(source, client)
            x, y = np.array([1, 2], np.float32), np.zeros(2, np.float32)
            for count in (1, 2, 3):
                np.testing.assert_array_equal(model(x, y), 2 * x)
                np.testing.assert_array_equal(model.state["count"], count * x)
            np.testing.assert_array_equal(y, 6 * x)
            assert [each.name for each in model.results] == ["result", "count", "y"]
            model.set_state({"count": [0.5, 0.5]})
            _, new, _ = model.execute([x, y])
            np.testing.assert_array_equal(new, x + 0.5)
            np.testing.assert_array_equal(y, 6 * x)  # execute only returns the new values


def test_a_damaged_signature_is_refused() -> None:
    written = signature_to_json(ModelFile.of(counting()).signature)
    assert signature_from_json(written).updates == {1: 0, 2: 2}
    for damaged in ([0] * 4, [0], [-1, 2], "0"):
        with pytest.raises(pjrt.InvalidArgumentError, match=r"expected (the signature of a program|\d leaves)"):
            signature_from_json({**written, "updates": damaged})


def test_what_cannot_change_is_refused() -> None:
    with pjrt.load_model(counting(), "reference") as model:
        x, y = np.ones(2, np.float32), np.ones(2, np.float32)
        locked = y.copy()
        locked.flags.writeable = False
        for given in (locked, [1.0, 2.0], model.put(y, "y")):
            with pytest.raises(pjrt.InvalidArgumentError, match=r"argument 1 \(y\).*, which the model changes in"):
                model(x, given)
        assert not model.state["count"].any()
        with pytest.raises(pjrt.InvalidArgumentError, match=r"the program changes \(count\), found 'size'"):
            model.set_state({"size": x})
        with pytest.raises(pjrt.InvalidArgumentError, match=r"expected argument 0 \(count\): f32\[2\]"):
            model.set_state({"count": np.ones(3, np.float32)})
        with pytest.raises(pjrt.UnimplementedError, match="changes weights or arguments"):
            pjrt.offload(counting(), model.client)


def test_threads_lose_no_change() -> None:
    with pjrt.load_model(counting(), "reference") as model, ThreadPoolExecutor(4) as threads:
        x = np.ones(2, np.float32)
        for call in [threads.submit(model, x, np.zeros(2, np.float32)) for _ in range(40)]:
            call.result()
        assert model.state["count"].tolist() == [40, 40]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    path = tmp_path_factory.mktemp("programs") / "model.pt2"
    torch.export.save(torch_program.exported_program(), path)
    return path


@pytest.mark.torch
def test_a_file_is_converted_as_it_is_stored(file: Path, contents: stablehlo.TorchExport) -> None:
    before = set(sys.modules)
    converted = stablehlo.read_torch_export(file)
    assert not {"jax", "torchax"} & (sys.modules.keys() - before), "the subprocess has them"
    assert converted.weight_names == contents.weight_names
    assert (converted.input_tree, converted.output_tree) == (contents.input_tree, contents.output_tree)
    with pjrt.load_model(converted, "reference") as model:
        check(model, 4)
        with pytest.raises(pjrt.InvalidArgumentError, match=f"<= {MOST}"):
            model(arguments(MOST + 1), FACTOR, shift=SHIFT)


@pytest.mark.torch
def test_a_damaged_file_is_refused(file: Path) -> None:
    content = file.read_bytes()
    assert content.count(b'"torch.ops.aten.linear.default"') == 1
    damaged = content.replace(b'"torch.ops.aten.linear.default"', b'"torch.ops.aten.linear.default!')
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected a program of torch.export, which PyTorch .* cannot"):
        stablehlo.read_torch_export(damaged)


class Malicious:
    """An object whose unpickling makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.mkdir, (self.path,)


@pytest.mark.torch
def test_only_tensors_are_unpickled(file: Path, tmp_path: Path) -> None:
    import torch

    pickled = io.BytesIO()
    torch.save((Malicious(tmp_path / "made"),), pickled)
    damaged = io.BytesIO()
    with zipfile.ZipFile(file) as model, zipfile.ZipFile(damaged, "w") as other:
        names = [name for name in model.namelist() if name.endswith("sample_inputs/model.pt")]
        assert len(names) == 1
        for name in model.namelist():
            other.writestr(name, pickled.getvalue() if name in names else model.read(name))
    with pytest.raises(pjrt.InvalidArgumentError, match="found others, which are not loaded"):
        stablehlo.read_torch_export(damaged.getvalue())
    assert not (tmp_path / "made").exists()


@pytest.mark.torch
def test_models_agree_with_pytorch() -> None:
    """One process converts them all: PyTorch and JAX take seconds to start."""
    script = Path(__file__).parents[1] / "torch_models.py"
    done = subprocess.run(
        [sys.executable, str(script), "cpu"], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
