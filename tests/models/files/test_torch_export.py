"""Models of ``torch.export``: the conversion, which needs PyTorch, and calls of a stored one, which do not."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch_program
from torch_program import FACTOR, MOST, SHIFT, arguments, expected

import pjrt
from pjrt import stablehlo
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
