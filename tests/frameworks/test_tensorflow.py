"""The file that tells TensorFlow's adapter of a device, and errors. TensorFlow itself runs in ``tensorflow_job.py``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from in_process import pjrt as command

import pjrt
from pjrt.frameworks import tensorflow
from pjrt.frameworks.tensorflow import _compiler, _Place

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the adapter is for Linux alone")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    file = tmp_path / "adapter.so"
    file.write_bytes(b"compiled")
    return file


def stated(library: Path) -> dict[str, str]:
    """Return what the file beside a library says."""
    lines = library.with_name(f"{library.name}.conf").read_text().splitlines()
    return dict(line.split("\t") for line in lines)


def test_the_adapter_learns_of_the_device_and_its_options(tmp_path: Path, adapter: Path) -> None:
    options = {"num_devices": 2, "optimize": False, "rate": 0.5, "places": (1, 2), "text": "a b"}
    place = _Place("reference", "", options, None)
    assert place.name == "REFERENCE"
    library = place.write(tmp_path, adapter)
    assert library.read_bytes() == b"compiled"
    found = stated(library)
    assert pjrt.load_plugin(found.pop("plugin")).client().platform_name == "reference"
    assert found == {
        "device": "REFERENCE",
        "platform": "XLA_CPU_JIT",
        "problems": "kept",
        "option i num_devices": "2",
        "option b optimize": "0",
        "option f rate": "0.5",
        "option l places": "1,2",
        "option s text": "a b",
    }


def test_a_folder_has_the_plugin_too(tmp_path: Path, adapter: Path) -> None:
    library = _Place("reference:num_devices=3", "CHIP", {}, None).write(tmp_path / ".", adapter, copy=True)
    found = stated(library)
    assert not Path(found["plugin"]).is_absolute()
    assert (library.parent / found["plugin"]).read_bytes().startswith(b"\x7fELF")
    assert (found["device"], found["option i num_devices"]) == ("CHIP", "3")


def test_a_folder_for_a_wheel_says_no_python(tmp_path: Path, adapter: Path) -> None:
    device = pjrt.export(pjrt.StableHloClient, name="mine")
    library = _Place(device, "", {}, None).write(tmp_path, adapter, copy=True, relocatable=True)
    (plugin,) = (library.parent / "pjrt").iterdir()
    assert stated(library)["plugin"] == f"pjrt/{plugin.name}"
    assert sys.prefix.encode() not in plugin.read_bytes()


def make_client() -> pjrt.Client:
    return pjrt.client("reference")


def test_a_plugin_of_export(tmp_path: Path, adapter: Path) -> None:
    place = _Place(pjrt.export(make_client, name="mine"), "", {}, None)
    found = stated(place.write(tmp_path, adapter))
    assert found["device"] == "MINE"
    assert Path(found["plugin"]).parent == tmp_path


@pytest.mark.parametrize(("device", "name"), [("cpu", "PJRT"), ("reference", "REFERENCE")])
def test_names_that_tensorflow_has_itself_are_not_used(device: str, name: str) -> None:
    assert _Place(device, "", {}, None).name == name


@pytest.mark.parametrize("name", ["MY_CPU", "GPU2", "small", "1A", "A B"])
def test_a_name_that_tensorflow_cannot_use(name: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="expected a name of capital letters"):
        _Place("reference", name, {}, None)


@pytest.mark.parametrize(
    ("value", "reason"), [({"a": 1}, "expected text, a number, true or false"), ("a\tb", "cannot state a tab")]
)
def test_an_option_that_the_adapter_cannot_state(tmp_path: Path, adapter: Path, value: object, reason: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=reason):
        _Place("reference", "", {"text": value}, None).write(tmp_path, adapter)


def test_a_client_of_this_process_is_refused() -> None:
    with pjrt.client("reference") as client, pytest.raises(pjrt.InvalidArgumentError, match="would never answer"):
        _Place(client, "", {}, None)  # type: ignore[arg-type]


def test_without_tensorflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for call in (
        lambda: tensorflow.register("reference"),
        tensorflow.build,
        lambda: tensorflow.write_plugin(tmp_path, "reference"),
    ):
        with pytest.raises(pjrt.NotFoundError, match="pip install tensorflow-cpu"):
            call()
    done = command("tensorflow", "build")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install tensorflow-cpu" in done.stderr


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "nothing --of-this-name")
    with pytest.raises(pjrt.NotFoundError, match=r"needs a C\+\+ compiler once"):
        _compiler()
    other = tmp_path / "clang++"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    assert _compiler() == ["clang++"]
    monkeypatch.setenv("CXX", f"{other} -v")
    assert _compiler() == [str(other), "-v"]


def test_memory_of_a_device_that_is_not_registered() -> None:
    with pytest.raises(pjrt.NotFoundError, match="expected a device that register has made"):
        tensorflow.memory_stats("NOWHERE:0")
