"""Alias fulfillments: the objects that give an alias buffer the buffer that it stands for."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from pjrt.api.errors import PjrtError

if TYPE_CHECKING:
    from pjrt.api.buffer import Buffer


class AliasFulfillment(abc.ABC):
    """Names, once, the buffer that an alias buffer is an alias of (``PJRT_FulfillAliasBufferCallback``)."""

    __slots__ = ("__weakref__",)

    @abc.abstractmethod
    def fulfill(self, buffer: Buffer) -> None:
        """Give the alias the value of this buffer (``PJRT_Client_FulfillAliasBuffer``).

        Raises:
            InvalidArgumentError: the buffer has another type, layout or memory space than the alias.
            FailedPreconditionError: the alias has its buffer or its error already.
        """

    @abc.abstractmethod
    def fail(self, error: PjrtError) -> None:
        """Fail the alias: waiting for its value raises the error.

        Raises:
            FailedPreconditionError: the alias has its buffer or its error already.
        """
