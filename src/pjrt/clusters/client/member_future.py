"""Futures of members' results: their errors name the device, its host and its process."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from pjrt.api.errors import DeadlineExceededError
from pjrt.api.future import Future

if TYPE_CHECKING:
    from pjrt.clusters.client.device import ClusterDevice

T = TypeVar("T")


class MemberFuture(Future[T]):
    """A result of a member's client, whose error gets the name of the device.

    Args:
        inner: the member's future.
        device: the device that it is about.
    """

    __slots__ = ("_device", "_inner")

    def __init__(self, inner: Future[T], device: ClusterDevice) -> None:
        super().__init__()
        self._inner = inner
        self._device = device
        self.need(inner)

    def _poll(self) -> None:
        if self._inner.done():
            self._settle(self._inner)

    def _block(self, timeout: float | None) -> None:
        with contextlib.suppress(DeadlineExceededError):
            self._inner.exception(timeout)
        self._poll()

    def _watch(self) -> None:
        self._inner.add_done_callback(self._settle)

    def _settle(self, inner: Future[Any]) -> None:
        error = inner.exception()
        if error is None:
            self._complete(inner.result())
        else:
            self._complete(None, self._device.named(error))
