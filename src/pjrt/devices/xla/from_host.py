"""From the host's memory to a buffer: what each of the host buffer semantics means here."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pjrt.api.checks import expect_array, expect_callable, unexpected
from pjrt.api.future import Future
from pjrt.api.host_buffer_semantics import HostBufferSemantics
from pjrt.api.layout import Layout, TiledLayout
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.buffer import XlaBuffer, waiting
from pjrt.devices.xla.errors import converted
from pjrt.devices.xla.future import nothing
from pjrt.host_memory.aligned import HostArray
from pjrt.host_memory.external import notify_owner
from pjrt.host_memory.layout import order_of

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient
    from pjrt.devices.xla.memory_space import XlaMemorySpace

ALIGNMENT = 64
"""XLA uses memory of the host in place only if it begins at a multiple of this many bytes; otherwise it copies."""

_SEMANTICS = {
    HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL: _jaxlib.COPY_DURING_CALL,
    HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES: _jaxlib.COPY_LATER,
    HostBufferSemantics.IMMUTABLE_ZERO_COPY: _jaxlib.ZERO_COPY,
    # XLA never writes to memory that it was lent: a donation of such a buffer makes a new one. So being allowed to
    # write changes nothing.
    HostBufferSemantics.MUTABLE_ZERO_COPY: _jaxlib.ZERO_COPY,
}


def buffer_from_host(
    client: XlaClient,
    array: Any,
    space: XlaMemorySpace,
    layout: Layout | None,
    semantics: HostBufferSemantics,
    on_done: Callable[[], object] | None,
) -> XlaBuffer:
    """A buffer with a host array's value."""
    given = _host_array(array)
    kind = client.row_major_type(given.shape, given.dtype, space)
    if type(semantics) is not HostBufferSemantics:
        raise unexpected(semantics, "one of pjrt.HostBufferSemantics as semantics")
    jaxlib_semantics = _SEMANTICS[semantics]
    if on_done is not None:
        expect_callable(on_done, "a function, or None, as on_done_with_host_buffer")
    if layout is not None:
        order = TiledLayout(order_of(layout, given.shape, kind.element_type)[::-1])
        if not order.is_row_major:
            buffer = client.relaid(_put(given, kind, _jaxlib.COPY_DURING_CALL), order)
            _tell(on_done)
            return buffer
    if on_done is None:
        return _put(given, kind, jaxlib_semantics)
    if semantics is HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL:
        buffer = _put(given, kind, jaxlib_semantics)
        _tell(on_done)
        return buffer
    if semantics is HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES:
        buffer = _put(given, kind, jaxlib_semantics)
        waiting(buffer.array, client, nothing).add_done_callback(lambda _: _tell(on_done))
        return buffer
    return _lent(client, given, kind, on_done)


class LentBuffer(XlaBuffer):
    """A buffer over memory of the host whose owner is told when it is not used any more."""

    __slots__ = ("_release",)

    def __init__(self, array: _jaxlib.Array, array_type: ArrayType, release: Release) -> None:
        super().__init__(array, array_type)
        self._release = release

    def hold(self) -> XlaBuffer:
        return XlaBuffer(self.source(), self.type)

    def delete(self) -> None:
        super().delete()
        self._release.look()

    def __del__(self) -> None:
        release = getattr(self, "_release", None)
        if release is not None and not sys.is_finalizing():
            self.array = None
            release.look()


class Release(Future[None]):
    """Done when jaxlib does not hold the lent memory any more.

    jaxlib holds a numpy array; that array's end is the sign. It may come late: an execution under way may still read
    the memory when the buffer is gone, and jaxlib drops what it does not need any more only when it is called again.
    """

    __slots__ = ("_client",)

    def __init__(self, client: XlaClient, lent: HostArray, on_done: Callable[[], object]) -> None:
        super().__init__()
        self._client = client
        weakref.finalize(lent, self._released, on_done).atexit = False

    def look(self) -> None:
        """Sees whether the memory is released now, and if not, has it looked after."""
        if not self.done():
            self._client.watcher.watch(self)

    def _poll(self) -> None:
        _jaxlib.collect_released()

    def _released(self, on_done: Callable[[], object]) -> None:
        _tell(on_done)
        self._complete(None)


def _lent(client: XlaClient, given: HostArray, kind: ArrayType, on_done: Callable[[], object]) -> XlaBuffer:
    lent = given.view()
    release = Release(client, lent, on_done)
    buffer = LentBuffer(_put_array(lent, kind, _jaxlib.ZERO_COPY), kind, release)
    del lent
    if not shares_memory(buffer, given):
        # XLA made a copy after all: the owner is told when that is done.
        waiting(buffer.array, client, nothing).add_done_callback(lambda _: release.look())
    return buffer


def shares_memory(buffer: XlaBuffer, array: HostArray) -> bool:
    """Whether a buffer uses an array's memory in place."""
    return buffer.array is not None and _jaxlib.pointer(buffer.array) == array.ctypes.data


def _host_array(array: Any) -> HostArray:
    given: HostArray = array if type(array) is np.ndarray else expect_array(array)
    if not given.dtype.isnative:
        given = given.astype(given.dtype.newbyteorder("="))
    return given


def _put(given: HostArray, kind: ArrayType, semantics: Any) -> XlaBuffer:
    return XlaBuffer(_put_array(given, kind, semantics), kind)


def _put_array(given: HostArray, kind: ArrayType, semantics: Any) -> _jaxlib.Array:
    try:
        return _jaxlib.put(given, kind.aval, kind.memory_space, semantics)
    except Exception as error:
        raise converted(error) from error


def _tell(on_done: Callable[[], object] | None) -> None:
    if on_done is not None:
        notify_owner(on_done)
