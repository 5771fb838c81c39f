"""Alias buffers: buffers that become an alias of another buffer later."""

from __future__ import annotations

import sys
from collections.abc import Callable

from pjrt.api.buffer import AliasFulfillment, Buffer
from pjrt.api.checks import expect
from pjrt.api.errors import FailedPreconditionError, InternalError, InvalidArgumentError, PjrtError
from pjrt.api.future import Future
from pjrt.api.shape_spec import ShapeSpec, TiledLayout, expect_spec
from pjrt.host.buffer import HostBuffer
from pjrt.host.device import HostDevice
from pjrt.host.memory_space import HostMemorySpace
from pjrt.host.storage import Storage
from pjrt.host.storage_aliases import follow
from pjrt.host_memory.array import order_and_layout


class HostAliasFulfillment(AliasFulfillment):
    """Names, once, the buffer that an alias buffer is an alias of; dropping it before that fails the alias."""

    __slots__ = ("_space", "_spec", "_storage")

    def __init__(self, space: HostMemorySpace, spec: ShapeSpec, storage: Storage) -> None:
        self._space = space
        self._spec = spec
        # ``None`` when the alias has its buffer or its error.
        self._storage: Storage | None = storage

    def fulfill(self, buffer: Buffer) -> None:
        if not isinstance(buffer, HostBuffer) or buffer.memory_space is not self._space:
            raise InvalidArgumentError(f"an alias in {self._space} cannot stand for {buffer!r}: not the same memory")
        spec = self._spec
        if (buffer.shape, buffer.element_type) != (spec.shape, spec.element_type):
            raise InvalidArgumentError(f"the alias is a {spec}, the buffer a {buffer.described}")
        if (spec.layout or TiledLayout.row_major(len(spec.shape))) != buffer.layout:
            raise InvalidArgumentError(f"the alias has the layout {spec.layout}, the buffer {buffer.layout}")
        source = buffer.use()
        if source is self._storage:
            raise InvalidArgumentError("an alias cannot stand for itself")
        follow(self._take_storage(), source)

    def fail(self, error: PjrtError) -> None:
        expect(error, PjrtError, "an error as pjrt.PjrtError")
        self._take_storage().definition._complete(None, error)

    def abandon(self, error: PjrtError) -> None:
        """Fail the alias if it has no buffer yet."""
        storage, self._storage = self._storage, None
        if storage is not None:
            storage.definition._complete(None, error)

    def _take_storage(self) -> Storage:
        storage, self._storage = self._storage, None
        if storage is None:
            raise FailedPreconditionError("the alias has its buffer or its error already, or its client was closed")
        return storage

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Bound as a default, because the names of the module may be gone at the end of the interpreter.
        if getattr(self, "_storage", None) is not None and not is_finalizing():
            self.abandon(InternalError("the alias buffer got no buffer: its fulfillment was dropped"))


def alias_buffer(
    device: HostDevice, space: HostMemorySpace, spec: ShapeSpec
) -> tuple[HostBuffer, HostAliasFulfillment]:
    """Return a buffer that becomes an alias of another, and the fulfillment that names that buffer."""
    expect_spec(spec)
    storage = Storage(Future())
    _, layout = order_and_layout(spec.layout, spec.shape, spec.element_type)
    plain = ShapeSpec(spec.shape, spec.element_type, layout)
    buffer = device.client.buffer_type(device, space, spec.shape, spec.element_type, storage, layout)
    return buffer, HostAliasFulfillment(space, plain, storage)
