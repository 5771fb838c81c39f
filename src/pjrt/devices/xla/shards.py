"""Results of executions on several devices: one array of jaxlib's for all devices, taken apart when it must be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pjrt.api.future import Future
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.buffer import Source, XlaBuffer, waiting
from pjrt.devices.xla.future import nothing

T = TypeVar("T")


class Shards:
    """An array with a shard on each of several devices.

    Taking it apart costs jaxlib some ten microseconds a shard, and most results go whole into the next execution.

    Attributes:
        array: the array of all devices.
    """

    __slots__ = ("_parts", "array")

    _lock = threading.Lock()

    def __init__(self, array: _jaxlib.Array) -> None:
        self.array = array
        self._parts: list[_jaxlib.Array] | None = None

    def part(self, index: int) -> _jaxlib.Array:
        """The array of one device."""
        if self.array.is_deleted():
            return self.array
        if self._parts is None:
            with Shards._lock:
                if self._parts is None:
                    self._parts = _jaxlib.shards(self.array)
        return self._parts[index]

    @property
    def is_apart(self) -> bool:
        """Whether the array was taken apart, so that somebody may hold a part of it."""
        return self._parts is not None


class Part:
    """One device's place in ``Shards``."""

    __slots__ = ("index", "shards")

    def __init__(self, shards: Shards, index: int) -> None:
        self.shards = shards
        self.index = index


class ShardBuffer(XlaBuffer):
    """A buffer that is one device's part of a result."""

    __slots__ = ("_part",)

    def __init__(self, part: Part, array_type: ArrayType) -> None:
        self._part: Part | None = part
        self.type = array_type

    @property
    def array(self) -> _jaxlib.Array | None:  # type: ignore[override]  # the slot of the base class is not used
        """The array of this device, which takes the result apart."""
        part = self._part
        return None if part is None else part.shards.part(part.index)

    @property
    def is_deleted(self) -> bool:
        part = self._part
        return part is None or part.shards.array.is_deleted()

    def delete(self) -> None:
        self._part = None

    def source(self) -> Source:
        self.check_usable()
        return self._part

    def consume(self) -> Source:
        taken = self.source()
        self._part = Part(Shards(_jaxlib.DONATED), 0)
        return taken

    def ready(self) -> Future[None]:
        # All parts of a result are ready together, so the whole can be asked, and need not be taken apart.
        self.check_usable()
        return waiting(self.source().shards.array, self.client, nothing)

    def when_there(self, take: Callable[[_jaxlib.Array], T]) -> Future[T]:
        self.check_usable()
        return waiting(self.array, self.client, take)


def array_of(source: Source) -> _jaxlib.Array:
    """The array behind a source that is there."""
    if isinstance(source, Future):
        source = source.result()
    if isinstance(source, Part):
        return source.shards.part(source.index)
    return source


def held(source: Source) -> list[_jaxlib.Array]:
    """The arrays by which somebody may hold the memory behind a source that is there."""
    if isinstance(source, Future):
        source = source.result()
    if not isinstance(source, Part):
        return [source]
    whole = source.shards.array
    return [whole, array_of(source)] if source.shards.is_apart else [whole]


def gathered(column: Sequence[Source], aval: _jaxlib.Aval, sharding: Any) -> _jaxlib.Array:
    """The array of all devices from one source for each."""
    column = [source.result() if isinstance(source, Future) else source for source in column]
    first = column[0]
    if isinstance(first, Part) and all(
        isinstance(source, Part) and source.shards is first.shards and source.index == number
        for number, source in enumerate(column)
    ):
        return first.shards.array
    return _jaxlib.assembled([array_of(source) for source in column], aval, sharding)
