"""Messages: values of several kinds as bytes, for another process.

A message is the length of a header, the header, and the bytes of the arrays. The header is JSON. The values that it
describes are numbers, strings, bytes, lists, tuples, dictionaries and arrays; nothing in it is code.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, InvalidArgumentError
from pjrt.host.collectives import Bytes
from pjrt.host.device_memory.allocation import Allocation, on_host
from pjrt.host_memory.array import HostArray, array_dtype

_ALIGNMENT = 64


def pack(value: Any) -> Bytes:
    """Return a value as bytes.

    Raises:
        InvalidArgumentError: the value has a part of a kind that cannot be sent.
    """
    arrays: list[HostArray] = []
    described = json.dumps(_describe(value, arrays), separators=(",", ":")).encode()
    parts: list[Bytes] = [np.frombuffer(len(described).to_bytes(8, "little") + described, np.uint8)]
    position = len(parts[0])
    for array in arrays:
        padding = -position % _ALIGNMENT
        if padding:
            parts.append(_ZEROS[:padding])
        parts.append(array.reshape(-1).view(np.uint8))
        position += padding + array.nbytes
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def unpack(message: Bytes) -> Any:
    """Return the value in the bytes of ``pack``; its arrays are read-only views of them.

    Raises:
        DataLossError: the bytes are damaged.
    """
    try:
        length = int.from_bytes(message[:8].tobytes(), "little")
        described = json.loads(message[8 : 8 + length].tobytes())
        return _Reader(message, 8 + length).value(described)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataLossError(f"a message of another process is damaged: {error}") from error


_ZEROS = np.zeros(_ALIGNMENT, np.uint8)
_PLAIN = (bool, int, float, str, type(None))


def _describe(value: Any, arrays: list[HostArray]) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, Allocation):
        value = on_host(value)
    if isinstance(value, list | tuple):
        return {
            type(value).__name__ if type(value) in (list, tuple) else "tuple": [_describe(v, arrays) for v in value]
        }
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: _describe(each, arrays) for name, each in value.items()}}
    if isinstance(value, bytes):
        arrays.append(np.frombuffer(value, np.uint8))
        return {"bytes": len(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, np.ndarray | np.generic):
        element = ElementType.of(value.dtype)
        # In the byte order of this machine; a number becomes an array of one dimension.
        arrays.append(np.ascontiguousarray(value, array_dtype(element)))
        return {"array": [element.name, list(np.shape(value))]}
    raise InvalidArgumentError(
        "expected arrays, numbers, strings, bytes, lists, tuples or dictionaries as values for another process, found "
        f"{type(value).__name__}"
    )


class _Reader:
    def __init__(self, message: Bytes, position: int) -> None:
        self._message, self._position = message, position

    def value(self, described: Any) -> Any:
        if not isinstance(described, dict):
            return described
        ((kind, contents),) = described.items()
        if kind in ("list", "tuple"):
            values = [self.value(each) for each in contents]
            return values if kind == "list" else tuple(values)
        if kind == "dict":
            return {name: self.value(each) for name, each in contents.items()}
        if kind == "bytes":
            return self._take(contents).tobytes()
        if kind == "complex":
            return complex(*contents)
        element, shape = contents
        dtype = array_dtype(ElementType[element])
        array = self._take(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize).view(dtype).reshape(shape)
        array.flags.writeable = False
        return array

    def _take(self, size: int) -> Bytes:
        begin = self._position + (-self._position % _ALIGNMENT)
        if begin + size > len(self._message):
            raise DataLossError(f"expected {begin + size} bytes or more, found {len(self._message)}")
        self._position = begin + size
        return self._message[begin : begin + size]
