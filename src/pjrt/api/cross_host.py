"""Transfers between processes: buffers that another process fills (the CrossHostTransfers extension)."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pjrt.api.future import Future

if TYPE_CHECKING:
    from pjrt.api.buffer import Buffer


class CrossHostReceive(abc.ABC):
    """Buffers that wait for values from another process (``MakeCrossHostReceiveBuffers``)."""

    __slots__ = ("__weakref__",)

    @property
    @abc.abstractmethod
    def buffers(self) -> Sequence[Buffer]:
        """The buffers; they get their values from the sender."""

    @property
    @abc.abstractmethod
    def descriptors(self) -> Future[Sequence[bytes]]:
        """For each buffer the bytes that the sender passes to ``Buffer.copy_to_remote_device``."""

    @abc.abstractmethod
    def cancel(self, index: int, reason: str) -> Future[None]:
        """Stop waiting for one buffer, which fails with ``CANCELLED`` and the reason.

        Returns:
            A future that is done when the sender can be informed.
        """
