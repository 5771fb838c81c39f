"""The buffers of the host runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.buffer import Buffer
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.api.future import Future
from pjrt.api.layout import Layout, TiledLayout
from pjrt.api.memory_space import MemorySpace
from pjrt.host.layout import array_dtype, order_of
from pjrt.host.storage import Array, Storage, copied

if TYPE_CHECKING:
    from pjrt.host.client import HostClient
    from pjrt.host.device import HostDevice
    from pjrt.host.memory_space import HostMemorySpace


class HostBuffer(Buffer):
    """An array in the memory of this process, which may come later."""

    __slots__ = ("_device", "_element_type", "_layout", "_shape", "_space", "_storage")

    def __init__(
        self,
        device: HostDevice,
        space: HostMemorySpace,
        shape: tuple[int, ...],
        element_type: ElementType,
        storage: Storage,
        layout: TiledLayout | None = None,
    ) -> None:
        self._device = device
        self._space = space
        self._shape = shape
        self._element_type = element_type
        self._layout = layout
        self._storage: Storage | None = storage

    # What it is.

    @property
    def client(self) -> HostClient:
        return self._device.client

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def element_type(self) -> ElementType:
        return self._element_type

    @property
    def layout(self) -> TiledLayout:
        return TiledLayout.row_major(len(self._shape)) if self._layout is None else self._layout

    @property
    def on_device_size(self) -> int:
        size = array_dtype(self._element_type).itemsize
        for extent in self._shape:
            size *= extent
        return size

    @property
    def device(self) -> HostDevice:
        return self._device

    @property
    def memory_space(self) -> HostMemorySpace:
        return self._space

    @property
    def is_on_cpu(self) -> bool:
        return True

    # Its life.

    @property
    def is_deleted(self) -> bool:
        return self._storage is None

    def delete(self) -> None:
        self._storage = None

    def use(self) -> Storage:
        """The storage, for work that is about to use the value.

        Raises:
            FailedPreconditionError: the buffer was deleted or donated, or its client is closed.
        """
        storage = self._storage
        if storage is None:
            raise FailedPreconditionError(
                f"the buffer {self.described} was deleted or donated; make a new one, or name the argument in "
                "non_donatable_input_indices to keep it"
            )
        if self._device._client._closed:
            raise FailedPreconditionError(f"the client of the buffer {self.described} was closed")
        return storage

    def ready(self) -> Future[None]:
        return self.use().definition

    # To the host.

    def to_host(self, out: Array | None = None, *, layout: Layout | None = None) -> Future[Array]:
        storage = self.use()
        order = None if layout is None else order_of(layout, self._shape, self._element_type)
        if out is not None:
            return self._copy_out(storage, out)
        if order is None or order == order_of(self.layout, self._shape, self._element_type):
            return storage.definition.then(lambda _: _view(storage))
        dtype = array_dtype(self._element_type)
        return self._transfer(storage, lambda array: copied(array, dtype, order))

    def _copy_out(self, storage: Storage, out: Array) -> Future[Array]:
        dtype = array_dtype(self._element_type)
        if out.shape != self._shape or out.dtype != dtype or not out.flags.writeable:
            writable = "" if out.flags.writeable else " read-only"
            raise InvalidArgumentError(
                f"expected a writable array of {dtype}{list(self._shape)} to copy to, found a{writable} one of "
                f"{out.dtype}{list(out.shape)}"
            )

        def copy(array: Array) -> Array:
            np.copyto(out, array)
            return out

        return self._transfer(storage, copy)

    def copy_to(self, destination: Device | MemorySpace) -> Buffer:
        from pjrt.host.copying import copy_buffer

        return copy_buffer(self, destination)

    def _transfer(self, storage: Storage, copy: Any) -> Future[Any]:
        from pjrt.host.copying import schedule

        return schedule(self._device, storage, copy)

    @property
    def described(self) -> str:
        """Type and shape, for messages."""
        return f"{self._element_type.name.lower()}[{','.join(map(str, self._shape))}]"


def _view(storage: Storage) -> Array:
    array = storage.array
    assert array is not None
    # A view, not the array itself: of a read-only array's view nobody can make a writable one.
    return array.view()
