"""Transfers in pieces, for devices whose new buffers are filled in memory of the host."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from pjrt.api.buffer import AsyncHostToDeviceTransferManager, Buffer
from pjrt.api.checks import expect, expect_array, expect_int
from pjrt.api.device import Attributes
from pjrt.api.element_type import ElementType
from pjrt.api.errors import CancelledError, InvalidArgumentError, OutOfRangeError, PjrtError
from pjrt.api.shape_spec import ShapeSpec
from pjrt.host_memory.array import HostArray

B_co = TypeVar("B_co", bound=Buffer, covariant=True)


class Filling(Protocol[B_co]):
    """One buffer that is being filled."""

    @property
    def spec(self) -> ShapeSpec:
        """The type of the buffer."""

    def retrieve(self) -> B_co:
        """Return the buffer, once."""

    def fail(self, error: PjrtError) -> None:
        """Fail the buffer with an error."""

    def abandon(self, error: PjrtError) -> None:
        """Fail the buffer unless it has its last piece."""


F = TypeVar("F", bound=Filling[Buffer])


class TransferManager(AsyncHostToDeviceTransferManager, Generic[F]):
    """Fills new buffers in pieces; a subclass copies the pieces.

    Args:
        fillings: the buffers.
    """

    __slots__ = ("_fillings", "_metadata")

    def __init__(self, fillings: Sequence[F]) -> None:
        self._metadata: dict[str, Any] = {}
        self._fillings = fillings

    @property
    def buffer_count(self) -> int:
        return len(self._fillings)

    @property
    def metadata(self) -> Attributes:
        """The facts that ``add_metadata`` has added."""
        return dict(self._metadata)

    @abc.abstractmethod
    def retrieve_buffer(self, index: int) -> Buffer: ...

    def set_buffer_error(self, index: int, error: PjrtError) -> None:
        self.filling(index).fail(expect(error, PjrtError, "an error as pjrt.PjrtError"))

    def add_metadata(self, metadata: Attributes) -> None:
        self._metadata.update(expect(metadata, Mapping, "metadata as a mapping of values by name"))

    def close(self) -> None:
        self.abandon(CancelledError("the transfer manager was closed before the buffer got its last piece of data"))

    def abandon(self, error: PjrtError) -> None:
        """Fail the buffers that have not got all their data."""
        for filling in self._fillings:
            filling.abandon(error)

    def filling(self, index: int) -> F:
        """Return the buffer with a number.

        Raises:
            OutOfRangeError: there is none.
        """
        if not 0 <= expect_int(index, "the number of a buffer") < len(self._fillings):
            raise OutOfRangeError(f"there is no buffer {index}, the transfer manager has {len(self._fillings)}")
        return self._fillings[index]

    def literal(self, index: int, array: Any) -> HostArray:
        """Return an array that is the value of a buffer.

        Raises:
            InvalidArgumentError: it has another shape or element type than the buffer.
        """
        spec, source = self.filling(index).spec, expect_array(array)
        if source.shape != spec.shape or ElementType.of(source.dtype) is not spec.element_type:
            raise InvalidArgumentError(
                f"buffer {index}: expected an array of {spec}, found {source.dtype}{list(source.shape)}"
            )
        return source
