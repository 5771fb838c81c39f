"""Programs of ``torch.export``: recognizing their files, and what is read of a converted one."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch_program
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import pjrt
from pjrt import ElementType, stablehlo
from pjrt.stablehlo.files import torch_export
from pjrt.stablehlo.files.torch_export import Converted, Facts


def archive(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, b"{}")
    return buffer.getvalue()


PROGRAM = archive("net/archive_format", "net/models/model.json", "net/data/weights/weight_0")


# Names, as a content in the name of a test would hold the time at which its archive was written.
@pytest.mark.parametrize(
    ("content", "is_one"),
    [
        pytest.param(PROGRAM, True, id="program"),
        pytest.param(
            archive("version", "serialized_exported_program.json", "serialized_state_dict.pt"), True, id="older program"
        ),
        pytest.param(archive("net/archive_format", "net/data/aotinductor/model/model.so"), False, id="compiled"),
        pytest.param(archive("weights.npy"), False, id="weights"),
        pytest.param(PROGRAM[:100], False, id="cut program"),
        pytest.param(b"module {}", False, id="StableHLO"),
        pytest.param(b"", False, id="empty"),
    ],
)
def test_files_are_recognized(tmp_path: Path, content: bytes, is_one: bool) -> None:
    assert stablehlo.is_torch_export(content) is is_one
    (tmp_path / "file").write_bytes(content)
    assert stablehlo.is_torch_export(tmp_path / "file") is is_one
    assert stablehlo.is_torch_export(str(tmp_path / "file")) is is_one


def test_what_is_no_file_is_not_recognized(tmp_path: Path) -> None:
    for source in (tmp_path, tmp_path / "missing", None, 3, "a\0b", pjrt.Program(b"module {}")):
        assert not stablehlo.is_torch_export(source)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.npz").write_bytes(archive("weights.npy"))
    with pytest.raises(pjrt.InvalidArgumentError, match=r"^INVALID_ARGUMENT: /\S*npz: expected a file of torch"):
        stablehlo.read_torch_export(tmp_path / "weights.npz")
    with pytest.raises(pjrt.NotFoundError, match="found no file"):
        stablehlo.read_torch_export(tmp_path / "missing")
    with pytest.raises(
        pjrt.InvalidArgumentError,
        match=r"^INVALID_ARGUMENT: /\S*npz: .* a zip archive .* not of torch",
    ):
        stablehlo.read_file(tmp_path / "weights.npz")


@pytest.mark.parametrize("package", ["torch", "jax", "torchax"])
def test_a_missing_package_is_named(tmp_path: Path, package: str) -> None:
    """The file is refused before it is read, also by the subprocess that would convert it."""
    (tmp_path / "model.pt2").write_bytes(PROGRAM)
    have = [f"sys.modules.setdefault({name!r}, types.ModuleType({name!r}))" for name in ("torch", "jax", "torchax")]
    specs = [f"sys.modules[{name!r}].__spec__ = True" for name in ("torch", "jax", "torchax")]
    code = "\n".join(["import sys, types", *have, *specs, f"sys.modules[{package!r}] = None"])
    (tmp_path / "sitecustomize.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-m", "pjrt", "run", str(tmp_path / "model.pt2"), "--device", "reference"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "500"},
        check=False,
    )
    assert done.returncode == 2, done.stderr
    title = {"torch": "PyTorch", "jax": "JAX", "torchax": "torchax"}[package]
    assert f"model.pt2: {title} is needed to convert a program of torch.export" in done.stderr
    assert "pip install torch torchax jax" in done.stderr


DTYPES = [each.dtype for each in ElementType if each not in (ElementType.INVALID, ElementType.TOKEN)]


@given(st.sampled_from(DTYPES).flatmap(lambda dtype: st.tuples(st.just(dtype), arrays.array_shapes(min_dims=0))))
def test_weights_of_any_type_are_kept(tmp_path_factory: pytest.TempPathFactory, weight: tuple) -> None:
    folder = tmp_path_factory.mktemp("converted")
    dtype, shape = weight
    array = np.ones(shape).astype(dtype)
    facts = Facts([("w", ElementType.of(dtype).name, shape)], [""], [True], "in", "out", ["x"])
    Converted(b"program", facts, [array]).write(folder)
    again = Converted.read(folder)
    assert (again.program, again.weights[0].dtype, again.weights[0].shape) == (b"program", dtype, shape)
    assert again.weights[0].tobytes() == array.tobytes()
    assert again.facts.inputs == [""]


def test_the_contents() -> None:
    export = torch_export.contents(torch_program.stored())
    assert export.kind == "torch.export program"
    assert str(export.input_tree) == "(({'x': *, 'ids': *}, *, None), {'shift': *})"
    assert str(export.output_tree) == "{'y': *, 'rest': [*, None, *]}"
    assert export.names == ("batch", "factor", "mask", "shift")
    assert [each.python_type for each in export.inputs] == ["", "", "float", ""]
    assert [each.element_type for each in export.inputs] == [ElementType.F32, ElementType.S64, None, ElementType.F32]
    (size,) = {each.shape[0] for each in export.inputs[:2]}
    assert isinstance(size, str)
    assert [each.shape for each in export.inputs] == [(size, 4), (size,), (), (3,)]
    assert [str(each) for each in export.results] == [f"f32[{size},3]", f"i64[{size}]", "i64[]"]
    assert export.weight_names == {0: "linear.weight", 1: "linear.bias", 2: "scale"}
    assert export.weights[2].dtype == ElementType.BF16.dtype
    np.testing.assert_array_equal(export.weights[0], torch_program.WEIGHT)


def test_operations_are_named_after_modules() -> None:
    text = stablehlo.to_text(torch_export.contents(torch_program.stored()).program, locations=True)
    assert "jit(forward)/linear/" in text
    assert ".py" not in text, "a line in the sources of torchax"
