"""Tensor bundles: the format of TensorFlow's checkpoints, in which a SavedModel has the values of its variables.

``NAME.index`` is a sorted table of LevelDB: for each tensor its type, shape and place. The values are in files such as
``NAME.data-00000-of-00001``, one tensor after the other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, NotFoundError, UnimplementedError
from pjrt.stablehlo.protobuf_wire import varint
from pjrt.stablehlo.reader import reading

_MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER_SIZE = 48
_TRAILER_SIZE = 5  # behind each block: one byte for the compression, four for a checksum
_LONGEST_KEY = 4096
_MOST_SHARDS = 100_000


class TensorBundle:
    """The tensors of a checkpoint.

    Args:
        prefix: the path of its files without their endings.

    Raises:
        NotFoundError: the index does not exist.
        DataLossError: the index is truncated or corrupt.
        UnimplementedError: the index is compressed, or the values are of a machine with another byte order.
    """

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        with reading(prefix.with_suffix(".index")):
            entries = dict(_table(prefix.with_suffix(".index").read_bytes()))
            header = _parsed("Header", entries.pop("", b""))
            if header.is_big_endian:
                raise UnimplementedError("expected a checkpoint of a little-endian machine, found a big-endian one")
            self._num_shards = header.num_shards
            self._entries = {key: _parsed("Entry", content) for key, content in entries.items()}

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the tensors."""
        return tuple(self._entries)

    def array(self, key: str) -> np.ndarray[Any, Any]:
        """Return a tensor, mapped into memory from its file.

        Raises:
            NotFoundError: the checkpoint has no such tensor.
            DataLossError: its file is truncated, or its place is corrupt.
            UnimplementedError: it is saved in slices, or no numbers.
        """
        entry = self._entries.get(key)
        if entry is None:
            raise NotFoundError(f"expected one of the tensors {', '.join(self.keys)[:300]}, found {key!r}")
        element_type = _ELEMENT_TYPES.get(entry.dtype)
        if element_type is None or entry.slices:
            raise UnimplementedError(f"expected the whole tensor {key!r} of numbers, found slices or another type")
        shape, dtype = tuple(dim.size for dim in entry.shape.dims), element_type.dtype
        if any(size < 0 for size in shape) or math.prod(shape) * dtype.itemsize != entry.size:
            raise DataLossError(f"corrupt checkpoint: {key!r} is {shape} of {dtype}, and has {entry.size} bytes")
        if not 0 <= entry.shard < self._num_shards <= _MOST_SHARDS:
            raise DataLossError(f"corrupt checkpoint: {key!r} is in part {entry.shard} of {self._num_shards}")
        file = self._prefix.with_name(f"{self._prefix.name}.data-{entry.shard:05}-of-{self._num_shards:05}")
        with reading(file):
            if entry.offset < 0 or entry.offset + entry.size > file.stat().st_size:
                raise DataLossError(
                    f"truncated checkpoint: {key!r} ends at byte {entry.offset + entry.size} of {file.stat().st_size}"
                )
            if entry.size == 0:
                return np.zeros(shape, dtype)
            return np.memmap(file, dtype, "r", entry.offset, shape)


# The table.


def _table(code: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the keys and values of a sorted table."""
    if len(code) < _FOOTER_SIZE or not code.endswith(_MAGIC):
        raise DataLossError(f"expected the index of a checkpoint, found {len(code)} bytes that do not end like one")
    footer = len(code) - _FOOTER_SIZE
    _, position = _handle(code, footer, len(code))  # of metadata
    left = len(code)
    for _, handle in _entries(code, _handle(code, position, len(code))[0]):
        begin, size = _handle(handle, 0, len(handle))[0]
        left -= size
        if left < 0:
            raise DataLossError("corrupt checkpoint: the blocks of its index overlap")
        for key, value in _entries(code, (begin, size)):
            yield key.decode(errors="replace"), value


def _handle(code: bytes, position: int, end: int) -> tuple[tuple[int, int], int]:
    """Return where a block begins and its size, and the position behind both."""
    begin, position = varint(code, position, end)
    size, position = varint(code, position, end)
    return (begin, size), position


def _entries(code: bytes, handle: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block. A key states how much of the key before it begins with."""
    begin, size = handle
    end = begin + size
    if size < 4 or end + _TRAILER_SIZE > len(code):
        raise DataLossError(f"corrupt checkpoint: a block at the bytes {begin} to {end} of {len(code)}")
    if code[end] != 0:
        raise UnimplementedError("expected a checkpoint with an index that is not compressed")
    end -= 4 + 4 * int.from_bytes(code[end - 4 : end], "little")  # places at which keys begin anew
    key, position = b"", begin
    while position < end:
        shared, position = varint(code, position, end)
        unshared, position = varint(code, position, end)
        length, position = varint(code, position, end)
        stop = position + unshared + length
        if shared > len(key) or stop > end or shared + unshared > _LONGEST_KEY:
            raise DataLossError(f"corrupt checkpoint: an entry of its index at byte {position}")
        key = key[:shared] + code[position : position + unshared]
        yield key, code[position + unshared : stop]
        position = stop


# TensorFlow's messages in it: their fields by number and type.
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Header": {"num_shards": (1, "int64"), "is_big_endian": (2, "int64")},
    "Entry": {
        "dtype": (1, "int64"),
        "shape": (2, "Shape"),
        "shard": (3, "int64"),
        "offset": (4, "int64"),
        "size": (5, "int64"),
        "slices": (7, "[bytes]"),
    },
    "Shape": {"dims": (2, "[Dim]")},
    "Dim": {"size": (1, "int64")},
}

_ELEMENT_TYPES = {
    1: ElementType.F32,
    2: ElementType.F64,
    3: ElementType.S32,
    4: ElementType.U8,
    5: ElementType.S16,
    6: ElementType.S8,
    8: ElementType.C64,
    9: ElementType.S64,
    10: ElementType.PRED,
    14: ElementType.BF16,
    17: ElementType.U16,
    18: ElementType.C128,
    19: ElementType.F16,
    22: ElementType.U32,
    23: ElementType.U64,
    24: ElementType.F8E5M2,
    25: ElementType.F8E4M3FN,
}
"""The element types of TensorFlow's ``DataType`` whose elements are whole bytes."""


def _parsed(name: str, content: bytes) -> Any:
    from google.protobuf.message import DecodeError

    try:
        return _message_classes()[name].FromString(content)
    except DecodeError as error:
        raise DataLossError(f"corrupt checkpoint: its index holds no {name.lower()}: {error}") from error


@functools.cache
def _message_classes() -> dict[str, Any]:
    from pjrt.api.protobuf import message_classes

    return message_classes("pjrt.tensor_bundle", _MESSAGES)
