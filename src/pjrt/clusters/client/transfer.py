"""Transfers to a cluster's devices in pieces: each manager is one of a member's client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pjrt.api.buffer import AsyncHostToDeviceTransferManager
from pjrt.api.device import Attributes
from pjrt.api.errors import PjrtError
from pjrt.api.future import Future
from pjrt.clusters.client.buffer import ClusterBuffer
from pjrt.clusters.client.member_future import MemberFuture

if TYPE_CHECKING:
    from pjrt.clusters.client.device import ClusterDevice


class ClusterTransferManager(AsyncHostToDeviceTransferManager):
    """Fills new buffers of one device in pieces.

    Args:
        inner: the manager of the member's client.
        device: the device.
    """

    __slots__ = ("_device", "_inner")

    def __init__(self, inner: AsyncHostToDeviceTransferManager, device: ClusterDevice) -> None:
        self._inner = inner
        self._device = device

    @property
    def device(self) -> ClusterDevice:
        return self._device

    @property
    def buffer_count(self) -> int:
        return self._inner.buffer_count

    def buffer_size(self, index: int) -> int:
        return self._inner.buffer_size(index)

    def retrieve_buffer(self, index: int) -> ClusterBuffer:
        return ClusterBuffer(self._inner.retrieve_buffer(index), self._device)

    def transfer_data(self, index: int, data: Any, offset: int = 0, *, is_last_transfer: bool = True) -> Future[None]:
        try:
            future = self._inner.transfer_data(index, data, offset, is_last_transfer=is_last_transfer)
        except PjrtError as error:
            self._device.fail(error)
        return MemberFuture(future, self._device)

    def transfer_literal(self, index: int, array: Any) -> Future[None]:
        try:
            return MemberFuture(self._inner.transfer_literal(index, array), self._device)
        except PjrtError as error:
            self._device.fail(error)

    def set_buffer_error(self, index: int, error: PjrtError) -> None:
        self._inner.set_buffer_error(index, error)

    def add_metadata(self, metadata: Attributes) -> None:
        self._inner.add_metadata(metadata)

    def close(self) -> None:
        self._inner.close()
