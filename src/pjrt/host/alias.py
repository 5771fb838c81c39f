"""Alias buffers: buffers that will stand for another, as soon as somebody says for which."""

from __future__ import annotations

from pjrt.api.buffer import Buffer
from pjrt.api.client import AliasFulfillment
from pjrt.api.errors import FailedPreconditionError, InternalError, InvalidArgumentError, PjrtError
from pjrt.api.future import Future
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host.buffer import HostBuffer
from pjrt.host.device import HostDevice
from pjrt.host.layout import order_of, tiled
from pjrt.host.memory_space import HostMemorySpace
from pjrt.host.storage import Storage


class HostAliasFulfillment(AliasFulfillment):
    """Says, once, what an alias buffer stands for; dropping it unsaid fails the alias."""

    __slots__ = ("_device", "_said", "_space", "_spec", "_storage")

    def __init__(self, device: HostDevice, space: HostMemorySpace, spec: ShapeSpec, storage: Storage) -> None:
        self._device = device
        self._space = space
        self._spec = spec
        self._storage = storage
        self._said = False

    def fulfill(self, buffer: Buffer) -> None:
        if not isinstance(buffer, HostBuffer) or buffer.memory_space is not self._space:
            raise InvalidArgumentError(f"an alias in {self._space} cannot stand for {buffer!r}: not the same memory")
        if (buffer.shape, buffer.element_type) != (self._spec.shape, self._spec.element_type):
            raise InvalidArgumentError(f"the alias is a {self._spec}, the buffer a {buffer.described}")
        if self._spec.layout is not None and order_of(
            self._spec.layout, self._spec.shape, self._spec.element_type
        ) != order_of(buffer.layout, buffer.shape, buffer.element_type):
            raise InvalidArgumentError(f"the alias has the layout {self._spec.layout}, the buffer {buffer.layout}")
        source = buffer.use()
        if source is self._storage:
            raise InvalidArgumentError("an alias cannot stand for itself")
        self._say()
        follow(self._storage, source)

    def fail(self, error: PjrtError) -> None:
        self._say()
        self._storage.definition._complete(None, error)

    def abandon(self, error: PjrtError) -> None:
        """Fails the alias if nothing was said yet."""
        if not self._said:
            self.fail(error)

    def _say(self) -> None:
        if self._said:
            raise FailedPreconditionError("what the alias stands for was said already")
        self._said = True

    def __del__(self) -> None:
        if not getattr(self, "_said", True):
            self._storage.definition._complete(
                None, InternalError("nobody said what this alias buffer stands for: its fulfillment was dropped")
            )


def alias(device: HostDevice, space: HostMemorySpace, spec: ShapeSpec) -> tuple[HostBuffer, HostAliasFulfillment]:
    """A buffer that will stand for another, and what says for which."""
    storage = Storage(Future())
    order = None if spec.layout is None else order_of(spec.layout, spec.shape, spec.element_type)
    layout = None if order is None else tiled(order)
    buffer = HostBuffer(device, space, spec.shape, spec.element_type, storage, layout)
    return buffer, HostAliasFulfillment(device, space, spec, storage)


def follow(storage: Storage, source: Storage) -> None:
    """Gives a storage the array of another as soon as that has it; both see the same memory then."""

    def pass_on(_: Future[None]) -> None:
        error = source.definition._error
        if error is None:
            storage.keep = source
            storage.mutable = source.mutable
            storage.array = source.array
        storage.definition._complete(None, error)

    source.definition.add_done_callback(pass_on)
