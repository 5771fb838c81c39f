"""Weights in saved executables: arguments whose values are in the file, behind the executable's bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError

Weights = Mapping[int, np.ndarray[Any, Any]]
"""Arrays by their positions among the arguments of the program."""


def facts_of(weights: Weights, code_size: int) -> dict[str, Any]:
    """Return the facts of a header that describe weights.

    Args:
        weights: the weights.
        code_size: the number of bytes in front of them.
    """
    described = [
        [position, ElementType.of(array.dtype).name, list(array.shape)] for position, array in sorted(weights.items())
    ]
    return {"weights": described, "code_size": code_size}


def is_facts(value: Any) -> bool:
    """Whether a value of a header describes weights."""
    return isinstance(value, list) and all(map(_is_weight, value))


def _is_weight(value: Any) -> bool:
    match value:
        case [int(position), str(kind), list(shape)]:
            return (
                position >= 0
                and kind in ElementType.__members__
                and ElementType[kind] not in (ElementType.INVALID, ElementType.TOKEN)
                and all(type(size) is int and 0 <= size < 1 << 62 for size in shape)
            )
    return False


def bytes_of(weights: Weights) -> list[bytes | memoryview]:
    """Return the bytes of weights, in the order of their positions: row-major, a byte at least for each element."""
    return [np.ascontiguousarray(array).tobytes() for _, array in sorted(weights.items())]


def split(header: Mapping[str, Any], content: bytes, source: str) -> tuple[bytes, Weights]:
    """Return an executable's bytes and its weights, which share the memory of ``content``.

    Args:
        header: the header of the file.
        content: the bytes behind the header.
        source: their origin, for messages.

    Raises:
        DataLossError: the sizes in the header are not those of the bytes.
    """
    described: Sequence[Any] = header.get("weights", ())
    if not described:
        return content, {}
    begin = header.get("code_size", -1)
    weights: dict[int, np.ndarray[Any, Any]] = {}
    for position, name, shape in described:
        dtype, count = ElementType[name].dtype, math.prod(shape)
        end = begin + count * dtype.itemsize
        if not 0 <= begin <= end <= len(content) or position in weights:
            raise _damaged(source)
        array = np.frombuffer(content, dtype, count, begin) if count else np.zeros(0, dtype)
        weights[position] = array.reshape(shape)
        begin = end
    if begin != len(content):
        raise _damaged(source)
    return content[: header["code_size"]], weights


def _damaged(source: str) -> DataLossError:
    return DataLossError(
        f"{source}: the saved executable is damaged: its weights are not of the sizes in its header; compile and save "
        "it again"
    )
