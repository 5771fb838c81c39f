"""Arrays of several devices, taken apart only when they must be, and the sources of arguments that come from them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from pjrt.api.future import Future
from pjrt.devices.xla import _jaxlib

Source = Any
"""The origin of an array that a buffer or an argument has: the array itself, a ``Part``, or a future of either."""


class Shards:
    """An array with a shard on each of several devices.

    jaxlib takes some ten microseconds a shard to take it apart, and most results go whole into the next execution.

    Args:
        array: the array of all devices.
        device_ids: the ids of the devices, also of those of other processes, in the array's order.

    Attributes:
        array: the array of all devices.
        device_ids: the ids of the devices.
    """

    __slots__ = ("_parts", "array", "device_ids")

    _lock = threading.Lock()

    def __init__(self, array: _jaxlib.Array, device_ids: Sequence[int] = ()) -> None:
        self.array = array
        self.device_ids = device_ids
        self._parts: list[_jaxlib.Array] | None = None

    def part(self, index: int) -> _jaxlib.Array:
        """Return the array of one device."""
        if self.array.is_deleted():
            return self.array
        if self._parts is None:
            with Shards._lock:
                if self._parts is None:
                    self._parts = _jaxlib.shards(self.array)
        return self._parts[index]

    @property
    def is_apart(self) -> bool:
        """Whether the array was taken apart, so that a part of it may be in use."""
        return self._parts is not None


class Part:
    """One device's place in ``Shards``: its index among the devices of this process."""

    __slots__ = ("index", "shards")

    def __init__(self, shards: Shards, index: int) -> None:
        self.shards = shards
        self.index = index


def array_of(source: Source) -> _jaxlib.Array:
    """Return the array behind a source that is available."""
    if isinstance(source, Future):
        source = source.result()
    if isinstance(source, Part):
        return source.shards.part(source.index)
    return source


def arrays_in_use(source: Source) -> list[_jaxlib.Array]:
    """Return the arrays through which the memory behind an available source may be in use."""
    if isinstance(source, Future):
        source = source.result()
    if not isinstance(source, Part):
        return [source]
    whole = source.shards.array
    return [whole, array_of(source)] if source.shards.is_apart else [whole]


def gathered(column: Sequence[Source], device_ids: Sequence[int], aval: _jaxlib.Aval, sharding: Any) -> _jaxlib.Array:
    """Return the array of all devices from one available source for each device of this process."""
    column = [source.result() if isinstance(source, Future) else source for source in column]
    first = column[0]
    # The devices of this process can be those of both arrays, although one of them has shards in other processes, too.
    same = isinstance(first, Part) and (first.shards.device_ids is device_ids or first.shards.device_ids == device_ids)
    if same and all(
        isinstance(source, Part) and source.shards is first.shards and source.index == number
        for number, source in enumerate(column)
    ):
        return first.shards.array
    return _jaxlib.assembled([array_of(source) for source in column], aval, sharding)
