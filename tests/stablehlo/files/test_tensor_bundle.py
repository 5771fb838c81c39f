"""Checkpoints that TensorFlow wrote (see ``data/generate_saved_models.py``), and their damage."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from protobuf_fields import bytes_field, varint_field

from pjrt import DataLossError, NotFoundError, PjrtError, UnimplementedError
from pjrt.stablehlo.files.saved_model import TensorBundle

VARIABLES = Path(__file__).parents[1] / "data" / "saved_model" / "variables"
MAGIC = bytes.fromhex("57fb808b247547db")


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """A copy of a checkpoint with two variables."""
    shutil.copytree(VARIABLES, tmp_path / "variables")
    return tmp_path / "variables" / "variables"


def test_the_tensors_are_mapped_from_their_file(prefix: Path) -> None:
    bundle = TensorBundle(prefix)
    assert bundle.keys == (
        "_CHECKPOINTABLE_OBJECT_GRAPH",
        "parameters/0/.ATTRIBUTES/VARIABLE_VALUE",
        "parameters/1/.ATTRIBUTES/VARIABLE_VALUE",
    )
    weight = bundle.array(bundle.keys[1])
    assert isinstance(weight, np.memmap)
    np.testing.assert_array_equal(weight, np.arange(12, dtype=np.float32).reshape(4, 3))
    assert bundle.array(bundle.keys[2]).tolist() == [1, 2, 3]


def test_what_is_not_there(prefix: Path) -> None:
    bundle = TensorBundle(prefix)
    with pytest.raises(NotFoundError, match=r"expected one of the tensors _CHECK.*, found 'bias'"):
        bundle.array("bias")
    with pytest.raises(UnimplementedError, match="of numbers, found slices or another type"):
        bundle.array(bundle.keys[0])
    next(prefix.parent.glob("*.data-*")).unlink()
    with pytest.raises(NotFoundError, match=r"variables\.data-00000-of-00001"):
        bundle.array(bundle.keys[1])
    with pytest.raises(NotFoundError, match=r"other\.index"):
        TensorBundle(prefix.with_name("other"))


def test_a_truncated_file(prefix: Path) -> None:
    data = next(prefix.parent.glob("*.data-*"))
    data.write_bytes(data.read_bytes()[:20])
    with pytest.raises(DataLossError, match=r"truncated checkpoint: .* ends at byte 48 of 20"):
        TensorBundle(prefix).array("parameters/0/.ATTRIBUTES/VARIABLE_VALUE")
    prefix.with_suffix(".index").write_bytes(b"short")
    with pytest.raises(DataLossError, match=r"variables\.index: expected the index of a checkpoint, found 5 bytes"):
        TensorBundle(prefix)


def table(*entries: tuple[bytes, bytes], compression: int = 0) -> bytes:
    """Return an index with these entries in one block."""

    def block(pairs: list[tuple[bytes, bytes]], kind: int) -> bytes:
        content = b"".join(bytes([0, len(key), len(value)]) + key + value for key, value in pairs)
        return content + bytes(4) + (1).to_bytes(4, "little") + bytes([kind]) + bytes(4)

    data = block(list(entries), compression)
    index = block([(b"~", bytes([0, len(data) - 5]))], 0)
    footer = bytes([0, 0, len(data), len(index) - 5])
    return data + index + footer.ljust(40, b"\0") + MAGIC


HEADER = (b"", varint_field(1, 1))


def entry(size: int = 8, shard: int = 0, offset: int = 0) -> tuple[bytes, bytes]:
    """Return the entry of a tensor of two ``f32``."""
    shape = bytes_field(2, bytes_field(2, varint_field(1, 2)))
    place = varint_field(3, shard) + varint_field(4, offset) + varint_field(5, size)
    return b"x", varint_field(1, 1) + shape + place


@pytest.mark.parametrize(
    ("index", "kind", "message"),
    [
        (table(HEADER, compression=1), UnimplementedError, "an index that is not compressed"),
        (table((b"", varint_field(1, 1) + varint_field(2, 1))), UnimplementedError, "found a big-endian one"),
        (table(HEADER, (b"x", b"\xff")), DataLossError, "its index holds no entry"),
        (table(HEADER, entry(size=7)), DataLossError, "and has 7 bytes"),
        (table(HEADER, entry(shard=4)), DataLossError, "in part 4 of 1"),
        (table(HEADER, entry(offset=1 << 62)), DataLossError, "truncated"),
        (table((b"", varint_field(1, 1 << 62)), entry()), DataLossError, "in part 0 of"),
    ],
)
def test_what_is_corrupt(prefix: Path, index: bytes, kind: type[PjrtError], message: str) -> None:
    prefix.with_suffix(".index").write_bytes(index)
    with pytest.raises(kind, match=message):
        TensorBundle(prefix).array("x")


def test_an_array_without_elements(prefix: Path) -> None:
    empty = bytes_field(2, bytes_field(2, b""))
    prefix.with_suffix(".index").write_bytes(table(HEADER, (b"x", varint_field(1, 9) + empty)))
    array = TensorBundle(prefix).array("x")
    assert (array.shape, array.dtype) == ((0,), np.int64)


def test_damage_is_an_error(prefix: Path) -> None:
    draw = random.Random(0)
    sound = prefix.with_suffix(".index").read_bytes()
    for _ in range(1000):
        damaged = bytearray(sound)
        for _ in range(draw.choice((1, 3, 20))):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        prefix.with_suffix(".index").write_bytes(damaged)
        try:
            bundle = TensorBundle(prefix)
            for key in bundle.keys:
                bundle.array(key)
        except PjrtError as error:
            assert isinstance(error, DataLossError | NotFoundError | UnimplementedError)  # noqa: PT017
