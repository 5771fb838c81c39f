"""Files of arrays: those of safetensors are mapped, not read."""

from __future__ import annotations

import json
import mmap
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt
from pjrt.models.inputs import arrays_by_name, arrays_in

ARRAYS = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b['x']": np.array([1, 2, 3], ml_dtypes.bfloat16),
    "flag": np.array(True),
    "empty": np.zeros((0, 4), np.int8),
}


def write(path: Path) -> bytes:
    from safetensors.numpy import save_file

    save_file(ARRAYS, path, metadata={"format": "np"})
    return path.read_bytes()


def test_arrays_of_safetensors_stay_in_the_file(tmp_path: Path) -> None:
    write(tmp_path / "w.safetensors")
    arrays = arrays_by_name(tmp_path / "w.safetensors")
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype
    base = arrays["a"]
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, mmap.mmap)
    assert not arrays["a"].flags.writeable


def test_inputs_are_copied_out_of_the_file(tmp_path: Path) -> None:
    """A process that reads a mapped file ends when the file has become shorter."""
    path = tmp_path / "w.safetensors"
    write(path)
    arrays = arrays_in(str(path), str(path))
    path.write_bytes(b"")
    for name, array in ARRAYS.items():
        assert not isinstance(arrays[name], np.memmap)
        np.testing.assert_array_equal(arrays[name], array)


def test_arrays_of_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", a=ARRAYS["a"])
    np.testing.assert_array_equal(arrays_by_name(tmp_path / "w.npz")["a"], ARRAYS["a"])


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("w.npz", b"PK\x03\x04 no archive", pjrt.DataLossError, "not a readable .npz file"),
        ("w.safetensors", b"", pjrt.DataLossError, "its header would have 0 bytes"),
        ("w.safetensors", b"\xff" * 20, pjrt.DataLossError, "not a readable .safetensors file: its header would have"),
        ("w.safetensors", (2).to_bytes(8, "little") + b"[]", pjrt.DataLossError, "not a readable"),
        ("w.bin", b"123", pjrt.InvalidArgumentError, "expected a .npy, .npz or .safetensors file"),
    ],
)
def test_other_files_are_errors(
    name: str, content: bytes, error: type[Exception], message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message):
        arrays_by_name(tmp_path / name)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(pjrt.NotFoundError, match="expected a file of arrays"):
        arrays_by_name(tmp_path / "none.npz")


def test_an_array_beyond_the_file(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    (tmp_path / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(pjrt.DataLossError, match="an array at the bytes 0 to 16 of 8"):
        arrays_by_name(tmp_path / "w.safetensors")


@given(data=st.data())
@settings(max_examples=60)
def test_a_damaged_file_is_an_error_or_has_arrays(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    content = bytearray(write(folder / "w.safetensors"))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "w.safetensors").write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        arrays = arrays_by_name(folder / "w.safetensors")
    except pjrt.DataLossError:
        return
    assert all(isinstance(array, np.ndarray) for array in arrays.values())
