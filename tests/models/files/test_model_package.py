"""Models in one file: written from JAX and from other files, called, moved to the devices once, and damaged."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch_program
from click.testing import CliRunner
from safetensors.numpy import load as load_safetensors

import pjrt
from pjrt import stablehlo
from pjrt.cli import main
from pjrt.models import ModelFile
from pjrt.models import model as model_module
from pjrt.models.saving import save_file
from pjrt.stablehlo.files import torch_export

F32 = np.float32
X = np.arange(6, dtype=F32).reshape(2, 3)
PARAMS = {"dense": [{"kernel": np.ones((3, 4), F32)}, {"bias": np.arange(4, dtype=F32)}]}


def forward(params: Any, x: Any, *, scale: Any = 1.0) -> Any:
    dense = params["dense"]
    return {"y": x @ dense[0]["kernel"] + dense[1]["bias"] * scale, "pair": (x, None)}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    pjrt.save_model(forward, PARAMS, X, tmp_path / "m.pjrt", shapes="b, ...")
    return tmp_path / "m.pjrt"


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(content: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", compression) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return written.getvalue()


def with_facts(path: Path, change: Callable[[dict[str, Any]], None]) -> bytes:
    content = members(path)
    facts = json.loads(content["pjrt_model.json"])
    change(facts)
    return archive_of({**content, "pjrt_model.json": json.dumps(facts).encode()})


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_function_is_called_as_before_without_its_weights(saved: Path, device: str) -> None:
    with pjrt.load_model(saved, device) as model:
        assert [str(each) for each in model.parameters] == ["argument 0 (x): f32[b,3]"]
        assert [each.name for each in model.results] == ["result['pair'][0]", "result['y']"]
        for x in (X, X[:1]):
            results = model(x=x)
            np.testing.assert_allclose(results["y"], forward(PARAMS, x)["y"], rtol=1e-6)
            assert results["pair"][1] is None


def test_a_file_holds_safetensors_that_their_library_reads(tmp_path: Path) -> None:
    saved = tmp_path / "m.pjrt"
    pjrt.save_model(forward, {**PARAMS, "unused": np.zeros(5, F32)}, X, saved)
    content = members(saved)
    assert list(content) == ["pjrt_model.json", "program.mlirbc", "weights.safetensors"]
    weights = load_safetensors(content["weights.safetensors"])
    assert weights.keys() == {"dense.0.kernel", "dense.1.bias"}  # not those that the function leaves alone
    np.testing.assert_array_equal(weights["dense.1.bias"], np.arange(4, dtype=F32))
    assert stablehlo.artifact_version(stablehlo.read(content["program.mlirbc"])) is not None
    assert stablehlo.read(saved).code == stablehlo.read(saved.read_bytes()).code == content["program.mlirbc"]


def test_the_same_model_is_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    save_file(ModelFile.read(saved), tmp_path / "again.pjrt")
    assert (tmp_path / "again.pjrt").read_bytes() == saved.read_bytes()
    assert ModelFile.of(saved.read_bytes()).signature == ModelFile.read(saved).signature


def test_weights_are_mapped_and_aligned(saved: Path) -> None:
    content = saved.read_bytes()
    for weight in ModelFile.read(saved).weights.values():
        assert weight.flags.aligned
        base: Any = weight
        while isinstance(base, np.ndarray) and base.base is not None and not isinstance(base.base, np.memmap):
            base = base.base
        assert isinstance(base if base.base is None else base.base, np.memmap)
    assert (content.index(np.arange(4, dtype=F32).tobytes())) % 4 == 0


def test_weights_go_to_the_devices_once(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[int] = []
    original = model_module.put_on_replicas

    def counted(executable: Any, index: int, value: Any) -> Any:
        put.append(value.shape)
        return original(executable, index, value)

    monkeypatch.setattr(model_module, "put_on_replicas", counted)
    with pjrt.load_model(saved, "cpu") as model:
        model.compile({"b": 2})
        assert sorted(put) == [(3, 4), (4,)]
        put.clear()
        for x in (X, X, X[:1]):
            model(x)
        assert put == [(2, 3), (2, 3), (1, 3)]


def test_every_element_type(tmp_path: Path) -> None:
    kinds = [np.bool_, np.int8, np.uint32, np.float16, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
    kinds += [ml_dtypes.float8_e4m3b11fnuz, ml_dtypes.int4]  # which safetensors lacks
    params = {np.dtype(kind).name: np.array([0, 1, 1, 0, 1]).astype(kind) for kind in kinds}
    pjrt.save_model(lambda p, x: {**p, "x": x}, params, X, tmp_path / "m.pjrt")
    with pjrt.load_model(tmp_path / "m.pjrt", "reference") as model:
        results = model(X)
        for name, array in params.items():
            assert results[name].dtype == array.dtype
            np.testing.assert_array_equal(np.asarray(results[name]).view(np.uint8), array.view(np.uint8))


def test_weights_have_the_type_that_jax_computes_with(tmp_path: Path) -> None:
    key = jax.random.key(3)
    params = {"w": np.array([1.5, 2.5]), "key": key, "none": None}

    def function(p: Any, x: Any) -> Any:
        return x * p["w"] + jax.random.uniform(p["key"], (2,))

    pjrt.save_model(function, params, X[0, :2].astype(np.float64), tmp_path / "m.pjrt")
    with pjrt.load_model(tmp_path / "m.pjrt", "cpu") as model:
        assert [str(each) for each in model.parameters] == ["argument 0 (x): f32[2]"]
        expected = X[0, :2] * params["w"] + np.asarray(jax.random.uniform(key, (2,)))
        np.testing.assert_allclose(model(X[0, :2]), expected, rtol=1e-6)
        assert [array.dtype for array in model.file.weights.values()] == [np.uint32, np.float32]


@jax.tree_util.register_pytree_with_keys_class
class Module:
    """A module as Equinox has them: a leaf of it is a function."""

    def __init__(self, w: Any, activation: Any, width: int) -> None:
        self.w, self.activation, self.width = w, activation, width

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        named = [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in ("w", "activation", "width")]
        return named, None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Module:
        return cls(*children)

    def __call__(self, x: Any) -> Any:
        return self.activation(x @ self.w) + self.width


def test_leaves_that_are_no_arrays_are_part_of_the_program(tmp_path: Path) -> None:
    module = Module(np.full((3, 2), -1, F32), jax.nn.relu, 7)
    pjrt.save_model(Module.__call__, module, X, tmp_path / "m.pjrt")
    with pjrt.load_model(tmp_path / "m.pjrt", "reference") as model:
        np.testing.assert_array_equal(model(X), np.full((2, 2), 7, F32))
        assert [each.name for each in model.parameters] == ["x"]
        assert list(model.file.contents.names_of_weights().values()) == ["w"]  # type: ignore[union-attr]


SHARDED = """
import sys
import jax, numpy as np, pjrt
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
jax.config.update("jax_num_cpu_devices", 4)
mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
w = jax.device_put(np.arange(32, dtype=np.float32).reshape(4, 8), NamedSharding(mesh, P(None, "model")))
x = jax.ShapeDtypeStruct((6, 4), np.float32, sharding=NamedSharding(mesh, P("data")))
pjrt.save_model(lambda p, x: x @ p["w"], {"w": w}, x, sys.argv[1], shapes="b, 4", constraints=["mod(b, 2) == 0"])
"""


@pytest.mark.full
def test_weights_keep_their_shardings(tmp_path: Path) -> None:
    path = tmp_path / "m.pjrt"
    subprocess.run([sys.executable, "-c", SHARDED, str(path)], check=True, timeout=120)
    with pjrt.load_model(path, "cpu") as model:
        executable = model.compile({"b": 6})
        assert model.parameters[0].sharding
        assert len(model.client.devices) == 4
        (weight,) = model._weights.of(executable).values()
        assert weight.sharding.shard_shape(weight.shape) == (4, 4)
        x = np.arange(24, dtype=F32).reshape(6, 4)
        np.testing.assert_allclose(model(x), x @ np.arange(32, dtype=F32).reshape(4, 8))


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_program_of_torch_export_needs_no_torch_afterwards(tmp_path: Path, device: str) -> None:
    contents = torch_export.contents(torch_program.stored())
    save_file(ModelFile.of(contents), tmp_path / "m.pjrt")
    file = ModelFile.read(tmp_path / "m.pjrt")
    assert file.signature == ModelFile.of(contents).signature
    assert file.contents is not None
    assert file.contents.names_of_weights() == contents.weight_names
    given = torch_program.arguments(3)
    with pjrt.load_model(file, device) as model:
        results = model(given, torch_program.FACTOR, None, shift=torch_program.SHIFT)
        np.testing.assert_allclose(results["y"], torch_program.expected(given["x"]), rtol=1e-5, atol=1e-5)


@pytest.mark.torch
def test_convert_writes_a_program_of_torch_export(tmp_path: Path) -> None:
    import torch

    linear = torch.nn.Linear(3, 2)
    torch.export.save(torch.export.export(linear, (torch.from_numpy(X),)), tmp_path / "m.pt2")
    done = CliRunner().invoke(main, ["convert", str(tmp_path / "m.pt2"), "-o", str(tmp_path / "m.pjrt")])
    assert done.exit_code == 0, done.output
    with pjrt.load_model(tmp_path / "m.pjrt", "cpu") as model:
        np.testing.assert_allclose(model(X), linear(torch.from_numpy(X)).detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_every_command_takes_it(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    for command in (
        "inspect m.pjrt",
        "check m.pjrt -d cpu --shape b=2",
        "run m.pjrt -d cpu -i x.npy -o r.npz",
        "run m.pjrt -d reference -i x=x.npy --expect r.npz",
        "compare m.pjrt -d cpu -d reference -i x.npy",
        "bench m.pjrt -d cpu -i x.npy -n 5",
        "convert m.pjrt -o copy.pjrt",
    ):
        done = CliRunner().invoke(main, command.split())
        assert done.exit_code == 0, (command, done.output)
    assert "2 weights" in done.output
    assert Path("copy.pjrt").read_bytes() == saved.read_bytes()
    np.testing.assert_allclose(np.load("r.npz")["result['y']"], forward(PARAMS, X)["y"])


def test_convert_refuses_what_has_no_program(tmp_path: Path) -> None:
    with pjrt.client("reference") as client:
        code = "func.func @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }"
        pjrt.save_executable(client.compile(code), tmp_path / "saved.bin", program=code)
    done = CliRunner().invoke(main, ["convert", str(tmp_path / "saved.bin"), "-o", str(tmp_path / "m.pjrt")])
    assert (done.exit_code, list(tmp_path.glob("m.pjrt"))) == (2, [])
    assert "expected a program, found a saved executable: give the file" in done.output


def test_errors_of_saving(tmp_path: Path) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="JAX cannot export the function with these arguments: KeyErr"):
        pjrt.save_model(lambda p, x: p["absent"], PARAMS, X, tmp_path / "m.pjrt")
    with pytest.raises(pjrt.NotFoundError, match="there is no folder"):
        pjrt.save_model(forward, PARAMS, X, tmp_path / "absent" / "m.pjrt")
    assert not list(tmp_path.iterdir())


def test_a_platform_gets_its_own_part(tmp_path: Path) -> None:
    def which(params: Any, x: Any) -> Any:
        return jax.lax.platform_dependent(x, cpu=lambda x: x + params, default=lambda x: x * 100)

    pjrt.save_model(which, jnp.float32(1), X, tmp_path / "m.pjrt", platforms=["tpu", "cpu"])
    assert ModelFile.read(tmp_path / "m.pjrt").platforms == ("tpu", "cpu")
    for device in ("cpu", "reference"):
        with pjrt.load_model(tmp_path / "m.pjrt", device) as model:
            np.testing.assert_array_equal(model(X), X + 1)


# Damaged and hostile files.


def refused(data: bytes, expected: str) -> None:
    with pytest.raises(pjrt.DataLossError, match=expected):
        _ = ModelFile.of(data).signature


def test_a_file_that_is_cut_off_or_changed_is_refused(saved: Path) -> None:
    data = saved.read_bytes()
    for end in range(64, len(data), 97):
        refused(data[:end], "the model is damaged or cut off: .*; save it again")
    weights = data.index(np.ones((3, 4), F32).tobytes())
    refused(data[:weights] + b"\1" + data[weights + 1 :], "'weights.safetensors' has another checksum")
    cut = saved.with_name("cut.pjrt")
    cut.write_bytes(data[:1000])
    with pytest.raises(pjrt.DataLossError, match=r"cut.pjrt: the model is damaged or cut off"):
        pjrt.load_model(cut, "cpu")


def test_the_sizes_of_a_hostile_archive_are_checked_before_it_is_read(saved: Path) -> None:
    content = members(saved)
    refused(archive_of(content, zipfile.ZIP_DEFLATED), "'pjrt_model.json' is compressed or encrypted")
    refused(archive_of({**content, "code.pkl": b"c"}), "'code.pkl'")
    refused(archive_of({"pjrt_model.json": b"{}"}), "it has 'pjrt_model.json'")
    data = bytearray(saved.read_bytes())
    entry = data.rindex(b"PK\1\2")  # of the weights, in the archive's list
    for size in (20, 24):
        data[entry + size : entry + size + 4] = (1 << 31).to_bytes(4, "little")
    refused(bytes(data), "lies outside of the file")


def test_facts_that_make_no_sense_are_refused(saved: Path) -> None:
    def change(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
        return lambda facts: facts.update({name: value})

    described = json.loads(members(saved)["pjrt_model.json"])["weights"]
    assert described == [[0, "dense.0.kernel", "F32", [3, 4]], [1, "dense.1.bias", "F32", [4]]]
    refused(with_facts(saved, change("weights", described[:1])), "1 weights are described, and 2 are there")
    refused(with_facts(saved, change("weights", [[0, "absent", "F32", [3]]])), "KeyError: 'absent'")
    swapped = [[1, *described[0][1:]], [0, *described[1][1:]]]
    refused(with_facts(saved, change("weights", swapped)), "its arguments and weights are not those of its program")
    larger = [[0, "dense.0.kernel", "F32", [3, 1 << 61]], described[1]]
    refused(with_facts(saved, change("weights", larger)), "damaged or cut off")
    refused(with_facts(saved, change("signature", {})), "expected the signature of a program")
    refused(with_facts(saved, lambda facts: facts["signature"]["results"].reverse()), "its results are not those")
    refused(with_facts(saved, change("platforms", 3)), "TypeError")
    with pytest.raises(pjrt.FailedPreconditionError, match="found 2: update pjrt"):
        ModelFile.of(with_facts(saved, change("format_version", 2)))
