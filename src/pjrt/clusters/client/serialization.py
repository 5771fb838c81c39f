"""Saved executables of a cluster: those of its members, one after the other, and equal ones once."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pjrt.api.errors import InvalidArgumentError

_MAGIC = b"pjrt cluster executable 2\n"


def packed(executables: Mapping[int, bytes]) -> bytes:
    """Return the saved executables of members, by the numbers of their processes, as one value.

    Hosts of one kind that have compiled the same programs make equal executables: the value need not grow with them.
    """
    processes: dict[bytes, list[int]] = {}
    for index, blob in executables.items():
        processes.setdefault(blob, []).append(index)
    sizes = [[indices, len(blob)] for blob, indices in processes.items()]
    return b"".join((_MAGIC, json.dumps(sizes).encode(), b"\n", *processes))


def unpacked(serialized: bytes) -> dict[int, bytes]:
    """Return the saved executables that ``packed`` has put into one value.

    Raises:
        InvalidArgumentError: the bytes are something else, or are cut short.
    """
    if not isinstance(serialized, bytes) or not serialized.startswith(_MAGIC):
        raise InvalidArgumentError("expected a saved executable of a cluster, found other bytes")
    header, separator, rest = serialized[len(_MAGIC) :].partition(b"\n")
    try:
        sizes = [([int(i) for i in indices], int(size)) for indices, size in json.loads(header)] if separator else []
    except (ValueError, TypeError):
        sizes = []
    whole = sum(size for _, size in sizes) == len(rest)
    if not sizes or not whole or not all(indices and size >= 0 for indices, size in sizes):
        raise InvalidArgumentError("expected a saved executable of a cluster, found a part of one")
    executables, position = {}, 0
    for indices, size in sizes:
        executables.update(dict.fromkeys(indices, rest[position : position + size]))
        position += size
    return executables
