"""Buffers that are one device's part of the result of an execution on several devices."""

from __future__ import annotations

from pjrt.api.future import Future
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.buffer import XlaBuffer
from pjrt.devices.xla.future import nothing, when_ready
from pjrt.devices.xla.shards import Part, Shards, Source


class ShardBuffer(XlaBuffer):
    """One device's part of a result, which is taken apart only when its array is needed."""

    __slots__ = ("_part",)

    def __init__(self, part: Part, array_type: ArrayType) -> None:
        self._part: Part | None = part
        self.type = array_type

    @property
    def array(self) -> _jaxlib.Array | None:  # type: ignore[override]  # the slot of the base class is not used
        """The array of this device."""
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
        source = self.source()
        self._part = Part(Shards(_jaxlib.DONATED), 0)
        return source

    def ready(self) -> Future[None]:
        # All parts of a result are ready together, so the whole array can be asked, and stays whole.
        return when_ready(self.source().shards.array, self.type.runtime.watcher, nothing)
